"""Equinox models under strategies: their arrays become `rx.Variable`s.

An Equinox model is a callable pytree of arrays. `adopt` turns the arrays into variables. Calling the
adopted model fills the current values into the pytree and calls that; inside `rx.function` this happens
only while the step is traced. To JAX and Equinox the adopted model is a pytree of variables, which they
treat as arrays, so `eqx.filter_grad` works on it.
"""

from __future__ import annotations

import operator
from typing import Any, NoReturn, final

import jax
import jax.numpy as jnp

from replicax.contexts import current
from replicax.errors import VariableError
from replicax.training import create_variables
from replicax.types import VariableAggregation, VariableSynchronization
from replicax.variables import Variable

try:
    import equinox as eqx
except ImportError as error:
    raise ImportError(
        "replicax.integrations.equinox needs Equinox, which is optional: pip install 'replicax[equinox]'."
    ) from error

__all__ = ["AdoptedModel", "AdoptedState", "adopt", "adopt_state"]


def adopt(model: Any, filter_spec: Any = eqx.is_inexact_array) -> AdoptedModel:
    """Turn the arrays of an Equinox model into variables of the strategy in scope.

    Args:
        model: an `eqx.Module`, or any pytree.
        filter_spec: which leaves become variables, as in `eqx.partition`; by default all floating-point
            arrays. The other leaves are constants.

    Returns:
        An `AdoptedModel`, which is called like the model.

    Raises:
        VariableError: no leaf becomes a variable.

    >>> import equinox as eqx
    >>> from replicax.integrations import equinox as rx_equinox
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     model = rx_equinox.adopt(eqx.nn.MLP(2, 1, width_size=4, depth=1, key=jax.random.key(0)))
    >>> [v.name for v in model.variables]
    ['layers/0/weight:0', 'layers/0/bias:0', 'layers/1/weight:0', 'layers/1/bias:0']
    >>> def loss_fn(x):
    ...     return jnp.mean(jax.vmap(model)(x) ** 2)
    >>> def replica_step(x):
    ...     loss, gradients = rx.value_and_grad(loss_fn, model.variables)(x)
    ...     return loss
    >>> float(strategy.reduce("MEAN", strategy.run(replica_step, args=(jnp.ones((3, 2)),)), axis=None)) > 0
    True
    """
    return AdoptedModel(model, filter_spec)


def adopt_state(state: Any) -> AdoptedState:
    """Turn the state of an Equinox model, an `eqx.nn.State`, into variables of the strategy in scope.

    Each replica has its own state, and updating it takes no communication. In the cross-replica context,
    floating-point arrays read as the mean over the replicas, others as the first replica's value.

    Args:
        state: what `eqx.nn.make_with_state` returned beside the model, or any pytree of arrays.

    >>> from replicax.integrations import equinox as rx_equinox
    >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     state = rx_equinox.adopt_state({"average": jnp.float32(0)})
    >>> def replica_fn():
    ...     state.assign({"average": rx.get_replica_context().replica_id_in_sync_group + 1.0})
    >>> strategy.run(replica_fn)
    >>> state.value
    {'average': Array(1.5, dtype=float32)}
    """
    return AdoptedState(state)


