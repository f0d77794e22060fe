"""`rx.Optimizer`: optax transformations whose gradients come from replicas and whose state is variables."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import ContextError, ReplicaxError, TracingError, VariableError

from .helpers import ON_READ, close, collectives, each, mirrored, parts, rid

STEPS = 4

TRANSFORMATIONS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.05),
    "adamw_schedule": lambda: optax.adamw(
        optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 6), weight_decay=0.1
    ),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.05)),
    "hyperparameters": lambda: optax.inject_hyperparams(optax.adam)(
        learning_rate=optax.linear_schedule(0.1, 0.0, 5)
    ),
    "schedule_free": lambda: optax.contrib.schedule_free_sgd(0.1),
    "averaged": lambda: optax.chain(optax.sgd(0.1), optax.ema(0.9)),
    "accumulated": lambda: optax.MultiSteps(optax.adam(0.05), every_k_schedule=2),
    "masked": lambda: optax.chain(
        optax.masked(optax.add_decayed_weights(0.3), lambda p: [x.ndim > 1 for x in p]), optax.sgd(0.1)
    ),
    "by_label": lambda: optax.multi_transform(
        {"fast": optax.sgd(0.1), "slow": optax.adam(0.01)}, ["fast", "slow", "fast"]
    ),
    "lion": lambda: optax.lion(0.01),
    "factored": lambda: optax.adafactor(0.05),
}
COPIES_PARAMETERS = ["schedule_free"]


def initial():
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in ((3, 2), (2,), ())]


def loss_of(weights, x):
    w, b, scale = weights
    return jnp.sum(jnp.tanh(x @ w + b) ** 2) * (1 + scale**2) / 8


def rows():
    """Eight rows for all replicas together."""
    return np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)


def with_optax(transformation, steps=STEPS, x=None):
    """The weights after some steps of plain optax on the whole batch."""
    weights = [jnp.asarray(w) for w in initial()]
    x = rows() if x is None else x
    state = transformation.init(weights)

    @jax.jit
    def step(weights, state):
        gradients = jax.grad(loss_of)(weights, x)
        updates, state = transformation.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state

    for _ in range(steps):
        weights, state = step(weights, state)
    return weights


class Training:
    def __init__(self, strategy, transformation, mode, **options):
        self.strategy = strategy
        with strategy.scope():
            self.weights = rx.create_variables(initial())
            self.optimizer = rx.Optimizer(transformation, **options)
        self.step = mode(lambda x: strategy.run(self.replica_step, args=(x,)))

    def replica_step(self, x):
        loss, gradients = rx.value_and_grad(lambda x: loss_of(self.weights, x), self.weights)(x)
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))
        return loss

    def run(self, steps=STEPS):
        (batch,) = self.strategy.distribute_dataset([rows()])
        for _ in range(steps):
            self.step(batch)

    def check(self, expected, rtol=1e-5):
        for variable, value in zip(self.weights, expected, strict=True):
            copies = parts(self.strategy, variable)
            for copy in copies:
                close(copy, value, rtol)
                np.testing.assert_array_equal(copy, copies[0])


# The same as plain optax.


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_replicas_do_what_plain_optax_does_on_one_device(name):
    """Eagerly on two replicas, compiled on two and eight."""
    expected = with_optax(TRANSFORMATIONS[name]())
    for strategy, mode in (
        (mirrored(2), lambda fn: fn),
        (mirrored(2), rx.function),
        (mirrored(8), rx.function),
    ):
        training = Training(strategy, TRANSFORMATIONS[name](), mode)
        training.run()
        training.check(expected, rtol=2e-5)
        close(training.optimizer.iterations.value, STEPS)


@pytest.mark.parametrize("name", ["momentum", "clipped", "schedule_free"])
def test_every_strategy_does_what_plain_optax_does(name, strategy, mode):
    training = Training(strategy, TRANSFORMATIONS[name](), mode)
    training.run(3)
    training.check(with_optax(TRANSFORMATIONS[name](), 3))
    assert training.optimizer.iterations.value == 3


def test_without_a_strategy_and_without_run(mode):
    weights = rx.create_variables(initial())
    optimizer = rx.Optimizer(optax.adam(0.05))

    @mode
    def step(x):
        gradients = rx.grad(lambda: loss_of(weights, x), weights)()
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    for _ in range(STEPS):
        step(jnp.asarray(rows()))
    for variable, value in zip(weights, with_optax(optax.adam(0.05)), strict=True):
        close(variable.value, value)


def test_the_cross_replica_context_reduces_per_replica_gradients(several, mode):
    with several.scope():
        weights = rx.create_variables(initial())
        optimizer = rx.Optimizer(optax.adam(0.05))

    @mode
    def step(x):
        gradients = several.run(lambda x: rx.grad(lambda x: loss_of(weights, x), weights)(x), args=(x,))
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    (batch,) = several.distribute_dataset([rows()])
    with several.scope():
        for _ in range(STEPS):
            step(batch)
    for variable, value in zip(weights, with_optax(optax.adam(0.05)), strict=True):
        close(variable.value, value)


def test_per_replica_gradients_are_reduced_outside_of_the_scope_too(two, mode):
    """Like `strategy.reduce`: the variables know their strategy."""
    with two.scope():
        w = rx.Variable(1.0)
        optimizer = rx.Optimizer(optax.sgd(0.1))

    @mode
    def step():
        optimizer.apply_gradients([(two.run(lambda: rid() + 1.0), w)])

    step()
    close(w.value, 0.7)


def test_the_cross_replica_context_takes_other_gradients_as_they_are(several, mode):
    with several.scope():
        w = rx.Variable([1.0, 2.0])
        optimizer = rx.Optimizer(optax.sgd(0.5))
    mode(lambda: optimizer.apply_gradients([(jnp.array([1.0, 2.0]), w)]))()
    close(w.value, [0.5, 1.0])


def test_an_optimizer_made_outside_of_the_scope_works_too(two, mode):
    with two.scope():
        w = rx.Variable(1.0)
    optimizer = rx.Optimizer(optax.adam(0.1), loss_scale=rx.DynamicLossScale(4.0))
    step = mode(lambda: two.run(lambda: optimizer.apply_gradients([(w * 4.0, w)])))
    step()
    step()
    assert optimizer.iterations.value == 2
    assert all(slot.distribute_strategy is two for slot in optimizer.slots)


# Reductions.


def sum_of_gradients(strategy, mode, gradient_of, **options):
    """What sgd with rate 1 takes off zeros."""
    with strategy.scope():
        w = rx.Variable(jnp.zeros(2))
        optimizer = rx.Optimizer(optax.sgd(1.0), **options)
    mode(lambda: strategy.run(lambda: optimizer.apply_gradients([(gradient_of(), w)])))()
    return -np.asarray(w.value)


def test_gradients_are_added(strategy, mode):
    n = strategy.num_replicas_in_sync
    found = sum_of_gradients(strategy, mode, lambda: jnp.array([1.0, 2.0]) * (rid() + 1.0))
    close(found, np.float32([1, 2]) * n * (n + 1) / 2)


@pytest.mark.parametrize("reduce", ["MEAN", rx.ReduceOp.MEAN])
def test_gradients_are_averaged_on_request(strategy, mode, reduce):
    n = strategy.num_replicas_in_sync
    gradient = lambda: jnp.array([1.0, 2.0]) * (rid() + 1.0)  # noqa: E731
    found = sum_of_gradients(strategy, mode, gradient, reduce=reduce)
    close(found, np.float32([1, 2]) * (n + 1) / 2)


def test_small_floats_are_added_as_float32(mode):
    """257 and seven ones do not fit into eight bits, one after the other or at once."""
    gradient = lambda: jnp.where(rid() == 0, 256.0, 1.0) * jnp.ones(2, jnp.bfloat16)  # noqa: E731
    strategy = mirrored(8)
    close(sum_of_gradients(strategy, mode, lambda: gradient().astype(jnp.bfloat16)), [263.0, 263.0])
    small = sum_of_gradients(
        strategy, mode, lambda: gradient().astype(jnp.bfloat16), reduce_dtype=jnp.bfloat16
    )
    assert not np.array_equal(small, [263.0, 263.0])


def test_the_dtype_of_the_reduction_can_be_chosen():
    strategy = mirrored(2)

    def program(**options):
        with strategy.scope():
            w = rx.Variable(jnp.zeros(64))
            optimizer = rx.Optimizer(optax.sgd(1.0), **options)
        step = rx.function(
            lambda: strategy.run(lambda: optimizer.apply_gradients([(jnp.ones(64) * rid(), w)]))
        )
        found = collectives(step)
        assert w.dtype == jnp.float32
        return found

    assert any("f32[64]" in line for line in program())
    assert not any("f32[64]" in line for line in program(reduce_dtype=jnp.float16))


def test_rows_of_a_table_are_added(strategy, mode):
    n = strategy.num_replicas_in_sync
    with strategy.scope():
        table = rx.Variable(jnp.zeros((n + 1, 2)))
        optimizer = rx.Optimizer(optax.sgd(1.0))

    def replica_fn():
        indices = jnp.stack([rid(), jnp.int32(n), rid()])
        gradient = rx.IndexedSlices(-jnp.ones((3, 2)) * (rid() + 1.0), indices, (n + 1, 2))
        optimizer.apply_gradients([(gradient, table)])

    mode(lambda: strategy.run(replica_fn))()
    own = [2.0 * (i + 1) for i in range(n)]
    close(table.value, np.repeat(np.float32([*own, n * (n + 1) / 2])[:, None], 2, axis=1))


def test_rows_of_a_table_are_averaged_on_request(several, mode):
    n = several.num_replicas_in_sync
    with several.scope():
        table = rx.Variable(jnp.zeros((2, 2)))
        optimizer = rx.Optimizer(optax.sgd(1.0), reduce="MEAN")

    def replica_fn():
        gradient = rx.IndexedSlices(-jnp.ones((1, 2)) * (rid() + 1.0), jnp.array([1]))
        optimizer.apply_gradients([(gradient, table)])

    mode(lambda: several.run(replica_fn))()
    close(table.value, [[0.0, 0.0], [(n + 1) / 2] * 2])


def test_rows_in_small_floats_are_added_as_float32(mode):
    strategy = mirrored(8)
    with strategy.scope():
        table = rx.Variable(jnp.zeros((2, 1)))
        optimizer = rx.Optimizer(optax.sgd(1.0))

    def replica_fn():
        values = jnp.where(rid() == 0, 256.0, 1.0).reshape(1, 1).astype(jnp.bfloat16)
        optimizer.apply_gradients([(rx.IndexedSlices(values, jnp.array([1]), (2, 1)), table)])

    mode(lambda: strategy.run(replica_fn))()
    close(table.value, [[0.0], [-263.0]])


def test_per_replica_rows_are_added_in_the_cross_replica_context(two, mode):
    with two.scope():
        table = rx.Variable(jnp.zeros((4, 2)))
        optimizer = rx.Optimizer(optax.sgd(1.0))

    @mode
    def step():
        gradient = two.run(lambda: rx.IndexedSlices(-jnp.ones((1, 2)), rid()[None], (4, 2)))
        optimizer.apply_gradients([(gradient, table)])

    with two.scope():
        step()
    close(table.value, [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])


def test_many_small_gradients_travel_in_packs():
    strategy = mirrored(4)

    def number_of_collectives(**options):
        with strategy.scope():
            weights = [rx.Variable(jnp.zeros(16)) for _ in range(24)]
            optimizer = rx.Optimizer(optax.sgd(1.0), **options)

        def replica_fn():
            gradients = [jnp.ones(16) * (i + rid()) for i in range(24)]
            optimizer.apply_gradients(zip(gradients, weights, strict=True))

        step = rx.function(lambda: strategy.run(replica_fn))
        found = collectives(step, optimized=False)
        for i, variable in enumerate(weights):
            close(variable.value, np.full(16, -(4 * i + 6), np.float32))
        return len(found)

    assert number_of_collectives() == 1
    assert number_of_collectives(options=rx.CommunicationOptions(bytes_per_pack=1 << 20)) == 1
    assert number_of_collectives(options=rx.CommunicationOptions(bytes_per_pack=6 * 16 * 4)) == 4


# Slots and building.


def test_slots_are_variables_laid_out_like_the_others(strategy):
    with strategy.scope():
        w = rx.Variable(jnp.ones((2, 3)), name="w")
        optimizer = rx.Optimizer(optax.adam(0.1), name="adam")
    optimizer.build([w])
    assert [slot.name for slot in optimizer.slots] == ["adam/0/count:0", "adam/0/mu/w:0", "adam/0/nu/w:0"]
    for slot in optimizer.slots:
        assert type(slot) is type(w)
        assert slot.distribute_strategy is strategy
        assert not slot.trainable
        assert len(strategy.local_results(slot)) == len(strategy.local_results(w))
    assert [slot.shape for slot in optimizer.slots] == [(), (2, 3), (2, 3)]
    assert optimizer.variables == [optimizer.iterations, *optimizer.slots]


def test_slots_have_the_dtype_of_their_variable(mode):
    w = rx.Variable(jnp.ones(3, jnp.bfloat16))
    optimizer = rx.Optimizer(optax.adam(0.1))
    step = mode(lambda: optimizer.apply_gradients([(jnp.ones(3), w)]))
    step()
    step()
    assert w.dtype == jnp.bfloat16
    assert [slot.dtype for slot in optimizer.slots] == [jnp.int32, jnp.bfloat16, jnp.bfloat16]


@pytest.mark.parametrize("name", ["adam", "accumulated", "masked", "by_label", *COPIES_PARAMETERS])
def test_building_before_is_the_same_as_in_the_first_compiled_call(name, two):
    results = []
    for before in (True, False):
        training = Training(two, TRANSFORMATIONS[name](), rx.function)
        if before:
            training.optimizer.build(training.weights)
        training.run()
        assert training.step.num_programs == 1
        results.append([np.asarray(v.value) for v in (*training.weights, *training.optimizer.variables)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_slots_that_copy_parameters_start_from_them_in_a_compiled_call(strategy):
    with strategy.scope():
        w = rx.Variable([1.0, 2.0], name="w")
        optimizer = rx.Optimizer(optax.contrib.schedule_free_sgd(0.0))
    rx.function(lambda: strategy.run(lambda: optimizer.apply_gradients([(w.value * 0.0, w)])))()
    (copy,) = [slot for slot in optimizer.slots if slot.shape == (2,)]
    close(copy.value, [1.0, 2.0])
    assert optimizer.iterations.value == 1


def test_building_twice_changes_nothing():
    w = rx.Variable(1.0)
    optimizer = rx.Optimizer(optax.adam(0.1))
    optimizer.build([w])
    slots = list(optimizer.slots)
    optimizer.build([w])
    assert optimizer.slots == slots


def test_a_failing_first_step_leaves_nothing_behind(two, mode):
    with two.scope():
        w = rx.Variable(1.0)
        optimizer = rx.Optimizer(optax.adam(0.1))
    fail = [True]

    def replica_fn():
        optimizer.apply_gradients([(w * 1.0, w)])
        if fail[0]:
            raise KeyError("mine")

    step = mode(lambda: two.run(replica_fn))
    if mode is rx.function:
        with pytest.raises(KeyError, match="mine"):
            step()
        close(w.value, 1.0)
        assert optimizer.iterations.value == 0
    fail[0] = False
    step()
    close(w.value, 0.9)
    assert optimizer.iterations.value == 1


def test_the_order_of_the_pairs_does_not_matter(two, mode):
    results = []
    for turn in (False, True):
        with two.scope():
            a, b = rx.Variable([1.0, 2.0]), rx.Variable(3.0)
            optimizer = rx.Optimizer(optax.adam(0.1))
        pairs = lambda a=a, b=b: [(a.value, a), (b.value, b)]  # noqa: E731

        def replica_fn(reverse, pairs=pairs, optimizer=optimizer):
            optimizer.apply_gradients(reversed(pairs()) if reverse else pairs())

        for reverse in (False, turn, False):
            mode(lambda r=reverse, fn=replica_fn: two.run(fn, args=(r,)))()
        results.append((np.asarray(a.value), np.asarray(b.value)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_schedules_follow_the_number_of_updates(strategy, mode):
    with strategy.scope():
        w = rx.Variable(0.0)
        optimizer = rx.Optimizer(optax.sgd(lambda count: 10.0**-count))
    one = 1.0 / strategy.num_replicas_in_sync
    step = mode(lambda: strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(-one), w)])))
    found = []
    for _ in range(3):
        step()
        found.append(float(w.value))
    np.testing.assert_allclose(found, [1.0, 1.1, 1.11], rtol=1e-5)
    assert optimizer.iterations.value == 3


def test_constraints_are_applied(strategy, mode):
    with strategy.scope():
        w = rx.Variable([1.0, -1.0], constraint=lambda x: jnp.maximum(x, 0.0))
        optimizer = rx.Optimizer(optax.sgd(0.1))
    mode(lambda: strategy.run(lambda: optimizer.apply_gradients([(jnp.ones(2), w)])))()
    n = strategy.num_replicas_in_sync
    close(w.value, np.maximum(np.float32([1 - 0.1 * n, -1 - 0.1 * n]), 0))


def test_minimize_returns_the_loss_and_updates(strategy, mode):
    with strategy.scope():
        w = rx.Variable(4.0)
        optimizer = rx.Optimizer(optax.sgd(0.5), reduce="MEAN")
    loss = mode(lambda: strategy.run(lambda: optimizer.minimize(lambda: 0.5 * w**2, [w])))()
    assert all(part == 8.0 for part in parts(strategy, loss))
    close(w.value, 2.0)


def test_two_optimizers_take_turns_in_one_step(strategy, mode):
    """A generator that wants the critic's score up, and a critic that wants it down."""
    rates = optax.adam(0.05), optax.sgd(0.1, momentum=0.9)
    n = strategy.num_replicas_in_sync

    def score(g, c, z):
        return jnp.mean(jnp.tanh(c * (z + g)))

    with strategy.scope():
        g, c = rx.Variable(0.5, name="generator"), rx.Variable([0.3, -0.2], name="critic")
        make_g, make_c = (rx.Optimizer(rate, name=str(i)) for i, rate in enumerate(rates))

    def replica_fn(z):
        gradient = rx.grad(lambda: score(g.value, c.value, z) / n, c)()
        make_c.apply_gradients([(gradient, c)])
        gradient = rx.grad(lambda: -score(g.value, c.value, z) / n, g)()
        make_g.apply_gradients([(gradient, g)])

    step = mode(lambda z: strategy.run(replica_fn, args=(z,)))
    z = each(strategy, lambda i: np.float32([0.1, 0.2]))
    expected = [jnp.float32(0.5), jnp.float32([0.3, -0.2])]
    states = [rate.init(value) for rate, value in zip(rates, expected, strict=True)]
    for _ in range(3):
        step(z)
        for i, sign in ((1, 1.0), (0, -1.0)):
            slope = jax.grad(lambda *gc, s=sign: s * score(*gc, jnp.float32([0.1, 0.2])), argnums=i)(
                *expected
            )
            updates, states[i] = rates[i].update(slope, states[i], expected[i])
            expected[i] = optax.apply_updates(expected[i], updates)
    close(g.value, expected[0], 1e-4)
    close(c.value, expected[1], 1e-4)
    assert make_g.iterations.value == make_c.iterations.value == 3


