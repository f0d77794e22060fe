"""`ShardedStrategy`: how variables are divided, read, written and saved."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx


def sharded(n=3, shard="all", **options):
    return rx.ShardedStrategy([f"CPU:{i}" for i in range(n)], shard, **options)


def local_bytes(variable):
    """The size of the shards of a variable, by device."""
    array = variable._store.arrays[variable._place]
    return [shard.data.nbytes for shard in array.addressable_shards]


def test_large_variables_are_divided_and_small_ones_copied():
    with sharded(4).scope():
        large, small = rx.Variable(jnp.zeros((512, 512))), rx.Variable(jnp.zeros(512))
    assert local_bytes(large) == [512 * 512] * 4
    assert local_bytes(small) == [4 * 512] * 4
    assert not isinstance(large, rx.MirroredVariable)
    assert isinstance(small, rx.MirroredVariable)


@pytest.mark.parametrize(
    ("shape", "part"),
    [((7,), (3,)), ((6, 7), (2, 7)), ((5, 7), (5, 3)), ((2, 3, 4), (2, 1, 4)), ((1, 1), (1, 1))],
)
def test_any_shape_is_divided(shape, part):
    value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with sharded(3, min_shard_bytes=1).scope():
        variable = rx.Variable(value)
    assert local_bytes(variable) == [4 * np.prod(part)] * 3
    np.testing.assert_array_equal(variable.numpy(), value)
    variable.assign_add(np.ones(shape, np.float32))
    np.testing.assert_array_equal(variable.numpy(), value + 1)
    assert local_bytes(variable) == [4 * np.prod(part)] * 3


def test_scalars_and_on_read_variables_are_not_divided():
    with sharded(2, min_shard_bytes=1).scope():
        scalar = rx.Variable(1.0)
        total = rx.Variable(jnp.zeros(4), synchronization="ON_READ", aggregation="SUM")
    assert isinstance(scalar, rx.MirroredVariable)
    assert isinstance(total, rx.SyncOnReadVariable)


def test_only_slots_are_divided():
    with sharded(2, "optimizer").scope():
        w = rx.Variable(jnp.zeros((256, 256)))
        optimizer = rx.Optimizer(optax.adam(0.1))
    optimizer.build([w])
    count, mu, nu = optimizer.slots
    assert isinstance(w, rx.MirroredVariable)
    assert isinstance(count, rx.MirroredVariable)
    assert local_bytes(mu) == local_bytes(nu) == [256 * 256 * 2] * 2


def test_one_device_holds_everything():
    with sharded(1, min_shard_bytes=1).scope():
        v = rx.Variable(jnp.arange(4.0))
    assert isinstance(v, rx.MirroredVariable)


def test_another_setting_is_refused():
    with pytest.raises(ValueError, match="pass 'optimizer' or 'all'"):
        rx.ShardedStrategy(["CPU:0"], "params")


def test_reading_keeps_no_gathered_value():
    with sharded(2).scope():
        v = rx.Variable(jnp.zeros((254, 257)))  # a shape that no other test has
    v.numpy()
    v.read_value()
    assert sum(array.shape == v.shape for array in jax.live_arrays()) == 1


def test_per_replica_values_are_refused():
    strategy = sharded(2, min_shard_bytes=1)
    with strategy.scope():
        v = rx.Variable(jnp.zeros(4))
    values = strategy.distribute_values_from_function(lambda ctx: np.ones(4, np.float32))
    with pytest.raises(rx.errors.VariableError, match="Reduce it"):
        v.assign(values)


@pytest.mark.parametrize("shard", ["optimizer", "all"])
def test_checkpoints_fit_every_strategy(tmp_path, shard):
    def state(strategy):
        rng = np.random.default_rng(0)
        with strategy.scope():
            v = rx.Variable(rng.normal(size=(10, 7)).astype(np.float32), name="v")
            optimizer = rx.Optimizer(optax.adam(0.1))
        optimizer.build([v])
        return v, optimizer

    def update(strategy, v, optimizer):
        @rx.function
        def step():
            strategy.run(lambda: optimizer.apply_gradients([(v.value, v)]))

        step()

    strategy = sharded(8, shard, min_shard_bytes=1)
    v, optimizer = state(strategy)
    update(strategy, v, optimizer)
    path = rx.Checkpoint(v=v, optimizer=optimizer).save(tmp_path / "checkpoint")
    saved = [x.numpy() for x in (v, *optimizer.slots)]
    others = [
        rx.OneDeviceStrategy("CPU:0"),
        rx.MirroredStrategy(["CPU:0", "CPU:1"]),
        sharded(3, "all", min_shard_bytes=1),
        sharded(3, "optimizer", min_shard_bytes=1),
    ]
    for other in others:
        restored, slots = state(other)
        rx.Checkpoint(v=restored, optimizer=slots).restore(path).assert_consumed()
        for found, wanted in zip((restored, *slots.slots), saved, strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
def test_keras_fits_as_on_mirrored_replicas():
    keras = pytest.importorskip("keras")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 8)).astype(np.float32), rng.normal(size=(32, 2)).astype(np.float32)

    def fit(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((8,)),
                    keras.layers.Dense(16, use_bias=False),
                    keras.layers.BatchNormalization(),
                    keras.layers.Dense(2),
                ]
            )
            model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return history.history, list(map(keras.ops.convert_to_numpy, model.weights))

    history, weights = fit(sharded(2, min_shard_bytes=1))
    expected, wanted = fit(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
    for key, values in expected.items():
        np.testing.assert_allclose(history[key], values, rtol=1e-5)
    for found, value in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-6)
