"""Variables: made, read and written in every context, with every synchronization and aggregation."""

import copy
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .helpers import AGGREGATIONS, ON_READ, close, each, parts, rid, variable

SUM, MEAN, FIRST = (rx.VariableAggregation[name] for name in AGGREGATIONS)
NONE = rx.VariableAggregation.NONE

WRITES = {
    "assign": lambda old, new: new,
    "assign_add": lambda old, new: old + new,
    "assign_sub": lambda old, new: old - new,
}


def has_parts(v):
    """Whether each replica has a value of its own."""
    return isinstance(v, rx.SyncOnReadVariable)


# Creation.


def test_properties(strategy):
    v = variable(strategy, [1, 2], name="v", dtype=jnp.float32, constraint=abs)
    assert isinstance(v, rx.Variable)
    assert (v.shape, v.ndim, v.size, v.dtype) == ((2,), 1, 2, jnp.float32)
    assert (v.name, v.trainable, v.constraint) == ("v:0", True, abs)
    assert v.aggregation is NONE
    assert strategy.extended.variable_created_in_scope(v)
    close(v.numpy(), [1, 2])


def test_kinds():
    kinds = [rx.MirroredVariable, rx.SyncOnReadVariable, rx.AggregatingVariable]

    def kind(strategy, **kwargs):
        v = variable(strategy, 0.0, **kwargs)
        assert type(v) is rx.Variable
        return [each for each in kinds if isinstance(v, each)]

    mirrored = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    central = rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    assert kind(mirrored) == [rx.MirroredVariable]
    assert kind(mirrored, synchronization=ON_READ) == [rx.SyncOnReadVariable]
    assert kind(rx.MirroredStrategy(["CPU:0"])) == [rx.MirroredVariable]
    assert kind(central) == [rx.AggregatingVariable]
    assert kind(central, synchronization=ON_READ) == [rx.AggregatingVariable]
    assert kind(rx.OneDeviceStrategy("CPU:0")) == []


def test_names_of_kinds_are_for_isinstance():
    with pytest.raises(TypeError, match=r"rx\.Variable"):
        rx.MirroredVariable(1.0)


@pytest.mark.parametrize("initial", [1.5, [1.5], np.array([[1.5]]), lambda: jnp.full(2, 1.5)])
def test_initial_values(strategy, initial):
    v = variable(strategy, initial)
    expected = initial() if callable(initial) else initial
    close(v, expected)
    assert v.dtype == jnp.float32


def test_initial_function_is_called_once(strategy):
    calls = []
    variable(strategy, lambda: calls.append(1) or 1.0)
    assert calls == [1]


def test_initial_value_from_another_variable(strategy):
    first = variable(strategy, [1.0, 2.0])
    second = variable(strategy, first)
    first.assign([5.0, 6.0])
    close(second, [1, 2])


def test_on_read_is_not_trainable_unless_asked(strategy):
    assert not variable(strategy, 0.0, synchronization=ON_READ).trainable
    assert variable(strategy, 0.0, synchronization=ON_READ, trainable=True).trainable
    assert not variable(strategy, 0.0, trainable=False).trainable


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_initial_value_of_an_on_read_variable(strategy, aggregation):
    """Every replica starts with it, so a SUM variable reads N times the initial value."""
    v = variable(strategy, 2.0, synchronization=ON_READ, aggregation=aggregation)
    counts = strategy.num_replicas_in_sync if has_parts(v) and aggregation == "SUM" else 1
    close(v, 2 * counts)
    close(parts(strategy, strategy.run(v.read_value)), [2] * strategy.num_replicas_in_sync)


def test_made_in_a_replica(strategy):
    """One variable for all replicas; the first replica's initial value counts."""
    made = []

    def replica_fn():
        made.append(rx.Variable(lambda: 1.0 + rid(), aggregation=SUM))
        made[-1].assign_add(1.0)
        return made[-1].read_value()

    n = strategy.num_replicas_in_sync
    close(parts(strategy, strategy.run(replica_fn)), [1 + n] * n)
    assert all(v is made[0] for v in made)
    close(parts(strategy, made[0]), [1 + n] * n)


