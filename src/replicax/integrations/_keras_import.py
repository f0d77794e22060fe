"""Installs the Keras integration whenever a program imports Keras.

Without the integration, a Keras model created in `strategy.scope()` would silently train on one device. So
`import replicax` installs it at once if Keras has been imported, and otherwise adds a finder to
`sys.meta_path` that installs it right after `import keras`. Importing Replicax never imports Keras.

Keras on another backend, or in an unsupported release, works as usual outside of scopes. Creating a model
or a variable inside a scope raises an error.
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
    """Finds `keras` through the other finders, and wraps its loader to install the integration."""

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
            # Keras' default backend is TensorFlow; for programs that use `replicax.tf` that means JAX.
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
        reason = f"Replicax does not support Keras {version} ({error!r}). Install another version."
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
                f"A Keras {cls.__name__} was created in the scope of {current().strategy!r}, which can't "
                f"distribute it. {reason}"
            ) from cause
        return new(cls) if new is object.__new__ else new(cls, *args, **kwargs)

    return __new__
