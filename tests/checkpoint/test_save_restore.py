"""A value per variable, restored onto any layout: every kind of state, every strategy to every other."""

import itertools
import math
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.checkpoint.helpers import (
    FIRST,
    MEAN,
    ON_READ,
    STRATEGIES,
    SUM,
    copies,
    identical,
    mirrored,
    replica_id,
    variable,
)

import replicax as rx
from replicax.errors import CheckpointError

PAIRS = list(itertools.product(STRATEGIES, STRATEGIES))


@pytest.fixture(params=PAIRS, ids=lambda pair: "_to_".join(pair))
def two_strategies(request):
    first, second = request.param
    return STRATEGIES[first](), STRATEGIES[second]()


def random_array(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) * 50).astype(jnp.dtype(dtype))


# Every strategy to every other.


def test_all_copies_have_the_saved_value(two_strategies, tmp_path):
    """Mirrored, plain and aggregating variables; and parts of ON_READ ones that combine to the value."""
    first, second = two_strategies
    number = first.num_replicas_in_sync

    def objects(strategy, scale):
        return {
            "plain": variable(strategy, scale * random_array("float32", (3, 2))),
            "sum": variable(strategy, jnp.zeros(3), synchronization=ON_READ, aggregation=SUM),
            "int_sum": variable(strategy, jnp.zeros(2, int), synchronization=ON_READ, aggregation=SUM),
            "mean": variable(strategy, jnp.zeros(3), synchronization=ON_READ, aggregation=MEAN),
            "first": variable(strategy, 0, synchronization=ON_READ, aggregation=FIRST),
        }

    old, new = objects(first, 1), objects(second, 0)

    def write():
        i = replica_id()
        old["sum"].assign(jnp.array([1.0, 2.0, 4.0]) * (i + 1))
        old["int_sum"].assign(jnp.array([7, -5]) + 10 * i)
        old["mean"].assign(jnp.array([0.0, 0.0, 8.0]) + i)
        old["first"].assign(5 + i)

    first.run(write)
    path = rx.Checkpoint(m=old).save(tmp_path)
    rx.Checkpoint(m=new).restore(path).assert_consumed()

    for copy in copies(second, new["plain"]):
        identical(copy, random_array("float32", (3, 2)))
    for name in old:
        identical(old[name].read_value(), rx.Checkpoint(m=old).content().arrays[f"m/{name}"])
    central = isinstance(first, rx.CentralStorageStrategy)
    if not central:  # there the replicas' writes are combined as they are made
        total = number * (number + 1) / 2
        np.testing.assert_allclose(new["sum"].read_value(), np.array([1.0, 2.0, 4.0]) * total, rtol=1e-6)
        rest = 10 * number * (number - 1) // 2
        identical(new["int_sum"].read_value(), np.array([7 * number + rest, -5 * number + rest], np.int32))
    for name in ("int_sum", "first", "mean"):
        identical(new[name].read_value(), old[name].read_value())
    np.testing.assert_allclose(new["sum"].read_value(), old["sum"].read_value(), rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("value", [0, 1, 7, -1, -7, -8, 2**31 - 1, -(2**31), 100])
def test_integers_are_exact_whatever_the_remainder(n, value, tmp_path):
    strategy = mirrored(n)
    path = rx.Checkpoint(v=rx.Variable(value)).save(tmp_path)
    v = variable(strategy, 0, synchronization=ON_READ, aggregation=SUM)
    rx.Checkpoint(v=v).restore(path).assert_consumed()
    assert int(v.read_value()) == value
    parts = [int(part) for part in copies(strategy, v)]
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
def test_small_integers_are_exact(dtype, tmp_path):
    strategy, info = mirrored(3), np.iinfo(dtype)
    values = np.array([info.min, info.min + 1, 0, 5, info.max - 1, info.max], dtype)
    v = variable(strategy, np.zeros_like(values), synchronization=ON_READ, aggregation=SUM)
    path = rx.Checkpoint(v=rx.Variable(values)).save(tmp_path)
    rx.Checkpoint(v=v).restore(path).assert_consumed()
    identical(v.read_value(), values)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_floats_are_exact_on_two_replicas_and_else_to_the_rounding_of_a_sum(n, tmp_path):
    strategy, values = mirrored(n), random_array("float32", (1000,))
    v = variable(strategy, np.zeros_like(values), synchronization=ON_READ, aggregation=SUM)
    rx.Checkpoint(v=v).restore(rx.Checkpoint(v=rx.Variable(values)).save(tmp_path))
    if n == 2:
        identical(v.read_value(), values)
    np.testing.assert_allclose(v.read_value(), values, rtol=5e-7)


# Kinds of values.

DTYPES = [
    *("float32", "float16", "bfloat16", "int32", "int16", "int8", "int4", "uint8", "uint32", "bool"),
    *("complex64", "float8_e4m3fn"),
]
SHAPES = [(), (1,), (5,), (2, 3), (0,), (0, 3), (3, 0, 2), (1, 1, 1, 1, 2)]


@pytest.mark.parametrize("name", ["default", "mirrored2", "central"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_every_dtype_and_shape_come_back_bit_for_bit(dtype, name, tmp_path):
    strategy = STRATEGIES[name]()
    values = [random_array(dtype, shape, seed) for seed, shape in enumerate(SHAPES)]
    old = [variable(strategy, value) for value in values]
    new = [variable(strategy, np.zeros_like(value)) for value in values]
    rx.Checkpoint(v=new).restore(rx.Checkpoint(v=old).save(tmp_path)).assert_consumed()
    for v, value in zip(new, values, strict=True):
        for copy in copies(strategy, v):
            identical(copy, value)


def test_not_a_number_infinity_and_negative_zero_come_back_bit_for_bit(tmp_path):
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    w = rx.Variable(np.zeros(6, np.float32))
    rx.Checkpoint(w=w).restore(rx.Checkpoint(w=rx.Variable(values)).save(tmp_path))
    identical(w.read_value(), values)


def test_many_variables_and_a_large_one(tmp_path):
    values = [random_array("float32", (3_000_000,)), *(np.float32(i) for i in range(200))]
    new = [rx.Variable(np.zeros_like(value)) for value in values]
    path = rx.Checkpoint(v=[rx.Variable(value) for value in values]).save(tmp_path)
    rx.Checkpoint(v=new).restore(path).assert_consumed()
    for v, value in zip(new, values, strict=True):
        identical(v.read_value(), value)


@pytest.mark.parametrize(
    "key", ["", ".", "..", "a.b", "é ü", "a%2Fb", "a:b", "\\", "x" * 300, "日本", "\n", 3]
)
def test_keys_of_dicts_may_be_any_text(key, tmp_path):
    old = {key: rx.Variable(2.0), "z": rx.Variable(3.0)}
    new = {key: rx.Variable(0.0), "z": rx.Variable(0.0)}
    rx.Checkpoint(m=new).restore(rx.Checkpoint(m=old).save(tmp_path)).assert_consumed()
    assert [float(v.read_value()) for v in new.values()] == [2.0, 3.0]


def test_names_that_differ_in_case_or_by_dots_are_told_apart(tmp_path):
    names = ["a", "A", "a.b", "a_b", "a b"]
    old = {name: rx.Variable(float(i)) for i, name in enumerate(names)}
    new = {name: rx.Variable(-1.0) for name in names}
    rx.Checkpoint(m=new).restore(rx.Checkpoint(m=old).save(tmp_path)).assert_consumed()
    assert [float(new[name].read_value()) for name in names] == [0, 1, 2, 3, 4]


# At the root: arrays, keys and numbers.


@pytest.mark.parametrize(
    "number",
    [0, 3, -1, 2**70, True, False, 1.5, 1e300, 5e-324, 0.1, math.inf, -math.inf, -0.0],
)
def test_a_number_comes_back_with_its_type(number, tmp_path):
    checkpoint = rx.Checkpoint(n=number)
    path = checkpoint.save(tmp_path)
    checkpoint.n = type(number)(0)
    checkpoint.restore(path).assert_consumed()
    assert type(checkpoint.n) is type(number)
    assert repr(checkpoint.n) == repr(number)


def test_a_number_that_is_none_comes_back(tmp_path):
    checkpoint = rx.Checkpoint(n=math.nan)
    checkpoint.restore(checkpoint.save(tmp_path))
    assert math.isnan(checkpoint.n)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5),
        np.arange(6.0).reshape(2, 3),
        np.array(3.0),
        np.zeros((0, 4), np.int16),
        np.array([True, False]),
        np.arange(3, dtype=np.uint64),
        np.arange(4).astype(jnp.bfloat16),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_come_back_of_their_library(array, tmp_path):
    checkpoint = rx.Checkpoint(numpy=array, jax=jnp.asarray(array.astype(np.float32)))
    path = checkpoint.save(tmp_path)
    checkpoint.numpy, checkpoint.jax = np.zeros_like(array), jnp.zeros(array.shape)
    checkpoint.restore(path).assert_consumed()
    assert type(checkpoint.numpy) is np.ndarray
    identical(checkpoint.numpy, array)
    assert isinstance(checkpoint.jax, jax.Array)
    identical(checkpoint.jax, array.astype(np.float32))


def test_a_restored_array_can_be_written(tmp_path):
    checkpoint = rx.Checkpoint(a=np.arange(3))
    checkpoint.restore(checkpoint.save(tmp_path))
    checkpoint.a[0] = 7
    assert checkpoint.a.tolist() == [7, 1, 2]


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("shape", [(), (3,), (0,)])
def test_typed_keys_come_back(impl, shape, tmp_path):
    key = jax.random.key(7, impl=impl)
    keys = jax.random.split(key, shape) if shape else key
    checkpoint = rx.Checkpoint(rng=keys)
    path = checkpoint.save(tmp_path)
    checkpoint.rng = jax.random.split(jax.random.key(0, impl=impl), shape) if shape else jax.random.key(0)
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.rng.dtype == keys.dtype
    identical(jax.random.key_data(checkpoint.rng), jax.random.key_data(keys))


def test_raw_keys_come_back(tmp_path):
    checkpoint = rx.Checkpoint(rng=jax.random.PRNGKey(3))
    path = checkpoint.save(tmp_path)
    checkpoint.rng = jax.random.PRNGKey(0)
    checkpoint.restore(path).assert_consumed()
    identical(jax.random.uniform(checkpoint.rng), jax.random.uniform(jax.random.PRNGKey(3)))


@pytest.mark.parametrize(
    "array",
    [np.array(["text"]), np.array([object()]), np.zeros(2, [("x", "f4"), ("y", "i4")])],
    ids=["text", "objects", "records"],
)
def test_an_array_that_is_not_of_numbers_is_refused(array, tmp_path, caplog):
    with pytest.raises(CheckpointError, match=r"^a is an array of dtype .* Leave it out"):
        rx.Checkpoint(a=array).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_objects_need_names():
    with pytest.raises(TypeError, match=r"by name.*rx\.Checkpoint\(model=model"):
        rx.Checkpoint(rx.Variable(1.0))


# Things with state of their own.


@pytest.mark.parametrize("to", ["mirrored2", "mirrored3", "one_device", "central"])
def test_an_iterator_goes_on_where_it_was(to, tmp_path):
    dataset = rx.from_arrays(np.arange(40)).shuffle(seed=3).batch(5).repeat(3)
    first, second = mirrored(2), STRATEGIES[to]()

    def rows(strategy, batches):
        return [
            [int(x) for part in strategy.local_results(batch) for x in np.asarray(part)]
            for batch in batches
        ]

    with iter(first.distribute_dataset(dataset)) as batches:
        rows(first, itertools.islice(batches, 11))
        path = rx.Checkpoint(data=batches).save(tmp_path)
        expected = rows(first, batches)
    with iter(second.distribute_dataset(dataset)) as batches:
        next(batches)
        rx.Checkpoint(data=batches).restore(path).assert_consumed()
        assert rows(second, batches) == expected


def test_metrics_come_back(tmp_path):
    first, second = mirrored(3), mirrored(2)

    def metrics(strategy):
        with strategy.scope():
            return [rx.Mean("loss"), rx.Sum("sum"), rx.Accuracy(), rx.MeanSquaredError()]

    old, new = metrics(first), metrics(second)
    x = np.arange(7, dtype=np.float32)

    def update(x):
        old[0].update_state(x)
        old[1].update_state(x)
        old[2].update_state(x > 2, x > 4)
        old[3].update_state(x, x + 1)

    for batch in first.distribute_dataset(rx.from_arrays(x).batch(7)):
        first.run(update, args=(batch,))
    rx.Checkpoint(m=new).restore(rx.Checkpoint(m=old).save(tmp_path)).assert_consumed()
    for a, b in zip(old, new, strict=True):
        np.testing.assert_allclose(b.result(), a.result(), rtol=1e-6)


TRANSFORMATIONS = {
    "adam": lambda: optax.adam(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "schedule": lambda: optax.adamw(optax.linear_schedule(0.1, 0.0, 10)),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1), optax.scale(0.5)),
    "plain": lambda: optax.sgd(0.1),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(0.1), every_k_schedule=2),
}


