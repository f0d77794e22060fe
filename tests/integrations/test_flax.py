"""Flax NNX models in replica functions: they train as plain Flax does, and stay NNX models."""

import copy
import functools
import importlib
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import replicax as rx
from replicax.integrations import flax as rx_flax

BATCH = 8


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


def transformation():
    return optax.sgd(0.05, momentum=0.9)


class Net(nnx.Module):
    def __init__(self, norm=nnx.BatchNorm, rate=0.0):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = norm(8, momentum=0.9, epsilon=0.1, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.second = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        x = jnp.tanh(self.norm(self.first(x)))
        return self.second(self.dropout(x))[:, 0]


def data(rows):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] + x[:, 2]).astype(np.float32)


def batches(rows):
    x, y = data(rows)
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, rows, BATCH)]


@nnx.jit
def plain_gradients(model, x, y, count):
    return nnx.value_and_grad(lambda model: jnp.sum((model(x) - y) ** 2) / count)(model)


@functools.cache
def train_plainly(rate, rows, num_replicas):
    """Flax and optax on one device; of several replicas, each one's work after the other."""
    model = Net(rate=rate)
    optimizer = transformation()
    state = optimizer.init(nnx.state(model, nnx.Param))
    losses = []
    for x, y in batches(rows):
        clones, total, gradients = [], 0.0, None
        parts = zip(np.array_split(x, num_replicas), np.array_split(y, num_replicas), strict=True)
        for i, (x_part, y_part) in enumerate(parts):
            clone = nnx.clone(model)
            if num_replicas > 1:
                for _, part in nnx.iter_graph(clone):
                    if isinstance(part, nnx.RngKey):
                        part[...] = jax.random.fold_in(part[...], i)

            loss, own = plain_gradients(clone, x_part, y_part, len(x))
            total += loss
            gradients = own if gradients is None else jax.tree.map(jnp.add, gradients, own)
            clones.append(clone)
        params = nnx.state(model, nnx.Param)
        updates, state = optimizer.update(gradients, state, params)
        nnx.update(model, optax.apply_updates(params, updates))
        statistics = [nnx.state(clone, nnx.BatchStat) for clone in clones]
        nnx.update(model, jax.tree.map(lambda *parts: sum(parts) / len(parts), *statistics))
        nnx.update(model, nnx.state(clones[0], nnx.RngCount))
        losses.append(total)
    return model, losses


def train_step(strategy, model, optimizer, compiled=True):
    params = rx_flax.variables(model)

    def loss_fn(x, y):
        return rx.compute_average_loss((model(x) - y) ** 2)

    def replica_step(x, y):
        loss, gradients = rx.value_and_grad(loss_fn, params)(x, y)
        optimizer.apply_gradients(zip(gradients, params, strict=True))
        return loss

    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    return rx.function(step) if compiled else step


def train(strategy, model, rows, compiled=True, options=None):
    with strategy.scope():
        model = rx_flax.adopt(model)
        optimizer = rx.Optimizer(transformation())
    step = train_step(strategy, model, optimizer, compiled)
    dataset = strategy.distribute_dataset(rx.from_arrays(data(rows)).batch(BATCH), options)
    return [step(batch) for batch in dataset]


def check_equal(model, plain):
    for kind in (nnx.Param, nnx.BatchStat, nnx.RngCount):
        actual, expected = (nnx.to_pure_dict(nnx.state(m, kind)) for m in (model, plain))
        assert jax.tree.structure(actual) == jax.tree.structure(expected)
        jax.tree.map(close, actual, expected)


# Training.


@pytest.mark.parametrize(("count", "rows"), [(1, 8), (2, 6), (3, 14)])
def test_batch_norm_and_dropout_train_like_plain_flax(count, rows):
    """Three replicas get 8 rows in parts of 3, 3, 2 and then 6 as 2, 2, 2."""
    model = Net(rate=0.3)
    losses = train(mirrored(count), model, rows)
    plain, expected = train_plainly(0.3, rows, count)
    close(losses, expected)
    check_equal(model, plain)


