"""Value numbering: finds the computations that several programs have in common.

The programs are traces of one replica function for different numbers of rows. A value has the same name in
two programs if both compute it with the same operation from values of the same names. So values that depend
on the rows have different names, and values that depend only on variables, constants and the results of
collectives have the same. The k-th collective is the same one in all programs, whatever the replicas
contribute, because they wait for each other there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import (
    called_program,
    has_effect,
    hides_collectives,
    is_array_type,
    is_collective,
    is_literal,
    is_tracer,
    run_collective,
    run_equation,
)

__all__ = ["CannotWeave", "Name", "Numbering", "Operation", "Program"]

Name = Any
"""The name of a value; hashable."""

_MAX_COMPARED = 4096
"""Constants of up to this many bytes are compared by content, larger ones by identity."""


class CannotWeave(BaseException):
    """One program can't serve replicas of different shapes; the message says why.

    Not an `Exception`, so that user code does not catch it.
    """


class Operation(NamedTuple):
    """An operation of a program."""

    number: int
    """Its number, the same in all programs that have this operation."""
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    section: int
    """The number of collectives before it."""
    is_collective: bool
    hides_collectives: bool
    """Whether it is a loop or a branch with collectives in it."""
    has_effect: bool
    run: Callable[[Sequence[Any]], Sequence[Any]]


class Program(NamedTuple):
    """A program as a list of operations, without duplicates."""

    operations: list[Operation]
    results: list[Name]

    @property
    def collectives(self) -> list[Operation]:
        return [operation for operation in self.operations if operation.is_collective]


@final
class Numbering:
    """Names the values of programs.

    Args:
        differentiated: whether the programs may be differentiated later.
    """

    def __init__(self, *, differentiated: bool = False) -> None:
        self.differentiated = differentiated
        self._numbers: dict[Any, int] = {}
        self.constants: dict[Name, Any] = {}
        self.types: dict[Name, Any] = {}
        """The shape and dtype of each value."""

    def read(self, traced: Any, inputs: Sequence[Name]) -> Program:
        """The program that `jax.make_jaxpr` has traced, for inputs with these names."""
        self.types.update(zip(inputs, (v.aval for v in traced.jaxpr.invars), strict=True))
        reading = _Reading(self)
        results = reading.results(traced.jaxpr, traced.consts, inputs)
        return Program(reading.operations, results)

    def number(self, key: Any) -> int:
        """The number of the operation that `key` describes."""
        return self._numbers.setdefault(key, len(self._numbers))

    def constant(self, value: Any, type_: Any) -> Name:
        """The name of a constant."""
        name = ("constant", _content(value, type_))
        self.constants.setdefault(name, value)
        self.types.setdefault(name, type_)
        return name


@final
class _Reading:
    """Lists the operations of one program, including those of the functions that it calls."""

    def __init__(self, numbering: Numbering) -> None:
        self.operations: list[Operation] = []
        self._numbering = numbering
        self._seen: set[int] = set()
        self._section = 0

    def results(self, jaxpr: Any, consts: Iterable[Any], inputs: Iterable[Name]) -> list[Name]:
        constant = self._numbering.constant
        names: dict[Any, Name] = dict(zip(jaxpr.invars, inputs, strict=True))
        names.update((v, constant(x, v.aval)) for v, x in zip(jaxpr.constvars, consts, strict=True))

        def name(atom: Any) -> Name:
            return constant(atom.val, atom.aval) if is_literal(atom) else names[atom]

        for equation in jaxpr.eqns:
            given = list(map(name, equation.invars))
            called = self._called(equation)
            outputs = self._add(jaxpr, equation, given) if called is None else self.results(*called, given)
            names.update(zip(equation.outvars, outputs, strict=True))
        return list(map(name, jaxpr.outvars))

    def _called(self, equation: Any) -> tuple[Any, Sequence[Any]] | None:
        """The function that an equation calls and its constants; None if it stays an operation."""
        if not self._numbering.differentiated:
            return called_program(equation)
        name = equation.primitive.name
        # The backward pass of a custom_vjp may have collectives, which must not be in a branch.
        if name == "custom_vjp_call" or (name == "custom_jvp_call" and hides_collectives(equation)):
            raise CannotWeave(
                "the step differentiates them, and they use functions with custom derivatives"
            )
        return None if name == "custom_jvp_call" else called_program(equation)

    def _add(self, jaxpr: Any, equation: Any, inputs: list[Name]) -> tuple[Name, ...]:
        number = self._numbering.number(self._key(equation, inputs))
        outputs = tuple((number, i) for i in range(len(equation.outvars)))
        if number not in self._seen:
            self._seen.add(number)
            self._note_types(outputs, equation)
            self.operations.append(self._operation(jaxpr, equation, number, inputs, outputs))
        self._section += is_collective(equation)
        return outputs

    def _operation(
        self, jaxpr: Any, equation: Any, number: int, inputs: list[Name], outputs: tuple[Name, ...]
    ) -> Operation:
        run = functools.partial(run_equation, jaxpr, equation)
        if is_collective(equation):
            run = functools.partial(run_collective, equation)
        return Operation(
            number,
            tuple(inputs),
            outputs,
            section=self._section,
            is_collective=is_collective(equation),
            hides_collectives=hides_collectives(equation),
            has_effect=has_effect(equation),
            run=run,
        )

    def _key(self, equation: Any, inputs: list[Name]) -> Any:
        if has_effect(equation):
            return object()  # side effects must happen as often as in the program, so it is never shared
        what = (equation.primitive, _frozen(equation.params))
        if not is_collective(equation):
            return (*what, *inputs)
        types = [self._numbering.types[name] for name in inputs]
        return ("collective", self._section, *what, *((x.shape, x.dtype) for x in types))

    def _note_types(self, outputs: Sequence[Name], equation: Any) -> None:
        for name, variable in zip(outputs, equation.outvars, strict=True):
            if not is_array_type(variable.aval):
                raise CannotWeave("they use mutable arrays")
            self._numbering.types[name] = variable.aval


def _content(value: Any, type_: Any) -> Any:
    """A key that is equal for equal constants."""
    is_key = jnp.issubdtype(type_.dtype, jax.dtypes.extended)
    if is_tracer(value) or is_key or type_.size * type_.dtype.itemsize > _MAX_COMPARED:
        return id(value)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return id(value)
    return type_.shape, type_.dtype, type_.weak_type, np.asarray(value, type_.dtype).tobytes()


def _frozen(value: Any) -> Any:
    """A hashable key that is equal for equal parameters of operations."""
    if hasattr(value, "jaxpr") and hasattr(value, "consts"):
        consts = zip(value.consts, value.jaxpr.constvars, strict=True)
        return _frozen_program(value.jaxpr), tuple(_content(x, v.aval) for x, v in consts)
    if hasattr(value, "eqns"):
        return _frozen_program(value)
    if isinstance(value, dict):
        return tuple((key, _frozen(value[key])) for key in sorted(value, key=str))
    if type(value) in (list, tuple):
        return type(value), tuple(map(_frozen, value))
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    if isinstance(value, float | complex | np.generic):
        return type(value), repr(value)  # 0.0 == -0.0
    try:
        hash(value)
    except TypeError:
        return object()
    return type(value), value


def _frozen_program(jaxpr: Any) -> Any:
    """A hashable form of the jaxpr of a loop or a branch, with numbers in place of variables."""
    numbers: dict[Any, int] = {}

    def atom(x: Any) -> Any:
        return _content(x.val, x.aval) if is_literal(x) else (numbers.setdefault(x, len(numbers)), x.aval)

    def atoms(xs: Sequence[Any]) -> Any:
        return tuple(map(atom, xs))

    head = atoms((*jaxpr.constvars, *jaxpr.invars))
    body = tuple((e.primitive, atoms(e.invars), _frozen(e.params), atoms(e.outvars)) for e in jaxpr.eqns)
    return head, body, atoms(jaxpr.outvars)