class Counter:
    """A step that creates its variable in its first call."""

    def __init__(self, strategy, in_replica, **kwargs):
        self.strategy, self.in_replica, self.kwargs = strategy, in_replica, kwargs
        self.v = None

    def make(self):
        if self.v is None:
            self.v = rx.Variable(lambda: jnp.float32(10), **self.kwargs)

    def step(self, x):
        with self.strategy.scope():
            if not self.in_replica:
                self.make()
            self.strategy.run(self.count, args=(x,))
            return self.v.read_value()

    def count(self, x):
        self.make()
        self.v.assign_add(x)


@pytest.mark.parametrize("in_replica", [False, True], ids=["in scope", "in run"])
@pytest.mark.parametrize("kwargs", [{}, {"synchronization": ON_READ}], ids=["on write", "on read"])
def test_made_in_the_first_call_of_a_step(strategy, mode, in_replica, kwargs):
    counter = Counter(strategy, in_replica, aggregation=SUM, **kwargs)
    step = mode(counter.step)
    n = strategy.num_replicas_in_sync
    x = each(strategy, lambda i: i + 1.0)
    first, second = step(x), step(x)
    start = 10 * n if has_parts(counter.v) else 10
    close(first, start + n * (n + 1) / 2)
    close(second, start + n * (n + 1))


def test_made_from_a_traced_value(strategy, mode):
    made = []

    def step(x):
        with strategy.scope():
            if not made:
                made.append(rx.Variable(x + 1))
            return made[0] * 2

    step = mode(step)
    close(step(jnp.arange(2.0)), [2, 4])
    close(step(jnp.arange(2.0) + 7), [2, 4])
    close(made[0], [1, 2])


def test_made_on_every_call_of_a_compiled_step(strategy):
    def step():
        with strategy.scope():
            return rx.Variable(1.0) + 1

    with pytest.raises(ValueError, match="only once"):
        rx.function(step)()


def test_central_variables_are_on_the_parameter_device():
    strategy = rx.CentralStorageStrategy(["CPU:1", "CPU:2"], parameter_device="CPU:3")
    v = variable(strategy, [1.0], aggregation=SUM)
    for step in (lambda f: f, rx.function):
        step(lambda: strategy.run(lambda: v.assign_add([1.0])))()
        assert v.device == jax.devices()[3]
        assert v.read_value().devices() == {jax.devices()[3]}
    close(v, [5])


# Writes in replicas.


def test_on_write_in_replicas(strategy, mode, subtests):
    start = np.array([10.0, 20.0], np.float32)
    made = {
        (write, aggregation): variable(strategy, start, aggregation=aggregation)
        for write, aggregation in itertools.product(WRITES, AGGREGATIONS)
    }
    n = strategy.num_replicas_in_sync
    written = [np.array([i + 1.0, 2.0 * i]) for i in range(n)]

    def replica_fn(x):
        return [getattr(v, write)(x) for (write, _), v in made.items()]

    step = mode(lambda x: strategy.run(replica_fn, args=(x,)))
    found = step(each(strategy, lambda i: written[i], jnp.float32))
    for ((write, aggregation), v), returned in zip(made.items(), found, strict=True):
        with subtests.test(write=write, aggregation=aggregation):
            new = WRITES[write](start, AGGREGATIONS[aggregation](written))
            close(v, new)
            close(parts(strategy, v), [new] * n)
            close(parts(strategy, returned), [new] * n)


def test_on_read_in_replicas(mirrored, mode, subtests):
    start = np.array([10.0, 20.0], np.float32)
    made = {
        (write, aggregation): variable(mirrored, start, synchronization=ON_READ, aggregation=aggregation)
        for write, aggregation in itertools.product(WRITES, [*AGGREGATIONS, "NONE"])
    }
    n = mirrored.num_replicas_in_sync
    written = [np.array([i + 1.0, 2.0 * i]) for i in range(n)]

    def replica_fn(x):
        return [(getattr(v, write)(x), v.read_value()) for (write, _), v in made.items()]

    step = mode(lambda x: mirrored.run(replica_fn, args=(x,)))
    found = step(each(mirrored, lambda i: written[i], jnp.float32))
    readable = {case: v for case, v in made.items() if "NONE" not in case}
    combined = mode(lambda: [v.read_value() for v in readable.values()])()
    combined = dict(zip(readable, combined, strict=True))
    for ((write, aggregation), v), (returned, read) in zip(made.items(), found, strict=True):
        with subtests.test(write=write, aggregation=aggregation):
            new = [WRITES[write](start, x) for x in written]
            close(parts(mirrored, v), new)
            close(parts(mirrored, returned), new)
            close(parts(mirrored, read), new)
            if aggregation != "NONE":
                close(combined[write, aggregation], AGGREGATIONS[aggregation](new))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_on_read_of_a_single_copy(mode, aggregation):
    """Central storage has one value, so what replicas write is combined at once."""
    strategy = rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    v = variable(strategy, 10.0, synchronization=ON_READ, aggregation=aggregation)
    found = mode(lambda: strategy.run(lambda: v.assign_add(rid() + 1.0)))()
    expected = 10 + AGGREGATIONS[aggregation]([1.0, 2.0])
    close(v, expected)
    close(parts(strategy, found), [expected] * 2)