def test_copies_are_equal_after_many_updates_of_unlike_gradients(mode):
    strategy = mirrored(3)
    with strategy.scope():
        w = rx.Variable(np.random.default_rng(0).normal(size=7).astype(np.float32))
        optimizer = rx.Optimizer(optax.adam(0.01))
    step = mode(lambda: strategy.run(lambda: optimizer.apply_gradients([(jnp.sin(w * (rid() + 1.7)), w)])))
    for _ in range(10):
        step()
    for variable in (w, *optimizer.slots):
        copies = parts(strategy, variable)
        assert all(np.array_equal(copy, copies[0]) for copy in copies)


def test_a_gradient_with_as_many_rows_as_a_padded_batch_is_no_batch(strategy, mode):
    with strategy.scope():
        w = rx.Variable(jnp.ones(4))
        optimizer = rx.Optimizer(optax.sgd(1.0))
    n = strategy.num_replicas_in_sync
    data = rx.from_arrays(np.ones((4 * n + 1, 4), np.float32)).batch(4 * n)

    def replica_fn(x):
        gradient = rx.grad(lambda x: rx.compute_average_loss(x @ w.value), w)(x)
        optimizer.apply_gradients([(gradient, w)])

    step = mode(lambda x: strategy.run(replica_fn, args=(x,)))
    for batch in strategy.distribute_dataset(data, rx.InputOptions(partial_batch="pad")):
        step(batch)
    close(w.value, [-1.0] * 4)


