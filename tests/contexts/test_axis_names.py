"""Collectives of `jax.lax` over the replicas' axis: the same in every kind of replica."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx
from replicax.compat import v1
from replicax.errors import TracingError

_X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def mirrored(num_replicas, **kwargs):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)], **kwargs)


def run_on(strategy, fn, parts, *, compiled):
    """The replicas' results of `fn` for these parts."""

    def run(rows):
        return strategy.run(fn, args=(rows,))

    rows = strategy.distribute_values_from_function(lambda ctx: parts[int(ctx.replica_id_in_sync_group)])
    results = strategy.local_results((rx.function(run) if compiled else run)(rows))
    return [jax.tree.map(np.asarray, part) for part in results]


def assert_close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)
    assert jax.tree.map(lambda a: a.dtype, found) == jax.tree.map(lambda a: a.dtype, expected)


def collectives(axis, count):
    """One function for each collective, and for what differs between its arguments."""
    ring = [(i, (i + 1) % count) for i in range(count)]
    wide = jnp.arange(count, dtype=jnp.float32)
    return {
        "psum": lambda x: lax.psum(x, axis),
        "psum of a structure": lambda x: lax.psum({"x": x, "more": [x[0], None]}, axis_name=axis),
        "psum of bools": lambda x: lax.psum(x > 0, axis),
        "psum of integers": lambda x: lax.psum(jnp.int32(x * 10), axis),
        "psum over a tuple": lambda x: lax.psum(x, (axis,)),
        "pmean": lambda x: lax.pmean(x, axis),
        "pmean of integers": lambda x: lax.pmean(jnp.int32(x * 10), axis),
        "pmax": lambda x: lax.pmax(x, axis),
        "pmin": lambda x: lax.pmin(x, axis_name=axis),
        "all_gather": lambda x: lax.all_gather(x, axis),
        "all_gather, tiled": lambda x: lax.all_gather(x, axis, axis=1, tiled=True),
        "ppermute": lambda x: lax.ppermute(x, axis, ring),
        "pshuffle": lambda x: lax.pshuffle(x, axis, list(reversed(range(count)))),
        "all_to_all": lambda x: lax.all_to_all(x[:, :1] * wide, axis, 1, 0),
        "pswapaxes": lambda x: lax.pswapaxes(x[:, :1] * wide, axis, 1),
        "psum_scatter": lambda x: lax.psum_scatter(x[0, 0] * wide, axis),
        "axis_index": lambda x: x + lax.axis_index(axis),
        "axis_size": lambda x: x * lax.axis_size(axis) * lax.psum(1, axis),
        "in vmap": lambda x: jax.vmap(lambda row: row - lax.pmean(row, axis))(x),
        "with an axis of vmap": lambda x: jax.vmap(lambda r: lax.psum(r, (axis, "rows")), axis_name="rows")(
            x
        ),
        "index with an axis of vmap": lambda x: jax.vmap(
            lambda r: r + lax.axis_index((axis, "rows")), axis_name="rows"
        )(x),
        "gradient of pmean": jax.grad(lambda x: jnp.sum((x - lax.pmean(x, axis)) ** 3)),
        "gradient of all_gather": jax.grad(lambda x: jnp.sum(jnp.sin(lax.all_gather(x, axis)) * x)),
        "gradient of ppermute": jax.grad(lambda x: jnp.sum(lax.ppermute(x, axis, ring) ** 2 * x)),
        "hidden by vmap": lambda x: jax.vmap(lambda row: lax.psum(row, axis), axis_name=axis)(x),
    }


_FEW = ("psum", "pmean", "pmax", "ppermute", "all_gather, tiled", "gradient of pmean")
MODES = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


@MODES
@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_every_collective_has_the_results_of_vmap(num_replicas, compiled, subtests):
    strategy = mirrored(num_replicas)
    cases = collectives(strategy.axis_name, num_replicas)
    if num_replicas == 3 and not compiled:  # every case compiles its operations for every device
        cases = {name: fn for name, fn in cases.items() if name in _FEW}

    def all_of_them(x):
        return {name: fn(x) for name, fn in cases.items()}

    parts = np.split(_X, num_replicas)
    found = run_on(strategy, all_of_them, parts, compiled=compiled)
    expected = jax.jit(jax.vmap(all_of_them, axis_name=strategy.axis_name))(np.stack(parts))
    for name in cases:
        with subtests.test(name):
            for i, mine in enumerate(found):
                assert_close(mine[name], jax.tree.map(lambda y, i=i: np.asarray(y[i]), expected[name]))


@MODES
def test_groups_of_replicas(compiled):
    strategy = mirrored(4)
    groups = [[0, 2], [1, 3]]

    def replica_fn(x):
        return (
            lax.pmean(x, strategy.axis_name, axis_index_groups=groups),
            lax.all_gather(x, strategy.axis_name, axis_index_groups=groups),
        )

    found = run_on(strategy, replica_fn, list(np.arange(4.0, dtype=np.float32)), compiled=compiled)
    expected = {0: [0.0, 2.0], 1: [1.0, 3.0], 2: [0.0, 2.0], 3: [1.0, 3.0]}
    for replica, (mean, gathered) in enumerate(found):
        np.testing.assert_array_equal(gathered, expected[replica])
        assert mean == np.mean(expected[replica])