def test_a_constant_counts_for_each_replica(strategy, mode, subtests):
    made = [(value, variable(strategy, 0.0, aggregation=SUM)) for value in (1.0, 2, np.float32(3))]
    mode(lambda: strategy.run(lambda: [v.assign_add(value) for value, v in made]))()
    for value, v in made:
        with subtests.test(value=value):
            close(v, strategy.num_replicas_in_sync * value)


def test_a_variable_as_the_value(strategy, mode):
    v = variable(strategy, 0.0, aggregation=SUM)
    w = variable(strategy, 3.0)
    mode(lambda: strategy.run(lambda: v.assign_add(w)))()
    close(v, 3 * strategy.num_replicas_in_sync)
    mode(lambda: v.assign(w))()
    close(v, 3)


def test_without_aggregation(several, mode):
    v = variable(several, 1.0, name="step_count")
    with pytest.raises(ValueError, match=r"step_count.*ONLY_FIRST_REPLICA"):
        mode(lambda: several.run(lambda: v.assign(rid() * 1.0)))()
    close(v, 1)


def test_without_aggregation_in_a_single_plain_replica():
    for strategy in (rx.OneDeviceStrategy("CPU:1"), rx.get_strategy()):
        v = variable(strategy, 1.0)
        strategy.run(lambda v=v: v.assign_add(1.0))
        close(v, 2)


def test_only_one_replica_writes(several):
    v = variable(several, 0.0, aggregation=SUM)

    def replica_fn():
        if rid() == 0:
            v.assign_add(1.0)

    with pytest.raises(RuntimeError, match="merge_call"):
        several.run(replica_fn)
    close(v, 0)


def test_only_one_replica_writes_its_part(mirrored):
    v = variable(mirrored, 0.0, synchronization=ON_READ, aggregation=SUM)

    def replica_fn():
        if rid() == 1:
            v.assign_add(5.0)

    mirrored.run(replica_fn)
    close(parts(mirrored, v), [5.0 * (i == 1) for i in range(mirrored.num_replicas_in_sync)])
    close(v, 5)


def test_several_writes_in_a_row(strategy, mode):
    v = variable(strategy, 1.0, aggregation=MEAN)

    def replica_fn():
        v.assign_add(rid() * 2.0)
        v.assign(v * 3)
        return v + 1

    n = strategy.num_replicas_in_sync
    step = mode(lambda: strategy.run(replica_fn))
    expected = 1.0
    for _ in range(3):
        expected = 3 * (expected + n - 1)
        close(parts(strategy, step()), [expected + 1] * n)
    close(v, expected)


def test_read_value_false(strategy, mode):
    v = variable(strategy, 1.0, aggregation=SUM)
    assert mode(lambda: strategy.run(lambda: v.assign(2.0, read_value=False)))() is None
    assert mode(lambda: v.assign_add(1.0, read_value=False))() is None


# Writes and reads outside of replicas.


@pytest.mark.parametrize("where", ["in scope", "outside"])
def test_on_write_across_replicas(strategy, mode, where, subtests):
    start = np.array([10.0, 20.0], np.float32)
    made = {write: variable(strategy, start) for write in WRITES}
    step = mode(lambda x: [getattr(v, write)(x) for write, v in made.items()])
    x = jnp.array([1.0, 2.0])
    if where == "in scope":
        with strategy.scope():
            found = step(x)
    else:
        found = step(x)
    for (write, v), returned in zip(made.items(), found, strict=True):
        with subtests.test(write=write):
            new = WRITES[write](start, np.asarray(x))
            close(v, new)
            close(parts(strategy, v), [new] * strategy.num_replicas_in_sync)
            close(parts(strategy, returned), [new] * strategy.num_replicas_in_sync)


