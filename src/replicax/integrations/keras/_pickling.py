"""Pickles Keras objects for the functions that a coordinator schedules: copies that share their variables.

Keras pickles a model as an archive with the values of its variables. A worker needs something else: the
same Python objects, with variables that refer to those on the parameter servers. So each Keras object is
pickled by its attributes. All objects go into one table and refer to each other by number; otherwise a long
chain of layers would overflow the pickler's stack.
"""

from __future__ import annotations

import collections
import functools
import io
import pickle
from typing import Any, final

import keras

from replicax.integrations.keras import _private
from replicax.integrations.keras._server_optimizers import servers_of
from replicax.integrations.keras._variable import DistributedVariable
from replicax.parameter_server import cloudpickle, remember

__all__ = ["dumps"]

_tracking = _private.tracking
_CONTAINERS = {
    _tracking.TrackedList: (list, list.extend),
    _tracking.TrackedDict: (dict, dict.update),
    _tracking.TrackedOrderedDict: (collections.OrderedDict, collections.OrderedDict.update),
    _tracking.TrackedSet: (set, set.update),
}

_KINDS = (
    keras.Operation,
    keras.Variable,
    keras.KerasTensor,
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
    _private.Node,
    *_CONTAINERS,
)

# Per-object functions that Keras creates, and programs that were compiled in this process.
_MADE_AGAIN = ("build", "quantize")
_LEFT_OUT = ("train_function", "test_function", "predict_function", "_jax_state", "_eval_epoch_iterator")


def dumps(value: Any) -> bytes:
    """Pickle something that may contain Keras objects; `cloudpickle.loads` unpickles it."""
    table = _Table()
    pickled = table.pickle(value)
    entries = []
    while len(entries) < len(table.objects):
        made = table.objects[len(entries)]
        entries.append((type(made), table.pickle(_state(made))))
    _remember(table.objects)
    return cloudpickle().dumps(_Pickled(entries, pickled)) if entries else pickled


def _remember(objects: list[Any]) -> None:
    """Keep the objects findable: a worker may ask this process for an optimizer's slots."""
    for value in objects:
        own = value._variable if isinstance(value, DistributedVariable) else None
        if own is not None and own.layout.servers is not None:
            remember(own, value)
    for value in objects:
        if isinstance(value, keras.optimizers.Optimizer) and servers_of(value) is not None:
            remember(value._iterations.replicax_variable, value)


@final
class _Table:
    """The Keras objects found so far, each with a number."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: Any) -> int:
        """The number of an object; the first call assigns it."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self._numbers[id(value)]

    def pickle(self, value: Any) -> bytes:
        """Pickle something, with numbers in place of Keras objects."""
        file = io.BytesIO()
        _pickler_class()(file, self).dump(value)
        return file.getvalue()


@functools.cache
def _pickler_class() -> Any:
    class Pickler(cloudpickle().Pickler):
        def __init__(self, file: Any, table: _Table) -> None:
            super().__init__(file)
            self._table = table

        def persistent_id(self, value: Any) -> int | None:
            return self._table.number(value) if isinstance(value, _KINDS) else None

    return Pickler


def _state(value: Any) -> Any:
    """The attributes or items of a Keras object."""
    if type(value) in _CONTAINERS:
        as_plain, _ = _CONTAINERS[type(value)]
        return as_plain(value), value.tracker
    state = {key: part for key, part in vars(value).items() if key not in _MADE_AGAIN}
    return {**state, **{key: None for key in _LEFT_OUT if key in state}}


@final
class _Pickled:
    """A pickled value and the table of its objects."""

    def __init__(self, entries: list[tuple[type, bytes]], pickled: bytes) -> None:
        self._entries, self._pickled = entries, pickled

    def __reduce__(self) -> Any:
        return _load, (self._entries, self._pickled)


def _load(entries: list[tuple[Any, bytes]], pickled: bytes) -> Any:
    made = [kind.__new__(kind) for kind, _ in entries]
    for value, (_, state) in zip(made, entries, strict=True):
        _fill(value, _Unpickler(state, made).load())
    return _Unpickler(pickled, made).load()


def _fill(value: Any, state: Any) -> None:
    if type(value) in _CONTAINERS:
        (items, tracker), (_, fill) = state, _CONTAINERS[type(value)]
        value.tracker = None  # the layer already tracks what is added here
        fill(value, items)
        value.tracker = tracker
        return
    value.__dict__.update(state)
    if isinstance(value, keras.optimizers.Optimizer):  # Keras looks variables up by id
        numbers = {id(variable): i for i, variable in enumerate(value._trainable_variables)}
        value.__dict__["_trainable_variables_indices"] = numbers


@final
class _Unpickler(pickle.Unpickler):
    """Replaces numbers by their objects."""

    def __init__(self, pickled: bytes, made: list[Any]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._made = made

    def persistent_load(self, pid: Any) -> Any:
        return self._made[pid]
