"""Weaves programs for different shapes into one, in which each device takes the branch for its shapes.

All devices must take part in every collective, so the program can't be a single `lax.switch`. It is a
sequence of sections, separated by collectives:

* what all programs have in common, such as an optimizer's update, is computed once, for all devices;
* the rest of a section is a `lax.switch` with one branch per program;
* collectives come between the switches. Their operands have the same shapes in all programs.

The branches of a `lax.switch` return the same shapes, so values that leave a section are padded to the
largest shape, and the next section slices them again.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax

from replicax.execution._numbering import CannotWeave, Name, Numbering, Operation, Program
from replicax.values import pad_to

__all__ = ["weave"]

_Slot = tuple[Name | None, ...]
"""A value's name in each program, or None in programs without such a value."""


def weave(
    programs: Sequence[Program],
    numbering: Numbering,
    index: Any,
    shared: dict[Name, Any],
    own: Sequence[dict[Name, Any]],
) -> list[Any]:
    """The results of `programs[index]`, each padded to the largest of its shapes in all programs.

    Args:
        programs: what the devices compute, all read by `numbering`.
        numbering: knows the types of their values, and the constants.
        index: the program that this device computes; traced.
        shared: the inputs that are the same in all programs.
        own: for each program, its other inputs, which may be padded.

    Raises:
        CannotWeave: the programs do not have the same collectives.
    """
    _check(programs)
    woven = _Woven(programs, numbering, index, {**numbering.constants, **shared}, own)
    slots = list(zip(*(program.results for program in programs), strict=True))
    return woven.run(slots)


def _check(programs: Sequence[Program]) -> None:
    if len({tuple(operation.number for operation in program.collectives) for program in programs}) > 1:
        raise CannotWeave("they make different collectives, or the same ones with different shapes")
    common = _common(programs)
    for operation in itertools.chain(*(program.operations for program in programs)):
        if operation.hides_collectives and operation.number not in common:
            raise CannotWeave(
                "a loop or a branch with a collective in it depends on the rows (as it does with sharded "
                "parameters, unless the strategy has gather_again=False)"
            )


def _common(programs: Sequence[Program]) -> set[int]:
    """The numbers of the operations that all programs have."""
    numbers = [{operation.number for operation in program.operations} for program in programs]
    return set.intersection(*numbers)


def _needed(programs: Sequence[Program]) -> set[Name]:
    """The values that the results depend on."""
    needed = {name for program in programs for name in program.results}
    before = -1
    while len(needed) > before:  # a collective's results depend on its operands in all programs
        before = len(needed)
        for operation in (op for program in programs for op in reversed(program.operations)):
            if operation.has_effect or not needed.isdisjoint(operation.outputs):
                needed.update(operation.inputs)
    return needed


def _sliced_to(array: Any, shape: Sequence[int]) -> Any:
    return array if array.shape == tuple(shape) else array[tuple(map(slice, shape))]


def _zeros(shape: Sequence[int], dtype: Any) -> Any:
    if not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jnp.zeros(shape, dtype)
    kinds = []

    def data_of(keys: Any) -> Any:
        kinds.append(jax.random.key_impl(keys))
        return jax.random.key_data(keys)

    data = jax.eval_shape(data_of, jax.ShapeDtypeStruct(shape, dtype))
    return jax.random.wrap_key_data(jnp.zeros(data.shape, data.dtype), impl=kinds[0])


