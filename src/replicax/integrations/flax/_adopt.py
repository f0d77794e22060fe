"""`adopt`: every `nnx.Variable` of a model becomes a view of an `rx.Variable`.

NNX keeps what a variable holds in one slot, `_raw_value`, and all of its API goes through that. An adopted
variable is the same object as before, of a class of its own in which `_raw_value` is a property: reading it
reads an `rx.Variable`, in a replica function the replica's copy, and setting it writes one. So a model is
called as always, submodules, views and `nnx.state` included, and nothing has to be collected or put back
around a step: inside `rx.function` the model's code runs only while the step is traced.

What a variable becomes depends on its kind:

    nnx.Param                  mirrored, trainable; written by optimizers, not in replica functions
    random keys                mirrored; every replica reads a key of its own, folded with its id
    nnx.metrics.MetricState    ON_READ, SUM: totals and counts of the replicas' own examples
    other floating numbers     ON_READ, MEAN: each replica has its own, as statistics have in tf.distribute
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
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.values import is_key, is_number
from replicax.variables import Variable

try:
    from flax import nnx
except ImportError as error:
    raise ImportError(
        "replicax.integrations.flax needs Flax, which is optional: pip install 'replicax[flax]'."
    ) from error

__all__ = ["adopt", "variables"]

M = TypeVar("M")


def adopt(model: M) -> M:
    """Make variables of the strategy in scope out of everything that a Flax NNX model holds.

    The model stays the same object and is used as before. In a replica function it reads the replica's
    copies, and what it writes (batch statistics, counts of random streams) is written to the variables.
    `rx.Checkpoint(model=model)` saves it.

    A random stream gives every replica keys of its own, since keys are folded with the replica's id; with
    one replica they are those of Flax. Statistics are kept by each replica for itself and averaged when
    they are read outside of replica functions. A variable that holds no array, and `nnx.Intermediate`s,
    stay as they are.

    Args:
        model: an `nnx.Module`, or any structure of them.

    Returns:
        The model.

    Raises:
        TypeError: there is no `nnx.Variable` in `model`.
        VariableError: one of them can't be adopted, since it holds a `jax.Ref` or only a shape, or is that
            of an `nnx.metrics.Welford`, whose numbers can't be added up.
        ContextError: one of them was adopted in the scope of another strategy.

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
        raise TypeError(f"adopt takes a Flax NNX model, got {type(model)}, in which is no nnx.Variable.")
    _check_metrics(model)
    links = []
    for path, variable in found:
        if (link := _link_of(variable)) is not None:
            _check_strategy(link.variable)
        elif _is_adoptable(path, variable):
            links.append((variable, _make_link(path, variable)))
    for variable, link in links:
        object.__setattr__(variable, "__class__", _adopted_class(type(variable)))
        _HELD.__set__(variable, link)  # past the property, which would write
    for _, part in list(nnx.iter_graph(model)):
        if isinstance(part, nnx.RNN):
            object.__setattr__(part, "__class__", _adopted_rnn(type(part)))
    return model


def variables(model: Any, filter: Any = nnx.Param) -> list[Variable]:
    """The `rx.Variable`s of an adopted model, by default those of its parameters.

    Args:
        model: what `adopt` returned, or a part of it.
        filter: which: a type of `nnx.Variable`, or any filter of NNX's; `...` for all.

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
            f"The model holds plain Flax variables: {', '.join(foreign)}. Adopt it in the strategy's scope "
            "first: `with strategy.scope(): model = adopt(model)`."
        )
    return [link.variable for _, _, link in links if link is not None]


def _find(model: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The model's NNX variables, each once, with their places."""
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
            f"The variable {_name(path)!r} holds its value in a jax.Ref, which a replica can't. Make the "
            "model with `nnx.var_defaults(hijax=False, ref=False)`."
        )
    if isinstance(variable.get_raw_value(), jax.ShapeDtypeStruct):
        raise VariableError(
            f"The variable {_name(path)!r} holds a shape and no value yet. Adopt the model when it has its "
            "values: `nnx.merge(graphdef, state)`."
        )
    return _holds_numbers(variable)


def _check_metrics(model: Any) -> None:
    for _, part in nnx.iter_graph(model):
        if isinstance(part, nnx.metrics.Welford):
            raise VariableError(
                "adopt got an nnx.metrics.Welford, whose numbers can't be added up over the replicas. Use "
                "nnx.metrics.Average, of the values and of their squares, or an rx.Metric of your own."
            )


def _check_strategy(variable: Variable) -> None:
    if variable.distribute_strategy is not current().strategy:
        raise ContextError(
            f"The variable {variable.name!r} was adopted in the scope of {variable.distribute_strategy!r} "
            "already. Adopt a copy of the model: `nnx.clone(model)`."
        )


# What an adopted variable holds.


@final
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Link:
    """In the slot of an adopted variable: where its value is kept."""

    variable: Variable
    key_impl: Any = None
    """For random keys, which variables can't hold, and whose data they hold instead: the algorithm."""
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
                "Parameters are written by `optimizer.apply_gradients` of an rx.Optimizer, and keys by "
                "`nnx.reseed` outside. If it was nnx.remat, nnx.scan or their like, which write back all "
                "that they were given, use them with graph_updates=False: they then write what changed."
            )
        data = value if self.key_impl is None else jax.random.key_data(value)
        self.variable.assign(data, read_value=False)


def _fold_in(key: Any, number: Any) -> Any:
    """`jax.random.fold_in`, also of an array of keys."""
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
            total.assign(value)  # in all, where each replica began with it
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

_HELD: Any = nnx.Variable.__dict__["_raw_value"]


def _link_of(variable: Any) -> _Link | None:
    held = _HELD.__get__(variable) if issubclass(type(variable), _Adopted) else None
    return held if type(held) is _Link else None


class _Adopted:
    """What is different about an adopted variable; its class has also the one that it had before.

    Flax makes copies of variables (`nnx.clone`, `jax.tree.map` over `nnx.state`, the insides of its
    transformations). They are of the same class, since structures of both must match, but have no link:
    they hold a value themselves, as ever.
    """

    __slots__ = ()

    @property
    def _raw_value(self) -> Any:
        held = _HELD.__get__(self)
        return held.read() if type(held) is _Link else held

    @_raw_value.setter
    def _raw_value(self, value: Any) -> None:
        try:
            link = _link_of(self)
        except AttributeError:  # a copy that is being made
            link = None
        if link is None:
            _HELD.__set__(self, value)
        else:
            link.write(value)

    # Flax forbids writes in another trace than the one that made the variable. Replicax has its own rules.

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
        """What a checkpoint holds of it."""
        link = _link_of(self)
        return {} if link is None else {"value": link.variable}


@functools.cache
def _adopted_class(kind: Any) -> Any:
    """The class of adopted variables of a kind."""
    if issubclass(kind, _Adopted):
        return kind
    attributes = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind)(kind.__name__, (_Adopted, kind), attributes)


# Recurrent networks.


@functools.cache
def _adopted_rnn(kind: Any) -> Any:
    """The class of an adopted model's `nnx.RNN`s of a kind.

    An RNN loops with a transformation of NNX's that takes only what was made in the trace that it is called
    in, and writes back all that it is given, parameters too. So a copy is made for each call and called,
    and what replicas may write is taken over from it.
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
