"""The functions of `jax.lax` that take an axis name.

Eager replicas replace them, because `psum` of a concrete array binds no primitive that could be
intercepted.
"""

from __future__ import annotations

import importlib
from types import FunctionType
from typing import Any

import jax

from replicax._jax._access import private
from replicax._jax._traces import is_axis_bound

__all__ = ["wrap_collectives"]

_COLLECTIVES = (
    *("psum", "pmean", "pmax", "pmin", "all_gather", "all_to_all", "psum_scatter", "ppermute"),
    *("pshuffle", "pswapaxes", "axis_index", "axis_size"),
)


def wrap_collectives(wrap: FunctionType) -> None:
    """Replace the collectives `jax.lax.NAME` with `wrap(NAME, collective)`."""
    # Errors and profiles should name the line that called the collective, not one in the wrapper.
    private("source_info_util", "register_exclusion")(wrap.__code__.co_filename)
    psum, parallel = private("lax.parallel", "psum"), importlib.import_module("jax._src.lax.parallel")
    private("lax.parallel", "_axis_size")
    for name in _COLLECTIVES:
        wrapped = wrap(name, private("lax.parallel", name))
        for module in (jax.lax, parallel):
            setattr(module, name, wrapped)

    def axis_size(axis_name: Any, axis_index_groups: Any = None, /) -> Any:
        names = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
        add = psum if all(map(is_axis_bound, names)) else parallel.psum
        return add(1, axis_name, axis_index_groups=axis_index_groups)

    # JAX's own collectives compute an axis size as a psum of ones, which must stay a Python number.
    parallel._axis_size = axis_size  # pyright: ignore[reportAttributeAccessIssue]
