"""Installs the Keras integration whenever a program imports Keras.

Without the integration a Keras model that is made in `strategy.scope()` would train on one device and say
nothing. So `import replicax` installs it if Keras is there already, and otherwise puts a finder on
`sys.meta_path` that installs it right after `import keras`. Neither imports Keras by itself.

Keras on another backend, or in a release that the integration does not know, works as before outside of
scopes. Inside one, making a model or a variable raises.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, final

from replicax.contexts import current, has_strategy
from replicax.errors import ContextError

__all__ = ["install_with_keras"]


def install_with_keras() -> None:
    """Install the integration now if Keras was imported, otherwise when it is."""
    keras = sys.modules.get("keras")
    if keras is None:
        sys.meta_path.insert(0, _KerasFinder())
    else:
        _install(keras)


@final
class _KerasFinder:
    """Finds `keras` as the other finders do, with a loader that installs the integration afterwards."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "keras":
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = _InstallingLoader(spec.loader)
            spec.loader = loader
        return spec


@final
class _InstallingLoader:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        if "replicax.tf" in sys.modules:
            # What stands in for TensorFlow there is JAX; Keras' own default is TensorFlow.
            os.environ.setdefault("KERAS_BACKEND", "jax")
        self._loader.exec_module(module)
        _install(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _install(keras: ModuleType) -> None:
    try:
        importlib.import_module("replicax.integrations.keras")
    except ImportError as error:
        _refuse_in_scopes(keras, str(error), error)
    except Exception as error:  # `import keras` must not fail in programs that use no strategies
        version = getattr(keras, "__version__", "of an unknown release")
        reason = (
            f"Keras {version} has other internals than Replicax knows ({error!r}). Install another release."
        )
        _refuse_in_scopes(keras, reason, error)


def _refuse_in_scopes(keras: ModuleType, reason: str, cause: Exception) -> None:
    for name in ("Model", "Variable"):
        if (kind := getattr(keras, name, None)) is not None:
            kind.__new__ = staticmethod(_refusing(kind.__new__, reason, cause))


def _refusing(new: Callable[..., Any], reason: str, cause: Exception) -> Callable[..., Any]:
    @functools.wraps(new)
    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        if has_strategy():
            raise ContextError(
                f"A Keras {cls.__name__} was made in the scope of {current().strategy!r}, which can't "
                f"distribute it. {reason}"
            ) from cause
        return new(cls) if new is object.__new__ else new(cls, *args, **kwargs)

    return __new__