# Errors.


def pair(gradient, variable, **options):
    rx.Optimizer(optax.sgd(0.1), **options).apply_gradients([(gradient, variable)])


def test_something_that_is_no_transformation_is_refused():
    with pytest.raises(TypeError, match="optax transformation"):
        rx.Optimizer(0.1)


def test_gradients_that_are_none_are_named(two, mode):
    with two.scope():
        a, b, c = (rx.Variable(1.0, name=name) for name in "abc")
        optimizer = rx.Optimizer(optax.sgd(0.1))
    step = mode(
        lambda: two.run(lambda: optimizer.apply_gradients([(None, a), (jnp.float32(1), b), (None, c)]))
    )
    with pytest.raises(VariableError, match=r"gradients of a:0, c:0 are None"):
        step()
    close(b.value, 1.0)
    assert optimizer.iterations.value == 0


def test_a_gradient_of_another_shape_is_refused_by_name(two, mode):
    with two.scope():
        w = rx.Variable(jnp.ones(3), name="kernel")
    with pytest.raises(VariableError, match=r"'kernel:0' has shape \(2,\), not \(3,\)"):
        mode(lambda: two.run(lambda: pair(jnp.ones(2), w)))()
    per_replica = each(two, lambda i: np.ones(2, np.float32))
    with pytest.raises(VariableError, match=r"'kernel:0' has shape \(2,\), not \(3,\)"):
        pair(per_replica, w)
    close(w.value, np.ones(3))


