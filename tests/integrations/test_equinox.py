"""Equinox models in replica functions train as plain Equinox and optax do."""

import copy
import importlib
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.integrations import equinox as rx_equinox

BATCH = 8
ROWS = 9


@pytest.fixture(autouse=True, scope="module")
def _quick_to_compile():
    """Networks of a few numbers: compiling them well takes longer than running them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def mirrored(count):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-5, atol=1e-5)


def make_mlp():
    return eqx.nn.MLP(4, "scalar", width_size=8, depth=2, activation=jnp.tanh, key=jax.random.key(0))


def data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 4)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] + x[:, 2]).astype(np.float32)


@eqx.filter_jit
@eqx.filter_value_and_grad
def plain_gradients(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def train_plainly(model):
    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    x, y = data()
    losses = []
    for i in range(0, ROWS, BATCH):
        loss, gradients = plain_gradients(model, x[i : i + BATCH], y[i : i + BATCH])
        updates, state = optimizer.update(gradients, state)
        model = eqx.apply_updates(model, updates)
        losses.append(loss)
    return model, losses


@pytest.mark.parametrize(("count", "compiled"), [(1, True), (2, True), (3, True), (2, False)])
def test_an_mlp_trains_like_plain_equinox(count, compiled):
    """The last batch has one row, so all but the first replica have none."""
    strategy = mirrored(count)
    with strategy.scope():
        model = rx_equinox.adopt(make_mlp())
        optimizer = rx.Optimizer(optax.adam(1e-2))

    def loss_fn(x, y):
        return rx.compute_average_loss((jax.vmap(model)(x) - y) ** 2)

    def replica_step(x, y):
        loss, gradients = rx.value_and_grad(loss_fn, model.variables)(x, y)
        optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
        return loss

    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    step = rx.function(step) if compiled else step
    dataset = strategy.distribute_dataset(rx.from_arrays(data()).batch(BATCH))
    losses = [step(batch) for batch in dataset]
    plain, expected = train_plainly(make_mlp())
    close(losses, expected)
    arrays = [eqx.filter(tree, eqx.is_array) for tree in (model.model, plain)]
    assert jax.tree.structure(arrays[0]) == jax.tree.structure(arrays[1])
    jax.tree.map(close, *arrays)


class WithState(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self):
        self.linear = eqx.nn.Linear(4, 3, key=jax.random.key(0))
        self.norm = eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")

    def __call__(self, x, state):
        return self.norm(self.linear(x), state)


def over_batch(model):
    return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))


def test_state_is_each_replicas_own_and_averaged_outside():
    strategy = mirrored(2)
    with strategy.scope():
        model, state = map_pair(
            rx_equinox.adopt, rx_equinox.adopt_state, eqx.nn.make_with_state(WithState)()
        )

    def loss_fn(x):
        y, new = over_batch(model.model)(x, state.value)
        state.assign(new)
        return jnp.mean(y**2)

    @rx.function
    def step(x):
        return strategy.run(rx.grad(loss_fn, model.variables), args=(x,))

    x = data()[0][:8]
    for batch in strategy.distribute_dataset(rx.from_arrays(x).batch(8).repeat(2)):
        step(batch)

    plain, start = eqx.nn.make_with_state(WithState)()
    ends = []
    for part in (x[:4], x[4:]):
        own = jax.tree.map(lambda leaf: leaf, start)
        for _ in range(2):
            _, own = over_batch(plain)(part, own)
        ends.append(own)
    leaves = zip(*map(jax.tree.leaves, (state.value, *ends)), strict=True)
    for actual, first, second in leaves:
        floating = jnp.issubdtype(actual.dtype, jnp.inexact)
        close(actual, (first + second) / 2 if floating else first)


def map_pair(f, g, pair):
    return f(pair[0]), g(pair[1])


def test_a_checkpoint_fits_another_number_of_replicas(tmp_path):
    with mirrored(2).scope():
        model = rx_equinox.adopt(make_mlp())
        state = rx_equinox.adopt_state((jnp.float32(1), jnp.int32(2)))
        rx.Checkpoint(model=model, state=state).save(tmp_path / "saved")
    with mirrored(3).scope():
        other = rx_equinox.adopt(jax.tree.map(lambda x: x * 0 if eqx.is_array(x) else x, make_mlp()))
        other_state = rx_equinox.adopt_state((jnp.float32(0), jnp.int32(0)))
        checkpoint = rx.Checkpoint(model=other, state=other_state)
        checkpoint.restore(tmp_path / "saved").assert_consumed()
    x = data()[0]
    close(jax.vmap(other)(x), jax.vmap(make_mlp())(x))
    assert other_state.value == (1, 2)


def test_what_is_not_chosen_is_constant():
    model = make_mlp()
    chosen = jax.tree.map(lambda _: False, model)
    chosen = eqx.tree_at(lambda m: m.layers[-1].weight, chosen, True)
    adopted = rx_equinox.adopt(model, chosen)
    assert [v.name for v in adopted.variables] == ["layers/2/weight:0"]
    assert "MLP" in repr(adopted)
    adopted.variables[0].assign(jnp.zeros((1, 8)))
    close(adopted(jnp.ones(4)), model.layers[-1].bias[0])


@pytest.mark.parametrize("compiled", [True, False])
def test_equinox_differentiates_an_adopted_model(compiled):
    strategy = mirrored(2)
    with strategy.scope():
        model = rx_equinox.adopt(make_mlp())

    def replica_fn(model, x, y):
        def loss_fn(model):
            return rx.compute_average_loss((jax.vmap(model)(x) - y) ** 2)

        return eqx.filter_grad(loss_fn)(model).variables

    def step(model, batch):
        gradients = strategy.run(replica_fn, args=(model, *batch))
        return [strategy.reduce("SUM", gradient, axis=None) for gradient in gradients]

    step = rx.function(step) if compiled else step
    x, y = data()
    (batch,) = strategy.distribute_dataset(rx.from_arrays((x, y)).batch(ROWS))
    _, plain = plain_gradients(make_mlp(), x, y)
    for actual, expected in zip(step(model, batch), jax.tree.leaves(plain), strict=True):
        close(actual, expected)


def test_equinox_takes_an_adopted_model_for_its_values():
    model, x = rx_equinox.adopt(make_mlp()), jnp.ones(4)
    assert jax.tree.map(lambda v: v, model, is_leaf=lambda v: isinstance(v, rx.Variable)) is model
    call = eqx.filter_jit(lambda model, x: model(x))
    close(call(model, x), model(x))
    model.variables[-1].assign(model.variables[-1] + 1.0)
    close(call(model, x), make_mlp()(x) + 1.0)
    close(eqx.filter_vmap(lambda m, x: m(x), in_axes=(None, 0))(model, x[None])[0], model(x))
    doubled = jax.tree.map(lambda leaf: 2 * leaf, model)
    close(doubled.model.layers[0].weight, 2 * model.model.layers[0].weight)
    assert "leaves" in repr(doubled) and "variables" in repr(model)


def test_inference_mode_is_for_the_model_inside():
    key = jax.random.key(0)
    layers = [eqx.nn.Linear(4, 4, key=key), eqx.nn.Dropout(0.5)]
    model = rx_equinox.adopt(eqx.nn.Sequential(layers))
    for structure in (model, {"model": model}):
        with pytest.raises(rx.errors.VariableError, match=r"inference_mode\(adopted\.model\)"):
            eqx.nn.inference_mode(structure)
    close(eqx.nn.inference_mode(model.model)(jnp.ones(4)), layers[0](jnp.ones(4)))
    without = rx_equinox.adopt(make_mlp())
    close(eqx.nn.inference_mode(without)(jnp.ones(4)), without(jnp.ones(4)))


def test_errors():
    model = rx_equinox.adopt(make_mlp())
    with pytest.raises(AttributeError, match=r"Use `\.model\.layers`"):
        model.layers  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'no_such_name'\.$"):
        model.no_such_name  # noqa: B018
    close(copy.copy(model)(jnp.ones(4)), model(jnp.ones(4)))
    with pytest.raises(rx.errors.VariableError, match="no leaf in"):
        rx_equinox.adopt(eqx.nn.Identity())
    with pytest.raises(rx.errors.VariableError, match="expected a state with the structure"):
        rx_equinox.adopt_state([jnp.ones(2)]).assign((jnp.ones(2),))


def test_the_import_error_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "replicax.integrations.equinox")
    monkeypatch.setitem(sys.modules, "equinox", None)
    with pytest.raises(ImportError, match=r"replicax\[equinox\]"):
        importlib.import_module("replicax.integrations.equinox")
