"""The state of one strategy's variables: a list of arrays, in which each variable has an index, its place.

A compiled step takes the arrays that it writes out of the list, donates them to its program and puts the
new ones in their places. No other thread may see the list in between, so the step holds `lock`. It is not
held while JAX traces or compiles. Eager code computes a new value without it, and computes it once more,
with the lock, if another thread has written the variable meanwhile.

An exception such as Ctrl-C may arrive between any two lines of Python, even after the old arrays are
donated and before the new ones are stored. `Program` (`_native/_warm.c`) runs no Python in between. A step
that runs in Python registers itself in `unfinished` before it calls its program, and the next access to the
store completes the interrupted call.

Eager code sees *views* of the arrays: a view is a `Mirrored` or a `PerReplica` that shares its array's
memory. `views` holds the views in use. An array with a view is copied before it is donated, so that the
view stays valid.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import jax.numpy as jnp

from replicax._native import Lock, hold
from replicax.errors import ContextError

if TYPE_CHECKING:
    from replicax.variables._frames import Cell
    from replicax.variables._layout import Layout

__all__ = ["Places", "Store", "exclusive"]

_LOCK_SECONDS = 60
_numbers = itertools.count()


@final
class Store:
    """The arrays of one strategy's variables."""

    __slots__ = (
        "_free",
        "_reuse_places",
        "arrays",
        "lock",
        "may_take_long",
        "number",
        "unfinished",
        "views",
    )

    def __init__(self, *, reuse_places: bool = True) -> None:
        """`reuse_places`: whether new variables get the places of deleted ones."""
        self.arrays: list[Any] = []
        self.views: dict[int, Cell] = {}
        self.lock = Lock()
        self.unfinished: Callable[[], None] | None = None
        """Stores the results of a compiled call that an exception interrupted."""
        self.may_take_long = False
        """Whether the lock may be held for minutes, while a checkpoint is written without a copy."""
        self.number = next(_numbers)
        """The order in which the locks of several stores are acquired."""
        self._free: list[int] = []
        self._reuse_places = reuse_places

    def add(self, array: Any) -> int:
        """Add an array; returns its place."""
        with self.lock:
            if self._free:
                # The lowest place first, so that the variables of a new model are adjacent.
                self._free.sort(reverse=True)
                place = self._free.pop()
                self.arrays[place] = array
                return place
            self.arrays.append(array)
            return len(self.arrays) - 1

    def remove(self, place: int) -> None:
        """Remove the array of a deleted variable. The garbage collector calls it, so it never blocks."""
        self.views.pop(place, None)
        self.arrays[place] = None
        if self._reuse_places:
            self._free.append(place)

    def view(self, place: int, layout: Layout, scalar: bool) -> Cell:
        """The view of the array in `place`."""
        with self.exclusive():
            array, view = self.arrays[place], self.views.get(place)
            if view is None or layout.unwrap(view) is not array:
                view = self.views[place] = layout.wrap(array, scalar)
            return view

    def write(self, place: int, layout: Layout, view: Cell) -> None:
        """Replace the array in `place`."""
        array = layout.unwrap(view)
        with self.exclusive():
            # The view first: after an interrupt in between, `view` sees that it does not match the array.
            self.views[place] = view
            self.arrays[place] = array

    def replace(self, place: int, array: Any) -> None:
        """Replace the array in `place` by one that has no view."""
        with self.exclusive():
            self.views.pop(place, None)
            self.arrays[place] = array

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """A `with` block in which no other thread reads or writes these variables."""
        return hold((self.lock,), _LOCK_SECONDS, self._late, self.complete)

    def _late(self) -> None:
        _refuse_unless_slow([self])

    def complete(self) -> None:
        """Complete a step that an exception interrupted. The caller holds the lock."""
        if self.unfinished is not None:
            self.unfinished()

    def compact(self) -> None:
        """Move arrays into gaps between others, so that a device's free memory is one block."""
        with self.exclusive():
            places = [place for place, array in enumerate(self.arrays) if array is not None]
            for place in sorted(places, key=lambda place: _address(self.arrays[place]), reverse=True):
                moved = jnp.copy(self.arrays[place]).block_until_ready()
                if place not in self.views and _address(moved) < _address(self.arrays[place]):
                    self.arrays[place] = moved

    def detach_views(self, places: Iterable[int]) -> None:
        """Copy the arrays in `places` that have views, before they are donated."""
        for place in self.views.keys() & places:
            self.arrays[place] = jnp.copy(self.arrays[place])
            del self.views[place]


def exclusive(stores: Iterable[Store]) -> contextlib.AbstractContextManager[None]:
    """A `with` block in which no other thread reads or writes the variables of these stores."""
    ordered = sorted(stores, key=lambda store: store.number)

    def ready() -> None:
        for store in ordered:
            store.complete()

    late = functools.partial(_refuse_unless_slow, ordered)
    return hold(tuple(store.lock for store in ordered), _LOCK_SECONDS, late, ready)


def _refuse_unless_slow(stores: Sequence[Store]) -> None:
    """Called when a lock of `stores` could not be acquired for a while."""
    if not any(store.may_take_long for store in stores):
        raise ContextError(
            f"A variable could not be accessed for {_LOCK_SECONDS} seconds, because a compiled step is "
            "running in another thread. A host callback (jax.pure_callback, io_callback) in a step "
            "must not read or write variables: pass it values as arguments."
        )


def _address(array: Any) -> int:
    """Where an array is in the memory of its first device."""
    return array.addressable_data(0).unsafe_buffer_pointer()


@final
class Places:
    """Several places of a store, in ascending order."""

    __slots__ = ("_order", "_slice", "indices")

    def __init__(self, indices: Sequence[int]) -> None:
        self.indices = frozenset(indices)
        self._order = tuple(indices)
        is_slice = bool(indices) and indices[-1] - indices[0] == len(indices) - 1
        self._slice = slice(indices[0], indices[-1] + 1) if is_slice else None

    def take(self, arrays: list[Any]) -> list[Any]:
        """The arrays in these places."""
        return [arrays[i] for i in self._order] if self._slice is None else arrays[self._slice]

    def put(self, arrays: list[Any], new: Sequence[Any]) -> None:
        """Store `new` in these places."""
        if self._slice is not None:
            arrays[self._slice] = new
            return
        for i, array in zip(self._order, new, strict=True):
            arrays[i] = array
