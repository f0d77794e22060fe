"""`strategy.distribute_batch`: batches that a program makes itself, split exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.input.fakes import parts

import replicax as rx
from replicax.errors import ContextError, InputError
from replicax.input import HostBatches, Pipeline, Target

STRATEGIES = {
    "one device": lambda: rx.OneDeviceStrategy("CPU:2"),
    "default": rx.get_strategy,
    "mirrored 1": lambda: rx.MirroredStrategy(["CPU:0"]),
    "mirrored 3": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]),
    "central": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"]),
    "multi worker": lambda: rx.MultiWorkerMirroredStrategy(),
    "two devices each": lambda: rx.TPUStrategy(
        experimental_device_assignment=rx.DeviceAssignment.build(
            rx.Topology(), [1, 1, 1, 2], num_replicas=2
        )
    ),
}


@pytest.fixture(scope="module", params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


@pytest.fixture(scope="module")
def three():
    return STRATEGIES["mirrored 3"]()


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 8, 17])
def test_every_strategy_splits_any_number_of_rows_exactly(strategy, rows):
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    batch = strategy.distribute_batch({"x": x, "pair": (np.arange(rows), jnp.ones(rows))})
    found = parts(strategy, batch)
    sizes = [len(part.value["x"]) for part in found]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    np.testing.assert_array_equal(np.concatenate([part.value["x"] for part in found]), x)
    np.testing.assert_array_equal(
        np.concatenate([part.value["pair"][0] for part in found]), np.arange(rows)
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [6, 7])
def test_a_step_gets_the_same_result_as_numpy(strategy, rows, compiled):
    def step(batch):
        squares = strategy.run(lambda b: b["x"] ** 2 * b["w"], args=(batch,))
        return strategy.reduce("MEAN", squares, axis=0)

    x, w = np.arange(rows, dtype=np.float32), np.linspace(0, 1, rows, dtype=np.float32)
    found = (rx.function(step) if compiled else step)(strategy.distribute_batch({"x": x, "w": w}))
    np.testing.assert_allclose(found, np.mean(x**2 * w), rtol=1e-6)


def test_it_splits_like_a_dataset(three):
    for rows in (6, 7):
        x = np.arange(rows, dtype=np.float32)
        (wanted,) = three.distribute_dataset([x])
        found = three.distribute_batch(x)
        assert [p.tolist() for p in found.components] == [p.tolist() for p in wanted.components]
        assert [p.devices() for p in found.components] == [p.devices() for p in wanted.components]
        assert jax.tree.structure(found) == jax.tree.structure(wanted)


def test_the_callers_arrays_may_be_changed_afterwards(strategy):
    for rows in (6, 7):
        x = np.zeros(rows, np.float32)
        batch = strategy.distribute_batch(x)
        x[...] = 100
        assert sum(part.value.sum() for part in parts(strategy, batch)) == 0


def test_arrays_on_any_devices_are_taken(three):
    devices = jax.devices("cpu")
    mesh = jax.sharding.Mesh(devices[:4], "i")
    spread = jax.device_put(
        jnp.arange(8), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    )
    for batch in (jax.device_put(jnp.arange(8), devices[7]), spread):
        assert [part.value.tolist() for part in parts(three, three.distribute_batch(batch))] == [
            [0, 1, 2],
            [3, 4, 5],
            [6, 7],
        ]


def test_text_and_random_keys(three):
    batch = three.distribute_batch((np.array(["a", "b", "c"]), jax.random.split(jax.random.key(0), 3)))
    assert [part[0][0] for part in three.local_results(batch)] == ["a", "b", "c"]
    drawn = three.run(lambda keys: jax.random.uniform(keys[0]), args=(batch[1],))
    assert len({float(x) for x in three.local_results(drawn)}) == 3


# Padding.


def test_padding_fills_up_to_the_batch_size_with_rows_that_do_not_count(three):
    @rx.function
    def mean(batch):
        return three.reduce("MEAN", three.run(lambda x: x * 2, args=(batch,)), axis=0)

    for rows in (9, 7, 4, 1):
        x = np.arange(1, rows + 1, dtype=np.float32)
        batch = three.distribute_batch(x, partial_batch="pad", batch_size=9)
        assert [len(part.value) for part in parts(three, batch)] == [3, 3, 3]
        assert np.concatenate([part.examples for part in parts(three, batch)]).tolist() == x.tolist()
        np.testing.assert_allclose(mean(batch), x.mean() * 2, rtol=1e-6)
    assert mean.num_programs == 1


def test_padding_without_a_batch_size_makes_the_replicas_equal(three):
    batch = three.distribute_batch(np.arange(4.0), partial_batch="pad")
    assert [part.mask.tolist() for part in parts(three, batch)] == [
        [True, True],
        [True, False],
        [True, False],
    ]


def test_padding_an_empty_batch(three):
    batch = three.distribute_batch(np.zeros((0, 2)), partial_batch="pad", batch_size=6)
    assert [part.value.shape for part in parts(three, batch)] == [(2, 2)] * 3
    assert not any(part.mask.any() for part in parts(three, batch))


# Mistakes.


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((np.zeros(3), np.zeros(4)), r"different numbers of rows: element\[0\] has 3, element\[1\] has 4"),
        (3.0, "single value 3.0"),
        ({"x": np.zeros(3), "step": 1}, r"element\['step'\] is the single value 1"),
        ([1, 2, 3], "np.asarray makes it an array"),
        ((), "has no arrays"),
        ("text", "is not an array, but of type str"),
        (rx.from_arrays(np.zeros(3)), "ArrayDataset.*strategy.distribute_dataset"),
    ],
)
def test_what_is_not_a_batch_is_refused(three, batch, message):
    with pytest.raises(InputError, match=f"strategy.distribute_batch.*{message}"):
        three.distribute_batch(batch)


def test_a_distributed_batch_is_refused(three):
    batch = three.distribute_batch(np.arange(3.0))
    with pytest.raises(InputError, match=r"already distributed. Pass it to strategy.run"):
        three.distribute_batch({"x": batch})
    other = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(InputError, match=r"another strategy.*CPU:2\]\); this one has"):
        other.distribute_batch({"x": batch})
    dataset = three.distribute_dataset([np.zeros(3)])
    for wrong in (dataset, iter(dataset)):
        with pytest.raises(InputError, match=r"takes one batch.*distribute_dataset"):
            three.distribute_batch(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partial_batch": "drop"}, "choose 'exact', 'pad' or 'error'.*skip the step"),
        ({"partial_batch": "Pad"}, "choose 'exact', 'pad' or 'error'"),
        ({"partial_batch": "error"}, "4 examples for 3 replicas, but expected a multiple of 3"),
        ({"partial_batch": "error", "batch_size": 9}, "but expected 3 for each of them"),
        ({"batch_size": 9}, "With partial_batch='exact' leave it out"),
        ({"partial_batch": "pad", "batch_size": 3}, "4 examples, more than batch_size=3"),
        ({"partial_batch": "pad", "batch_size": 0}, "at least 1"),
        ({"partial_batch": "pad", "batch_size": True}, "at least 1"),
        ({"partial_batch": "pad", "batch_size": 2.5}, "at least 1"),
    ],
)
def test_options_are_checked(three, arguments, message):
    with pytest.raises(InputError, match=message):
        three.distribute_batch(np.arange(4.0), **arguments)


def test_even_batches_are_not_errors(three):
    three.distribute_batch(np.arange(6.0), partial_batch="error")
    three.distribute_batch(np.arange(6.0), partial_batch="error", batch_size=6)


def test_it_is_refused_where_it_would_mean_something_else(three):
    with pytest.raises(ContextError, match=r"distribute_batch.*cross-replica"):
        three.run(lambda: three.distribute_batch(np.zeros(3)))
    with pytest.raises(InputError, match="inside a traced function"):
        rx.function(three.distribute_batch)(jnp.zeros(3))


# Several workers.


@pytest.mark.parametrize("rows", [8, 12])
def test_each_worker_uses_its_replicas_rows_of_the_same_global_batch(rows):
    x = np.arange(rows, dtype=np.float32)
    found = []
    for worker in range(2):
        local = rx.MirroredStrategy([f"CPU:{2 * worker}", f"CPU:{2 * worker + 1}"])
        pipeline = Pipeline(worker, ((0, 1), (2, 3)))
        batch = HostBatches(Target(local.mesh, pipeline, committed=True)).distribute(x, "exact", None)
        found += [part.tolist() for part in local.local_results(batch)]
    assert found == x.reshape(4, -1).tolist()