@pytest.mark.parametrize("built", [True, False], ids=["built", "not_built"])
@pytest.mark.parametrize("kind", TRANSFORMATIONS)
def test_an_optimizer_goes_on_bit_for_bit(kind, built, tmp_path):
    strategy = mirrored(2)

    def objects():
        with strategy.scope():
            weights = [rx.Variable(jnp.ones(3), name="a"), rx.Variable(jnp.ones((2, 2)), name="b")]
            scale = rx.DynamicLossScale(initial_scale=8.0, growth_interval=2)
            return weights, rx.Optimizer(TRANSFORMATIONS[kind](), loss_scale=scale)

    def step(weights, optimizer):
        def replica_step():
            def loss():
                a, b = (w.value for w in weights)
                return optimizer.scale_loss(jnp.sum(jnp.sin(a)) + jnp.sum(b**2) * (1.0 + replica_id()))

            gradients = rx.value_and_grad(loss, weights)()[1]
            optimizer.apply_gradients(zip(gradients, weights, strict=True))

        strategy.run(replica_step)

    weights, optimizer = objects()
    for _ in range(3):
        step(weights, optimizer)
    path = rx.Checkpoint(w=weights, o=optimizer).save(tmp_path)
    for _ in range(3):
        step(weights, optimizer)
    resumed, other = objects()
    if built:
        other.build(resumed)
    status = rx.Checkpoint(w=resumed, o=other).restore(path)
    for _ in range(3):
        step(resumed, other)
    status.assert_consumed()
    for old, new in zip((*weights, *optimizer.variables), (*resumed, *other.variables), strict=True):
        identical(new.read_value(), old.read_value())
    assert float(other.loss_scale.scale.read_value()) != 8.0


