"""What must type-check, with the types that an editor shows. See `check.py`."""

from typing import Any, NamedTuple, assert_type

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])


# Variables and their operators.

with strategy.scope() as same:
    v = rx.Variable(jnp.ones((2, 3)), name="v", aggregation="MEAN")
assert_type(same, rx.MirroredStrategy)
assert_type(v, rx.Variable)
assert_type(v + 1, jax.Array)
assert_type(2.0 * v, jax.Array)
assert_type(-v, jax.Array)
assert_type(v @ jnp.ones((3, 1)), jax.Array)
assert_type(jnp.ones((1, 2)) @ v, jax.Array)
assert_type(v < v, jax.Array)
assert_type(v[0], jax.Array)
assert_type(v.sum(axis=0), jax.Array)
assert_type(jnp.exp(v), jax.Array)
assert_type(float(v[0, 0]), float)
assert_type(v.value, jax.Array)
assert_type(v.read_value(), jax.Array)
sizes: tuple[int, ...] = v.shape
assert_type(v.distribute_strategy, rx.Strategy)
v.assign(jnp.zeros((2, 3)))
v.assign_add(np.ones((2, 3)), read_value=False)
rx.Variable(lambda: jnp.zeros(3), trainable=False, synchronization="ON_READ", aggregation="SUM")
if isinstance(v, rx.MirroredVariable):
    v.assign_sub(v)


# The strategy: run, reduce, gather, local_results.


class Metrics(NamedTuple):
    loss: jax.Array
    accuracy: jax.Array


def loss_fn(x: jax.Array) -> jax.Array:
    return jnp.sum(x * v)


def metrics_fn(x: jax.Array) -> Metrics:
    return Metrics(loss_fn(x), jnp.mean(x))


def untyped_fn(x: Any) -> Any:
    return x


def update_fn() -> None:
    v.assign_add(1.0)


losses = strategy.run(loss_fn, args=(jnp.ones(3),))
assert_type(losses, rx.PerReplica[jax.Array])
assert_type(strategy.run(metrics_fn, args=(jnp.ones(3),)), Metrics)
assert_type(strategy.run(untyped_fn, args=(jnp.ones(3),)), Any)
assert_type(strategy.run(rx.function(loss_fn), args=(jnp.ones(3),)), rx.PerReplica[jax.Array])
assert_type(strategy.experimental_run_v2(loss_fn, args=(jnp.ones(3),)), rx.PerReplica[jax.Array])
strategy.run(update_fn)

assert_type(strategy.reduce("SUM", losses, axis=None), jax.Array)
assert_type(strategy.reduce(rx.ReduceOp.MEAN, losses, axis=0), jax.Array)
assert_type(strategy.reduce("MEAN", Metrics(losses.values[0], losses.values[0]), axis=None), Metrics)
assert_type(strategy.gather(losses, axis=0), jax.Array)
assert_type(strategy.local_results(losses), tuple[jax.Array, ...])
assert_type(strategy.experimental_local_results(losses), tuple[jax.Array, ...])
assert_type(strategy.local_results(v)[0].value, jax.Array)
assert_type(losses.values, tuple[jax.Array, ...])

per_replica = strategy.distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group)
assert_type(per_replica, rx.PerReplica[int])
assert_type(strategy.num_replicas_in_sync, int)
assert_type(strategy.extended, rx.StrategyExtended)


# Contexts.

assert_type(rx.get_strategy(), rx.Strategy)
with rx.get_strategy().scope() as default:
    assert_type(default, rx.Strategy)


def replica_fn() -> jax.Array:
    context = rx.get_replica_context()
    assert_type(context, rx.ReplicaContext | Any)
    total = context.all_reduce("SUM", {"x": jnp.ones(2)})
    return total["x"] + context.replica_id_in_sync_group


strategy.run(replica_fn)


# Compiled functions and methods.


@rx.function
def step(x: jax.Array, scale: float = 1.0) -> jax.Array:
    return x * scale


@rx.function(input_signature=[rx.TensorSpec([None], jnp.float32)])
def checked(x: jax.Array) -> jax.Array:
    return x


class Trainer:
    @rx.function
    def train(self, x: jax.Array, *, training: bool = True) -> tuple[jax.Array, int]:
        return x, int(training)


assert_type(step(jnp.ones(2), scale=2.0), jax.Array)
assert_type(step.num_programs, int)
assert_type(checked(jnp.ones(2)), jax.Array)
assert_type(Trainer().train(jnp.ones(2), training=False), tuple[jax.Array, int])


# Input.

x, y = np.ones((8, 3), np.float32), np.ones(8, np.int32)
pairs = strategy.distribute_dataset(rx.from_arrays((x, y)).shuffle(seed=1).batch(4))
for images, labels in pairs:
    assert_type(images.dtype, np.dtype[np.float32])
    strategy.run(loss_fn, args=(images, labels))
batches = strategy.experimental_distribute_dataset(rx.from_arrays(jnp.ones(8)).batch(4))
assert_type(batches, rx.DistributedDataset[rx.PerReplica[jax.Array]])
assert_type(next(iter(batches)), rx.PerReplica[jax.Array])
assert_type(iter(batches).get_next_as_optional().get_value(), rx.PerReplica[jax.Array])
assert_type(list(rx.from_arrays({"x": jnp.ones(8)})), list[dict[str, jax.Array]])
assert_type(strategy.distribute_batch(jnp.ones(8)), rx.PerReplica[jax.Array])
assert_type(strategy.distribute_dataset(untyped_fn(0)), rx.DistributedDataset[Any])


def dataset_fn(context: rx.InputContext) -> rx.ArrayDataset[jax.Array]:
    return rx.from_arrays(jnp.ones(8)).batch(context.get_per_replica_batch_size(8))


from_function = strategy.distribute_datasets_from_function(dataset_fn)
assert_type(from_function, rx.DistributedDataset[rx.PerReplica[jax.Array]])


# Training.


def loss_and_aux(x: jax.Array) -> tuple[jax.Array, int]:
    return loss_fn(x), 3


params = rx.create_variables({"w": jnp.ones(3), "b": jnp.zeros(3)})
assert_type(params, dict[str, rx.Variable])
assert_type(rx.create_variables(1.0), rx.Variable)
assert_type(rx.read_values(v), jax.Array)
loss, gradient = rx.value_and_grad(loss_fn, v)(jnp.ones(3))
assert_type(loss, jax.Array)
assert_type(gradient, jax.Array)
loss, gradients = rx.value_and_grad(loss_fn, params, microbatches=2)(jnp.ones(3))
assert_type(gradients["w"] + 1, jax.Array)
(loss, aux), gradients = rx.value_and_grad(loss_and_aux, params, has_aux=True)(jnp.ones(3))
assert_type(aux, Any)
assert_type(rx.grad(loss_fn, v)(jnp.ones(3)), jax.Array)