def test_a_number_is_no_gradient_of_an_array():
    with pytest.raises(VariableError, match="kernel:0"):
        pair(1.0, rx.Variable(jnp.ones(3), name="kernel"))


def test_pairs_the_wrong_way_round_are_refused():
    w = rx.Variable(1.0)
    optimizer = rx.Optimizer(optax.sgd(0.1))
    with pytest.raises(VariableError, match=r"\(gradient, variable\)"):
        optimizer.apply_gradients([(w, jnp.float32(1.0))])
    with pytest.raises(VariableError, match=r"\(gradient, variable\)"):
        optimizer.apply_gradients([jnp.float32(1.0)])
    with pytest.raises(VariableError, match="no gradients"):
        optimizer.apply_gradients([])


def test_other_variables_than_in_the_first_update_are_refused_by_name():
    a, b = rx.Variable(1.0, name="a"), rx.Variable(1.0, name="b")
    optimizer = rx.Optimizer(optax.adam(0.1))
    one = jnp.float32(1.0)
    optimizer.apply_gradients([(one, a)])
    with pytest.raises(VariableError, match=r"new are \['b:0'\], missing are \['a:0'\]"):
        optimizer.apply_gradients([(one, b)])
    with pytest.raises(VariableError, match=r"new are \['b:0'\]"):
        optimizer.apply_gradients([(one, a), (one, b)])
    assert optimizer.iterations.value == 1