def test_two_optimizers_go_on_bit_for_bit(tmp_path):
    """As in a GAN: two models, two optimizers."""

    def objects():
        weights = [rx.Variable(jnp.arange(3.0), name="generator"), rx.Variable(jnp.ones(2), name="critic")]
        return weights, [rx.Optimizer(optax.adam(0.1), name=f"adam_{v.name[:-2]}") for v in weights]

    def step(weights, optimizers):
        for w, optimizer in zip(weights, optimizers, strict=True):
            optimizer.minimize(lambda w=w: jnp.sum(jnp.cos(w.value)), [w])

    weights, optimizers = objects()
    for _ in range(4):
        step(weights, optimizers)
    path = rx.Checkpoint(w=weights, o=optimizers).save(tmp_path)
    step(weights, optimizers)
    resumed, others = objects()
    rx.Checkpoint(w=resumed, o=others).restore(path)
    step(resumed, others)
    for old, new in zip(weights, resumed, strict=True):
        identical(new.read_value(), old.read_value())


def test_the_state_of_an_object_is_that_of_the_moment_of_saving(tmp_path):
    class Counter:
        def __init__(self):
            self.numbers = {"count": 1}

        def state(self):
            return self.numbers

        def restore(self, state):
            self.numbers = state

    counter = Counter()
    checkpoint = rx.Checkpoint(counter=counter)
    content = checkpoint.content()
    counter.numbers["count"] = 2
    checkpoint.restore_content(content, "here")
    assert counter.numbers == {"count": 1}
    counter.numbers["count"] = 3
    checkpoint.restore_content(content, "here")
    assert counter.numbers == {"count": 1}


