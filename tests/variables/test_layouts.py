"""What layouts promise: exact totals, one meaning of a reduction, rows of different number."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

ON_READ, SUM = rx.VariableSynchronization.ON_READ, rx.VariableAggregation.SUM
THREE = ["CPU:0", "CPU:1", "CPU:2"]


def mirrored(count=3):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def variable(strategy, *args, **kwargs):
    with strategy.scope():
        return rx.Variable(*args, **kwargs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64", "int32", "int8"])
@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_a_total_reads_as_it_was_assigned(dtype, count):
    total = variable(mirrored(count), jnp.zeros(200, dtype), synchronization=ON_READ, aggregation=SUM)
    random = np.random.default_rng(count)
    values = random.normal(size=200) * 10.0 ** random.integers(-3, 2, 200)
    values = jnp.asarray(values * (40 if dtype.startswith("int") else 1)).astype(dtype)
    total.assign(values)
    np.testing.assert_array_equal(np.asarray(total.value), np.asarray(values))
    assert total.copies[1].value.shape == (200,)
    # Shares are about equal, as TensorFlow's are.
    shares = np.stack([np.asarray(copy.value.astype(jnp.complex64)) for copy in total.copies])
    spread = np.abs(shares - np.asarray(values.astype(jnp.complex64)) / count).max(axis=0)
    step = 1 if dtype.startswith("int") else float(jnp.finfo(dtype).eps) * 2 * count
    assert (spread <= step * np.maximum(np.abs(np.asarray(values, np.complex64)), 1 / 64) + 1e-12).all()


@pytest.mark.parametrize("value", [0.0, float("inf"), 3e38, 1e-30])
def test_extreme_totals(value):
    total = variable(mirrored(), 0.0, synchronization=ON_READ, aggregation=SUM)
    total.assign(value)
    np.testing.assert_array_equal(total.numpy(), np.float32(value))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_reducing_a_total_means_the_same_for_every_strategy(op, compiled):
    found = []
    for strategy in (mirrored(), rx.CentralStorageStrategy(THREE, "CPU:3")):
        total = variable(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)
        total.assign(6.0)

        def reduce(strategy=strategy, total=total):
            return strategy.reduce(op, total, axis=None)

        found.append(float((rx.function(reduce) if compiled else reduce)()))
    assert found == [6.0 if op == "SUM" else 2.0] * 2


def test_rows_of_the_first_replica_when_others_have_more():
    v = variable(mirrored(), jnp.zeros(6), aggregation=rx.VariableAggregation.ONLY_FIRST_REPLICA)

    def replica_fn():
        i = int(rx.get_replica_context().replica_id_in_sync_group)
        v.scatter_update(rx.IndexedSlices(jnp.full(i + 1, i + 5.0), jnp.arange(i + 1)))

    v.distribute_strategy.run(replica_fn)
    np.testing.assert_array_equal(v.numpy(), [5, 0, 0, 0, 0, 0])
    for copy in v.copies:
        np.testing.assert_array_equal(copy.numpy(), v.numpy())


def test_a_numpy_array_may_change_after_a_variable_was_made_of_it():
    for strategy in (mirrored(), rx.get_strategy(), rx.OneDeviceStrategy("CPU:1")):
        array = np.zeros(100_000, np.float32)
        v = variable(strategy, array)
        array[:] = 7
        assert not v.numpy().any()


@pytest.mark.parametrize(
    ("write", "error", "advice"),
    [
        (lambda v: setattr(v, "value", 1.0), AttributeError, r"v\.assign\(x\)"),
        (lambda v: v.__setitem__(0, 1.0), TypeError, r"slice_at"),
        (lambda v: __import__("pickle").dumps(v), TypeError, r"rx\.Checkpoint"),
        (lambda v: __import__("pickle").dumps(v.distribute_strategy), TypeError, "other process"),
    ],
)
def test_ways_that_do_not_write_say_what_does(write, error, advice):
    v = variable(mirrored(), jnp.zeros(3))
    with pytest.raises(error, match=advice):
        write(v)


def test_places_of_removed_variables_are_used_again_in_order():
    strategy = mirrored()
    first = [variable(strategy, float(i)) for i in range(10)]
    last = variable(strategy, 10.0)
    del first
    second = [variable(strategy, float(i)) for i in range(10)]
    assert [v._place for v in second] == list(range(10))
    assert len(strategy.store.arrays) == 11
    assert float(last) == 10.0


def test_a_large_value_is_not_printed_in_an_error():
    import jax

    v = variable(mirrored(), jnp.zeros((300, 300)))
    with pytest.raises(rx.errors.TracingError) as caught:
        jax.grad(lambda x: (v.assign(x), x.sum())[1])(jnp.ones((300, 300)))
    assert len(str(caught.value)) < 300