def test_a_missing_pair_is_refused_by_name(two, mode):
    with two.scope():
        a, b = rx.Variable(1.0, name="a"), rx.Variable(1.0, name="b")
        optimizer = rx.Optimizer(optax.adam(0.1))
    optimizer.build([a, b])
    with pytest.raises(VariableError, match=r"missing are \['b:0'\]"):
        mode(lambda: two.run(lambda: optimizer.apply_gradients([(a * 1.0, a)])))()


def test_a_variable_given_twice_is_refused_by_name():
    w = rx.Variable(1.0, name="shared")
    optimizer = rx.Optimizer(optax.sgd(0.1))
    with pytest.raises(VariableError, match="shared:0"):
        optimizer.apply_gradients([(jnp.float32(1.0), w), (jnp.float32(5.0), w)])
    close(w.value, 1.0)


def test_whole_numbers_are_refused_by_name():
    with pytest.raises(VariableError, match="steps:0"):
        pair(jnp.float32(1.0), rx.Variable(3, name="steps"))


def test_a_variable_in_parts_is_refused_by_name(two, mode):
    with two.scope():
        v = rx.Variable(0.0, synchronization=ON_READ, aggregation="SUM", name="in_parts")
        optimizer = rx.Optimizer(optax.sgd(0.1))
    with pytest.raises(VariableError, match=r"in_parts:0.*ON_READ"):
        mode(lambda: two.run(lambda: optimizer.apply_gradients([(jnp.float32(1.0), v)])))()