@final
class _Woven:
    """The woven program while it is being traced."""

    def __init__(
        self,
        programs: Sequence[Program],
        numbering: Numbering,
        index: Any,
        values: dict[Name, Any],
        own: Sequence[dict[Name, Any]],
    ) -> None:
        needed, common = _needed(programs), _common(programs)
        live = [
            [op for op in program.operations if op.has_effect or not needed.isdisjoint(op.outputs)]
            for program in programs
        ]
        self._collectives = list(
            zip(*([op for op in ops if op.is_collective] for ops in live), strict=True)
        )
        self._common = [op for op in live[0] if op.number in common and not op.is_collective]
        self._apart = [[op for op in operations if op.number not in common] for operations in live]
        self._num_sections = len(programs[0].collectives) + 1
        self._sections = _sections_of(live)
        self._types, self._index = numbering.types, index
        self._values = values
        """Values that are the same in all programs."""
        self._own = [dict(inputs) for inputs in own]
        """For each program, padded values from before this section."""
        self._chosen: dict[_Slot, Any] = {}
        """Operands of collectives, and results, that differ between programs."""

    def run(self, results: Sequence[_Slot]) -> list[Any]:
        """The values of `results`."""
        operands = itertools.chain(*(_operands(operations) for operations in self._collectives))
        slots = self._slots([slot for slot in (*operands, *results) if len(set(slot)) > 1])
        collectives = {operations[0].section: operations for operations in self._collectives}
        for section in range(self._num_sections):
            self._compute_common(section)
            if slots[section] or any(op.section == section for op in itertools.chain(*self._apart)):
                self._switch(section, slots[section])
            if section in collectives:
                self._communicate(collectives[section])
        return [self._value(slot) for slot in results]

    def _value(self, slot: _Slot) -> Any:
        return jnp.asarray(self._values[slot[0]] if len(set(slot)) == 1 else self._chosen[slot])

    def _compute_common(self, section: int) -> None:
        values = self._values
        for operation in self._common:
            if self._sections[0][operation.outputs[0]] == section:
                results = operation.run([values[name] for name in operation.inputs])
                values.update(zip(operation.outputs, results, strict=True))

    def _communicate(self, operations: Sequence[Operation]) -> None:
        results = operations[0].run(list(map(self._value, _operands(operations))))
        self._values.update(zip(operations[0].outputs, results, strict=True))

    def _switch(self, section: int, slots: Sequence[_Slot]) -> None:
        shapes = list(map(self._shape, slots))
        branches = [
            functools.partial(self._branch, number, section, slots, shapes)
            for number in range(len(self._apart))
        ]
        for slot, value in zip(slots, lax.switch(self._index, branches), strict=True):
            self._chosen[slot] = value
            for own, name in zip(self._own, slot, strict=True):
                own[name] = value

    def _branch(
        self, number: int, section: int, slots: Sequence[_Slot], shapes: Sequence[tuple[int, ...]]
    ) -> list[Any]:
        """What one program computes in a section."""
        computed: dict[Name, Any] = {}

        def read(name: Name) -> Any:
            if name in computed:
                return computed[name]
            if name in self._values:
                return self._values[name]
            return _sliced_to(self._own[number][name], self._types[name].shape)

        for operation in self._apart[number]:
            if operation.section == section:
                results = operation.run(list(map(read, operation.inputs)))
                computed.update(zip(operation.outputs, results, strict=True))
        return [
            _zeros(shape, self._type_of(slot).dtype)
            if slot[number] is None
            else pad_to(jnp.asarray(read(slot[number])), shape)
            for slot, shape in zip(slots, shapes, strict=True)
        ]

    # The values that leave a section.

    def _slots(self, wanted: Sequence[_Slot]) -> dict[int, list[_Slot]]:
        """For each section, the values that its branches return: `wanted` ones and those needed later."""
        slots: dict[int, list[_Slot]] = collections.defaultdict(list)
        for slot in dict.fromkeys(wanted):
            slots[self._section_of(slot)].append(slot)
        later = [self._needed_later(number, wanted) for number in range(len(self._apart))]
        for section in range(self._num_sections):
            known = [{slot[number] for slot in slots[section]} for number in range(len(self._apart))]
            left = [
                [name for name in names if sections[name] == section and name not in returned]
                for names, sections, returned in zip(later, self._sections, known, strict=True)
            ]
            slots[section] += self._paired(left)
        return slots

    def _section_of(self, slot: _Slot) -> int:
        """The section after which all programs have their value."""
        return max(own.get(name, 0) for own, name in zip(self._sections, slot, strict=True))

    def _needed_later(self, number: int, wanted: Sequence[_Slot]) -> list[Name]:
        """The values of one program that a later section needs, in the order of its operations."""
        known = self._sections[number]
        uses = [(name, op.section) for op in self._apart[number] for name in op.inputs]
        uses += [(slot[number], self._section_of(slot)) for slot in wanted]
        crossing = {name for name, section in uses if known.get(name, section) < section}
        made = (name for operation in self._apart[number] for name in operation.outputs)
        return [name for name in made if name in crossing]

    def _paired(self, names: Sequence[Sequence[Name]]) -> Iterator[_Slot]:
        """Values of all programs, paired by dtype and number of axes."""
        groups: dict[Any, list[list[Name]]] = {}
        for number, own in enumerate(names):
            for name in own:
                type_ = self._types[name]
                empty: list[list[Name]] = [[] for _ in names]
                groups.setdefault((len(type_.shape), type_.dtype), empty)[number].append(name)
        for group in groups.values():
            yield from itertools.zip_longest(*group)

    def _type_of(self, slot: _Slot) -> Any:
        return self._types[next(name for name in slot if name is not None)]

    def _shape(self, slot: _Slot) -> tuple[int, ...]:
        """The largest shape of the value in all programs."""
        types = [self._types[name] for name in slot if name is not None]
        if len({(len(type_.shape), type_.dtype) for type_ in types}) > 1:
            raise CannotWeave("they return values with different numbers of axes, or dtypes")
        return tuple(map(max, zip(*(type_.shape for type_ in types), strict=True)))


def _operands(operations: Sequence[Operation]) -> Iterator[_Slot]:
    """The operands of a collective."""
    return zip(*(operation.inputs for operation in operations), strict=True)


def _sections_of(programs: Sequence[Sequence[Operation]]) -> list[dict[Name, int]]:
    """For each program, the first section in which each of its values is known.

    What all programs have is computed once, in the section of the first program that has it.
    """
    own = [
        {name: op.section + op.is_collective for op in operations for name in op.outputs}
        for operations in programs
    ]
    common = set.intersection(*map(set, own))
    earliest = {name: min(sections[name] for sections in own) for name in common}
    return [sections | earliest for sections in own]