def test_a_write_across_replicas_returns_a_mirrored_value(mirrored, mode):
    v = variable(mirrored, 1.0)
    assert isinstance(mode(lambda: v.assign(2.0))(), rx.Mirrored)


def test_assign_broadcasts(strategy, mode):
    v = variable(strategy, np.zeros((2, 3)), aggregation=SUM)
    mode(lambda: v.assign(1.0))()
    close(v, np.ones((2, 3)))
    mode(lambda: strategy.run(lambda: v.assign([0.0, 1.0, 2.0])))()
    close(v, np.tile(np.arange(3.0), (2, 1)) * strategy.num_replicas_in_sync)


def test_an_on_read_sum_reads_what_was_assigned(mirrored, mode, subtests):
    """The parts add up exactly; the remainder of an integer goes to the first replicas."""
    totals = [np.float32(7), *(np.asarray(total, np.int32) for total in (7, -7, 0, [5, -3, 8]))]
    made = [
        (total, variable(mirrored, np.zeros_like(total), synchronization=ON_READ, aggregation=SUM))
        for total in totals
    ]
    mode(lambda: [v.assign(total) for total, v in made])()
    for total, v in made:
        with subtests.test(total=total):
            close(v, total)
            if total.dtype == np.int32:
                found = np.stack(parts(mirrored, v))
                np.testing.assert_array_equal(found.sum(axis=0), total)
                assert (np.diff(found, axis=0) <= 0).all() and (found[0] - found[-1] <= 1).all()


def test_on_read_across_replicas(mirrored, mode, subtests):
    made = {
        (write, aggregation): variable(mirrored, 0.0, synchronization=ON_READ, aggregation=aggregation)
        for write, aggregation in itertools.product(WRITES, ("MEAN", "ONLY_FIRST_REPLICA"))
    }
    n = mirrored.num_replicas_in_sync
    mirrored.run(lambda: [v.assign(rid() + 1.0) for v in made.values()])
    mode(lambda: [getattr(v, write)(4.0) for (write, _), v in made.items()])()
    for (write, aggregation), v in made.items():
        with subtests.test(write=write, aggregation=aggregation):
            old = AGGREGATIONS[aggregation](np.arange(n) + 1.0)
            close(parts(mirrored, v), [WRITES[write](old, 4.0)] * n)


def test_on_read_writes_that_mean_nothing(mirrored, mode):
    total = variable(mirrored, 0.0, name="total", synchronization=ON_READ, aggregation=SUM)
    for write in ("assign_add", "assign_sub"):
        with pytest.raises(ValueError, match=f"{write}.*total.*SUM"):
            mode(lambda write=write: getattr(total, write)(1.0))()
    local = variable(mirrored, 0.0, name="local", synchronization=ON_READ)
    for use in (local.read_value, lambda: local.assign(1.0)):
        with pytest.raises(ValueError, match=r"local.*NONE"):
            mode(use)()


def test_per_replica_values_across_replicas(several, mode):
    """They are refused: the copies would differ."""
    x = each(several, float)
    v = variable(several, 1.0, name="weights")
    with pytest.raises(ValueError, match=r"weights.*PerReplica.*reduce"):
        mode(lambda x: v.assign(x))(x)
    close(v, 1)


def test_per_replica_values_to_an_on_read_variable(mirrored, mode):
    v = variable(mirrored, 1.0, synchronization=ON_READ, aggregation=SUM)
    with pytest.raises(TypeError, match="PerReplica"):
        mode(lambda x: v.assign(x))(each(mirrored, float))


def test_mirrored_values_across_replicas(several, mode):
    v = variable(several, 1.0)
    step = mode(lambda x: v.assign_add(several.extended.reduce_to("SUM", x, x)))
    step(each(several, lambda i: i + 1.0))
    n = several.num_replicas_in_sync
    close(parts(several, v), [1 + n * (n + 1) / 2] * n)


