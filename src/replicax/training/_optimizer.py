"""`rx.Optimizer`: an optax transformation with its state in variables and gradients from all replicas.

An update happens once for all replicas, in the cross-replica context: gradients are reduced together, in
packs, and optax computes new values from arrays that are equal everywhere. So the copies of variables and
slots stay equal by construction, whatever the transformation does.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, final, overload

import jax
import jax.numpy as jnp

from replicax._recording import unrecorded
from replicax.collectives import CommunicationOptions
from replicax.contexts import StrategyProtocol, current, has_strategy
from replicax.errors import ContextError, TracingError, VariableError
from replicax.training._gradients import value_and_grad
from replicax.training._loss_scale import DynamicLossScale
from replicax.training._norms import global_norm, norm_of_shards
from replicax.training._pairs import Parameters, pair
from replicax.training._reduction import GradientReduction, as_rows, dense, is_distributed
from replicax.training._slots import (
    checkpoint_key,
    initial_state,
    slot_names,
    slot_owners,
    slot_partition,
)
from replicax.training._transformation import Transformation
from replicax.training._update import Update, Updated
from replicax.types import ReduceOp, ReduceOpLike, VariableAggregation
from replicax.values import IndexedSlices, Mirrored, free
from replicax.variables import Deferred, Divided, Servers, Variable, creating_state

if TYPE_CHECKING:
    import optax

__all__ = ["Optimizer"]

_Loss = TypeVar("_Loss")

_minimizing: ContextVar[Any] = ContextVar("replicax_minimizing", default=None)
"""The optimizer whose `minimize` is computing gradients of a scaled loss."""


@final
class Optimizer:
    """Applies gradients to variables with an optax transformation.

    Args:
        transformation: an optax transformation such as `optax.adam(1e-3)`, including any schedules.
        reduce: "SUM" adds the replicas' gradients, as `tf.distribute` does (divide the loss by the global
            batch size, `rx.compute_average_loss`); "MEAN" averages them.
        reduce_dtype: the dtype in which gradients are reduced. By default float32 for smaller floats, and
            the gradient's own otherwise.
        options: a `CommunicationOptions` for the reduction.
        loss_scale: a `DynamicLossScale`, for float16.
        name: the prefix of its variables' names.

    >>> import optax
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     params = {"w": rx.Variable(1.0), "b": rx.Variable(0.0)}
    ...     optimizer = rx.Optimizer(optax.sgd(0.1))
    >>> def replica_step(x):
    ...     loss, gradients = rx.value_and_grad(lambda: params["w"] * x + params["b"], params)()
    ...     optimizer.apply_gradients(gradients, params)
    >>> x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group + 1.0)
    >>> strategy.run(replica_step, args=(x,))
    >>> rx.read_values(params)                                     # w: 1 - 0.1 * (1 + 2)
    {'b': Array(-0.2, dtype=float32), 'w': Array(0.7, dtype=float32)}
    >>> optimizer.iterations.read_value()
    Array(1, dtype=int32)
    """

    def __init__(
        self,
        transformation: optax.GradientTransformation | optax.MultiSteps,
        *,
        reduce: ReduceOpLike = ReduceOp.SUM,
        reduce_dtype: Any = None,
        options: CommunicationOptions | None = None,
        loss_scale: DynamicLossScale | None = None,
        name: str = "optimizer",
    ) -> None:
        """Slots are created later, by `build` or the first `apply_gradients`."""
        if not hasattr(transformation, "init") or not hasattr(transformation, "update"):
            raise TypeError(
                f"rx.Optimizer takes an optax transformation such as `optax.adam(1e-3)`, got "
                f"{transformation!r}."
            )
        if loss_scale is not None and not isinstance(loss_scale, DynamicLossScale):
            raise TypeError(f"rx.Optimizer(loss_scale={loss_scale!r}): pass an `rx.DynamicLossScale()`.")
        if options is not None and not isinstance(options, CommunicationOptions):
            raise TypeError(f"rx.Optimizer(options={options!r}): pass an `rx.CommunicationOptions(...)`.")
        if reduce_dtype is not None and not jnp.issubdtype(reduce_dtype, jnp.inexact):
            raise ValueError(
                f"rx.Optimizer(reduce_dtype={reduce_dtype!r}): gradients need a floating-point dtype, such "
                "as jnp.float32 or jnp.bfloat16."
            )
        dtype = None if reduce_dtype is None else jnp.dtype(reduce_dtype)
        self._transformation = transformation
        self._reduction = GradientReduction(ReduceOp.parse(reduce), dtype, options)
        self.loss_scale = loss_scale
        self._name = name
        self.iterations: Variable = current().strategy.create_variable(
            0,
            name=f"{name}/iterations",
            trainable=False,
            aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._building = threading.RLock()
        self._parameters: Parameters | None = None
        self.slots: list[Variable] = []
        self._update: Update | None = None

    # On parameter servers: a worker has a reference to the coordinator's optimizer.

    def __reduce__(self) -> Any:
        servers = self.iterations.layout.servers
        if servers is None:
            raise TypeError(
                f"{self!r} can't be pickled: its state is in variables of this process. Save it with "
                "`rx.Checkpoint`."
            )
        return servers.optimizer_reference(self, self._built_for)

    @property
    def _built_for(self) -> Any:
        """The structure of variables that it has slots for; None if it is not built."""
        parameters = self._parameters
        return None if parameters is None else parameters.structure.unflatten(parameters.variables)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `attached`."""
        return {
            "transformation": self._transformation,
            "reduction": self._reduction,
            "name": self._name,
            "iterations": self.iterations,
        }

    @classmethod
    def attached(cls, transformation: Any, reduction: Any, name: str, iterations: Variable) -> Optimizer:
        """An optimizer whose state another process created on parameter servers."""
        self = cls.__new__(cls)
        self._transformation, self._reduction, self._name = transformation, reduction, name
        self.iterations, self.loss_scale, self.slots = iterations, None, []
        self._building = threading.RLock()
        self._parameters = self._update = None
        return self

    def attach(self, variables: Any) -> None:
        """Use slots that another process created for these variables."""
        if self._parameters is None:
            self._parameters = Parameters.of(variables, "build")

    def __repr__(self) -> str:
        count = 0 if self._parameters is None else len(self._parameters.variables)
        return f"<rx.Optimizer {self._name!r} of {count} variables>"

    def __getattr__(self, name: str) -> NoReturn:
        # Only called for attributes that do not exist.
        message = f"rx.Optimizer has no attribute {name!r}."
        if name in ("init", "update"):
            message = (
                f"rx.Optimizer has no method {name!r}: it is not an optax transformation, but holds the "
                "state of one in variables. Write `optimizer.build(variables)` to create that state, and "
                "`optimizer.apply_gradients(gradients, variables)` to update the state and the variables."
            )
        raise AttributeError(message)

    @property
    def variables(self) -> list[Variable]:
        """The optimizer's own variables: the number of updates, the slots and the loss scale."""
        scale = self.loss_scale.variables if self.loss_scale is not None else []
        return [self.iterations, *self.slots, *scale]

    def checkpoint_items(self) -> dict[str, Any]:
        """What a checkpoint saves."""
        slots = {checkpoint_key(slot.name.removesuffix(":0")): slot for slot in self.slots}
        return {"iterations": self.iterations, "slots": slots, "loss_scale": self.loss_scale}

    # Creating slots.

    def build(self, variables: Any) -> None:
        """Create the slots for `variables`; every later `apply_gradients` must update the same ones.

        Args:
            variables: the variables to update: a dict, a list, or any other pytree of them. Optax sees the
                same structure.

        >>> import optax
        >>> params = {"w": rx.Variable(jnp.zeros(3), name="w")}
        >>> optimizer = rx.Optimizer(optax.adam(0.1))
        >>> optimizer.build(params)
        >>> [slot.name for slot in optimizer.slots]
        ['optimizer/0/count:0', 'optimizer/0/mu/w:0', 'optimizer/0/nu/w:0']
        """
        self._build(Parameters.of(variables, "build"))

    def _build(self, given: Parameters) -> Parameters:
        """Create the slots unless they exist; returns the parameters they are for."""
        if self._parameters is not None:
            self._check_same_variables(self._parameters, given)
            return self._parameters
        with self._building:
            return self._build_first(given) if self._parameters is None else self._build(given)

    def _build_first(self, given: Parameters) -> Parameters:
        strategy = given.strategy
        given.check_updatable()
        if strategy.servers is not None and strategy.servers.builds_elsewhere:
            strategy.servers.request_build(self, given.structure.unflatten(given.variables))
            self._parameters = given
            return given
        values = [_whole(v) for v in given.variables]
        try:
            with creating_state(strategy, f"the state of {self!r}"):
                state, structure = initial_state(self._transformation, given, values)
        except Exception as error:
            _explain_structure(error, given)
            raise
        paths = [path for path, _ in state]
        names, owners = slot_names(paths, given), slot_owners(state, given)
        if strategy.servers is not None:
            strategy.servers.check_updates(self, given, structure, state, owners)
        self.slots = [
            self._create_slot(
                strategy,
                leaf,
                f"{self._name}/{name}",
                slot_partition(leaf, owner),
                given.variables if owner is None else (owner,),
            )
            for (_, leaf), name, owner in zip(state, names, owners, strict=True)
        ]
        constraints = [variable.constraint for variable in given.variables]
        computation = Transformation(self._transformation, given.structure, structure, constraints)
        self._parameters, self._update = given, Update(computation, given, self.loss_scale)
        if strategy.servers is not None:
            strategy.servers.register_optimizer(self, given.variables)
        return given

    def _create_slot(
        self,
        strategy: StrategyProtocol,
        value: Any,
        name: str,
        partition: tuple[int, ...] | None,
        slot_of: Sequence[Variable],
    ) -> Variable:
        # A checkpoint that was restored earlier may have a value for this slot; see `checkpoint_items`.
        return strategy.create_variable(
            value,
            name=name,
            trainable=False,
            aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
            is_slot=True,
            partition=partition,
            slot_of=tuple(slot_of),
            beside=(self.iterations, f"slots/{checkpoint_key(name)}"),
        )

    def _check_same_variables(self, own: Parameters, given: Parameters) -> None:
        known = {v.ref() for v in own.variables}
        now = {v.ref() for v in given.variables}
        if known != now:
            new = sorted(v.name for v in given.variables if v.ref() not in known)
            missing = sorted(v.name for v in own.variables if v.ref() not in now)
            raise VariableError(
                f"{self!r} has slots for the variables of its first update, but now got different ones: "
                f"new are {new}, missing are {missing}. Pass the same ones, or create another optimizer."
            )

    # Applying gradients.

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]] | Any,
        variables: Any = None,
        *,
        return_norm: bool = False,
    ) -> Any:
        """Update the variables.

        In a replica function the replicas' gradients are reduced first, and every replica must make this
        call. Outside, per-replica gradients are reduced, and all others are used unchanged.

        An update is atomic: several threads may update the same variables, and after an exception such as
        Ctrl-C either all variables and slots are updated or none is.

        Args:
            grads_and_vars: the gradients, in the structure of `variables`; or, without `variables`,
                pairs of a gradient and its variable, such as `zip(gradients, variables)`, which optax
                sees as a list. A gradient is an array or an `IndexedSlices`.
            variables: the variables, in any structure; each gets the gradient at its own path, so the order
                of dict keys does not matter.
            return_norm: whether to return the global norm of the reduced gradients, before the
                transformation clips or scales them and without the loss scale.

        Returns:
            With `return_norm`, a float32 scalar that is the same on all replicas; otherwise None.

        Raises:
            VariableError: gradients and variables do not match: a gradient is missing, is at another path,
                or does not have the shape of its variable.

        >>> import optax
        >>> params = {"w": rx.Variable([3.0, 0.0]), "b": rx.Variable(4.0)}
        >>> optimizer = rx.Optimizer(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)))
        >>> gradients = jax.tree.map(jnp.asarray, rx.read_values(params))
        >>> optimizer.apply_gradients(gradients, params, return_norm=True)
        Array(5., dtype=float32)
        """
        gradients, parameters = pair(grads_and_vars, variables)
        gradients = list(map(unrecorded, gradients))  # an update is not differentiated
        gradients = [as_rows(g, v) for g, v in zip(gradients, parameters.variables, strict=True)]
        apply = functools.partial(self._apply, parameters, return_norm=return_norm)
        here = current()
        named = zip(gradients, parameters.variables, strict=True)
        distributed = [variable.name for gradient, variable in named if is_distributed(gradient)]
        if here.replica is not None and has_strategy() and distributed:
            raise VariableError(
                f"A replica function applies its own gradients, but got per-replica values with the "
                f"gradients of all replicas for {', '.join(distributed)}. Pass them as arguments of "
                "`strategy.run`, or apply them outside."
            )
        if here.replica is not None and not distributed:
            gradients = [self._reduction.cast(gradient) for gradient in gradients]
            return here.replica.merge_call(apply, args=(gradients, True))
        norm = apply(parameters.strategy, gradients, False)
        return norm.to_plain() if isinstance(norm, Mirrored) else norm

    @overload
    def minimize(
        self, loss_fn: Callable[[], _Loss], variables: Any, *, return_norm: Literal[False] = ...
    ) -> _Loss: ...
    @overload
    def minimize(
        self, loss_fn: Callable[[], _Loss], variables: Any, *, return_norm: bool
    ) -> tuple[_Loss, jax.Array]: ...
    def minimize(self, loss_fn: Any, variables: Any, *, return_norm: bool = False) -> Any:
        """Compute the gradients of `loss_fn` and apply them; returns the loss.

        Args:
            loss_fn: a function without arguments that returns a scalar. With a loss scale, this method
                scales the loss and unscales the gradients.
            variables: the variables to update, in any structure.
            return_norm: whether to return `(loss, norm)`, with the norm that `apply_gradients` returns.

        >>> import optax
        >>> w = rx.Variable(4.0)
        >>> optimizer = rx.Optimizer(optax.sgd(0.5))
        >>> optimizer.minimize(lambda: 0.5 * w**2, [w])
        Array(8., dtype=float32)
        >>> w.read_value()
        Array(2., dtype=float32)
        """
        parameters = Parameters.of(variables, "minimize")
        found = parameters.variables
        if self.loss_scale is None:
            loss, gradients = value_and_grad(loss_fn, found)()
        else:
            (_, loss), gradients = value_and_grad(self._scaled(loss_fn), found, has_aux=True)()
        unflatten = parameters.structure.unflatten
        norm = self.apply_gradients(unflatten(gradients), unflatten(found), return_norm=return_norm)
        return (loss, norm) if return_norm else loss

    def _scaled(self, loss_fn: Any) -> Any:
        """A function that returns the scaled loss of `loss_fn`, and the loss."""

        def scaled() -> Any:
            token = _minimizing.set(self)
            try:
                loss = loss_fn()
            finally:
                _minimizing.reset(token)
            return self.scale_loss(loss), loss

        return scaled

    def scale_loss(self, loss: Any) -> jax.Array:
        """`loss` times the loss scale, to be differentiated; `apply_gradients` unscales the gradients.

        >>> import optax
        >>> optimizer = rx.Optimizer(optax.sgd(0.1), loss_scale=rx.DynamicLossScale(initial_scale=8.0))
        >>> optimizer.scale_loss(jnp.float32(2.0))
        Array(16., dtype=float32)
        """
        if self.loss_scale is None:
            return loss
        if _minimizing.get() is self:
            raise ContextError(
                "Optimizer.minimize scales the loss itself: return the unscaled loss, without scale_loss."
            )
        return loss * self.loss_scale.scale.read_value()

    def _apply(
        self,
        given: Parameters,
        strategy: StrategyProtocol,
        gradients: list[Any],
        from_replicas: bool,
        *,
        return_norm: bool,
    ) -> Any:
        parameters = self._build(given)
        gradients = parameters.ordered(gradients, given.variables)
        reduction, variables = self._reduction, parameters.variables
        own = variables[0].distribute_strategy is strategy
        servers = parameters.strategy.servers
        if own and from_replicas and current().frame.is_one_replica and servers is None:
            if strategy.find_shards is not None:
                return self._update_later(parameters, strategy, gradients, return_norm=return_norm)
            layouts = _reduced_layouts(gradients, variables)
            arrays = reduction.reduce_to_shards(strategy, gradients, variables, layouts)
            return self._update_all(parameters, arrays, return_norm=return_norm)
        reduce = reduction.reduce_all if from_replicas else reduction.reduce_distributed
        reduced = reduce(strategy, gradients)
        if servers is not None:
            return self._update_on_servers(servers, parameters, reduced, return_norm=return_norm)
        arrays = [dense(g, v) for g, v in zip(reduced, variables, strict=True)]
        if not own:  # the replicas may be on other devices
            arrays = list(map(free, arrays))
        return self._update_all(parameters, arrays, return_norm=return_norm)

    def _update_later(
        self, parameters: Parameters, strategy: StrategyProtocol, gradients: list[Any], *, return_norm: bool
    ) -> Any:
        """Reduce the gradients to shards, and defer the update until optax can see the global arrays."""
        variables = parameters.variables
        layouts = _reduced_layouts(gradients, variables, strategy.find_shards)
        arrays = self._reduction.reduce_to_shards(strategy, gradients, variables, layouts)
        norm = norm_of_shards(arrays, layouts, strategy.mesh.axis_name) if return_norm else None
        if norm is not None and self.loss_scale is not None:
            norm = norm / self.loss_scale.scale.read_value()
        update = functools.partial(self._update_all, parameters, return_norm=False)
        own = [*variables, *self.variables]
        current().frame.defer(Deferred(strategy, arrays, layouts, update, own))
        return None if norm is None else Mirrored.from_whole(norm, strategy.mesh)

    def _update_on_servers(
        self, servers: Servers, parameters: Parameters, gradients: list[Any], *, return_norm: bool
    ) -> Any:
        """Send the reduced gradients to the parameter servers, which have the variables and the slots."""
        servers.apply_gradients(self, parameters.variables, gradients)
        if not return_norm:
            return None
        arrays = [dense(g, v) for g, v in zip(gradients, parameters.variables, strict=True)]
        return _mirrored(parameters.variables[0], global_norm(arrays))

    def _update_all(self, parameters: Parameters, arrays: list[Any], *, return_norm: bool) -> Any:
        """Update the variables, the slots and the counters from reduced gradients."""
        assert self._update is not None
        update, variables, loss_scale = self._update, parameters.variables, self.loss_scale

        def compute() -> Updated:
            scale = () if loss_scale is None else loss_scale.held()
            state = ([_whole(v) for v in variables], [_whole(v) for v in self.slots], scale)
            try:
                return update(arrays, *state, with_norm=return_norm)
            except Exception as error:
                self._explain(error, parameters)
                raise

        def write(new: Updated) -> None:
            for variable, value in zip((*variables, *self.slots), (*new.values, *new.slots), strict=True):
                variable.assign(_mirrored(variable, value), read_value=False)
            if loss_scale is not None:
                loss_scale.store(new.scale)
            self.iterations.assign_add(_mirrored(self.iterations, new.count), read_value=False)

        state = [*variables, *self.slots, *([] if loss_scale is None else loss_scale.variables)]
        new = current().frame.update([*state, self.iterations], compute, write)
        on_mesh = variables[0].layout.on_mesh
        return _mirrored(variables[0], new.norm) if return_norm and on_mesh else new.norm

    def _explain(self, error: Exception, parameters: Parameters) -> None:
        """If optax fails, add a note about what it was given."""
        if isinstance(error, TracingError):
            error.add_note(
                "The optax transformation (a schedule, for example) uses that variable. It can read "
                "variables only in a compiled step. `optax.inject_hyperparams` makes hyperparameters "
                "changeable everywhere."
            )
        elif isinstance(error, TypeError) and "argument" in str(error):
            error.add_note(
                f"{self!r} passes gradients, state and parameters to its transformation. A transformation "
                "that needs more, such as the value of the loss, can't be used with it."
            )
        else:
            _explain_structure(error, parameters)

    @property
    def computation(self) -> Transformation:
        """What optax computes, as a function of arrays; the optimizer must be built."""
        assert self._update is not None
        return self._update.transformation


