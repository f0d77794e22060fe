"""`rx.Optimizer`: an optax transformation whose state is variables and whose gradients come from replicas.

All of an update happens once for all replicas, in the cross-replica context: gradients are reduced
together, in packs, and optax computes new values from arrays that are equal everywhere. So the copies of
variables and slots stay equal by construction, whatever the transformation does.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from replicax._jax import is_tracer
from replicax.collectives import CommunicationOptions, map_each
from replicax.contexts import current, has_strategy
from replicax.errors import ContextError, TracingError, VariableError
from replicax.strategies import reduce_leaves
from replicax.training._gradients import value_and_grad
from replicax.training._loss_scale import DynamicLossScale
from replicax.training._pytrees import as_variable
from replicax.types import ReduceOp, VariableAggregation
from replicax.values import IndexedSlices, Mirrored, PerReplica, is_key, is_number
from replicax.variables import SyncOnReadVariable, Variable, current_frame, made_beside

__all__ = ["Optimizer"]

_minimizing: ContextVar[Any] = ContextVar("replicax_minimizing", default=None)
"""The optimizer that computes gradients of a scaled loss by itself."""


@final
class Optimizer:
    """Applies gradients to variables with an optax transformation.

    Args:
        transformation: what optax makes, such as `optax.adam(1e-3)`; schedules are part of it.
        reduce: "SUM" adds the replicas' gradients, as `tf.distribute` does (divide the loss by the global
            batch size, `rx.compute_average_loss`); "MEAN" averages them.
        reduce_dtype: the dtype in which gradients are reduced. By default float32 for smaller ones, and
            their own for others.
        options: a `CommunicationOptions` for the reduction.
        loss_scale: a `DynamicLossScale`, for float16.
        name: what the names of its variables begin with.

    >>> import optax
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     w = rx.Variable(1.0)
    ...     optimizer = rx.Optimizer(optax.sgd(0.1))
    >>> def replica_step(x):
    ...     loss, gradient = rx.value_and_grad(lambda: w * x, w)()
    ...     optimizer.apply_gradients([(gradient, w)])
    >>> x = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group + 1.0)
    >>> strategy.run(replica_step, args=(x,))
    >>> w.read_value(), optimizer.iterations.read_value()          # 1 - 0.1 * (1 + 2)
    (Array(0.7, dtype=float32), Array(1, dtype=int32))
    """

    def __init__(
        self,
        transformation: Any,
        *,
        reduce: ReduceOp | str = ReduceOp.SUM,
        reduce_dtype: Any = None,
        options: CommunicationOptions | None = None,
        loss_scale: DynamicLossScale | None = None,
        name: str = "optimizer",
    ) -> None:
        """Slots are made when the variables are known: by `build`, or the first `apply_gradients`."""
        if not hasattr(transformation, "init") or not hasattr(transformation, "update"):
            raise TypeError(
                f"rx.Optimizer takes an optax transformation, `optax.adam(1e-3)`, got {transformation!r}."
            )
        if loss_scale is not None and not isinstance(loss_scale, DynamicLossScale):
            raise TypeError(f"rx.Optimizer(loss_scale={loss_scale!r}): pass an `rx.DynamicLossScale()`.")
        if options is not None and not isinstance(options, CommunicationOptions):
            raise TypeError(f"rx.Optimizer(options={options!r}): pass an `rx.CommunicationOptions(...)`.")
        if reduce_dtype is not None and not jnp.issubdtype(reduce_dtype, jnp.inexact):
            raise ValueError(
                f"rx.Optimizer(reduce_dtype={reduce_dtype!r}): gradients are no whole numbers; choose "
                "jnp.float32 or jnp.bfloat16."
            )
        self._transformation = transformation
        self._reduce_op = ReduceOp.parse(reduce)
        self._reduce_dtype = None if reduce_dtype is None else jnp.dtype(reduce_dtype)
        self._options = options
        self.loss_scale = loss_scale
        self._name = name
        self.iterations: Variable = current().strategy.create_variable(
            0,
            name=f"{name}/iterations",
            trainable=False,
            aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._variables: list[Variable] = []
        self.slots: list[Variable] = []
        self._state_tree: Any = None
        self._update = jax.jit(self._new_values)

    def __repr__(self) -> str:
        return f"<rx.Optimizer {self._name!r} of {len(self._variables)} variables>"

    @property
    def variables(self) -> list[Variable]:
        """Its own variables: the number of updates, the slots, the loss scale."""
        scale = self.loss_scale.variables if self.loss_scale is not None else []
        return [self.iterations, *self.slots, *scale]

    def checkpoint_items(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        slots = {_key(slot.name.removesuffix(":0")): slot for slot in self.slots}
        return {"iterations": self.iterations, "slots": slots, "loss_scale": self.loss_scale}

    # Making slots.

    def build(self, variables: Sequence[Variable]) -> None:
        """Make the slots for `variables`, which are those of every `apply_gradients` from now on.

        Args:
            variables: the variables to be updated.

        >>> import optax
        >>> w = rx.Variable(jnp.zeros(3), name="w")
        >>> optimizer = rx.Optimizer(optax.adam(0.1))
        >>> optimizer.build([w])
        >>> [slot.name for slot in optimizer.slots]
        ['optimizer/0/count:0', 'optimizer/0/mu/w:0', 'optimizer/0/nu/w:0']
        """
        variables = _checked_list(variables)
        if self._variables:
            self._check_variables(variables)
            return
        strategy = self._strategy_of(variables)
        for variable in variables:
            if not jnp.issubdtype(variable.dtype, jnp.inexact):
                raise VariableError(
                    f"The variable {variable.name!r} holds {variable.dtype} numbers, which an optimizer "
                    "can't update by gradients."
                )
            if isinstance(variable, SyncOnReadVariable):
                raise VariableError(
                    f"The variable {variable.name!r} has synchronization ON_READ: its replicas' parts "
                    "differ, so an optimizer can't update it. Make it without."
                )
        values = [_whole(v) for v in variables]
        state = self._initial_state(values)
        places, self._state_tree = jax.tree_util.tree_flatten_with_path(state)
        names = _unique_names(variables)
        if any(is_key(leaf) for _, leaf in places):
            raise VariableError(
                f"The state of {self._transformation!r} holds random keys, which variables can't hold. "
                "Leave that transformation out, and add noise to the gradients yourself."
            )
        self.slots = [
            self._make_slot(strategy, leaf, f"{self._name}/{_slot_name(path, names)}")
            for path, leaf in places
        ]
        self._variables = variables

    def _make_slot(self, strategy: Any, value: Any, name: str) -> Variable:
        # A checkpoint that was restored before may have a value in its place, see `checkpoint_items`.
        with made_beside(self.iterations, f"slots/{_key(name)}"):
            return strategy.create_variable(
                value, name=name, trainable=False, aggregation=VariableAggregation.ONLY_FIRST_REPLICA
            )

    def _initial_state(self, values: list[Any]) -> Any:
        """The state that optax begins with; of arrays that outlive a trace, wherever it can be had so."""
        if any(map(is_tracer, values)) and not _depends_on_input(self._transformation.init, values):
            with current_frame().creating():
                return self._transformation.init([jnp.zeros(v.shape, v.dtype) for v in values])
        return self._transformation.init(values)

    def _strategy_of(self, variables: Sequence[Variable]) -> Any:
        strategies = {id(v.distribute_strategy): v.distribute_strategy for v in variables}
        if len(strategies) > 1:
            raise ContextError(
                f"The variables of one optimizer were made by several strategies: "
                f"{', '.join(map(repr, strategies.values()))}. Make all of them in one scope."
            )
        return variables[0].distribute_strategy

    def _check_variables(self, variables: Sequence[Variable]) -> None:
        known = {v.ref() for v in self._variables}
        given = {v.ref() for v in variables}
        if known != given or len(variables) != len(given):
            new = sorted(v.name for v in variables if v.ref() not in known)
            missing = sorted(v.name for v in self._variables if v.ref() not in given)
            raise VariableError(
                f"{self!r} has slots for the variables of its first update, and is given others now: new "
                f"are {new}, missing are {missing}. Pass the same variables, or make another optimizer."
            )

    # Applying gradients.

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Variable]]) -> None:
        """Update the variables.

        In a replica function the replicas' gradients are reduced first; every replica must call this.
        Outside, a per-replica gradient is reduced, and any other is taken as it is.

        Args:
            grads_and_vars: pairs of a gradient and its variable, such as `zip(gradients, variables)`. A
                gradient is an array or an `IndexedSlices`.

        Raises:
            VariableError: a gradient is missing, or does not have the shape of its variable.
        """
        gradients, variables = _checked_pairs(grads_and_vars)
        apply = functools.partial(self._apply, variables)
        here = current()
        distributed = [v.name for g, v in zip(gradients, variables, strict=True) if _is_distributed(g)]
        if here.replica is not None and has_strategy() and distributed:
            raise VariableError(
                f"The gradients of {', '.join(distributed)} are those of all replicas, in a replica "
                "function, where each has its own. Pass them as arguments of `strategy.run`, or apply them "
                "outside."
            )
        if here.replica is not None and not distributed:
            gradients = [_in_reduction_dtype(g, self._reduce_dtype) for g in gradients]
            here.replica.merge_call(apply, args=(gradients, True))
        else:
            apply(variables[0].distribute_strategy, gradients, False)

    def minimize(self, loss_fn: Any, variables: Sequence[Variable]) -> Any:
        """Compute the gradients of `loss_fn` and apply them; returns the loss.

        Args:
            loss_fn: a function without arguments that returns a scalar; a loss scale is put on it and taken
                off again here.
            variables: a list of variables.

        >>> import optax
        >>> w = rx.Variable(4.0)
        >>> optimizer = rx.Optimizer(optax.sgd(0.5))
        >>> optimizer.minimize(lambda: 0.5 * w**2, [w])
        Array(8., dtype=float32)
        >>> w.read_value()
        Array(2., dtype=float32)
        """
        variables = _checked_list(variables)
        if self.loss_scale is None:
            loss, gradients = value_and_grad(loss_fn, variables)()
        else:
            (_, loss), gradients = value_and_grad(self._scaled(loss_fn), variables, has_aux=True)()
        self.apply_gradients(zip(gradients, variables, strict=True))
        return loss

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

    def scale_loss(self, loss: Any) -> Any:
        """`loss` times the loss scale, to be differentiated; `apply_gradients` divides again.

        >>> import optax
        >>> optimizer = rx.Optimizer(optax.sgd(0.1), loss_scale=rx.DynamicLossScale(initial_scale=8.0))
        >>> optimizer.scale_loss(jnp.float32(2.0))
        Array(16., dtype=float32)
        """
        if self.loss_scale is None:
            return loss
        if _minimizing.get() is self:
            raise ContextError("Optimizer.minimize scales the loss by itself: return it as it is.")
        return loss * self.loss_scale.scale.read_value()

    def _apply(self, variables: list[Variable], strategy: Any, gradients: list[Any], shared: bool) -> None:
        self.build(variables)
        order = {v.ref(): i for i, v in enumerate(variables)}
        gradients = [gradients[order[v.ref()]] for v in self._variables]
        reduced = self._reduced(strategy, gradients, shared)
        arrays = [_dense(g, v) for g, v in zip(reduced, self._variables, strict=True)]
        scale = self.loss_scale.held() if self.loss_scale is not None else ()
        held = ([_whole(v) for v in self._variables], [_whole(v) for v in self.slots], scale)
        try:
            values, slots, scale, counted = self._update(arrays, *held)
        except TracingError as error:
            error.add_note(
                "It is the optax transformation (a schedule, say) that touches the variable. It can read "
                "one in a compiled step; everywhere, `optax.inject_hyperparams` makes numbers changeable."
            )
            raise
        for variable, value in zip((*self._variables, *self.slots), (*values, *slots), strict=True):
            variable.assign(_mirrored(variable, value), read_value=False)
        if self.loss_scale is not None:
            self.loss_scale.take(scale)
        self.iterations.assign_add(_mirrored(self.iterations, counted), read_value=False)

    def _reduced(self, strategy: Any, gradients: list[Any], shared: bool) -> list[Any]:
        chosen = [i for i, g in enumerate(gradients) if shared or _is_distributed(g)]
        values = [gradients[i] for i in chosen]
        if not shared:
            values = [_cast_parts(value, self._reduce_dtype, strategy.mesh) for value in values]
        reduced = reduce_leaves(strategy.communicator, self._reduce_op, values, self._options)
        results = list(gradients)
        for i, value in zip(chosen, reduced, strict=True):
            results[i] = value
        return results

    def _new_values(self, gradients: list[Any], values: list[Any], slots: list[Any], scale: Any) -> Any:
        """The pure part: new values of variables, slots and loss scale."""
        import optax

        finite = None
        if self.loss_scale is not None:
            gradients, finite, scale = self.loss_scale.judge(gradients, scale)
        gradients = [g.astype(v.dtype) for g, v in zip(gradients, values, strict=True)]
        state = self._state_tree.unflatten(slots)
        try:
            updates, state = self._transformation.update(gradients, state, values)
        except TypeError as error:
            if "argument" in str(error):
                error.add_note(
                    f"{self!r} gives its transformation gradients, state and parameters; one that needs "
                    "more, such as the value of the loss, can't be used with it."
                )
            raise
        new: Any = optax.apply_updates(values, updates)
        new = [
            value if v.constraint is None else v.constraint(value)
            for v, value in zip(self._variables, new, strict=True)
        ]
        new_slots = [x.astype(old.dtype) for x, old in zip(jax.tree.leaves(state), slots, strict=True)]
        if finite is not None:
            new = [jnp.where(finite, n, old) for n, old in zip(new, values, strict=True)]
            new_slots = [jnp.where(finite, n, old) for n, old in zip(new_slots, slots, strict=True)]
        return new, new_slots, scale, jnp.int32(1) if finite is None else finite.astype(jnp.int32)


def _checked_list(variables: Any) -> list[Variable]:
    listed = [] if isinstance(variables, Variable | Mapping) else list(map(as_variable, variables))
    if not listed or not all(isinstance(v, Variable) for v in listed):
        raise VariableError(
            f"An optimizer takes a list of variables, such as `list(params.values())`, got {variables!r}."
        )
    return listed


def _checked_pairs(grads_and_vars: Iterable[tuple[Any, Variable]]) -> tuple[list[Any], list[Variable]]:
    pairs = [
        (pair[0], as_variable(pair[1])) if isinstance(pair, tuple | list) and len(pair) == 2 else pair
        for pair in grads_and_vars
    ]
    if not pairs:
        raise VariableError("apply_gradients got no gradients. Pass pairs: zip(gradients, variables).")
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Variable):
            raise VariableError(
                f"apply_gradients takes pairs (gradient, variable), got {pair!r}. Write "
                "zip(gradients, variables), in this order."
            )
    gradients, variables = map(list, zip(*pairs, strict=True))
    missing = [v.name for g, v in pairs if g is None]
    if missing:
        raise VariableError(
            f"The gradients of {', '.join(missing)} are None. Leave variables that the loss does not "
            "depend on out of the optimizer, or pass zeros to update them by decay and momentum alone."
        )
    names = [v.name for i, v in enumerate(variables) if any(v is other for other in variables[:i])]
    if names:
        raise VariableError(f"apply_gradients got {', '.join(names)} more than once. Add up its gradients.")
    for gradient, variable in pairs:
        plain = is_number(gradient) or isinstance(gradient, list | tuple)
        shape = np.shape(gradient) if plain else getattr(gradient, "shape", None)
        if isinstance(gradient, IndexedSlices) and hasattr(gradient.values, "shape"):
            width = tuple(gradient.values.shape[1:])
            if width != variable.shape[1:]:
                raise VariableError(
                    f"The gradient of {variable.name!r} has rows of {width}, not of {variable.shape[1:]}."
                )
        if isinstance(gradient, PerReplica):
            uniform = gradient.uniform
            shape = None if uniform is None else uniform.shape
        if not isinstance(gradient, IndexedSlices) and shape is not None and tuple(shape) != variable.shape:
            raise VariableError(
                f"The gradient of {variable.name!r} has shape {tuple(shape)}, not {variable.shape}."
            )
    return gradients, variables


def _in_reduction_dtype(gradient: Any, asked: Any) -> Any:
    """A gradient in the dtype that it is reduced in."""
    if isinstance(gradient, IndexedSlices):
        values = _in_reduction_dtype(gradient.values, asked)
        return IndexedSlices(values, gradient.indices, gradient.dense_shape)
    gradient = jnp.asarray(gradient)
    small = gradient.dtype in (jnp.bfloat16, jnp.float16)
    return gradient.astype(asked or (jnp.float32 if small else gradient.dtype))


def _is_distributed(gradient: Any) -> bool:
    """Whether the replicas' gradients come as one value."""
    return isinstance(gradient.values if isinstance(gradient, IndexedSlices) else gradient, PerReplica)