def test_variables_of_several_strategies_are_refused(two):
    with two.scope():
        a = rx.Variable(1.0)
    b = rx.Variable(1.0)
    optimizer = rx.Optimizer(optax.sgd(0.1))
    with pytest.raises(ContextError, match="several strategies"):
        optimizer.apply_gradients([(jnp.float32(1.0), a), (jnp.float32(1.0), b)])


def test_an_update_inside_a_differentiated_function_is_refused(two):
    with two.scope():
        w = rx.Variable(1.0)
        optimizer = rx.Optimizer(optax.sgd(0.1))

    def loss():
        optimizer.apply_gradients([(w * 1.0, w)])
        return w**2

    for replica_fn in (lambda: rx.grad(loss, w)(), rx.function(lambda: rx.grad(loss, w)())):
        with pytest.raises(ReplicaxError):
            two.run(replica_fn)
        close(w.value, 1.0)


def test_one_replica_alone_can_not_update(two):
    with two.scope():
        w = rx.Variable(1.0)
        optimizer = rx.Optimizer(optax.sgd(0.1))

    def replica_fn():
        if int(rid()) == 0:
            optimizer.apply_gradients([(jnp.float32(1.0), w)])

    with pytest.raises(ContextError, match="different numbers of merge_calls"):
        two.run(replica_fn)
    close(w.value, 1.0)


