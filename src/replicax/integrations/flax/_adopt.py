"""`adopt`: backs every `nnx.Variable` of a model with an `rx.Variable`.

An `nnx.Variable` stores its value in one slot, `_raw_value`, which its whole API goes through. `adopt`
changes the variable's class to one where `_raw_value` is a property that reads and writes an `rx.Variable`,
in a replica function the replica's copy. So the model is called as before, submodules, views and
`nnx.state` included, and no state has to be split and merged around a step.

The type of a variable decides its synchronization and aggregation:

    nnx.Param                  mirrored, trainable; written by optimizers, not in replica functions
    random keys                mirrored; each replica reads a key that is folded with its id
    nnx.metrics.MetricState    ON_READ, SUM: totals and counts of the replica's own examples
    other floating-point       ON_READ, MEAN: each replica has its own, like statistics in tf.distribute
    other numbers (counts)     ON_READ, ONLY_FIRST_REPLICA
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, TypeVar, final

import jax
import jax.numpy as jnp

from replicax.contexts import current, has_strategy
from replicax.errors import ContextError, VariableError
from replicax.topology import is_key
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.values import is_number
from replicax.variables import Variable

try:
    from flax import nnx
    from flax.nnx.tracers import TraceState
except ImportError as error:
    raise ImportError(
        "replicax.integrations.flax needs Flax, which is optional: pip install 'replicax[flax]'."
    ) from error

__all__ = ["adopt", "variables"]

M = TypeVar("M")


def adopt(model: M) -> M:
    """Turn all state of a Flax NNX model into variables of the strategy in scope.

    The model stays the same object and is used as before. In a replica function it reads the replica's
    copies, and its writes (batch statistics, RNG counts) go to the variables. `rx.Checkpoint(model=model)`
    saves it.

    RNG keys are folded with the replica id, so every replica draws different numbers; with one replica they
    are the same as in Flax. Each replica has its own statistics, which read as their mean in the
    cross-replica context. Variables without an array and `nnx.Intermediate`s are left alone.

    Args:
        model: an `nnx.Module`, or any structure of them.

    Returns:
        The model.

    Raises:
        TypeError: `model` contains no `nnx.Variable`.
        VariableError: a variable can't be adopted, because it holds a `jax.Ref` or an abstract shape, or
            belongs to an `nnx.metrics.Welford`, whose state can't be summed.
        ContextError: a variable was adopted in the scope of another strategy.

    >>> from flax import nnx
    >>> from replicax.integrations import flax as rx_flax
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     model = rx_flax.adopt(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    >>> [(v.name, v.shape) for v in rx_flax.variables(model)]
    [('bias:0', (3,)), ('kernel:0', (2, 3))]
    >>> strategy.gather(strategy.run(model, args=(jnp.ones((1, 2)),)), axis=0).shape
    (2, 3)
    """
    found = list(_find(model))
    if not found:
        raise TypeError(f"adopt takes a Flax NNX model, got {type(model)}, which has no nnx.Variable.")
    _check_metrics(model)
    links = []
    for path, variable in found:
        if (link := _link_of(variable)) is not None:
            _check_strategy(link.variable)
        elif _is_adoptable(path, variable):
            links.append((variable, _make_link(path, variable)))
    for variable, link in links:
        object.__setattr__(variable, "__class__", _adopted_class(type(variable)))
        _SLOT.__set__(variable, link)  # the property would write to the rx.Variable
    for _, part in list(nnx.iter_graph(model)):
        if isinstance(part, nnx.Module):
            part._pytree__state._trace_state = _AdoptedTraceState(type(part).__name__)
        if isinstance(part, nnx.RNN):
            object.__setattr__(part, "__class__", _adopted_rnn(type(part)))
    return model


def variables(model: Any, filter: Any = nnx.Param) -> list[Variable]:
    """The `rx.Variable`s of an adopted model, by default of its parameters.

    Args:
        model: what `adopt` returned, or a part of it.
        filter: a type of `nnx.Variable`, or any other NNX filter; `...` selects all variables.

    Returns:
        A list, for `rx.value_and_grad` and `optimizer.apply_gradients`.

    Raises:
        VariableError: the model was not adopted.

    >>> from flax import nnx
    >>> from replicax.integrations import flax as rx_flax
    >>> norm = rx_flax.adopt(nnx.BatchNorm(4, rngs=nnx.Rngs(0)))
    >>> [v.name for v in rx_flax.variables(norm, nnx.BatchStat)]
    ['mean:0', 'var:0']
    """
    wanted = nnx.filterlib.to_predicate(filter)
    chosen = [(path, variable) for path, variable in _find(model) if wanted(path, variable)]
    links = [(path, variable, _link_of(variable)) for path, variable in chosen]
    foreign = [_name(path) for path, variable, link in links if link is None and _holds_numbers(variable)]
    if foreign:
        raise VariableError(
            f"The model has plain Flax variables: {', '.join(foreign)}. Adopt it in the strategy's scope "
            "first: `with strategy.scope(): model = adopt(model)`."
        )
    return [link.variable for _, _, link in links if link is not None]


def _find(model: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The model's NNX variables, each once, with their paths."""
    for path, part in nnx.iter_graph(model):
        if isinstance(part, nnx.Variable):
            yield tuple(path), part


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path)) or "Variable"


