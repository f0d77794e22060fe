"""Initial values in the form of a jaxpr, computed where the variable is placed.

An array has to exist before it can be sharded. A jaxpr can be compiled so that each device computes only
its own part. That makes it possible to create variables that would not fit on one device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_tracer, run_program
from replicax.topology import ReplicaMesh
from replicax.variables._layout import Layout

__all__ = ["TracedValue", "trace_value", "traced_results"]

_programs: weakref.WeakKeyDictionary[Layout, dict[str, Any]] = weakref.WeakKeyDictionary()
"""Compiled programs. Layers with the same shapes share a program, and call it with different arguments."""

_MAX_COPIED_BYTES = 1 << 26


@final
class TracedValue:
    """One result of a program.

    Args:
        jaxpr: a program without constants and with only this result.
        args: its arguments.
    """

    def __init__(self, jaxpr: Any, args: Sequence[Any]) -> None:
        self._jaxpr, self.args = jaxpr, list(args)
        (result,) = jaxpr.outvars
        self.shape: tuple[int, ...] = result.aval.shape
        self.dtype: Any = result.aval.dtype

    def computed(self) -> Any:
        """The value as one array."""
        return run_program(self._jaxpr, self.args)[0]

    def placed(self, layout: Layout) -> Any:
        """The array of a variable with this layout; if it is sharded, each device computes its part."""
        mesh = layout.mesh
        if mesh is None or not layout.has_value_on_mesh:
            return jnp.copy(layout.place(self.computed()))
        if not layout.is_split and (filled := self._filled()) is not None:
            return jax.device_put(filled, layout.sharding(mesh), may_alias=False)
        return self.program(layout)([x if _is_on(mesh, x) else mesh.replicate(x) for x in self.args])

    def _filled(self) -> np.ndarray | None:
        """The value if it is a small array filled with one number: faster to copy than to compile."""
        match self._jaxpr.eqns:
            case [fill] if fill.primitive.name == "broadcast_in_dim" and hasattr(fill.invars[0], "val"):
                array = np.broadcast_to(np.asarray(fill.invars[0].val, self.dtype), self.shape)
                return array if array.nbytes <= _MAX_COPIED_BYTES else None
            case _:
                return None

    def program(self, layout: Layout) -> Any:
        """The compiled function that computes the array from `args`, on every device or in parts."""
        mesh = layout.mesh
        assert mesh is not None
        compiled, key = _programs.setdefault(layout, {}), str(self._jaxpr)
        if key not in compiled:
            jaxpr, padded = self._jaxpr, layout.padded

            def compute(args: list[Any]) -> Any:
                (value,) = run_program(jaxpr, args)
                return padded(value)

            compiled[key] = jax.jit(compute, out_shardings=layout.sharding(mesh))
        return compiled[key]


def _is_on(mesh: ReplicaMesh, array: Any) -> bool:
    return isinstance(array, jax.Array) and array.sharding.device_set == set(mesh.mesh.devices.flat)


def trace_value(fn: Callable[[], Any], dtype: Any, name: str) -> Any:
    """What `fn` returns: a `TracedValue` if JAX computes it, else the value itself."""
    results: list[Any] = []

    def arrays_only() -> Any:
        results.append(fn())
        return [jnp.asarray(results[0], dtype)] if is_tracer(results[0]) else []

    try:
        program = jax.make_jaxpr(arrays_only)()
    except Exception as error:
        error.add_note(
            f"The variable {name!r} is created with shape= and a function, so that each device computes "
            "only its part of the value. JAX traces the function, as jax.jit does. Leave out shape= to "
            "call the function instead and shard its value afterwards."
        )
        raise
    traced = traced_results(program, ())
    return traced[0] if traced else results[0]


def traced_results(program: Any, args: Sequence[Any]) -> list[Any]:
    """Each result of a traced program (`jax.make_jaxpr`) as a separate value."""
    jaxpr = program.jaxpr
    given = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*program.consts, *args), strict=True))
    made_by = {v: number for number, equation in enumerate(jaxpr.eqns) for v in equation.outvars}

    def result(variable: Any) -> Any:
        if hasattr(variable, "val"):
            return np.asarray(variable.val, variable.aval.dtype)
        if variable in given:
            return given[variable]
        alone = _only(jaxpr, variable, made_by)
        return TracedValue(alone, [given[v] for v in alone.invars])

    return list(map(result, jaxpr.outvars))


def _only(jaxpr: Any, result: Any, made_by: dict[Any, int]) -> Any:
    """The part of a program that one result depends on; constants become arguments.

    `made_by` has the index of the equation that computes each value.
    """
    needed, equations, open_ends = {result}, set[int](), [result]
    while open_ends:
        number = made_by.get(open_ends.pop())
        if number is None or number in equations:
            continue
        equations.add(number)
        inputs = [v for v in jaxpr.eqns[number].invars if not hasattr(v, "val")]
        needed.update(inputs)
        open_ends += inputs
    return jaxpr.replace(
        constvars=[],
        invars=[v for v in (*jaxpr.constvars, *jaxpr.invars) if v in needed],
        outvars=[result],
        eqns=[jaxpr.eqns[number] for number in sorted(equations)],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
