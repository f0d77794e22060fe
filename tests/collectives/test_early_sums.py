"""The loss is reduced together with the gradients, so reducing it afterwards needs no other collective."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest
from tests.training.helpers import close, collectives, each, mirrored, rid

import replicax as rx


@pytest.fixture
def two():
    return mirrored(2)


@pytest.fixture
def loop(two):
    """A step made from what to return of the loss, and its batch."""
    with two.scope():
        w, b = rx.Variable([1.0, 2.0]), rx.Variable(0.5)
        optimizer = rx.Optimizer(optax.sgd(0.1))
    optimizer.build([w, b])
    x = each(two, lambda i: [i + 1.0, 3.0 * i])

    def make(returned, after=lambda losses: two.reduce("SUM", losses, axis=None)):
        def replica_step(x):
            loss, gradients = rx.value_and_grad(lambda: jnp.sum(w * x) ** 2 + b**2, [w, b])()
            optimizer.apply_gradients(zip(gradients, [w, b], strict=True))
            return returned(loss)

        return lambda x: after(two.run(replica_step, args=(x,)))

    return make, x


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_a_loss_is_reduced_with_the_gradients(two, loop, op):
    make, x = loop
    step = make(lambda loss: loss, lambda losses: two.reduce(op, losses, axis=None))
    assert len(collectives(rx.function(step), x, optimized=False)) == 1


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_its_sum_is_the_one_of_eager_replicas(op):
    curves = []
    for mode in (lambda step: step, rx.function):
        strategy = mirrored(3)
        with strategy.scope():
            w = rx.Variable([1.0, -2.0])
            optimizer = rx.Optimizer(optax.adam(0.1))

        def replica_step(w=w, optimizer=optimizer):
            loss, (gradient,) = rx.value_and_grad(lambda: jnp.sum((w - rid()) ** 2), [w])()
            optimizer.apply_gradients([(gradient, w)])
            return loss

        @mode
        def step(strategy=strategy, replica_step=replica_step):
            return strategy.reduce(op, strategy.run(replica_step), axis=None)

        curves.append([float(step()) for _ in range(5)])
    close(curves[1], curves[0])
    assert curves[0][0] > curves[0][-1]


def test_what_is_computed_from_a_loss_is_reduced_by_itself(loop):
    make, x = loop
    assert len(collectives(rx.function(make(lambda loss: 2.0 * loss)), x, optimized=False)) == 2


def test_other_values_beside_a_loss(two, loop):
    make, x = loop
    step = rx.function(make(lambda loss: {"loss": loss, "id": rid() + 1.0}))
    assert len(collectives(step, x, optimized=False)) == 2
    assert float(step(x)["id"]) == 3.0


def test_a_loss_that_is_not_reduced_comes_out_as_each_replica_has_it(two, loop):
    make, x = loop
    step = rx.function(make(lambda loss: loss, lambda losses: losses))
    first, second = two.local_results(step(x))
    assert float(first) != float(second)


def test_a_step_with_two_losses_and_two_optimizers(two):
    with two.scope():
        u, v = rx.Variable(1.0), rx.Variable(2.0)
        optimizers = [rx.Optimizer(optax.sgd(0.1)) for _ in range(2)]
    for optimizer, variable in zip(optimizers, (u, v), strict=True):
        optimizer.build([variable])

    def replica_step():
        losses = []
        for optimizer, variable in zip(optimizers, (u, v), strict=True):
            loss, (gradient,) = rx.value_and_grad(lambda v=variable: v * (rid() + 1.0), [variable])()
            optimizer.apply_gradients([(gradient, variable)])
            losses.append(loss)
        return losses

    step = rx.function(lambda: two.reduce("SUM", two.run(replica_step), axis=None))
    assert len(collectives(step, optimized=False)) == 2  # one for each optimizer
    u.assign(1.0)
    v.assign(2.0)
    close(step(), [3.0, 6.0])
    close([u.read_value(), v.read_value()], [0.7, 1.7])


def test_a_reduction_inside_of_a_scan_does_not_take_it(two):
    with two.scope():
        w = rx.Variable(2.0)

    def replica_step():
        loss, (gradient,) = rx.value_and_grad(lambda: w * (rid() + 1.0), [w])()

        def body(carry, _):
            return carry + rx.get_replica_context().all_reduce("SUM", gradient), None

        return loss, jax.lax.scan(body, jnp.float32(0.0), None, length=2)[0]

    step = rx.function(lambda: two.reduce("SUM", two.run(replica_step), axis=None))
    close(step(), (6.0, 12.0))


def test_reductions_of_ones_own_get_what_they_are_given():
    seen = []

    class Own(rx.CrossDeviceOps):
        def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
            seen.append(len(value_destination_pairs))
            return [jnp.stack(value.values).max(axis=0) for value, _ in value_destination_pairs]

    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=Own())
    with strategy.scope():
        w = rx.Variable(2.0)
        optimizer = rx.Optimizer(optax.sgd(0.1))

    def replica_step():
        loss, (gradient,) = rx.value_and_grad(lambda: w * (rid() + 1.0), [w])()
        optimizer.apply_gradients([(gradient, w)])
        return loss

    step = rx.function(lambda: strategy.reduce("SUM", strategy.run(replica_step), axis=None))
    close(step(), 4.0)  # the larger one: not a sum at all
    assert set(seen) == {1}


def test_packs_of_a_chosen_size_hold_what_they_are_given(two):
    with two.scope():
        w = rx.Variable([1.0, 2.0])
        packed = rx.CommunicationOptions(bytes_per_pack=8)
        optimizer = rx.Optimizer(optax.sgd(0.1), options=packed)
    optimizer.build([w])

    def replica_step():
        loss, (gradient,) = rx.value_and_grad(lambda: jnp.sum(w) * (rid() + 1.0), [w])()
        optimizer.apply_gradients([(gradient, w)])
        return loss

    step = rx.function(lambda: two.reduce("SUM", two.run(replica_step), axis=None))
    assert len(collectives(step, optimized=False)) == 2


def test_a_loss_inside_of_another_derivative_does_not_travel(two):
    with two.scope():
        w, v = rx.Variable([1.0, 2.0, 3.0]), rx.Variable(0.0)

    def replica_fn():
        def outer():
            # The inner loss has no derivative at v = 0, and does not matter.
            _, gradient = rx.value_and_grad(lambda: jnp.sqrt(v.value) + jnp.sum(w * 2.0), w)()
            return rx.get_replica_context().all_reduce("SUM", jnp.sum(gradient) * v.value)

        return rx.value_and_grad(outer, v)()

    step = rx.function(lambda: two.reduce("SUM", two.run(replica_fn), axis=None))
    close(step(), (0.0, 24.0))


def test_a_loss_inside_of_vmap_does_not_travel(two):
    with two.scope():
        w, k = rx.Variable(jnp.ones(3)), rx.Variable(2.0)

    def replica_fn(x):
        def one(row):
            loss, _ = rx.value_and_grad(lambda: jnp.sum(w * row), w)()
            return loss, rx.get_replica_context().all_reduce("SUM", 1.0 * k.value)

        return jax.vmap(one, out_axes=(0, None))(x)

    step = rx.function(lambda x: two.run(replica_fn, args=(x,)))
    losses, product = two.local_results(step(jnp.ones((2, 3))))[0]
    close(losses, [3.0, 3.0])
    close(product, 4.0)
