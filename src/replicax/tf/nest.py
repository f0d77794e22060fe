"""`tf.nest`: structures of lists, tuples, named tuples and dicts.

None, variables and distributed values are leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax.tf._missing import refuse
from replicax.values import Leaf

__all__ = ["assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as"]


def _is_leaf(value: Any) -> bool:
    return value is None or isinstance(value, Leaf) or not _is_container(value)


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | dict)


def is_nested(structure: Any) -> bool:
    """Whether `structure` is a list, a tuple or a dict.

    >>> from replicax import tf
    >>> tf.nest.is_nested([1]), tf.nest.is_nested(1)
    (True, False)
    """
    return _is_container(structure)


def flatten(structure: Any, expand_composites: bool = False) -> list[Any]:
    """The leaves of a structure, with dicts sorted by key.

    >>> from replicax import tf
    >>> tf.nest.flatten({"b": 1, "a": (2, None)})
    [2, None, 1]
    """
    _refuse_composites(expand_composites)
    return jax.tree.leaves(structure, is_leaf=_is_leaf)


def map_structure(
    func: Callable[..., Any], *structure: Any, check_types: bool = True, expand_composites: bool = False
) -> Any:
    """Apply `func` to the leaves of a structure, or to the matching leaves of several.

    >>> from replicax import tf
    >>> tf.nest.map_structure(lambda x, y: x + y, [1, 2], [10, 20])
    [11, 22]
    """
    _refuse_composites(expand_composites)
    if not structure:
        raise ValueError("tf.nest.map_structure needs at least one structure.")
    first, *others = structure
    for other in others:
        assert_same_structure(first, other, check_types)
    lists = [flatten(one) for one in structure]
    return pack_sequence_as(first, [func(*leaves) for leaves in zip(*lists, strict=True)])


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any], expand_composites: bool = False) -> Any:
    """Arrange `flat_sequence` in the form of `structure`.

    >>> from replicax import tf
    >>> tf.nest.pack_sequence_as({"a": 0, "b": (0, 0)}, [1, 2, 3])
    {'a': 1, 'b': (2, 3)}
    """
    _refuse_composites(expand_composites)
    treedef = jax.tree.structure(structure, is_leaf=_is_leaf)
    if treedef.num_leaves != len(flat_sequence):
        raise ValueError(
            f"tf.nest.pack_sequence_as: the structure has {treedef.num_leaves} leaves, but the sequence "
            f"has {len(flat_sequence)}."
        )
    return treedef.unflatten(flat_sequence)


def assert_same_structure(
    nest1: Any, nest2: Any, check_types: bool = True, expand_composites: bool = False
) -> None:
    """Raise unless both have the same structure.

    Raises:
        TypeError: the types of containers differ, and `check_types` is set.
        ValueError: the number of items or the keys differ.
    """
    _refuse_composites(expand_composites)
    _compare(nest1, nest2, check_types, "the structure")


def _compare(first: Any, second: Any, check_types: bool, where: str) -> None:
    if _is_container(first) != _is_container(second):
        raise ValueError(f"tf.nest: {where} is {first!r} here and {second!r} there.")
    if not _is_container(first):
        return
    if check_types and type(first) is not type(second):
        raise TypeError(
            f"tf.nest: {where} is a {type(first).__name__} here and a {type(second).__name__} there."
        )
    parts, others = _parts(first), _parts(second)
    if parts.keys() != others.keys():
        raise ValueError(f"tf.nest: {where} has the parts {list(parts)} here and {list(others)} there.")
    for key, part in parts.items():
        _compare(part, others[key], check_types, f"{where}[{key!r}]")


def _parts(container: Any) -> dict[Any, Any]:
    return container if isinstance(container, dict) else dict(enumerate(container))


def _refuse_composites(expand_composites: bool) -> None:
    if expand_composites:
        raise ValueError(
            "tf.nest(expand_composites=True): Replicax has no composite tensors; leave it out."
        )


__getattr__ = refuse("tf.nest", dict.fromkeys(("map_structure_up_to", "flatten_up_to"), "`jax.tree.map`"))