def test_an_optimizer_says_what_it_is():
    w = rx.Variable(1.0)
    optimizer = rx.Optimizer(optax.sgd(0.1), name="mine")
    optimizer.build([w])
    assert repr(optimizer) == "<rx.Optimizer 'mine' of 1 variables>"


def test_a_transformation_that_needs_more_than_gradients_says_so():
    w = rx.Variable(1.0)
    optimizer = rx.Optimizer(optax.contrib.reduce_on_plateau())
    with pytest.raises(TypeError) as caught:
        optimizer.apply_gradients([(1.0, w)])
    assert "passes gradients, state and parameters" in "".join(caught.value.__notes__)


def test_a_schedule_that_reads_a_variable_in_an_eager_step_says_what_to_do():
    w, rate = rx.Variable(1.0), rx.Variable(0.5)
    optimizer = rx.Optimizer(optax.sgd(lambda count: rate.value))
    with pytest.raises(TracingError) as caught:
        optimizer.apply_gradients([(1.0, w)])
    assert "inject_hyperparams" in "".join(caught.value.__notes__)
    rx.function(lambda: optimizer.apply_gradients([(1.0, w)]))()
    assert float(w.read_value()) == 0.5


@pytest.mark.parametrize(
    "names",
    [["w_3", "w", "w_a", "w"], ["a/b", "a.b"], ["a.b_1", "a/b", "a.b"], ["w"] * 4, ["w", "w_1", "w"]],
)
def test_slots_of_variables_called_alike_have_places_of_their_own(names):
    variables = [rx.Variable(0.0, name=name) for name in names]
    optimizer = rx.Optimizer(optax.trace(0.9))
    optimizer.build(variables)
    assert len(optimizer.checkpoint_items()["slots"]) == len(names)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"loss_scale": "dynamic"}, "DynamicLossScale"),
        ({"loss_scale": 128.0}, "DynamicLossScale"),
        ({"options": {"bytes_per_pack": 1}}, "CommunicationOptions"),
        ({"reduce_dtype": jnp.int32}, "floating-point dtype"),
        ({"reduce": "MAX"}, "ReduceOp"),
    ],
)
def test_options_that_would_mean_nothing_are_refused_at_once(options, advice):
    with pytest.raises((TypeError, ValueError), match=advice):
        rx.Optimizer(optax.sgd(1.0), **options)


