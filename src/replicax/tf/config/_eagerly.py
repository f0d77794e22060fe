"""`tf.config.run_functions_eagerly`, which sets `jax_disable_jit`."""

from __future__ import annotations

import jax

__all__ = ["functions_run_eagerly", "run_functions_eagerly"]


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Run functions as plain Python, so that breakpoints work; sets `jax_disable_jit`.

    >>> from replicax import tf
    >>> tf.config.run_functions_eagerly(True)
    >>> tf.function(lambda x: type(x).__name__)(1.0)
    'float'
    >>> tf.config.run_functions_eagerly(False)
    """
    jax.config.update("jax_disable_jit", bool(run_eagerly))


def functions_run_eagerly() -> bool:
    """Whether functions run as plain Python."""
    return bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]
