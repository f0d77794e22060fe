"""`rx.GradientTape`: against `jax.value_and_grad`, in replicas, and used wrongly."""

import copy
import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import ContextError, TracingError, VariableError
from replicax.training._tape_traces import OwnTraces

from .random_programs import matrices, program


def close(ours, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), ours, expected)


@pytest.fixture
def v():
    return rx.Variable(2.0, name="v")


# Random programs.


def check_program(seed, num_replicas, length=6):
    """A random program, on each replica with its own offset, eagerly and compiled."""
    run, _ = program(seed, length)
    first, second = matrices(seed)
    offsets = [jnp.float32(0.25 * i) for i in range(num_replicas)]
    expected = [jax.value_and_grad(run, (0, 1))(first, second, offset) for offset in offsets]
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    with strategy.scope():
        a, b = rx.Variable(first), rx.Variable(second)
    offset = strategy.distribute_values_from_function(lambda ctx: offsets[ctx.replica_id_in_sync_group])
    for way in (strategy.run, rx.function(strategy.run)):
        loss, gradients = way(lambda offset: taped(run, a, b, offset), args=(offset,))
        for replica, (value, slopes) in enumerate(expected):
            at = [strategy.local_results(x)[replica] for x in (loss, *gradients)]
            close(at, [value, *slopes])


def taped(run, a, b, offset):
    with rx.GradientTape() as tape:
        loss = run(a, b, offset)
    return loss, tape.gradient(loss, [a, b], unconnected_gradients="zero")


def test_random_programs():
    check_program(3, 2, length=3)


@pytest.mark.long
@pytest.mark.parametrize("num_replicas", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_more_random_programs(seed, num_replicas):
    check_program(seed, num_replicas)


def test_second_order_of_random_programs():
    run, _ = program(5, length=3)
    a, b = map(jnp.asarray, matrices(5))
    with rx.GradientTape() as outer:
        outer.watch(a)
        with rx.GradientTape() as inner:
            inner.watch(a)
            loss = run(a, b, 0.0)
        total = jnp.sum(inner.gradient(loss, a) ** 2)
    expected = jax.grad(lambda a: jnp.sum(jax.grad(run)(a, b, 0.0) ** 2))(a)
    close(outer.gradient(total, a), expected)


def test_inside_transformations_of_jax():
    def ours(x):
        with rx.GradientTape() as tape:
            tape.watch(x)
            y = jnp.sum(jnp.sin(x) ** 2)
        return jnp.sum(tape.gradient(y, x) ** 2) + 2.0 * y

    def theirs(x):
        y, slope = jax.value_and_grad(lambda x: jnp.sum(jnp.sin(x) ** 2))(x)
        return jnp.sum(slope**2) + 2.0 * y

    x = jnp.arange(6.0).reshape(2, 3)
    close(jax.jit(jax.vmap(jax.value_and_grad(ours)))(x), jax.vmap(jax.value_and_grad(theirs))(x))
    close(jax.vmap(jax.grad(ours))(x), jax.vmap(jax.grad(theirs))(x))


# Training.


def train(strategy, compiled, with_tape):
    with strategy.scope():
        w, b = rx.Variable(np.full((3, 4), 0.1, np.float32)), rx.Variable(np.zeros(4, np.float32))
        mean = rx.Variable(np.zeros(4, np.float32), synchronization="ON_READ", aggregation="MEAN")
        seen = rx.Variable(0.0, trainable=False, aggregation="SUM")
        optimizer = rx.Optimizer(optax.adam(0.1))

    def loss_of(x, y):
        h = jnp.tanh(x @ w + b)
        common = rx.get_replica_context().all_reduce("MEAN", h.mean(0))
        mean.assign(0.9 * mean + 0.1 * h.mean(0))
        seen.assign_add(1.0)
        return jnp.mean((h - common - y) ** 2)

    def replica_step(x, y):
        if with_tape:
            with rx.GradientTape() as tape:
                loss = loss_of(x, y)
            gradients = tape.gradient(loss, [w, b])
        else:
            loss, gradients = rx.value_and_grad(loss_of, [w, b])(x, y)
        optimizer.apply_gradients(zip(gradients, [w, b], strict=True))
        return loss

    def step(batch):
        return strategy.reduce("MEAN", strategy.run(replica_step, args=batch), axis=None)

    step = rx.function(step) if compiled else step
    numbers = np.random.default_rng(0)
    x, y = numbers.normal(size=(6, 3)).astype("f"), numbers.normal(size=(6, 4)).astype("f")
    batches = strategy.distribute_dataset(rx.from_arrays((x, y)).batch(6).repeat(2))
    losses = [float(step(batch)) for batch in batches]
    return losses, w.numpy(), b.numpy(), mean.numpy(), seen.numpy()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [rx.MirroredStrategy, rx.ShardedStrategy])