@pytest.mark.parametrize("gradient", [[1.0], (1.0, 2.0), 1.0])
def test_a_list_of_another_shape_is_no_gradient(gradient):
    w = rx.Variable(jnp.ones(3), name="w")
    with pytest.raises(VariableError, match="'w:0' has shape"):
        rx.Optimizer(optax.sgd(1.0)).apply_gradients([(gradient, w)])
    rx.Optimizer(optax.sgd(1.0)).apply_gradients([([1.0, 2.0, 3.0], w)])
    close(w.read_value(), [0.0, -1.0, -2.0])


def test_gradients_of_all_replicas_do_not_belong_into_a_replica_function(two, mode):
    with two.scope():
        w = rx.Variable(0.0, name="w")
        optimizer = rx.Optimizer(optax.sgd(1.0))
    gradient = each(two, lambda i: 1.0 + i)
    with pytest.raises(VariableError, match="gradients of all replicas for w:0"):
        mode(lambda: two.run(lambda: optimizer.apply_gradients([(gradient, w)])))()
    mode(lambda g: two.run(lambda g: optimizer.apply_gradients([(g, w)]), args=(g,)))(gradient)
    close(w.read_value(), -3.0)


def test_creating_slots_takes_no_further_trace():
    strategy = mirrored(2)
    with strategy.scope():
        w, optimizer = rx.Variable(jnp.ones(3)), rx.Optimizer(optax.adam(0.1))
    traces = []

    def replica_fn():
        traces.append(len(optimizer.slots))
        optimizer.minimize(lambda: jnp.sum(w**2), [w])

    rx.function(lambda: strategy.run(replica_fn))()
    assert traces == [0]
    assert len(optimizer.slots) == 3


@pytest.mark.parametrize("make", [mirrored, lambda count: rx.ShardedStrategy(["CPU:0", "CPU:1"][:count])])
def test_slots_of_many_shapes_are_zeros_and_may_be_donated(make):
    strategy = make(2)
    with strategy.scope():
        weights = [rx.Variable(np.ones((64, 16 * i), np.float32)) for i in range(1, 9)]
        optimizer = rx.Optimizer(optax.adam(0.1))
    optimizer.build(weights)
    assert not any(np.asarray(slot.value).any() for slot in optimizer.slots)
    step = rx.function(
        lambda: strategy.run(lambda: optimizer.apply_gradients([w.value for w in weights], weights))
    )
    for _ in range(3):
        step()
    firsts = [slot for slot in optimizer.slots if "/mu/" in slot.name]
    assert len(firsts) == len(weights)
    assert all(np.asarray(slot.value).all() for slot in firsts)