@final
@jax.tree_util.register_pytree_node_class
class AdoptedModel:
    """What `adopt` returns. Call it like the model; it uses the current values of its variables."""

    def __init__(self, model: Any, filter_spec: Any) -> None:
        arrays, self._rest = eqx.partition(model, filter_spec)
        self._adopted = self
        structure = create_variables(arrays)
        leaves, self._treedef = jax.tree.flatten(structure, is_leaf=lambda x: isinstance(x, Variable))
        self.variables: list[Variable] = leaves
        """The variables, for `rx.value_and_grad` and `optimizer.apply_gradients`."""
        if not leaves:
            raise VariableError(
                f"adopt found no leaf in {type(model)} that filter_spec selects. By default it selects "
                "floating-point arrays: pass a model that has some, or another filter_spec."
            )

    @property
    def model(self) -> Any:
        """The Equinox model with the current values; in a replica function, with the replica's."""
        arrays = [leaf.read_value() if isinstance(leaf, Variable) else leaf for leaf in self.variables]
        return eqx.combine(self._treedef.unflatten(arrays), self._rest)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.model(*args, **kwargs)

    def __repr__(self) -> str:
        held = "variables" if self._adopted is self else "leaves"
        return f"<AdoptedModel of {len(self.variables)} {held}: {self._rest!r}>"

    def __getattr__(self, name: str) -> NoReturn:
        rest = vars(self).get("_rest")  # missing while a copy is being created
        if name == "inference" and _has_flags(rest):
            # `eqx.nn.inference_mode` looks for this attribute; without it, it would silently do nothing.
            raise VariableError(
                "eqx.nn.inference_mode can't change an AdoptedModel, in which only the variables change. "
                "Call `eqx.nn.inference_mode(adopted.model)` in the step, where `adopted.model` has the "
                "current values."
            )
        hint = f" Use `.model.{name}`: `.model` is the Equinox model." if hasattr(rest, name) else ""
        raise AttributeError(f"An AdoptedModel has no attribute {name!r}.{hint}")

    def tree_flatten(self) -> tuple[list[Variable], AdoptedModel]:
        """For JAX, which sees the values of the variables."""
        return self.variables, self._adopted

    @classmethod
    def tree_unflatten(cls, adopted: AdoptedModel, leaves: Any) -> AdoptedModel:
        """For JAX: the adopted model, or one with arrays (gradients, tracers) in place of variables."""
        leaves = list(leaves)
        if all(map(operator.is_, leaves, adopted.variables)):
            return adopted
        other = object.__new__(cls)
        vars(other).update(vars(adopted), variables=leaves)
        return other

    def checkpoint_items(self) -> dict[str, Any]:
        """For `rx.Checkpoint`."""
        return {variable.name.removesuffix(":0"): variable for variable in self.variables}


@final
class AdoptedState:
    """What `adopt_state` returns: `value` is the current state, `assign` replaces it."""

    def __init__(self, state: Any) -> None:
        leaves, self._treedef = jax.tree.flatten(state)
        self.variables: list[Variable] = [_own_part(leaf, f"state/{i}") for i, leaf in enumerate(leaves)]

    @property
    def value(self) -> Any:
        """The state; in a replica function, the replica's."""
        return self._treedef.unflatten([variable.read_value() for variable in self.variables])

    def assign(self, state: Any) -> None:
        """Replace the state; in a replica function, the replica's.

        Args:
            state: a state of the same structure.
        """
        leaves, treedef = jax.tree.flatten(state)
        if treedef != self._treedef:
            raise VariableError(
                f"assign expected a state with the structure {self._treedef}, got {treedef}. Pass the "
                "state that the model returned."
            )
        for variable, leaf in zip(self.variables, leaves, strict=True):
            variable.assign(leaf, read_value=False)

    def checkpoint_items(self) -> dict[str, Any]:
        """For `rx.Checkpoint`."""
        return {str(i): variable for i, variable in enumerate(self.variables)}


def _has_flags(model: Any) -> bool:
    """Whether any layer of the model has an inference flag."""
    leaves = jax.tree.leaves(model, is_leaf=lambda part: hasattr(part, "inference"))
    return any(hasattr(leaf, "inference") for leaf in leaves)


def _own_part(value: Any, name: str) -> Variable:
    floating = jnp.issubdtype(jnp.result_type(value), jnp.inexact)
    return current().strategy.create_variable(
        value,
        name=name,
        trainable=False,
        synchronization=VariableSynchronization.ON_READ,
        aggregation=VariableAggregation.MEAN if floating else VariableAggregation.ONLY_FIRST_REPLICA,
    )
