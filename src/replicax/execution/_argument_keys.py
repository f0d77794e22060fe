"""What a compiled program depends on: a key for each argument, and how the keys of two calls differ.

Arrays with the same shape and dtype share a program. Any other argument is a constant of the program, so
its value is part of the key.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.variables import Variable

__all__ = ["cause_of_retrace", "leaf_key", "retrace_warning", "unusable_argument"]


def leaf_key(leaf: Any) -> Any:
    """The properties of an argument that a program depends on."""
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, jnp.result_type(leaf), False
    if isinstance(leaf, float | complex):
        return type(leaf), repr(leaf)  # 0.0 == -0.0, and a NaN is not equal to itself
    return leaf.ref() if isinstance(leaf, Variable) else (type(leaf), leaf)


def unusable_argument(function: Any, leaves: list[Any]) -> str:
    """The error message if one of the arguments can't be part of a key."""

    def usable(leaf: Any) -> bool:
        try:
            hash(leaf_key(leaf))
        except TypeError:
            return False
        return True

    odd = next((leaf for leaf in leaves if not usable(leaf)), None)
    return (
        f"{function!r} got an argument of type {type(odd).__name__}: {_short(odd)}. Arguments of a "
        "compiled step are arrays of numbers, per-replica values, structures of them, or hashable "
        f"constants. {_advice(odd)}"
    )


def _advice(odd: Any) -> str:
    if isinstance(odd, np.ndarray | np.generic):
        return "Devices can't hold text or Python objects, so remove it from the batch first."
    return (
        "Pass a hashable constant instead, such as a tuple or a frozenset, or let the step close over it."
    )


def retrace_warning(function: Any, last: Any, new: Any) -> str:
    """The warning that a call needs another program than the `last` one, with what has changed."""
    return (
        f"{function!r} is traced and compiled again: {cause_of_retrace(last, new)}. Compiling takes "
        "much longer than running a step. Pass Python numbers that change as arrays (`jnp.asarray(x)`), "
        "and keep shapes the same."
    )


def cause_of_retrace(last: Any, new: Any) -> str:
    """What has changed between the keys of two programs."""
    changes: list[str] = []
    if last[0] is not new[0] or last[1][0] != new[1][0]:
        changes.append("it is called under another strategy or in another context")
    if last[1][2] != new[1][2]:
        changes.append("it is called with other settings of JAX (`jax.config` or a `with` block)")
    if last[2] == new[2] and last[1][1] != new[1][1]:
        changes.append("its arguments come from one padded batch rather than several, or vice versa")
    before, after = (dict(zip(_leaf_names(key[2]), key[3:], strict=True)) for key in (last, new))
    changes += [f"{name} is new" for name in after if name not in before]
    changes += [f"{name} is gone" for name in before if name not in after]
    changes += [
        f"{name} was {_show(before[name])} and is {_show(after[name])}"
        for name in after
        if name in before and before[name] != after[name]
    ]
    shown = "; ".join(changes[:_MOST_CHANGES]) or "the structure of its arguments is different"
    more = f"; and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    return f"{shown}{more}"


_MOST_CHANGES = 4


def _leaf_names(treedef: Any) -> list[str]:
    """Names for the leaves of the arguments: "argument 0['x']" or "argument 'rate'"."""
    numbers = treedef.unflatten(range(treedef.num_leaves))
    paths, _ = jax.tree_util.tree_flatten_with_path(numbers)
    return [f"argument {_key(path[1])}{jax.tree_util.keystr(_inside(path))}" for path, _ in paths]


def _inside(path: Any) -> tuple[Any, ...]:
    """The path from an argument to a leaf, without the array inside a per-replica value."""
    return tuple(key for key in path[2:] if not isinstance(key, jax.tree_util.FlattenedIndexKey))


def _key(entry: Any) -> str:
    return str(entry.idx) if hasattr(entry, "idx") else repr(entry.key)


def _show(leaf_key: Any) -> str:
    if isinstance(leaf_key, tuple) and len(leaf_key) == 3:
        return f"{leaf_key[1]}{list(leaf_key[0])}"
    if isinstance(leaf_key, tuple):
        return leaf_key[1] if leaf_key[0] in (float, complex) else _short(leaf_key[1])
    return "another variable"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