def _holds_numbers(variable: Any) -> bool:
    return is_number(variable.get_raw_value()) and not isinstance(variable, nnx.Intermediate)


def _is_adoptable(path: tuple[Any, ...], variable: Any) -> bool:
    if variable.hijax or variable.ref:
        raise VariableError(
            f"The variable {_name(path)!r} stores its value in a jax.Ref, which replicas don't support. "
            "Create the model with `nnx.var_defaults(hijax=False, ref=False)`."
        )
    if isinstance(variable.get_raw_value(), jax.ShapeDtypeStruct):
        raise VariableError(
            f"The variable {_name(path)!r} is abstract: it has a shape but no value. Fill in the values "
            "before you adopt the model: `nnx.merge(graphdef, state)`."
        )
    return _holds_numbers(variable)


def _check_metrics(model: Any) -> None:
    for _, part in nnx.iter_graph(model):
        if isinstance(part, nnx.metrics.Welford):
            raise VariableError(
                "adopt got an nnx.metrics.Welford, whose state can't be summed over replicas. Use "
                "nnx.metrics.Average for the values and for their squares, or write an rx.Metric."
            )


def _check_strategy(variable: Variable) -> None:
    if variable.distribute_strategy is not current().strategy:
        raise ContextError(
            f"The variable {variable.name!r} was already adopted in the scope of "
            f"{variable.distribute_strategy!r}. Adopt a copy of the model: `nnx.clone(model)`."
        )


# What an adopted variable stores instead of its value.


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Link:
    """Stored in the slot of an adopted variable: the `rx.Variable` with its value."""

    variable: Variable
    key_impl: Any = None
    """The algorithm of random keys, whose data the variable stores."""
    written_by_replicas: bool = True

    def read(self) -> Any:
        value = self.variable.read_value()
        if self.key_impl is None:
            return value
        key = jax.random.wrap_key_data(value, impl=self.key_impl)
        replica = current().replica
        if replica is None or replica.num_replicas_in_sync == 1:
            return key
        return _fold_in(key, replica.replica_id_in_sync_group)

    def write(self, value: Any) -> None:
        if not self.written_by_replicas and current().replica is not None and has_strategy():
            raise VariableError(
                f"The variable {self.variable.name!r} of a Flax model is written in a replica function. "
                "Write parameters with `apply_gradients` of an rx.Optimizer, and keys with `nnx.reseed` "
                "outside of replica functions. If nnx.remat, nnx.scan or a similar transformation wrote "
                "it, pass graph_updates=False, so that it writes back only what has changed."
            )
        data = value if self.key_impl is None else jax.random.key_data(value)
        self.variable.assign(data, read_value=False)


def _fold_in(key: Any, number: Any) -> Any:
    """`jax.random.fold_in` for a key or an array of keys."""
    fold = functools.partial(jax.random.fold_in, data=number)
    return jax.vmap(fold)(key.reshape(-1)).reshape(key.shape) if key.ndim else fold(key)


def _make_link(path: tuple[Any, ...], variable: Any) -> _Link:
    value = variable.get_raw_value()
    if is_key(value):
        data, impl = jax.random.key_data(value), jax.random.key_impl(value)
        return _Link(_mirrored(path, data, trainable=False), impl, written_by_replicas=False)
    if isinstance(variable, nnx.Param):
        return _Link(_mirrored(path, value, trainable=True), written_by_replicas=False)
    if isinstance(variable, nnx.metrics.MetricState):
        total = _own_part(path, value, VariableAggregation.SUM)
        if current().replica is None:
            total.assign(value)  # in the cross-replica context, so that the sum has this value
        return _Link(total)
    floating = jnp.issubdtype(jnp.result_type(value), jnp.inexact)
    how = VariableAggregation.MEAN if floating else VariableAggregation.ONLY_FIRST_REPLICA
    return _Link(_own_part(path, value, how))