def test_trains_as_value_and_grad_does(kind, compiled):
    strategy = kind(["CPU:0", "CPU:1"])
    close(train(strategy, compiled, with_tape=True), train(strategy, compiled, with_tape=False))


@pytest.mark.long
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("num_replicas", [1, 3])
def test_trains_on_any_number_of_replicas(num_replicas, compiled):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    close(train(strategy, compiled, with_tape=True), train(strategy, compiled, with_tape=False))


def test_compiles_to_the_program_of_value_and_grad():
    w = rx.Variable(np.full((4, 4), 0.1, np.float32))

    def loss_of(x):
        return jnp.mean(jnp.tanh(jax.nn.relu(x @ w) @ w) ** 2)

    @rx.function
    def with_tape(x):
        with rx.GradientTape() as tape:
            loss = loss_of(x)
        return loss, tape.gradient(loss, w)

    x = jnp.ones((2, 4))
    ours, theirs = with_tape.lower(x), rx.function(rx.value_and_grad(loss_of, w)).lower(x)
    costs = [lowered.compile().cost_analysis()["flops"] for lowered in (ours, theirs)]
    assert costs[0] == costs[1]
    lengths = [len(lowered.as_text().splitlines()) for lowered in (ours, theirs)]
    assert lengths[0] <= lengths[1] * 1.1


def test_mixed_precision_and_loss_scale(v):
    optimizer = rx.Optimizer(optax.sgd(0.25), loss_scale=rx.DynamicLossScale(initial_scale=8.0))
    with rx.GradientTape() as tape:
        loss = v.value.astype(jnp.float16) ** 2
        scaled = optimizer.scale_loss(loss)
    gradient = tape.gradient(scaled, v)
    assert gradient.dtype == jnp.float32
    optimizer.apply_gradients([(gradient, v)])
    assert v.numpy() == 1.0


def test_variables_read_in_functions_that_jax_traces(caplog, monkeypatch):
    monkeypatch.setattr(OwnTraces, "_are_needed", False)
    v = rx.Variable(2.0)

    @jax.jit
    def product(x):
        return x * v

    results = []
    for start in (2.0, 3.0):
        v.assign(start)
        with rx.GradientTape() as tape:
            before = product(jnp.float32(3.0))
            v.assign_add(10.0)
            after = product(jnp.float32(3.0))
        results.append((float(before), float(after), float(tape.gradient([before, after], v))))
    assert results == [(6.0, 36.0, 6.0), (9.0, 39.0, 6.0)]
    assert caplog.text.count("again for every block") == 1
    with pytest.raises(TracingError, match="bake in"):
        product(jnp.float32(3.0))


def test_two_tapes_and_a_scan_in_a_compiled_step(v):
    def cubed():
        return jax.lax.scan(lambda c, _: (c * v, None), jnp.float32(1.0), None, length=3)[0]

    @rx.function
    def step():
        results = []
        for _ in range(2):
            with rx.GradientTape() as tape:
                y = cubed()
            results.append((y, tape.gradient(y, v)))
            v.assign_add(1.0)
        return results, cubed()

    assert step() == ([(8.0, 12.0), (27.0, 27.0)], 64.0)