@pytest.mark.parametrize(("count", "compiled"), [(2, True), (3, True), (2, False)])
def test_sync_batch_norm_trains_like_one_device(count, compiled):
    """The last batch has one row, so all but the first replica have none."""
    model = Net(rx_flax.SyncBatchNorm)
    losses = train(mirrored(count), model, 9, compiled)
    plain, expected = train_plainly(0.0, 9, 1)
    close(losses, expected)
    check_equal(model, plain)


def test_sync_batch_norm_leaves_padding_out():
    model = Net(rx_flax.SyncBatchNorm)
    losses = train(mirrored(3), model, 9, options=rx.InputOptions(partial_batch="pad"))
    plain, expected = train_plainly(0.0, 9, 1)
    close(losses, expected)
    check_equal(model, plain)


def test_sync_batch_norm_in_two_passes_and_with_a_mask():
    x = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32) + 10
    mask = np.array([[[True]], [[True]], [[False]], [[True]]])
    plain = nnx.BatchNorm(2, use_fast_variance=False, rngs=nnx.Rngs(0))
    expected = plain(x, mask=mask)
    strategy = mirrored(2)
    with strategy.scope():
        norm = rx_flax.adopt(rx_flax.SyncBatchNorm(2, use_fast_variance=False, rngs=nnx.Rngs(0)))
    (batch,) = strategy.distribute_dataset(rx.from_arrays((x, mask)).batch(4))
    result = strategy.run(lambda x, mask: norm(x, mask=mask), args=batch)
    close(strategy.gather(result, axis=0), expected)
    close(norm.mean[...], plain.mean[...])
    close(norm.var[...], plain.var[...])
    with pytest.raises(ValueError, match="axis_name"):
        rx_flax.SyncBatchNorm(2, axis_name="batch", rngs=nnx.Rngs(0))


def test_the_model_is_not_called_again_once_a_step_is_compiled():
    calls = []

    class Counted(Net):
        def __call__(self, x):
            calls.append(x)
            return super().__call__(x)

    strategy = mirrored(2)
    with strategy.scope():
        model = rx_flax.adopt(Counted())
        optimizer = rx.Optimizer(transformation())
    step = train_step(strategy, model, optimizer)
    (batch,) = strategy.distribute_dataset(rx.from_arrays(data(BATCH)).batch(BATCH))
    step(batch), step(batch)
    before = len(calls)
    step(batch), step(batch)
    assert len(calls) == before


def test_precision_and_microbatches():
    strategy = mirrored(2)
    with strategy.scope():
        model = rx_flax.adopt(Net(rate=0.5))
    params = rx_flax.variables(model)

    @rx.function
    def gradients(batch):
        def replica_fn(x, y):
            def loss_fn(x, y):
                assert model.first.kernel.dtype == jnp.bfloat16
                return rx.compute_average_loss((model(x) - y) ** 2)

            differentiate = rx.value_and_grad(
                loss_fn, params, microbatches=2, precision=rx.MixedPrecision()
            )
            return differentiate(x, y)[0]

        return strategy.reduce("SUM", strategy.run(replica_fn, args=batch), axis=None)

    (batch,) = strategy.distribute_dataset(rx.from_arrays(data(BATCH)).batch(BATCH))
    assert jnp.isfinite(gradients(batch))
    assert model.dropout.rngs.count[...] == 2, "each part of the batch takes a key"
    assert model.norm.mean.dtype == jnp.float32


# Randomness.


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_a_stream_used_twice_in_a_loss_gives_new_keys_of_each_replica(compiled):
    strategy = mirrored(2)
    with strategy.scope():
        dropout = rx_flax.adopt(nnx.Dropout(0.5, rngs=nnx.Rngs(3)))
        w = rx.Variable(1.0)

    def replica_fn():
        def loss_fn():
            masks = dropout(jnp.ones(64)), dropout(jnp.ones(64))
            return w * 1.0, masks

        (_, masks), _ = rx.value_and_grad(loss_fn, w, has_aux=True)()
        return masks

    step = rx.function(lambda: strategy.run(replica_fn)) if compiled else lambda: strategy.run(replica_fn)
    masks = [
        tuple(np.asarray(m).tolist()) for part in (*step(), *step()) for m in strategy.local_results(part)
    ]
    assert len(set(masks)) == 8, "two steps, two calls, two replicas"
    assert dropout.rngs.count[...] == 4


