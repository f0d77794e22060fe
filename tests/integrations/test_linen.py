"""Flax Linen in replica functions: batch normalization over the mesh's replica axis, as on one device."""

import concurrent.futures

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax import _jax

_X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)


class _Network(nn.Module):
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Dense(4)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5, axis_name=self.axis_name)(x)
        return nn.Dense(1)(jnp.tanh(x))[:, 0]


def _expected():
    network = _Network()
    start = network.init(jax.random.key(0), _X)

    def loss_fn(params):
        y, new = network.apply({**start, "params": params}, _X, mutable=["batch_stats"])
        return jnp.mean(y**2), new["batch_stats"]

    (loss, stats), gradients = jax.value_and_grad(loss_fn, has_aux=True)(start["params"])
    return start, loss, stats, gradients


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_batch_norm_over_the_replica_axis(num_replicas, compiled):
    start, expected_loss, expected_stats, expected_gradients = _expected()
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    network = _Network(axis_name=strategy.axis_name)
    with strategy.scope():
        params = rx.create_variables(start["params"])
        stats = rx.create_variables(start["batch_stats"], trainable=False, aggregation="MEAN")

    def step(batch):
        def replica_step(x):
            def loss_fn():
                state = {"params": rx.read_values(params), "batch_stats": rx.read_values(stats)}
                y, new = network.apply(state, x, mutable=["batch_stats"])
                return rx.compute_average_loss(y**2), new["batch_stats"]

            (loss, new), gradients = rx.value_and_grad(loss_fn, params, has_aux=True)()
            is_variable = {"is_leaf": lambda leaf: isinstance(leaf, rx.Variable)}
            jax.tree.map(lambda v, value: v.assign(value), stats, new, **is_variable)
            return loss, rx.get_replica_context().all_reduce("SUM", gradients)

        loss, gradients = strategy.run(replica_step, args=(batch,))
        return strategy.reduce("SUM", loss, axis=None), gradients

    (batch,) = strategy.distribute_dataset(rx.from_arrays(_X).batch(12))
    loss, gradients = (rx.function(step) if compiled else step)(batch)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    found = jax.tree.map(np.asarray, rx.read_values(stats))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected_stats)
    first = strategy.local_results(gradients)[0]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), first, expected_gradients
    )


def test_running_averages_need_no_axis():
    """Nothing is exchanged in evaluation, inside or outside of replicas."""
    start, *_ = _expected()
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    network = _Network(axis_name=strategy.axis_name)
    (batch,) = strategy.distribute_dataset(rx.from_arrays(_X).batch(12))
    y = strategy.run(lambda x: network.apply(start, x, train=False), args=(batch,))
    np.testing.assert_allclose(
        strategy.gather(y, axis=0), network.apply(start, _X, train=False), rtol=1e-5, atol=1e-6
    )


def test_the_stacks_of_a_thread_are_restored_in_the_thread_that_asks():
    """A dataset's thread takes over the settings of the thread that starts it, and changes only its own."""
    stack = nn.module._context.module_stack
    outside, inside = _jax.ThreadSettings(), object()
    stack.append(inside)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(outside.restore).result()
        assert stack[-1] is inside
        outside.restore()
        assert inside not in stack
    finally:
        outside.restore()
