"""Traced and lowered programs: their equations, inputs and collectives.

Programs for replicas of different shapes are woven into one, equation by equation, and a trace that has
found a step's variables becomes the step's program.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir

from replicax._jax._access import private, unsupported
from replicax._jax._arrays import ShapedArray
from replicax._jax._traces import is_tracer

__all__ = [
    "Primitive",
    "at_source_of",
    "called_program",
    "constants_in",
    "has_effect",
    "hides_collectives",
    "inputs_of",
    "is_collective",
    "is_literal",
    "num_consts_and_carry",
    "operations_of",
    "plain",
    "program_of",
    "run_collective",
    "run_equation",
    "run_program",
    "staged",
    "unknown",
    "with_source_lines",
]

# Public as jax.extend.core.Primitive, but importing that takes as long as importing all of Replicax.
Primitive = private("core", "Primitive")
_Literal = private("core", "Literal")
_Jaxpr = private("core", "Jaxpr")
_ClosedJaxpr = private("core", "ClosedJaxpr") if jax.__version_info__ < (0, 11) else _Jaxpr
_eval_jaxpr = private("core", "eval_jaxpr")
_jaxprs_in = private("core", "jaxprs_in_params")
_NamedAxisEffect = private("core", "NamedAxisEffect")
_without_dead_code = private("interpreters.partial_eval", "dce_jaxpr")
_weakly_cached = private("util", "weakref_lru_cache")
_source_context = private("source_info_util", "user_context")
_frames_in_programs = private("config", "traceback_in_locations_limit")
_lines_in_cache_keys = private("config", "compilation_cache_include_metadata_in_key")


def run_program(jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr without constants."""
    return _eval_jaxpr(jaxpr, (), *inputs)