def _cast_parts(gradient: Any, asked: Any, mesh: Any) -> Any:
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(
            _cast_parts(gradient.values, asked, mesh), gradient.indices, gradient.dense_shape
        )
    return map_each(_Cast(asked), gradient, mesh)


@final
@dataclasses.dataclass(frozen=True)
class _Cast:
    """A replica's gradient in the dtype that it is reduced in."""

    asked: Any

    def __call__(self, axis: str, *gradients: Any) -> list[Any]:
        return [_in_reduction_dtype(gradient, self.asked) for gradient in gradients]


def _whole(variable: Variable) -> Any:
    """A variable's value as compiled code has it: of equal copies, all of them as one array."""
    cell = variable.held()
    assert isinstance(cell, Mirrored)
    return cell.whole


def _mirrored(variable: Variable, value: Any) -> Mirrored:
    return Mirrored.from_whole(value, variable.mesh)


def _dense(gradient: Any, variable: Variable) -> Any:
    """A reduced gradient as an array, where the variable's state rests."""
    if isinstance(gradient, IndexedSlices):
        values, indices = _dense(gradient.values, variable), _dense(gradient.indices, variable)
        return jnp.zeros(variable.shape, values.dtype).at[indices].add(values)
    if not isinstance(gradient, Mirrored):
        return jnp.asarray(gradient)
    return gradient.whole if variable.rests_on_mesh else gradient.to_plain()