def _own_part(path: tuple[Any, ...], value: Any, aggregation: VariableAggregation) -> Variable:
    return current().strategy.create_variable(
        value,
        name=_name(path),
        trainable=False,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=aggregation,
    )


def _mirrored(path: tuple[Any, ...], value: Any, *, trainable: bool) -> Variable:
    return current().strategy.create_variable(value, name=_name(path), trainable=trainable)


# The classes of adopted variables.

_SLOT: Any = nnx.Variable.__dict__["_raw_value"]


def _link_of(variable: Any) -> _Link | None:
    held = _SLOT.__get__(variable) if issubclass(type(variable), _Adopted) else None
    return held if type(held) is _Link else None


class _Adopted:
    """Mixin for the classes of adopted variables.

    Flax copies variables (`nnx.clone`, `jax.tree.map` over `nnx.state`, in its transformations). Copies
    have the same class, so that tree structures match, but no link: they store their own value.
    """

    __slots__ = ()

    @property
    def _raw_value(self) -> Any:
        held = _SLOT.__get__(self)
        return held.read() if type(held) is _Link else held

    @_raw_value.setter
    def _raw_value(self, value: Any) -> None:
        try:
            link = _link_of(self)
        except AttributeError:  # a copy is being created
            link = None
        if link is None:
            _SLOT.__set__(self, value)
        else:
            link.write(value)

    # Flax allows writes only in the trace in which the variable was created. Replicax has its own rules.

    @property
    def _can_update(self) -> bool:
        return _link_of(self) is not None or super()._can_update  # pyright: ignore

    def _check_can_update(self) -> None:
        if _link_of(self) is None:
            super()._check_can_update()  # pyright: ignore

    def __reduce__(self) -> Any:
        plain = type(self).__mro__[2]
        return plain._new, (self._raw_value, dict(self._var_metadata))  # pyright: ignore

    def checkpoint_items(self) -> dict[str, Any]:
        """For `rx.Checkpoint`."""
        link = _link_of(self)
        return {} if link is None else {"value": link.variable}


@functools.cache
def _adopted_class(kind: Any) -> Any:
    if issubclass(kind, _Adopted):
        return kind
    attributes = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind)(kind.__name__, (_Adopted, kind), attributes)


# Modules.


@final
class _AdoptedTraceState(TraceState):
    """Flax asks this object, before it changes a module, whether the module is of the current trace."""

    __slots__ = ("_module",)

    def __init__(self, module: str) -> None:
        super().__init__()
        self._module = module

    def is_valid(self) -> bool:
        if super().is_valid():
            return True
        raise VariableError(
            f"The adopted Flax module {self._module} is changed in a compiled step or under a gradient: "
            "an attribute is set, as `self.sow` does, or the module is passed to an NNX transformation. "
            "The module would keep a tracer, which is invalid after the step. Create a view in the step, "
            "which shares the variables: `nnx.view(model)(x)`. To get what `sow` stores, call `y, found = "
            "nnx.capture(nnx.view(model), nnx.Intermediate)(x)` and return what you need. State that "
            "outlives a step must be an nnx.Variable."
        )

    def __reduce__(self) -> Any:
        return TraceState, ()


# Recurrent networks.


@functools.cache
def _adopted_rnn(kind: Any) -> Any:
    """The class of an adopted `nnx.RNN`.

    An RNN scans with an NNX transformation that accepts only modules of the current trace and writes back
    everything, even parameters. So each call runs on a copy, and only what replicas may write is copied
    back.
    """
    if kind.__dict__.get("_is_adopted"):
        return kind

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        links = [_link_of(variable) for _, variable in _find(self)]
        if not any(links):
            return kind.__call__(self, *args, **kwargs)
        copied = nnx.clone(self)
        result = kind.__call__(copied, *args, **kwargs)
        for link, (_, variable) in zip(links, _find(copied), strict=True):
            if link is not None and link.written_by_replicas:
                link.write(variable.get_raw_value())
        return result

    attributes = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (kind,), {"_is_adopted": True, "__call__": call, **attributes})
