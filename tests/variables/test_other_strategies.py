"""A variable in a replica of a strategy that did not create it: a clear result, or a clear error.

Reading works everywhere, and so do gradients and an optimizer, whose updates are made once for all
replicas. A write is refused: each replica would make it. Outside of all strategies there is one replica,
which may write any variable.
"""

import itertools

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import ContextError

STRATEGIES = {
    "mirrored": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "mirrored, elsewhere": lambda: rx.MirroredStrategy(["CPU:2", "CPU:3"]),
    "mirrored, more": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]),
    "central storage": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "one device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "default": rx.get_strategy,
}
PAIRS = [
    pair
    for pair in itertools.product(STRATEGIES, STRATEGIES)
    if pair[0] != pair[1] or pair[0] == "mirrored"
]
START = np.array([1.0, 2.0], np.float32)


def gradient(v):
    return rx.grad(lambda: jnp.sum(v * v), [v])()[0]


def train(v, optimizer):
    optimizer.apply_gradients([(gradient(v), v)])
    return v.read_value()


READS = {"value": lambda v: v + 0.0, "gradient": gradient}
WRITES = {
    "assign": lambda v: v.assign([3.0, 3.0]),
    "assign_add": lambda v: v.assign_add([1.0, 1.0]),
    "scatter_add": lambda v: v.scatter_add(
        rx.IndexedSlices(jnp.ones((1,)), jnp.array([1]), dense_shape=(2,))
    ),
}


def results(strategy, fn, *, compiled):
    def run():
        return strategy.run(fn)

    values = strategy.local_results((rx.function(run) if compiled else run)())
    return [np.asarray(value) for value in values]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("home", "other"), PAIRS)
def test_variables_of_another_strategy(home, other, compiled, subtests):
    strategy = STRATEGIES[other]()
    count = strategy.num_replicas_in_sync
    with STRATEGIES[home]().scope():
        v = rx.Variable(START, aggregation="SUM")
        optimizer = rx.Optimizer(optax.sgd(0.1))

    for name, fn in READS.items():
        with subtests.test(name):
            found = results(strategy, lambda fn=fn: fn(v), compiled=compiled)
            expected = START if name == "value" else 2.0 * START
            np.testing.assert_array_equal(found, [expected] * count)
    with subtests.test("optimizer"):
        found = results(strategy, lambda: train(v, optimizer), compiled=compiled)
        expected = START - 0.1 * count * 2.0 * START
        np.testing.assert_allclose(found, [expected] * count, rtol=1e-6)
        np.testing.assert_allclose(v.value, expected, rtol=1e-6)
    for name, fn in WRITES.items():
        with subtests.test(name):
            before = np.asarray(v.value)
            if other == "default":
                results(strategy, lambda fn=fn: fn(v), compiled=compiled)
                assert not np.array_equal(v.value, before)
                continue
            with pytest.raises(ContextError, match=f"^{name} of the variable .* outside of that"):
                results(strategy, lambda fn=fn: fn(v), compiled=compiled)
            np.testing.assert_array_equal(v.value, before)


@pytest.mark.parametrize("other", ["mirrored, elsewhere", "mirrored, more"])
def test_parts_of_another_strategy(other):
    """Eager replicas read the combined value. A compiled step can't: the parts are on other devices."""
    strategy = STRATEGIES[other]()
    with STRATEGIES["mirrored"]().scope():
        v = rx.Variable(START, aggregation="SUM", synchronization="ON_READ")
    v.assign([3.0, 5.0])
    count = strategy.num_replicas_in_sync
    np.testing.assert_array_equal(results(strategy, lambda: v + 0.0, compiled=False), [[3.0, 5.0]] * count)
    with pytest.raises(ContextError, match="read in a compiled replica of another strategy"):
        results(strategy, lambda: v + 0.0, compiled=True)
    with pytest.raises(ContextError, match="was read in a step on ReplicaMesh"):
        rx.function(lambda: (strategy.run(lambda: jnp.ones(())), v.read_value()))()