def _explain_structure(error: Exception, parameters: Parameters) -> None:
    """If optax fails, add a note about the structure it was given: masks or labels may not match."""
    if isinstance(error, ValueError | TypeError | KeyError | AttributeError):
        error.add_note(
            f"The transformation sees the parameters as {parameters.description}. Masks and labels must "
            "have that structure. If they use names, pass the variables by name too: "
            "`optimizer.build(variables)` or `optimizer.apply_gradients(gradients, variables)` with dicts, "
            "instead of a list or pairs."
        )


def _reduced_layouts(
    gradients: list[Any], variables: list[Variable], find_shards: Callable[[Any], Any] | None = None
) -> list[Divided | None]:
    """How each reduced gradient is sharded: over the replicas, over a replica's devices, or not at all."""

    def layout(variable: Variable) -> Divided | None:
        found = find_shards(variable._spec) if find_shards is not None else None
        return found or variable.layout.of_gradients

    return [
        None if isinstance(g, IndexedSlices) else layout(v)
        for g, v in zip(gradients, variables, strict=True)
    ]


def _whole(variable: Variable) -> Any:
    """The value of a variable as one replicated array."""
    cell = variable.held()
    assert isinstance(cell, Mirrored)
    return cell.whole


def _mirrored(variable: Variable, value: Any) -> Mirrored:
    return Mirrored.from_whole(value, variable.mesh)