def test_reads(strategy, mode):
    v = variable(strategy, [1.0, 2.0])

    def replica_fn():
        return v.read_value(), v.value, v + rid(), v[1], v @ v

    n = strategy.num_replicas_in_sync
    read, value, added, second, total = mode(lambda: strategy.run(replica_fn))()
    for found, expected in ((read, [1, 2]), (value, [1, 2]), (second, 2), (total, 5)):
        close(parts(strategy, found), [expected] * n)
    close(parts(strategy, added), [[1 + i, 2 + i] for i in range(n)])


def test_eager_reads_are_on_the_replicas_device(placed):
    v = variable(placed, [1.0, 2.0])
    found = []
    placed.run(lambda: found.append(v.read_value().devices()))
    assert [f"CPU:{min(d.id for d in devices)}" for devices in found] == list(
        placed.extended.worker_devices
    )


def test_reads_outside_mix_with_any_device(strategy):
    v = variable(strategy, [1.0, 2.0])
    close(v + jax.device_put(np.ones(2, np.float32), jax.devices()[5]), [2, 3])
    close(jax.device_put(np.ones(2, np.float32), jax.devices()[0]) @ v, 3)


def test_a_read_stays_what_it_was(strategy, mode):
    v = variable(strategy, [1.0, 2.0], aggregation=SUM)
    before = v.value
    mode(lambda: strategy.run(lambda: v.assign_add([1.0, 1.0])))()
    close(before, [1, 2])


# Scatter updates.


def scatter(old, method, indices, values):
    """The NumPy model."""
    new = np.array(old)
    operation = {
        "scatter_add": np.add,
        "scatter_sub": np.subtract,
        "scatter_mul": np.multiply,
        "scatter_div": np.divide,
        "scatter_min": np.minimum,
        "scatter_max": np.maximum,
        "scatter_update": lambda old, new: new,
    }[method]
    for index, value in zip(indices, values, strict=True):
        new[index] = operation(new[index], value)
    return new


ALL_SCATTER = [f"scatter_{kind}" for kind in ("add", "sub", "mul", "div", "min", "max", "update")]
START = np.array([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]], np.float32)


def test_scatter_across_replicas(strategy, mode, subtests):
    made = {method: variable(strategy, START) for method in ALL_SCATTER}
    values = np.array([[2.0, 4.0], [32.0, 5.0]], np.float32)

    def step(values):
        rows = rx.IndexedSlices(values, jnp.array([2, 1]))
        return [getattr(v, method)(rows) for method, v in made.items()]

    mode(step)(jnp.asarray(values))
    for method, v in made.items():
        with subtests.test(method=method):
            expected = scatter(START, method, [2, 1], values)
            close(parts(strategy, v), [expected] * strategy.num_replicas_in_sync)


def test_scatter_in_replicas(several, mode, subtests):
    """The rows of all replicas are applied one after the other; MEAN divides them by N."""
    made = {
        (method, aggregation): variable(several, START, aggregation=aggregation)
        for method, aggregation in itertools.product(ALL_SCATTER[:4], AGGREGATIONS)
    }
    n = several.num_replicas_in_sync
    values = [np.array([[i + 1.0] * 2, [2.0] * 2]) for i in range(n)]

    def replica_fn(rows, indices):
        slices = rx.IndexedSlices(rows, indices)
        return [getattr(v, method)(slices) for (method, _), v in made.items()]

    rows = each(several, lambda i: values[i], jnp.float32)
    indices = each(several, lambda i: [i % 2, 2], jnp.int32)
    found = mode(lambda *args: several.run(replica_fn, args))(rows, indices)
    for ((method, aggregation), v), returned in zip(made.items(), found, strict=True):
        with subtests.test(method=method, aggregation=aggregation):
            scale = n if aggregation == "MEAN" else 1
            expected = START
            for i in [0] if aggregation == "ONLY_FIRST_REPLICA" else range(n):
                expected = scatter(expected, method, [i % 2, 2], values[i] / scale)
            close(v, expected)
            close(parts(several, returned), [expected] * n)


def test_scatter_of_rows_without_an_order(several, mode, subtests):
    rows = rx.IndexedSlices(jnp.full((1, 2), 35.0), jnp.array([1]))
    summed = variable(several, START, name="table", aggregation=SUM)
    firsts = {method: variable(several, START, aggregation=FIRST) for method in ALL_SCATTER[4:]}
    mode(lambda: several.run(lambda: [getattr(v, method)(rows) for method, v in firsts.items()]))()
    for method, first in firsts.items():
        with subtests.test(method=method):
            close(first, scatter(START, method, [1], [[35.0, 35.0]]))
            with pytest.raises(NotImplementedError, match=rf"{method}.*table.*SUM"):
                mode(lambda method=method: several.run(lambda: getattr(summed, method)(rows)))()