# In compiled code and contexts.


def test_values_that_a_compiled_step_holds_are_saved_and_restored(tmp_path):
    strategy = mirrored(2)
    v = variable(strategy, jnp.zeros(2), aggregation=MEAN)
    step = rx.function(lambda: strategy.run(lambda: v.assign_add(jnp.ones(2))))
    for _ in range(5):
        step()
    checkpoint = rx.Checkpoint(v=v)
    path = checkpoint.save(tmp_path)
    for _ in range(3):
        step()
    checkpoint.restore(path)
    assert v.read_value().tolist() == [5.0, 5.0]
    step()
    assert v.read_value().tolist() == [6.0, 6.0]
    checkpoint.restore(path)
    assert v.read_value().tolist() == [5.0, 5.0]


def test_saving_and_restoring_in_a_scope_is_the_same(tmp_path):
    strategy = mirrored(2)
    with strategy.scope():
        v = rx.Variable(3.0)
        checkpoint = rx.Checkpoint(v=v)
        path = checkpoint.save(tmp_path)
        v.assign(0.0)
        checkpoint.restore(path).assert_consumed()
    assert [float(c) for c in copies(strategy, v)] == [3.0, 3.0]


def test_what_a_checkpoint_holds_does_not_change_with_the_variables():
    v = rx.Variable(np.arange(3.0, dtype=np.float32))
    content = rx.Checkpoint(v=v).content()
    v.assign_add(jnp.ones(3))
    assert content.arrays["v"].tolist() == [0, 1, 2]