@MODES
def test_replicas_with_different_numbers_of_rows(compiled):
    """In a compiled step they are traced one after the other."""
    strategy = mirrored(2)
    axis = strategy.axis_name

    def replica_fn(x):
        def loss(x):
            return jnp.sum((x - lax.psum(x.sum(0), axis) / lax.psum(x.shape[0], axis)) ** 2)

        return jax.grad(loss)(x), lax.pmax(x.max(), axis), lax.axis_index(axis), lax.axis_size(axis)

    first, second = run_on(strategy, replica_fn, [_X[:4], _X[4:]], compiled=compiled)
    gradient = jax.grad(lambda x: jnp.sum((x - x.mean(0)) ** 2))(_X)
    np.testing.assert_allclose(np.concatenate([first[0], second[0]]), gradient, rtol=1e-5)
    assert first[1] == second[1] == _X.max()
    assert (first[2], second[2]) == (0, 1)
    assert first[3] == second[3] == 2


STRATEGIES = {
    "mirrored": lambda: mirrored(2, axis_name="batch"),
    "one device": lambda: rx.OneDeviceStrategy("CPU:1", axis_name="batch"),
    "central storage": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], axis_name="batch"),
    "multi-worker": lambda: rx.MultiWorkerMirroredStrategy(axis_name="batch"),
    "tpu": lambda: rx.TPUStrategy(axis_name="batch"),
    "version 1": lambda: v1.MirroredStrategy(["CPU:0", "CPU:1"], axis_name="batch"),
}


@MODES
@pytest.mark.parametrize("kind", STRATEGIES)
def test_the_name_of_the_axis_is_a_choice(kind, compiled):
    strategy = STRATEGIES[kind]()
    assert strategy.axis_name == "batch"
    count = strategy.num_replicas_in_sync
    with strategy.scope():
        v = rx.Variable(0.0, aggregation="SUM")

    def replica_fn(x):
        v.assign_add(lax.pmean(x, "batch"))
        return lax.psum(x, "batch")

    parts = list(np.arange(1.0, count + 1.0, dtype=np.float32))
    assert run_on(strategy, replica_fn, parts, compiled=compiled) == [sum(parts)] * count
    np.testing.assert_allclose(v.value, sum(parts))


@MODES
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_another_name_is_an_error_that_says_this_one(num_replicas, compiled):
    strategy = mirrored(num_replicas, axis_name="batch")
    with pytest.raises(NameError, match="unbound axis name: replica") as caught:
        run_on(strategy, lambda x: lax.pmean(x, "replica"), [1.0] * num_replicas, compiled=compiled)
    assert "named 'batch' here" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("name", ["", 3, "logical_0"])
def test_names_that_an_axis_cannot_have(name):
    with pytest.raises(ValueError, match=f"axis_name must be a string .* got {name!r}"):
        rx.OneDeviceStrategy("CPU:0", axis_name=name)


@MODES
def test_variables_of_a_strategy_with_another_name_on_the_same_devices(compiled):
    one, other = mirrored(2), mirrored(2, axis_name="batch")
    with one.scope():
        w = rx.Variable(3.0)
    assert run_on(other, lambda x: lax.psum(x * w, "batch"), [1.0, 2.0], compiled=compiled) == [9.0, 9.0]


def test_functions_imported_before_replicax():
    """The mean calls the sum by its name; the sum itself is JAX's, which does not know the axis."""
    strategy = mirrored(2)
    mean, total = lax.pmean.__wrapped__, lax.psum.__wrapped__
    assert run_on(strategy, lambda x: mean(x, "replica"), [1.0, 2.0], compiled=False) == [1.5, 1.5]
    with pytest.raises(NameError) as caught:
        run_on(strategy, lambda x: total(x, "replica"), [1.0, 2.0], compiled=False)
    assert "import them after replicax" in "".join(caught.value.__notes__)


def test_outside_of_replicas_there_is_no_axis():
    with pytest.raises(NameError, match="unbound axis name: replica"):
        lax.psum(1.0, "replica")
    with mirrored(2).scope(), pytest.raises(NameError, match="unbound axis name: replica"):
        lax.pmax(1.0, "replica")


# Functions that JAX compiles, and whose traces it caches.


@jax.jit
def centered(x):
    return x - lax.pmean(x, "replica")


def in_scan(x):
    return lax.scan(lambda total, row: (total + lax.psum(row, "replica"), None), jnp.zeros(()), x)[0]


@pytest.mark.parametrize("fn", [centered, in_scan], ids=["jit", "scan"])
def test_functions_that_jax_compiles(fn):
    x = [np.arange(1.0, 4.0, dtype=np.float32), np.arange(7.0, 10.0, dtype=np.float32)]
    alone = [-0.0, 6.0][fn is in_scan]
    together = [-3.0, 30.0][fn is in_scan]
    for compiled in (False, True):
        (only,) = run_on(mirrored(1), fn, x[:1], compiled=compiled)
        np.testing.assert_array_equal(only, alone)
        np.testing.assert_array_equal(run_on(mirrored(2), fn, x, compiled=True)[0], together)
    # JAX has cached what a single replica, and a compiled one, may do.
    with pytest.raises(
        TracingError, match=r"over the replica axis 'replica' .* inside (jit|scan|pjit).*all_reduce"
    ):
        run_on(mirrored(2), fn, x, compiled=False)
    unequal = [x[0], x[1][:1]]
    with pytest.raises(TracingError, match="partial_batch='pad'"):
        run_on(mirrored(2), fn, unequal, compiled=True)
