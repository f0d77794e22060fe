"""What must be refused. Each such line names pyright's rule and mypy's code for the error: see check.py."""

import jax
import jax.numpy as jnp

import replicax as rx

strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
v = rx.Variable(1.0)


def replica_fn(x: jax.Array) -> jax.Array:
    return x


losses = strategy.run(replica_fn, args=(jnp.ones(2),))

strategy.reduce("MAX", losses, axis=None)  # error: reportCallIssue, call-overload
strategy.reduce(rx.VariableAggregation.SUM, losses, axis=None)  # error: reportCallIssue, call-overload
strategy.run(3)  # error: reportCallIssue, call-overload
strategy.run(replica_fn, args=3)  # error: reportCallIssue, call-overload
_ = losses + 1  # error: reportOperatorIssue, operator
_ = losses[0]  # error: reportIndexIssue, index
_ = losses.shape  # error: reportAttributeAccessIssue, attr-defined
float(losses)  # error: reportArgumentType, arg-type
jnp.sum(losses)  # error: reportArgumentType, arg-type

rx.Variable(1.0, aggregation="MAX")  # error: reportArgumentType, arg-type
rx.Variable(1.0, shared=True)  # error: reportCallIssue, call-arg
v.assign_mul(2.0)  # error: reportAttributeAccessIssue, attr-defined
v.value = jnp.ones(2)  # error: reportAttributeAccessIssue, assignment
v[0] = 1.0  # error: reportArgumentType, assignment
_ = v + "1"  # error: reportOperatorIssue, operator

for batch in strategy.distribute_dataset(rx.from_arrays(jnp.ones(4)).batch(2)):
    _ = batch + 1  # error: reportOperatorIssue, operator
rx.from_arrays(jnp.ones(4), jnp.ones(4))  # error: reportArgumentType, arg-type
rx.get_strategy().distribute(3)  # error: reportAttributeAccessIssue, attr-defined


@rx.function
def step(x: jax.Array) -> jax.Array:
    return x


class Trainer:
    @rx.function
    def train(self, x: jax.Array) -> jax.Array:
        return x


step(jnp.ones(2), 3)  # error: reportCallIssue, call-arg
step(jnp.ones(2)).assign(1.0)  # error: reportAttributeAccessIssue, attr-defined
Trainer().train("text")  # error: reportArgumentType, arg-type
rx.value_and_grad(replica_fn, v)("text")  # error: reportArgumentType, arg-type
rx.get_replica_context().all_reduce("MAX", 1.0)  # error: reportArgumentType, arg-type