def test_keys_are_those_of_flax_outside_of_replicas_and_can_be_seeded_anew():
    plain = nnx.Dropout(0.5, rngs=nnx.Rngs(3))
    with mirrored(2).scope():
        dropout = rx_flax.adopt(nnx.Dropout(0.5, rngs=nnx.Rngs(3)))
    x = jnp.ones(64)
    close(dropout(x), plain(x))
    for module in (dropout, plain):
        nnx.reseed(module, dropout=7)
    close(dropout(x), plain(x))


# An adopted model is still an NNX model.


@pytest.fixture
def adopted():
    strategy = mirrored(2)
    with strategy.scope():
        return strategy, rx_flax.adopt(Net())


def test_the_usual_functions_of_nnx_work(adopted):
    _, model = adopted
    plain = Net()
    assert isinstance(model.first.kernel, nnx.Param)
    assert model.first.kernel.shape == (4, 8)
    close(model.first.kernel + 1.0, plain.first.kernel + 1.0)
    assert repr(model.first.kernel).startswith("Param(")
    state = nnx.state(model, nnx.Param)
    zeros = jax.tree.map(jnp.zeros_like, state)
    assert jax.tree.structure(jax.tree.map(jnp.add, state, zeros)) == jax.tree.structure(state)
    nnx.update(model, zeros)
    assert not model.first.kernel[...].any()
    assert not rx_flax.variables(model.first.kernel)[0].read_value().any()
    nnx.update(model, nnx.state(plain))
    check_equal(model, plain)


def test_copies_hold_a_value_of_their_own(adopted):
    _, model = adopted
    pickled = pickle.loads(pickle.dumps(nnx.state(model)))
    for copied in (nnx.clone(model), copy.deepcopy(model), nnx.merge(nnx.graphdef(model), pickled)):
        close(copied.first.kernel[...], model.first.kernel[...])
        copied.first.kernel[...] = jnp.zeros((4, 8))
        assert model.first.kernel[...].any() and not copied.first.kernel[...].any()
        with pytest.raises(rx.errors.VariableError, match="Adopt it"):
            rx_flax.variables(copied)
        assert not rx_flax.variables(rx_flax.adopt(copied).first.kernel)[0].read_value().any()


def test_a_view_shares_the_variables(adopted):
    strategy, model = adopted
    model.norm.mean[...] = jnp.full(8, 2.0)
    inference = nnx.view(model, deterministic=True, use_running_average=True)
    assert rx_flax.variables(inference) == rx_flax.variables(model)
    x = data(4)[0]
    expected = model.second(jnp.tanh(model.norm(model.first(x), use_running_average=True)))[:, 0]
    predict = rx.function(lambda x: strategy.run(inference, args=(x,)))
    (batch,) = strategy.distribute_dataset(rx.from_arrays(x).batch(4))
    close(strategy.gather(predict(batch), axis=0), expected)
    close(model.norm.mean[...], jnp.full(8, 2.0))


def test_nnx_gradients_in_a_replica_are_the_replicas():
    strategy = mirrored(2)
    with strategy.scope():
        model = rx_flax.adopt(nnx.Linear(4, 1, rngs=nnx.Rngs(0)))
    x, y = data(4)

    def loss_fn(model, x, y):
        return jnp.mean((model(x)[:, 0] - y) ** 2)

    def replica_fn(x, y):
        gradients = nnx.grad(loss_fn, graph_updates=False)(model, x, y)
        return rx.get_replica_context().all_reduce("MEAN", jax.tree.leaves(gradients))

    (batch,) = strategy.distribute_dataset(rx.from_arrays((x, y)).batch(4))
    result = rx.function(lambda batch: strategy.run(replica_fn, args=batch))(batch)
    expected = nnx.grad(loss_fn)(nnx.Linear(4, 1, rngs=nnx.Rngs(0)), x, y)
    for actual, leaf in zip(result, jax.tree.leaves(expected), strict=True):
        close(strategy.local_results(actual)[0], leaf)