def run_equation(jaxpr: Any, equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate one equation of `jaxpr`."""
    values = {v: x for v, x in zip(equation.invars, inputs, strict=True) if not is_literal(v)}
    alone = jaxpr.replace(
        constvars=[],
        invars=list(values),
        outvars=equation.outvars,
        eqns=[equation],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return _eval_jaxpr(alone, (), *values.values())


def is_literal(atom: Any) -> bool:
    """Whether an input of an equation is a constant, with the value `atom.val`, rather than a variable."""
    return isinstance(atom, _Literal)


_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""Primitives that only call a function once derivatives are taken, and the parameter with its jaxpr."""


def called_program(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    """The jaxpr of the function that an equation calls, and its constants; None if it calls none.

    `jax.checkpoint` counts as a call only if collectives would be hidden in it.
    """
    name, parameters = equation.primitive.name, equation.params
    if name in _CALLS:
        try:
            called = parameters[_CALLS[name]]
        except KeyError as error:
            raise unsupported(f"the parameter {_CALLS[name]} of {name}") from error
        return called.jaxpr, called.consts
    is_checkpoint = "prevent_cse" in parameters and "differentiated" in parameters
    return (parameters["jaxpr"], ()) if is_checkpoint and hides_collectives(equation) else None


def constants_in(parameters: dict[str, Any]) -> list[Any]:
    """The constants of the programs among the parameters of an operation, and of programs inside these."""
    found = []
    for value in parameters.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, _ClosedJaxpr | _Jaxpr):
                found += _constants_of(part)
    return found


def _find_constants(program: Any) -> list[Any]:
    try:
        found = [*program.consts] if isinstance(program, _ClosedJaxpr) else []
    except AttributeError as error:
        raise unsupported("ClosedJaxpr.consts") from error
    for equation in program.eqns:
        found += constants_in(equation.params)
    return found


# A tape asks about a program at each of its calls.
_constants_of = _weakly_cached(_find_constants, trace_context_in_key=False)


def is_collective(equation: Any) -> bool:
    """Whether an equation communicates along a mesh axis."""
    is_function = next(iter(_jaxprs_in(equation.params)), None) is not None
    return _uses_axis(equation) and not is_function and equation.primitive.name != "axis_index"


def hides_collectives(equation: Any) -> bool:
    """Whether an equation is a loop, a branch or another function that contains collectives."""
    inside = (inner for body in _jaxprs_in(equation.params) for inner in body.eqns)
    return _uses_axis(equation) and any(is_collective(e) or hides_collectives(e) for e in inside)


def _uses_axis(equation: Any) -> bool:
    return any(isinstance(effect, _NamedAxisEffect) for effect in equation.effects)


def has_effect(equation: Any) -> bool:
    """Whether an equation has side effects, as a callback does."""
    return any(not isinstance(effect, _NamedAxisEffect) for effect in equation.effects)


def run_collective(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate a collective for other `inputs`, which may replace constants."""
    with at_source_of(equation):
        results = equation.primitive.bind(*inputs, **equation.params)
    return results if equation.primitive.multiple_results else [results]


def at_source_of(equation: Any) -> Any:
    """A `with` block in which operations get the source line of `equation`."""
    try:
        return _source_context(equation.source_info.traceback)
    except AttributeError as error:
        raise unsupported("JaxprEqn.source_info.traceback") from error


def num_consts_and_carry(scan_params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's inputs are constants, and how many are carried."""
    if "num_consts" in scan_params:  # JAX 0.10
        return scan_params["num_consts"], scan_params["num_carry"]
    try:
        consts, carry, _ = scan_params["ft_in"].unpack()
        return len(consts), len(carry)
    except (KeyError, AttributeError) as error:
        raise unsupported("the parameters of a scan in a jaxpr") from error


_unknown_p = Primitive("replicax_unknown")
_unknown_p.def_abstract_eval(lambda *, shape, dtype, key: ShapedArray(shape, dtype))


def unknown(shape: tuple[int, ...], dtype: Any, key: int | None = None) -> Any:
    """An array without a value, for a trace that is never run; `jnp.zeros` takes ten times as long.

    `inputs_of` can make it an input of the traced program, identified by `key`.
    """
    return _unknown_p.bind(shape=shape, dtype=dtype, key=key)


def inputs_of(traced: Any) -> tuple[list[int], Callable[[Sequence[Any]], list[Any]]]:
    """The keys of the `unknown` values in a traced program (`jax.make_jaxpr`), and a function that runs it.

    The function takes a list of the unknown values and then the program's own arguments. In another trace
    it adds one call of the program, instead of tracing its operations again.
    """
    jaxpr = traced.jaxpr
    equations = [equation for equation in jaxpr.eqns if equation.primitive is _unknown_p]
    inputs = [equation.outvars[0] for equation in equations]
    program = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *inputs, *jaxpr.invars],
        eqns=[equation for equation in jaxpr.eqns if equation.primitive is not _unknown_p],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    closed = type(traced)(program, [])
    keys = [equation.params["key"] for equation in equations]
    return keys, lambda values: _call_program(closed, [*traced.consts, *values])


def _call_program(closed: Any, operands: Sequence[Any]) -> list[Any]:
    """Stage a call of a program, as a nested `jax.jit` does once it has traced its function."""

    def with_as_many_results(*_: Any) -> list[int]:
        return [0] * len(closed.out_avals)

    (call,) = jax.make_jaxpr(jax.jit(with_as_many_results))(*[0] * len(operands)).jaxpr.eqns
    return call.primitive.bind(*operands, **{**call.params, "jaxpr": closed})


def program_of(traced: Any, results: Sequence[bool]) -> Callable[..., list[Any]] | None:
    """The part of a traced program (`jax.make_jaxpr`) that computes the selected results.

    None if they depend on a value that is `unknown`.
    """
    jaxpr = traced.jaxpr
    pure = jaxpr.replace(eqns=[equation for equation in jaxpr.eqns if equation.outvars])
    needed, _ = _without_dead_code(pure, list(results), instantiate=True)
    if any(equation.primitive is _unknown_p for equation in needed.eqns):
        return None
    return functools.partial(_eval_jaxpr, needed, traced.consts)


def staged(value: Any) -> Any:
    """`value` as a traced array, even if it is a constant; call it in a trace."""
    return value if is_tracer(value) else jax.lax.optimization_barrier(value)


_plain_p = Primitive("replicax_plain")
_plain_p.def_impl(lambda x: x)
_plain_p.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype, weak_type=x.weak_type))
ad.deflinear2(_plain_p, lambda ct, _: [_plain_p.bind(ct)])
batching.defvectorized(_plain_p)
mlir.register_lowering(_plain_p, lambda _, x: [x])


def plain(array: Any) -> Any:
    """The same traced array, with a type that does not mention any mesh.

    The type of an array that came from a mesh names the mesh, and some operations in the body of a
    `shard_map` reject such an array if the body closes over it.
    """
    traced = is_tracer(array) and not jax.numpy.issubdtype(array.dtype, jax.dtypes.extended)
    return _plain_p.bind(array) if traced else array


def operations_of(lowered: jax.stages.Lowered, names: Collection[str]) -> list[tuple[str, list[str]]]:
    """The operations of a lowered program with one of these `names`, and the types of their operands."""
    module, advance = lowered.compiler_ir("stablehlo"), private("lib.mlir", "ir.WalkResult.ADVANCE")
    found: list[tuple[str, list[str]]] = []

    def visit(operation: Any) -> Any:
        if operation.name in names:
            found.append((operation.name, [str(operand.type) for operand in operation.operands]))
        return advance

    try:
        module.operation.walk(visit)  # pyright: ignore[reportOptionalMemberAccess]
    except AttributeError as error:
        raise unsupported("the operations of jax.stages.Lowered.compiler_ir()") from error
    return found


@contextlib.contextmanager
def with_source_lines() -> Iterator[None]:
    """A `with` block in which programs are lowered and compiled with source lines."""
    with _frames_in_programs(100), _lines_in_cache_keys(True):
        yield