# Values.


def test_values_can_be_used_in_the_block_and_after_it(v):
    with rx.GradientTape() as tape:
        y = v * jnp.arange(4.0)
        assert (float(y[1]), int(y[2]), bool(y[3] > 1.0), f"{y[1]:.1f}") == (2.0, 4, True, "2.0")
        assert np.asarray(y).tolist() == y.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert tape.gradient(y, v) == 6.0
    assert isinstance(y, jax.Array) and y.sharding and y.devices() and y.block_until_ready() is not None
    assert str(y) == "[0. 2. 4. 6.]" and repr(y) == "Array([0., 2., 4., 6.], dtype=float32)"
    for copied in (y + 0.0, jax.jit(lambda y: y)(y), pickle.loads(pickle.dumps(y)), copy.deepcopy(y)):
        assert np.array_equal(copied, y)
    assert rx.Variable(y).numpy().tolist() == y.tolist()
    assert rx.function(lambda y: y * 2.0)(y)[1] == 4.0


def test_a_kept_loss_does_not_keep_what_was_recorded(v):
    with rx.GradientTape() as tape:
        angles = v * jnp.ones(1000)
        factor = jnp.sin(angles)
        residual = weakref.ref(factor.primal)
        loss = jnp.sum(angles * factor)
    del angles, factor
    assert residual() is not None
    tape.gradient(loss, v)
    gc.collect()
    assert residual() is None
    assert float(loss) == pytest.approx(2000 * np.sin(2.0), rel=1e-5)


def test_a_result_of_a_step_in_a_step(v):
    @rx.function
    def squared(x):
        return (x * v) ** 2

    with rx.GradientTape() as tape:
        y = squared(jnp.float32(3.0))
    assert (tape.gradient(y, v), squared(y)) == (36.0, 72.0**2)


def test_watched_arrays_and_collectives():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica_fn():
        ctx = rx.get_replica_context()
        x = jnp.float32(ctx.replica_id_in_sync_group + 1)
        with rx.GradientTape() as tape:
            tape.watch(x)
            y = ctx.all_reduce("SUM", x) ** 2
        return tape.gradient(y, x)

    for way in (strategy.run, rx.function(strategy.run)):
        assert [float(x) for x in strategy.local_results(way(replica_fn))] == [12.0, 12.0]


def test_jacobians_in_parts():
    x = jnp.arange(6.0).reshape(3, 2)

    def fn(x):
        return x @ jnp.ones((2, 4)) * x.sum(1, keepdims=True)

    with rx.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = fn(x)
    expected = jax.jacrev(fn)(x)
    for options in ({"parallel_iterations": 5}, {"experimental_use_pfor": False}):
        close(tape.jacobian(y, x, **options), expected)
    rows = tape.batch_jacobian(y, x)
    close(rows, np.stack([expected[i, :, i] for i in range(3)]))
    other = rx.Variable(jnp.ones(5))
    assert tape.jacobian(y, other) is None
    assert tape.jacobian(y, other, unconnected_gradients="zero").shape == (3, 4, 5)


def test_only_what_leads_to_the_sources_is_differentiated():
    used, unused = rx.Variable(2.0), rx.Variable(3.0)
    calls = []

    @jax.custom_vjp
    def noticed(x):
        return x

    noticed.defvjp(lambda x: (x, None), lambda _, g: (calls.append(g) or g,))
    with rx.GradientTape() as tape:
        y = used * noticed(unused.value)
    assert tape.gradient(y, used) == 3.0
    assert not calls


# Mistakes.


def test_twice(v):
    with rx.GradientTape() as tape:
        y = v * v
    tape.gradient(y, v)
    with pytest.raises(RuntimeError, match="persistent=True"):
        tape.gradient(y, v)
    with pytest.raises(RuntimeError, match="recorded nothing"):
        rx.GradientTape().gradient(y, v)