def _unique_names(variables: Sequence[Variable]) -> dict[str, str]:
    """The names of variables by their number; equal ones are told apart."""
    names: dict[str, str] = {}
    for i, variable in enumerate(variables):
        name = variable.name.removesuffix(":0")
        # Compared as parts of a path, which slots are found by in a checkpoint.
        taken = set(map(_key, names.values()))
        number = sum(other == name or other.startswith(f"{name}_") for other in names.values()) or 1
        while _key(name) in taken:
            name, number = f"{variable.name.removesuffix(':0')}_{number}", number + 1
        names[str(i)] = name
    return names


def _key(slot_name: str) -> str:
    """A slot's name as part of a path, which '/' separates."""
    return slot_name.replace("/", ".")


def _slot_name(path: Any, names: dict[str, str]) -> str:
    """The place of a slot in optax's state, with the variable's name in place of its number at the end."""
    parts = [str(getattr(key, "name", getattr(key, "idx", getattr(key, "key", key)))) for key in path]
    if len(parts) > 1 and parts[-1] in names and not hasattr(path[-1], "name"):
        parts[-1] = names[parts[-1]]
    return "/".join(parts) or "state"


def _depends_on_input(fn: Any, values: list[Any]) -> bool:
    """Whether what `fn` returns depends on the numbers in `values`, not only on their shapes."""
    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]
    program = jax.make_jaxpr(fn)(shapes).jaxpr
    tainted = set(program.invars)
    for equation in program.eqns:
        if any(not hasattr(v, "val") and v in tainted for v in equation.invars):
            tainted.update(equation.outvars)
    return any(not hasattr(v, "val") and v in tainted for v in program.outvars)