def test_scatter_of_an_on_read_variable(mirrored, mode):
    v = variable(mirrored, START, name="table", synchronization=ON_READ, aggregation=SUM)
    rows = rx.IndexedSlices(jnp.ones((1, 2)), jnp.array([1]))
    with pytest.raises(NotImplementedError, match=r"ON_READ.*table"):
        mode(lambda: mirrored.run(lambda: v.scatter_add(rows)))()


def test_scatter_takes_indexed_slices(strategy, mode):
    v = variable(strategy, START)
    with pytest.raises(TypeError, match="IndexedSlices"):
        mode(lambda: v.scatter_add(jnp.ones(2)))()


# Computing with variables.


def everywhere(strategy, mode, compute):
    """The results of `compute` outside of replicas, and on the last replica."""
    yield mode(compute)()
    if mode is rx.function:
        yield strategy.local_results(mode(lambda: strategy.run(compute))())[-1]
    else:  # JAX compiles eager operations for each device, so compute on one only
        last, found = strategy.num_replicas_in_sync - 1, []
        strategy.run(lambda: found.append(compute()) if int(rid()) == last else None)
        yield found[0]


def test_arithmetic(strategy, mode):
    value = np.array([1.0, -2.0, 4.0], np.float32)
    v = variable(strategy, value)

    def compute():
        results = [v + 1, 1 - v, v * v, v / 2, 2 / v, v**2, 2**v, v % 3, v // 2, -v, abs(v), +v]
        return [*results, v > 0, v <= 1, v == 1, v != 1, v[0], v[1:], v @ v, np.float32(2) * v]

    a = value
    expected = [a + 1, 1 - a, a * a, a / 2, 2 / a, a**2, 2**a, a % 3, a // 2, -a, abs(a), +a]
    expected += [a > 0, a <= 1, a == 1, a != 1, a[0], a[1:], a @ a, 2 * a]
    for found in everywhere(strategy, mode, compute):
        for actual, wanted in zip(found, expected, strict=True):
            close(actual, wanted)


def test_jax_functions(strategy, mode):
    value = np.array([1.0, -2.0, 4.0], np.float32)
    v = variable(strategy, value)

    def compute():
        results = [jnp.exp(v), jnp.sum(v), jnp.stack([v, v]), jnp.where(v > 0, v, 0)]
        return [
            *results,
            jnp.dot(v, v),
            jnp.reshape(v, (3, 1)),
            jax.nn.relu(v),
            jax.lax.add(v.value, v.value),
        ]

    a = value
    expected = [np.exp(a), a.sum(), np.stack([a, a]), np.where(a > 0, a, 0), a @ a, a[:, None]]
    expected += [np.maximum(a, 0), a + a]
    for found in everywhere(strategy, mode, compute):
        for actual, wanted in zip(found, expected, strict=True):
            close(actual, wanted)


def test_bits(strategy, mode):
    v = variable(strategy, [6, 3])
    found = mode(lambda: [v & 2, v | 1, v ^ 5, ~v, v << 1, v >> 1, 1 << v])()
    a = np.array([6, 3])
    for actual, wanted in zip(found, [a & 2, a | 1, a ^ 5, ~a, a << 1, a >> 1, 1 << a], strict=True):
        close(actual, wanted)


def test_rows_of_a_table(strategy, mode):
    """An embedding: rows read by index, and a changed copy made with `at`."""
    v = variable(strategy, START)
    ids = jnp.array([2, 0])
    found = everywhere(strategy, mode, lambda: (v[ids], v.value[ids], v.value.at[ids].add(1.0)))
    changed = START.copy()
    changed[[2, 0]] += 1
    for first, second, third in found:
        close(first, START[[2, 0]])
        close(second, START[[2, 0]])
        close(third, changed)


def test_conversions(strategy):
    """A variable converts like its array."""
    one = variable(strategy, 2.0)
    several = variable(strategy, [1.0, 2.0])
    index = variable(strategy, 1)
    assert (float(one), int(one), bool(one), complex(one)) == (2.0, 2, True, 2 + 0j)
    assert [10, 20][index] == 20
    assert len(several) == 2
    assert [float(x) for x in several] == [1.0, 2.0]
    assert isinstance(several.numpy(), np.ndarray)
    np.testing.assert_array_equal(np.asarray(several), [1, 2])
    with pytest.raises((TypeError, ValueError), match="ambiguous"):
        bool(several)
    with pytest.raises(TypeError):
        len(one)


def test_references(strategy):
    v, w = variable(strategy, 1.0), variable(strategy, 1.0)
    with pytest.raises(TypeError, match="unhashable"):
        hash(v)
    assert v.ref() == v.ref() != w.ref()
    assert {v.ref(): "v", w.ref(): "w"}[v.ref()] == "v"
    assert v.ref().deref() is v


def test_deepcopy(strategy):
    v = variable(strategy, [1.0, 2.0])
    twin = copy.deepcopy(v)
    v.assign([5.0, 6.0])
    close(twin, [1, 2])
    assert type(twin) is type(v)


def test_gradients_with_respect_to_a_variables_value(strategy, mode):
    v = variable(strategy, [1.0, 2.0])

    def replica_fn(x):
        return jax.grad(lambda w: (w * x).sum() * v[0])(v.value)

    n = strategy.num_replicas_in_sync
    found = mode(lambda x: strategy.run(replica_fn, (x,)))(each(strategy, lambda i: [i, 1.0]))
    close(parts(strategy, found), [[i, 1] for i in range(n)])


def test_reprs(two):
    v = variable(two, 1.0, name="v")
    lines = [
        "  0: <rx.Variable 'v:0' shape=() dtype=float32, numpy=1.0>",
        "  1: <rx.Variable 'v/replica_1:0' shape=() dtype=float32, numpy=1.0>",
    ]
    assert repr(v) == str(v) == "MirroredVariable:{\n" + ",\n".join(lines) + "\n}"
    v = variable(two, 1.0, name="v", synchronization=ON_READ)
    assert repr(v) == str(v) == "SyncOnReadVariable:{\n" + ",\n".join(lines) + "\n}"
    for strategy in (rx.OneDeviceStrategy("CPU:0"), rx.CentralStorageStrategy(["CPU:0"], "CPU:0")):
        v = variable(strategy, 1.0, name="v")
        assert repr(v) == str(v) == lines[0].strip().removeprefix("0: ").removesuffix(",")


# Under another strategy.


def test_made_outside_of_the_scope(placed, mode):
    """It can be read in replicas, but each of them would write it."""
    v = rx.Variable([1.0, 2.0], name="stranger", aggregation=SUM)
    n = placed.num_replicas_in_sync
    close(parts(placed, mode(lambda: placed.run(lambda: v + rid()))()), [[1 + i, 2 + i] for i in range(n)])
    with pytest.raises(RuntimeError, match=r"stranger.*test_variables.py:\d+.*scope"):
        mode(lambda: placed.run(lambda: v.assign_add([1.0, 1.0])))()
    close(v, [1, 2])


def test_made_outside_of_the_scope_and_written_across_replicas(placed, mode):
    v = rx.Variable(1.0)

    def step(x):
        total = placed.reduce("SUM", placed.run(lambda x: x * v, args=(x,)), axis=None)
        v.assign_add(total)
        return total

    n = placed.num_replicas_in_sync
    step = mode(step)
    x = each(placed, lambda i: i + 1.0)
    step(x)
    close(v, 1 + n * (n + 1) / 2)
    step(x)
    close(v, (1 + n * (n + 1) / 2) ** 2)


def test_of_another_strategy(placed, mode):
    other = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    v = variable(other, [1.0, 2.0], aggregation=SUM)
    n = placed.num_replicas_in_sync
    with placed.scope():
        close(v, [1, 2])
    close(parts(placed, mode(lambda: placed.run(lambda: v * 2))()), [[2, 4]] * n)
    with pytest.raises(RuntimeError, match="scope"):
        mode(lambda: placed.run(lambda: v.assign([0.0, 0.0])))()
    close(v, [1, 2])


def test_lists_of_whole_numbers_are_taken_like_whole_numbers(strategy, mode):
    v = variable(strategy, [0.5, 0.5])
    mode(lambda: v.assign([3, 4], read_value=False))()
    close(v, [3, 4])
    mode(lambda: v.assign_add([1, -1], read_value=False))()
    close(v, [4, 3])
    small = variable(strategy, [1, 2], dtype=jnp.uint8)
    mode(lambda: small.assign([0, 255], read_value=False))()
    close(small, [0, 255])
    for refused in ([0, 256], [-1, 0], [0.5, 1]):
        with pytest.raises(ValueError, match="uint8"):
            small.assign(refused)


@pytest.mark.parametrize("value", [None, "text", [[1.0], [1.0, 2.0]]])
def test_what_is_no_array_is_refused_by_name(two, value):
    with pytest.raises(ValueError, match=r"'v:0'.*array"):
        variable(two, [1.0, 2.0], name="v").assign(value)


@pytest.mark.parametrize("dtype", ["flot32", str, object])
def test_a_dtype_that_is_none_is_refused_by_name(two, dtype):
    for kind in (TypeError, ValueError):
        with pytest.raises(kind, match=rf"'v' was given dtype={re.escape(repr(dtype))}.*'float32'"):
            variable(two, 1.0, name="v", dtype=dtype)


@pytest.mark.parametrize("trainable", ["no", 1, [True]])
def test_trainable_is_a_flag(two, trainable):
    with pytest.raises(TypeError, match=r"'v' was given trainable=.*True, False or None"):
        variable(two, 1.0, name="v", trainable=trainable)


ROWS_THAT_DO_NOT_FIT = [
    (1.0, jnp.ones(1), [0], "scalar"),
    ([1, 2], jnp.full(1, 0.5, jnp.float32), [0], "int32.*float32"),
    (np.ones(2, np.float16), np.ones(1, np.float32), [0], "float16.*float32"),
    ([1.0, 2.0], jnp.ones((1, 3)), [0], r"\(1, 3\)"),
    ([1.0, 2.0], jnp.ones(1), [0.5], "takes integer indices"),
]


def test_rows_that_do_not_fit(strategy, mode, subtests):
    for initial, values, indices, message in ROWS_THAT_DO_NOT_FIT:
        v = variable(strategy, initial, aggregation=SUM)
        rows = rx.IndexedSlices(values, jnp.array(indices))
        for where in (lambda write: write(), strategy.run):
            with subtests.test(message=message), pytest.raises(ValueError, match=message):
                mode(lambda where=where, v=v, rows=rows: where(lambda: v.scatter_add(rows)))()


def aligned(value):
    """A NumPy array that is aligned so that JAX may alias its memory."""
    memory = np.empty(4096 * 4 + 64, np.uint8)
    start = -memory.__array_interface__["data"][0] % 64
    array = memory[start : start + 4096 * 4].view(np.float32)
    array[:] = value
    return array


@pytest.mark.parametrize("write", ["init", "assign", "assign_add", "scatter_update", "on read", "update"])
def test_a_numpy_array_that_is_changed_afterwards(strategy, write):
    array = aligned(1.0)
    if write == "init":
        v = variable(strategy, array)
    elif write == "on read":
        v = variable(strategy, jnp.zeros(4096), synchronization=ON_READ, aggregation=MEAN)
        v.assign(array)
    else:
        v = variable(strategy, jnp.zeros(4096))
        with strategy.scope():
            if write == "update":
                strategy.extended.update(v, lambda copy, x: copy.assign(x), args=(array,))
            elif write == "scatter_update":
                v.scatter_update(rx.IndexedSlices(array, np.arange(4096)))
            else:
                getattr(v, write)(array)
    array[:] = 5.0
    for copy_ in strategy.local_results(v):
        close(copy_, np.ones(4096))


def test_shares_of_a_total_under_strict_promotion(several, mode, subtests):
    made = {
        dtype: variable(several, np.zeros(2, dtype), synchronization=ON_READ, aggregation=SUM)
        for dtype in (jnp.int4, jnp.uint8, jnp.int32, jnp.float32)
    }
    with jax.numpy_dtype_promotion("strict"):
        mode(lambda: [v.assign(np.array([7, 5], d), read_value=False) for d, v in made.items()])()
    for dtype, v in made.items():
        with subtests.test(dtype=dtype):
            close(v.numpy().astype(np.float32), [7, 5])
