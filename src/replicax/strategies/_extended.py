"""`strategy.extended`: the lower-level API, for code that updates variables across replicas itself.

It is a thin view of its strategy. Most methods need the cross-replica context, where the values of all
replicas are available: a scope, or the function of a `merge_call`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from replicax._jax import is_tracer
from replicax.collectives import CommunicationOptions, broadcast, deliver, merge_options, reduce_leaves
from replicax.contexts import current, require_cross_replica
from replicax.errors import ArgumentKindError, ContextError, VariableError
from replicax.execution import update_copies
from replicax.strategies._held_values import flatten_values
from replicax.topology import device_name
from replicax.types import ReduceOp, ReduceOpLike
from replicax.values import Component, Mirrored, is_array
from replicax.variables import Variable, VariableCopy

if TYPE_CHECKING:
    from replicax.strategies._strategy import StrategyBase

__all__ = ["StrategyExtended"]


class StrategyExtended:
    """The lower-level API of a strategy; get it as `strategy.extended`.

    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> strategy.extended.worker_devices
    ('CPU:0', 'CPU:1')
    """

    def __init__(self, container_strategy: StrategyBase) -> None:
        self._strategy = container_strategy

    # Properties of the strategy.

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices that compute, one for each replica of this process."""
        self._require_devices("worker_devices")
        return tuple(device_name(device) for device in self._strategy.mesh.local_devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The devices that hold variables."""
        self._require_devices("parameter_devices")
        device = self._strategy.parameter_device
        return self.worker_devices if device is None else (device_name(device),)

    def _require_devices(self, what: str) -> None:
        if not self._strategy.places_values:
            raise ContextError(
                f"{what}: no strategy is in use, so JAX places everything. Create a strategy, for example "
                "`rx.OneDeviceStrategy(device)`."
            )

    @property
    def experimental_between_graph(self) -> bool:
        """Whether each process builds its own program, with variables shared between the processes."""
        self._require_devices("experimental_between_graph")
        return self._strategy.parameter_device is not None and self._strategy.num_replicas_in_sync > 1

    @property
    def experimental_require_static_shapes(self) -> bool:
        """False: per-replica shapes may differ."""
        return False

    @property
    def experimental_should_init(self) -> bool:
        """Whether this process initializes variables."""
        self._require_devices("experimental_should_init")
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process is the one that writes checkpoints."""
        return 0 in self._strategy.mesh.local_replica_ids

    @property
    def should_save_summary(self) -> bool:
        """Whether this process is the one that writes summaries."""
        return self.should_checkpoint

    # Reductions.

    def reduce_to(
        self,
        reduce_op: ReduceOpLike,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
        experimental_hints: Any = None,
    ) -> Any:
        """Combine a per-replica value over the replicas, and place the result on `destinations`.

        `destinations` itself does not change; pass the result to `update` or `assign` for that.

        Args:
            reduce_op: "SUM" or "MEAN".
            value: a per-replica value, or a structure of them.
            destinations: a variable or distributed value (the result is mirrored on its devices), or an
                array or a device name (the result is placed there).
            options: a `CommunicationOptions`.
            experimental_hints: the older spelling of `options`.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable(0.0)
        >>> x = strategy.run(lambda: jnp.float32(1.5))
        >>> strategy.extended.reduce_to("SUM", x, v)
        Mirrored:{
          0: Array(3., dtype=float32),
          1: Array(3., dtype=float32)
        }
        """
        require_cross_replica(self._strategy, "reduce_to()")
        options = merge_options(options, experimental_hints)
        leaves, treedef = flatten_values(value)
        where = [destinations] * len(leaves)
        return treedef.unflatten(self._reduce(ReduceOp.parse(reduce_op), leaves, where, options))

    def batch_reduce_to(
        self,
        reduce_op: ReduceOpLike,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
        experimental_hints: Any = None,
    ) -> list[Any]:
        """`reduce_to` for many values at once, communicating once.

        Args:
            reduce_op: "SUM" or "MEAN".
            value_destination_pairs: (value, destinations) pairs, as for `reduce_to`.
            options: a `CommunicationOptions`.
            experimental_hints: the older spelling of `options`.

        Returns:
            A list with one result for each pair.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> x, y = strategy.run(lambda: (jnp.float32(1), jnp.float32(10)))
        >>> [float(total) for total in strategy.extended.batch_reduce_to("SUM", [(x, x), (y, y)])]
        [2.0, 20.0]
        """
        require_cross_replica(self._strategy, "batch_reduce_to()")
        options = merge_options(options, experimental_hints)
        if not isinstance(value_destination_pairs, Iterable):
            raise TypeError(
                "batch_reduce_to takes a list of (value, destinations) pairs, got "
                f"{value_destination_pairs!r}."
            )
        pairs = [_checked_pair(pair) for pair in value_destination_pairs]
        flattened = [flatten_values(value) for value, _ in pairs]
        leaves = [leaf for values, _ in flattened for leaf in values]
        where = [
            destinations
            for (_, destinations), (values, _) in zip(pairs, flattened, strict=True)
            for _ in values
        ]
        reduced = iter(self._reduce(ReduceOp.parse(reduce_op), leaves, where, options))
        return [treedef.unflatten([next(reduced) for _ in values]) for values, treedef in flattened]

    def _reduce(self, op: ReduceOp, leaves: list[Any], where: list[Any], options: Any) -> list[Any]:
        return reduce_leaves(self._strategy.communicator, op, leaves, options, where)

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Copy one array to all devices of `destinations`; a Python number is returned unchanged.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable(0.0)
        >>> strategy.extended.broadcast_to(jnp.float32(3), v)
        Mirrored:{
          0: Array(3., dtype=float32),
          1: Array(3., dtype=float32)
        }
        """
        require_cross_replica(self._strategy, "broadcast_to()")
        if isinstance(tensor, bool | int | float):
            return tensor
        if isinstance(tensor, Mirrored):
            return deliver(tensor, destinations)
        if isinstance(tensor, Variable | VariableCopy):
            tensor = tensor.read_value()
        if not is_array(tensor):
            raise TypeError(f"broadcast_to takes one array, got {tensor!r}.")
        if isinstance(destinations, Variable) and destinations.mesh is None:
            return broadcast(tensor, destinations)
        return self._strategy.communicator.ops.broadcast(tensor, destinations)

    # Running and updating.

    def call_for_each_replica(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The older name of `strategy.run`.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.extended.call_for_each_replica(lambda x: x + 1, args=[1])
        2
        """
        return self._strategy.run(fn, args, kwargs)

    def update(
        self,
        var: Variable,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call `fn(copy, *args, **kwargs)` for each copy of `var`, on that copy's device.

        In a replica function it makes a `merge_call` first.

        Args:
            var: the variable to update.
            fn: the update; it writes the copy with `copy.assign(...)` and similar methods.
            args: arguments; each call gets the copy's part of mirrored values. Per-replica values are
                refused: reduce them first, so that the copies stay equal.
            kwargs: keyword arguments, treated in the same way.
            group: merge the results into one value; otherwise return a tuple with one result per copy.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable(1.0)
        ...     strategy.extended.update(v, lambda v, x: v.assign_add(x), args=(2.0,))
        Mirrored:{
          0: Array(3., dtype=float32),
          1: Array(3., dtype=float32)
        }
        """
        _check_arguments(args)
        replica = current().replica
        if replica is not None and current().strategy is self._strategy:
            return replica.merge_call(
                lambda strategy, args, kwargs: strategy.extended.update(var, fn, args, kwargs, group),
                args=(tuple(args), dict(kwargs or {})),
            )
        require_cross_replica(self._strategy, "update()")
        if isinstance(var, VariableCopy):
            var = var.container
        if not isinstance(var, Variable):
            raise ArgumentKindError(f"extended.update needs a variable to update, got {var!r}.")
        if var.distribute_strategy is not self._strategy:
            raise ArgumentKindError(
                f"extended.update got the variable {var.name!r}, which was created outside of this "
                f"strategy's scope (at {var.made_at}). Create it inside `with strategy.scope():`."
            )
        return self._update(var, fn, args, kwargs, group, len(var.copies))

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool, num_copies: int) -> Any:
        args, kwargs = tuple(args), dict(kwargs or {})
        return update_copies(self._strategy, var, fn, args, kwargs, num_copies=num_copies, group=group)

    def non_slot_devices(self, var_list: Sequence[Variable] | None = None) -> tuple[str, ...]:
        """The devices for state that is shared by all variables of `var_list`.

        They are the same for all variables of a strategy, so `var_list` is optional.

        >>> rx.MirroredStrategy(["CPU:0", "CPU:1"]).extended.non_slot_devices([])
        ('CPU:0', 'CPU:1')
        """
        return self.parameter_devices

    def update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call `fn(*args, **kwargs)` on each of the devices that `non_slot_devices` returned.

        Args:
            colocate_with: these devices, or a variable or an array on them.
            fn: the update.
            args: arguments; each call gets its part of mirrored values. Per-replica values are refused.
            kwargs: keyword arguments, treated in the same way.
            group: merge the results into one value; otherwise return a tuple with one result per device.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> devices = strategy.extended.non_slot_devices([])
        >>> strategy.extended.update_non_slot(devices, lambda x: x + 1, args=(jnp.float32(1),))
        Mirrored:{
          0: Array(2., dtype=float32),
          1: Array(2., dtype=float32)
        }
        """
        require_cross_replica(self._strategy, "update_non_slot()")
        _check_arguments(args)
        self._check_colocated(colocate_with)
        return self._update(None, fn, args, kwargs, group, len(self.parameter_devices))

    def _check_colocated(self, colocate_with: Any) -> None:
        if isinstance(colocate_with, Variable):
            fits = colocate_with.distribute_strategy is self._strategy
        elif isinstance(colocate_with, jax.Array) and not is_tracer(colocate_with):
            fits = {*map(device_name, colocate_with.devices())} == {*self.parameter_devices}
        else:
            devices = colocate_with if isinstance(colocate_with, list | tuple) else ()
            fits = [d for d in devices if isinstance(d, str)] == [*self.parameter_devices]
        if not fits:
            raise ArgumentKindError(
                f"update_non_slot(colocate_with={colocate_with!r}): pass what "
                f"`extended.non_slot_devices(var_list)` returns, {self.parameter_devices}, or a variable "
                "of this strategy."
            )

    def colocate_vars_with(self, colocate_with_variable: Any) -> contextlib.AbstractContextManager[None]:
        """A `with` block that places new variables on the devices of `colocate_with_variable`.

        A strategy places all its variables on the same devices anyway. This method only checks that the
        variable, or the devices that `non_slot_devices` returned, belong to the strategy.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable(1.0)
        ...     with strategy.extended.colocate_vars_with(v):
        ...         slot = rx.Variable(0.0)
        >>> slot.mesh == v.mesh
        True
        """
        if current().strategy is not self._strategy:
            raise ContextError(
                f"colocate_vars_with must be called inside `with strategy.scope():` of {self._strategy}."
            )
        own = isinstance(colocate_with_variable, Variable | VariableCopy) and (
            self.variable_created_in_scope(colocate_with_variable)
        )
        if not own and not _names(colocate_with_variable, self):
            raise VariableError(
                f"colocate_vars_with needs a variable created in this strategy's scope, or what "
                f"`extended.non_slot_devices` returns; got {colocate_with_variable!r}."
            )
        return contextlib.nullcontext()

    # Variables.

    def read_var(self, v: Variable) -> Any:
        """The value of a variable, like `v.read_value()`.

        >>> with rx.OneDeviceStrategy("CPU:0").scope() as strategy:
        ...     strategy.extended.read_var(rx.Variable(1.0))
        Array(1., dtype=float32)
        """
        return v.read_value()

    def value_container(self, value: Any) -> Any:
        """The variable that `value` is a copy of; anything else is returned unchanged.

        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable(1.0)
        >>> strategy.extended.value_container(strategy.local_results(v)[1]) is v
        True
        """
        return value.container if isinstance(value, Component) else value

    def variable_created_in_scope(self, v: Any) -> bool:
        """Whether the variable was created in the scope of this strategy.

        >>> strategy = rx.OneDeviceStrategy("CPU:0")
        >>> strategy.extended.variable_created_in_scope(rx.Variable(1.0))
        False
        """
        variable = self.value_container(v)
        if not isinstance(variable, Variable):
            raise AttributeError(
                f"variable_created_in_scope takes a variable, got {v!r} of type {type(v).__name__}."
            )
        return variable.distribute_strategy is self._strategy


def _checked_pair(pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise TypeError(
            f"batch_reduce_to takes (value, destinations) pairs, got a {type(pair).__name__}: {pair!r}."
        )
    return pair[0], pair[1]


def _check_arguments(args: Any) -> None:
    if not isinstance(args, list | tuple):
        raise TypeError(f"args must be a tuple or list, got {args!r}. For one argument write (x,).")


def _names(devices: Any, extended: StrategyExtended) -> bool:
    return isinstance(devices, tuple) and devices == extended.parameter_devices