class Rematerialized(nnx.Module):
    def __init__(self, **options):
        rngs = nnx.Rngs(0)
        self.inner = nnx.Linear(4, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.options = options

    def __call__(self, x):
        @nnx.remat(**self.options)
        def inside(self, x):
            return self.dropout(jnp.tanh(self.inner(x)))

        return inside(self, x)


def test_remat_writes_what_changed():
    strategy = mirrored(2)
    with strategy.scope():
        model = rx_flax.adopt(Rematerialized(graph_updates=False))
    params = rx_flax.variables(model)

    @rx.function
    def step():
        return strategy.run(rx.grad(lambda: jnp.sum(model(jnp.ones((2, 4)))), params))

    assert all(jnp.isfinite(g).all() for part in step() for g in strategy.local_results(part))
    assert model.dropout.rngs.count[...] == 1


def test_remat_that_writes_everything_is_refused_with_the_remedy():
    strategy = mirrored(2)
    with strategy.scope():
        model = rx_flax.adopt(Rematerialized())
    with pytest.raises(rx.errors.VariableError, match="graph_updates=False"):
        strategy.run(lambda: model(jnp.ones((2, 4))))


class NoisyCell(nnx.GRUCell):
    """With a mask of its own at each step, and a statistic."""

    def __init__(self, *args, rngs):
        super().__init__(*args, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.steps = nnx.BatchStat(jnp.zeros(()))

    def __call__(self, carry, inputs):
        self.steps[...] = self.steps[...] + 1
        return super().__call__(carry, self.dropout(inputs))


class Recurrent(nnx.Module):
    def __init__(self, cell=nnx.GRUCell):
        rngs = nnx.Rngs(0)
        forward, backward = (nnx.RNN(cell(4, 3, rngs=rngs), rngs=rngs) for _ in range(2))
        self.both = nnx.Bidirectional(forward, backward)
        self.out = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.both(x)[:, -1])[:, 0]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_recurrent_networks_train_like_plain_flax(compiled):
    strategy = mirrored(2)
    with strategy.scope():
        model = rx_flax.adopt(Recurrent())
        optimizer = rx.Optimizer(optax.sgd(0.1))
    x = np.random.default_rng(0).normal(size=(6, 5, 4)).astype(np.float32)
    y = x.sum((1, 2))
    step = train_step(strategy, model, optimizer, compiled)
    losses = [step(batch) for batch in strategy.distribute_dataset(rx.from_arrays((x, y)).batch(3))]

    plain = Recurrent()
    plain_optimizer = nnx.Optimizer(plain, optax.sgd(0.1), wrt=nnx.Param)
    for i, loss in enumerate(losses):
        rows = slice(3 * i, 3 * i + 3)

        def loss_fn(model, rows=rows):
            return jnp.mean((model(x[rows]) - y[rows]) ** 2)

        expected, gradients = nnx.value_and_grad(loss_fn)(plain)
        plain_optimizer.update(plain, gradients)
        close(loss, expected)
    states = [nnx.to_pure_dict(nnx.state(m, nnx.Param)) for m in (model, plain)]
    jax.tree.map(close, *states)
    close(nnx.view(model)(x), plain(x))
    close(nnx.clone(model)(x), plain(x))


def test_what_a_recurrent_network_counts_is_kept():
    strategy = mirrored(2)
    with strategy.scope():
        model = rx_flax.adopt(Recurrent(NoisyCell))
        rnn = model.both.forward_rnn
        assert type(rx_flax.adopt(rnn)) is type(rnn) and isinstance(rnn, nnx.RNN)
    x = jnp.ones((2, 5, 4))
    step = rx.function(lambda: strategy.run(model, args=(x,)))
    first, second = (strategy.local_results(step()) for _ in range(2))
    assert not np.allclose(first[0], second[0]) and not np.allclose(first[0], first[1])
    assert rnn.cell.steps[...] == 10, "two calls of five steps"


def test_parameters_are_not_written_by_replicas(adopted):
    strategy, model = adopted
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def replica_fn():
        optimizer.update(model, nnx.state(model, nnx.Param))

    with pytest.raises(rx.errors.VariableError, match=r"rx\.Optimizer"):
        strategy.run(replica_fn)


def test_without_a_strategy_flax_trains_as_always():
    model, plain = rx_flax.adopt(Net()), Net()
    x, y = data(8)
    for module in (model, plain):
        optimizer = nnx.Optimizer(module, optax.sgd(0.1), wrt=nnx.Param)
        optimizer.update(module, nnx.grad(lambda m: jnp.mean((m(x) - y) ** 2))(module))
    check_equal(model, plain)


# Checkpoints.


def test_a_checkpoint_fits_another_number_of_replicas(tmp_path):
    model = Net(rate=0.3)
    train(mirrored(2), model, 8)
    with rx.CheckpointManager(rx.Checkpoint(model=model), tmp_path) as manager:
        manager.save(1)
    other = Net(rate=0.3)
    with mirrored(3).scope():
        rx_flax.adopt(other)
        rx.Checkpoint(model=other).restore(tmp_path).assert_consumed()
    check_equal(other, model)


# Adopting.


def test_what_becomes_of_each_kind(adopted):
    _, model = adopted
    kinds = {
        v.name: (v.trainable, v.synchronization.name, v.aggregation.name)
        for v in rx_flax.variables(model, ...)
    }
    assert kinds["first/kernel:0"] == (True, "ON_WRITE", "NONE")
    assert kinds["norm/mean:0"] == (False, "ON_READ", "MEAN")
    assert kinds["dropout/rngs/key:0"] == (False, "ON_WRITE", "NONE")
    assert kinds["dropout/rngs/count:0"] == (False, "ON_READ", "ONLY_FIRST_REPLICA")


@pytest.mark.parametrize("compiled", [False, True])
def test_metrics_of_nnx_count_all_examples(compiled):
    values = np.array([0.0, 1.0, 5.0], np.float32)
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    before = nnx.metrics.Average("loss")
    before.update(loss=jnp.array([2.0]))
    with strategy.scope():
        metrics = rx_flax.adopt(nnx.MultiMetric(loss=before, accuracy=nnx.metrics.Accuracy()))
    assert float(metrics.compute()["loss"]) == 2

    def update(x):
        metrics.update(loss=x, logits=jnp.stack([x, 1.5 - x], 1), labels=jnp.ones(x.shape, jnp.int32))

    def step(batch):
        strategy.run(update, args=(batch,))

    (batch,) = strategy.distribute_dataset(rx.from_arrays(values).batch(3))  # two examples, and one
    (rx.function(step) if compiled else step)(batch)
    computed = metrics.compute()
    np.testing.assert_allclose([computed["loss"], computed["accuracy"]], [8 / 4, 1 / 3], rtol=1e-6)
    metrics.reset()
    step(batch)
    np.testing.assert_allclose(metrics.compute()["loss"], values.mean(), rtol=1e-6)


def test_adopting_again_changes_nothing_and_other_strategies_are_refused(adopted):
    strategy, model = adopted
    before = rx_flax.variables(model, ...)
    with strategy.scope():
        assert rx_flax.adopt([model, model.first])[0] is model
    assert rx_flax.variables(model, ...) == before
    with pytest.raises(rx.errors.ContextError, match=r"nnx\.clone"):
        rx_flax.adopt(model)
    rx_flax.adopt(nnx.clone(model))


def test_what_can_not_be_adopted():
    with pytest.raises(TypeError, match=r"no nnx\.Variable"):
        rx_flax.adopt({"a": jnp.ones(2)})
    with pytest.raises(rx.errors.VariableError, match="first/bias"):
        rx_flax.variables(Net())
    with pytest.raises(rx.errors.VariableError, match=r"nnx\.merge"):
        rx_flax.adopt(nnx.eval_shape(Net))
    with pytest.raises(rx.errors.VariableError, match=r"nnx\.metrics\.Average"):
        rx_flax.adopt({"a": nnx.metrics.Welford()})
    for options in ({"ref": True}, {"hijax": True}):
        with pytest.raises(rx.errors.VariableError, match="ref=False"):
            rx_flax.adopt(nnx.List([nnx.Param(jnp.ones(2), **options)]))


def test_variables_without_numbers_stay():
    held = nnx.Variable("text")
    model = nnx.List([nnx.Param(jnp.ones(2)), held, nnx.Intermediate(jnp.ones(2))])
    rx_flax.adopt(model)
    assert type(held) is nnx.Variable and len(rx_flax.variables(model, ...)) == 1


def test_the_import_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("replicax.integrations.flax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(ImportError, match=r"replicax\[flax\]"):
        importlib.import_module("replicax.integrations.flax")


# Modules that set attributes when they are called.


class _Sowing(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(2, 3, rngs=rngs), nnx.Linear(3, 1, rngs=rngs)
        self.norm = nnx.BatchNorm(3, momentum=0.5, rngs=rngs)

    def __call__(self, x):
        hidden = self.norm(self.first(x))
        self.sow(nnx.Intermediate, "hidden", hidden)
        return self.second(hidden)


class _CountingCalls(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.calls = nnx.Linear(2, 3, rngs=rngs), 0

    def __call__(self, x):
        self.calls += 1
        return self.linear(x)


def _adopted(strategy, kind):
    with strategy.scope():
        return rx_flax.adopt(kind(nnx.Rngs(0)))


@pytest.mark.parametrize("kind", [_Sowing, _CountingCalls])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_attributes_that_are_set_in_a_step_are_refused(kind, num_replicas):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    model, x = _adopted(strategy, kind), jnp.ones((2, 2))
    step = rx.function(lambda: strategy.run(model, args=(x,)))
    with pytest.raises(rx.errors.VariableError, match=rf"{kind.__name__} is changed .* `nnx.view\(model\)"):
        step()
    gradients = rx.grad(lambda: jnp.sum(model(x)), rx_flax.variables(model))
    with pytest.raises(rx.errors.VariableError, match=r"is changed .* under a gradient"):
        strategy.run(gradients)
    assert not hasattr(model, "hidden") and getattr(model, "calls", 0) == 0


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_intermediates_of_a_view(num_replicas, compiled):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    model = _adopted(strategy, _Sowing)
    variables = rx_flax.variables(model)
    plain = _Sowing(nnx.Rngs(0))
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)

    def replica_step(rows):
        def loss_fn():
            y, found = nnx.capture(nnx.view(model), nnx.Intermediate)(rows)
            return jnp.sum(y), nnx.to_pure_dict(found)["hidden"][0]

        return rx.value_and_grad(loss_fn, variables, has_aux=True)()

    step = rx.function(lambda rows: strategy.run(replica_step, args=(rows,)))
    (rows,) = strategy.distribute_dataset(rx.from_arrays(x).batch(4))
    (_, hidden), gradients = step(rows) if compiled else strategy.run(replica_step, args=(rows,))
    parts = np.split(x, num_replicas)
    expected = [nnx.capture(nnx.clone(plain), nnx.Intermediate)(part)[1] for part in parts]
    expected = [nnx.to_pure_dict(found)["hidden"][0] for found in expected]
    np.testing.assert_allclose(strategy.gather(hidden, axis=0), np.concatenate(expected), rtol=1e-5)
    assert len(gradients) == len(variables)
    # The view shares the variables: statistics of the batch were written.
    assert not np.allclose(model.norm.mean[...], plain.norm.mean[...])