def test_in_its_own_block(v):
    with rx.GradientTape(persistent=True) as tape:
        y = v * v
        slope = tape.gradient(y, v)
        z = y * y
    assert (slope, tape.gradient(z, v)) == (4.0, 32.0)
    with pytest.raises(RuntimeError, match="Nest two tapes"):
        tape.gradient(slope, v)


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (3.0, TypeError, "jnp.asarray"),
        (np.ones(2), TypeError, "jnp.asarray"),
        (jnp.int32(3), TypeError, "int32, which has no gradient"),
        (rx.PerReplica([jnp.ones(2)]), VariableError, "in a replica function"),
    ],
)
def test_what_can_not_be_watched(value, error, match):
    with rx.GradientTape() as tape, pytest.raises(error, match=match):
        tape.watch(value)


def test_outside_of_the_block(v):
    tape = rx.GradientTape()
    for use in (lambda: tape.watch(jnp.ones(2)), tape.reset, tape.stop_recording().__enter__):
        with pytest.raises(ContextError, match="in the tape's block"):
            use()
    with tape, pytest.raises(ContextError, match="already open"):
        tape.__enter__()
    with tape:  # it may be entered again
        y = v * v
    assert tape.gradient(y, v) == 4.0


def test_arguments(v):
    x = jnp.ones((3, 2))
    with rx.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = v * x
    with pytest.raises(ValueError, match=r"shape \(2,\) for a target of shape \(3, 2\)"):
        tape.gradient(y, v, output_gradients=jnp.ones(2))
    with pytest.raises(ValueError, match="2 gradients for a target of 1 arrays"):
        tape.gradient(y, v, output_gradients=[None, None])
    with pytest.raises(ValueError, match="pass 'none'"):
        tape.gradient(y, v, unconnected_gradients="zeros")
    with pytest.raises(ValueError, match="first axes must have the same size"):
        tape.batch_jacobian(jnp.sum(y), x)


INSIDE = {
    "nothing": lambda f: f,
    "jit": lambda f: jax.jit(lambda y: f(y)),
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda y: jax.lax.scan(lambda c, _: (f(c), None), y, length=2)[0],
    "cond": lambda f: lambda y: jax.lax.cond(y[0] < 1, f, lambda y: y, y),
}


@pytest.mark.parametrize("inside", INSIDE)
def test_a_watched_array_that_a_compiled_function_closes_over(inside):
    x = jnp.arange(3.0)
    product = INSIDE[inside](jax.jit(lambda y: x * y))
    message = r"watched array, of shape \(3,\), that is not one of its arguments.*pass the array"
    with rx.GradientTape() as tape:
        product(x)  # not watched yet
        tape.watch(x)
        with tape.stop_recording():
            product(x)
        with pytest.raises(TracingError, match=message):
            product(x)


def test_eager_replicas_in_the_block():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = rx.Variable(3.0)

    def whole():
        with rx.GradientTape() as tape:
            y = strategy.reduce("SUM", strategy.run(lambda: w * w), axis=None)
        return tape.gradient(y, w)

    with pytest.raises(TracingError, match="open the tape there"):
        whole()
    assert rx.function(whole)() == 12.0

    def merging():
        with rx.GradientTape():
            return rx.get_replica_context().merge_call(lambda _, y: y, args=(w * w,))

    with pytest.raises(TracingError, match="do not pass through a merge_call"):
        strategy.run(merging)


def test_a_scan_whose_stacked_results_are_not_used():
    v = rx.Variable(2.0)
    with rx.GradientTape() as tape:
        w = v.value
        product, _ = jax.lax.scan(lambda c, x: (c * w * x, c * x), jnp.float32(1), jnp.arange(1.0, 4.0))
    np.testing.assert_allclose(tape.gradient(product, v), 3 * 2.0**2 * 6)