def test_nothing_in_a_checkpoint_is_pickled(tmp_path):
    checkpoint = rx.Checkpoint(w=rx.Variable(jnp.ones(3)), rng=jax.random.key(0), epoch=1)
    checkpoint.save(tmp_path)
    # A pickle starts with its protocol and the size of its first frame.
    start = re.compile(rb"\x80[\x04\x05]\x95..\0{6}", re.DOTALL)
    assert start.match(pickle.dumps("three"))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert path.suffix not in (".pkl", ".pickle")
        assert not start.search(path.read_bytes()), path


# Where.


def test_checkpoints_are_numbered_and_found_by_their_folder(tmp_path):
    w = rx.Variable(1.0)
    checkpoint = rx.Checkpoint(w=w)
    folder = tmp_path / "deep" / "folder"
    paths = [checkpoint.save(folder)]
    w.assign(2.0)
    paths.append(checkpoint.save(str(folder)))
    assert paths == [str(folder / "0"), str(folder / "1")]
    checkpoint.restore(folder)
    assert float(w.read_value()) == 2.0
    checkpoint.restore(paths[0])
    assert float(w.read_value()) == 1.0


def test_the_folder_of_checkpoints_may_be_called_by_a_number(tmp_path):
    w = rx.Variable(1.0)
    checkpoint = rx.Checkpoint(w=w)
    checkpoint.save(tmp_path / "2024")
    w.assign(0.0)
    checkpoint.restore(tmp_path / "2024")
    assert float(w.read_value()) == 1.0


def test_a_relative_folder_is_meant_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint = rx.Checkpoint(w=rx.Variable(1.0))
    path = checkpoint.save("runs")
    assert path == str(tmp_path / "runs" / "0")
    checkpoint.restore("runs").assert_consumed()
    checkpoint.restore("runs/0").assert_consumed()


def test_numbers_come_back_as_what_they_were(tmp_path):
    checkpoint = rx.Checkpoint(z=1 + 2j, f=np.float32(2.5), a=np.array(3), n=4)
    path = checkpoint.save(tmp_path)
    checkpoint.restore(path)
    assert checkpoint.z == 1 + 2j
    assert isinstance(checkpoint.z, complex)
    assert isinstance(checkpoint.f, np.float32)
    assert isinstance(checkpoint.a, np.ndarray)
    assert type(checkpoint.n) is int
