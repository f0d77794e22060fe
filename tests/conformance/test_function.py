"""`rx.function`: when a step is traced, what happens to its variables, and what it refuses."""

import dataclasses
import gc
import logging
import re
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from .helpers import ON_READ, close, each, parts, rid, rows, variable

SUM = rx.VariableAggregation.SUM


def counted(fn):
    """`fn` compiled, and a list that gets an entry each time it is traced."""
    traces = []

    def step(*args, **kwargs):
        traces.append(1)
        return fn(*args, **kwargs)

    return rx.function(step), traces


# Tracing.


def test_traced_again_only_for_a_new_signature(strategy):
    step, traces = counted(lambda x: strategy.reduce("SUM", x, axis=None))
    step(each(strategy, rows))
    count = len(traces)
    for _ in range(3):
        step(each(strategy, lambda i: rows(i) + 1))
    assert len(traces) == count
    assert step.num_programs == 1
    step(each(strategy, lambda i: rows(i)[:1]))
    assert len(traces) > count
    assert step.num_programs == 2
    count = len(traces)
    step(each(strategy, rows))
    assert len(traces) == count


def test_signatures():
    step, _traces = counted(lambda x, y=None: x)
    same = [jnp.float32(1), jnp.float32(2), np.float32(3)]
    for x in same:
        close(step(x), x)
    assert step.num_programs == 1
    for other in (jnp.int32(1), jnp.ones(1), (jnp.float32(1),), {"a": jnp.float32(1)}):
        before = step.num_programs
        step(other)
        step(other)
        assert step.num_programs == before + 1


def test_python_arguments_are_constants(strategy):
    """Each value of it makes a program of its own, so Python control flow can use it."""

    def fn(x, *, name, scale, flag=False):
        y = strategy.run(lambda x: x * scale if flag else x, args=(x,))
        return {name: strategy.reduce("SUM", y, axis=None)}

    step, _ = counted(fn)
    x = each(strategy, lambda i: i + 1.0)
    total = sum(range(1, strategy.num_replicas_in_sync + 1))
    close(step(x, name="a", scale=2, flag=True)["a"], 2 * total)
    close(step(x, name="b", scale=3, flag=True)["b"], 3 * total)
    close(step(x, name="b", scale=3)["b"], total)
    assert step.num_programs == 3
    close(step(x, name="a", scale=2, flag=True)["a"], 2 * total)
    assert step.num_programs == 3


def test_equal_constants_of_other_types():
    step = rx.function(lambda x: str(type(x).__name__))
    assert [step(x) for x in (1, True, 1.0)] == ["int", "bool", "float"]


def test_unhashable_arguments():
    step = rx.function(lambda x: x)
    with pytest.raises(TypeError, match=r"set.*\{1\}.*hashable.*tuple or a frozenset"):
        step({1})


def test_text_in_the_arguments(two):
    texts = two.distribute_values_from_function(lambda ctx: np.array(["some", "text"]))
    for argument in (np.array(["some", "text"]), {"text": texts}):
        with pytest.raises(TypeError, match=r"'text'.*arrays of numbers.*Devices can't hold text"):
            rx.function(lambda batch: batch)(argument)


def test_traced_for_each_context(placed):
    """The strategy that a function sees does not depend on its first caller."""
    name = rx.function(lambda: (rx.has_strategy(), rx.in_cross_replica_context()))
    assert name() == (False, False)
    with placed.scope():
        assert name() == (True, True)
    assert name() == (False, False)


def test_traced_in_a_replica_and_outside(strategy):
    where = rx.function(lambda: rx.get_replica_context().num_replicas_in_sync)
    strategy.run(where)
    assert where() == 1


def test_a_message_on_each_retrace_after_the_second(caplog):
    step = rx.function(lambda x: x)
    with caplog.at_level(logging.WARNING, logger="replicax"):
        step(jnp.ones(1))
        step(jnp.ones(2))
        step(jnp.ones(1))
        assert not caplog.records
        step(jnp.ones(3))
        assert len(caplog.records) == 1
        step(jnp.ones(3))
        assert len(caplog.records) == 1
        step(jnp.ones((3, 1)))
    message = caplog.records[1].getMessage()
    assert len(caplog.records) == 2
    assert "float32[3]" in message and "float32[3, 1]" in message


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([1, 2, 3], r"2.*3.*jnp.asarray"),
        ([jnp.ones(1), jnp.ones(2), (jnp.ones(2),)], r"argument 0\[0\] is new; argument 0 is gone"),
    ],
    ids=["number", "structure"],
)
def test_the_message_says_why(caplog, calls, reason):
    step = rx.function(lambda x: x)
    with caplog.at_level(logging.WARNING, logger="replicax"):
        for x in calls:
            step(x)
    assert caplog.records
    assert re.search(reason, caplog.records[-1].getMessage())


def test_results_that_are_not_arrays(strategy, mode):
    marker = object()
    found = mode(lambda x: (x, None, "text", marker, {"a": 3, "b": []}))(jnp.ones(2))
    close(found[0], [1, 1])
    assert found[1:] == (None, "text", marker, {"a": 3, "b": []})


def test_keyword_arguments_and_defaults(mode):
    step = mode(lambda x, y=2, *rest, z=3: x + y + z + sum(rest))
    close(step(jnp.float32(1)), 6)
    close(step(jnp.float32(1), 5, jnp.float32(7), z=jnp.float32(0)), 13)


def test_a_function_looks_like_what_it_wraps():
    def step(x):
        """Docs."""

    compiled = rx.function(step)
    assert (compiled.__name__, compiled.__doc__) == ("step", "Docs.")
    assert isinstance(compiled, rx.Function)
    assert compiled.python_function is step
    assert "step" in repr(compiled)


def test_only_functions():
    with pytest.raises(TypeError, match=r"function.*5"):
        rx.function(5)


# Methods and nested functions.


class Model:
    def __init__(self, strategy):
        with strategy.scope():
            self.strategy = strategy
            self.v = rx.Variable(1.0, aggregation=SUM)

    @rx.function
    def step(self, x):
        return self.strategy.run(lambda x: self.v.assign_add(x), args=(x,))


def test_methods(strategy):
    first, second = Model(strategy), Model(strategy)
    n = strategy.num_replicas_in_sync
    for _ in range(2):
        first.step(jnp.float32(2))
    second.step(jnp.float32(5))
    close(first.v, 1 + 4 * n)
    close(second.v, 1 + 5 * n)
    assert first.step.num_programs == second.step.num_programs == 1


def test_a_method_does_not_keep_its_instance_alive(two):
    model = Model(two)
    model.step(jnp.float32(1))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_methods_of_objects_that_are_equal(two):
    """Each object has its own compiled step, also if it can't be hashed."""

    @dataclasses.dataclass
    class Equal:
        v: rx.Variable = dataclasses.field(compare=False)

        @rx.function
        def step(self):
            return self.v.assign_add(1.0)

    objects = [Equal(variable(two, 0.0)), Equal(variable(two, 10.0))]
    for thing in objects:
        thing.step()
    close([thing.v for thing in objects], [1, 11])


def test_nested_functions(strategy):
    v = variable(strategy, 1.0, aggregation=SUM)
    add = rx.function(lambda x: v.assign_add(x))
    double = rx.function(lambda: v.assign(v * 2))
    inner = rx.function(lambda x: strategy.run(add, args=(x,)))

    @rx.function
    def step(x):
        inner(x)
        double()
        return inner(x)

    n = strategy.num_replicas_in_sync
    found = step(jnp.float32(3))
    close(parts(strategy, found), [(1 + 3 * n) * 2 + 3 * n] * n)
    close(v, (1 + 3 * n) * 2 + 3 * n)


# Variables.


def test_variables_change_between_calls(strategy):
    v = variable(strategy, 1.0, aggregation=SUM)
    step, traces = counted(lambda: strategy.run(lambda: v.assign_add(1.0)))
    step()
    count = len(traces)
    v.assign(100.0)
    step()
    strategy.run(lambda: v.assign_add(1.0))
    step()
    close(v, 100 + 3 * strategy.num_replicas_in_sync)
    assert len(traces) == count


def test_variables_only_read(strategy):
    v = variable(strategy, 1.0)
    step = rx.function(lambda: strategy.run(lambda: v + rid()))
    for value in (1.0, 5.0, -2.0):
        v.assign(value)
        close(parts(strategy, step()), value + np.arange(strategy.num_replicas_in_sync))


def test_variables_as_arguments(strategy):
    v, w = variable(strategy, 1.0), variable(strategy, 2.0)
    step = rx.function(lambda v: v.assign_add(10.0))
    step(v)
    step(w)
    step(v)
    close(v, 21)
    close(w, 12)


def test_variables_in_arguments(strategy):
    """A structure of variables, such as a model's list."""
    variables = [variable(strategy, float(k), aggregation=SUM) for k in range(3)]

    @rx.function
    def step(variables, x):
        def replica_fn(variables, x):
            for v in variables["all"]:
                v.assign_add(x)

        strategy.run(replica_fn, args=({"all": variables}, x))

    step(variables, jnp.float32(2))
    step(variables, jnp.float32(2))
    close(variables, np.arange(3) + 4 * strategy.num_replicas_in_sync)


def test_an_array_read_before_a_step_stays_valid(strategy):
    """Written arrays are donated, except those that the program still refers to."""
    v = variable(strategy, [1.0, 2.0], aggregation=SUM)
    step = rx.function(lambda: strategy.run(lambda: v.assign_add([1.0, 1.0])))
    n = strategy.num_replicas_in_sync
    held = []
    for _ in range(6):
        held.append((v.value, strategy.local_results(v)[0].value, v.read_value()))
        returned = step()
        held[-1] += (returned,)
    for k, (value, copy, read, returned) in enumerate(held):
        expected = np.array([1, 2]) + k * n
        for array in (value, copy, read):
            close(array, expected)
        close(parts(strategy, returned), [expected + n] * n)


def test_an_array_given_to_a_variable_stays_valid(strategy, mode):
    x = jnp.array([1.0, 2.0])
    v = variable(strategy, x, aggregation=SUM)
    w = variable(strategy, v)
    step = mode(lambda: strategy.run(lambda: v.assign_add([1.0, 1.0])))
    step()
    v.assign(x)
    step()
    close(x, [1, 2])
    close(w, [1, 2])
    close(v, np.array([1, 2]) + strategy.num_replicas_in_sync)


def test_an_on_read_variable_stays_valid(mirrored):
    v = variable(mirrored, 0.0, synchronization=ON_READ, aggregation=SUM)
    step = rx.function(lambda: mirrored.run(lambda: v.assign_add(rid() + 1.0)))
    step()
    copies = [copy.value for copy in mirrored.local_results(v)]
    total = v.value
    step()
    n = mirrored.num_replicas_in_sync
    close(copies, np.arange(n) + 1)
    close(total, n * (n + 1) / 2)
    close(v, n * (n + 1))


def test_two_variables_made_from_one_array(strategy):
    x = jnp.array([1.0])
    v, w = variable(strategy, x), variable(strategy, x)

    @rx.function
    def swap():
        old = v.value
        v.assign(w * 2)
        w.assign(old * 3)

    swap()
    swap()
    close(v, [6])
    close(w, [6])


# Control flow.


@pytest.mark.parametrize("where", ["scan", "cond", "while_loop", "jit", "vmap", "grad"])
def test_reads_in_control_flow(strategy, where):
    """Reads give the current value in every call, although JAX caches the trace of the branch."""
    v = variable(strategy, 2.0)

    def persistent(x):
        return x * v

    def compute(x):
        match where:
            case "scan":
                return jax.lax.scan(lambda c, _: (persistent(c), None), x, length=2)[0]
            case "cond":
                return jax.lax.cond(x > 0, persistent, persistent, x)
            case "while_loop":
                return jax.lax.while_loop(lambda c: c < 100, persistent, x)
            case "jit":
                return jitted(x)
            case "vmap":
                return jax.vmap(persistent)(x[None])[0]
            case "grad":
                return jax.grad(persistent)(x)

    def model(x, v):
        if where == "while_loop":
            while x < 100:
                x = x * v
            return x
        return x * v * v if where == "scan" else v if where == "grad" else x * v

    jitted = jax.jit(persistent)
    step = rx.function(lambda x: strategy.run(lambda x: compute(x + rid()), args=(x,)))
    n = strategy.num_replicas_in_sync
    for value in (2.0, 3.0, 2.0):
        v.assign(value)
        for x in (jnp.float32(1), jnp.float32(2)):
            found = parts(strategy, step(x))
            close(found, [model(float(x) + i, value) for i in range(n)])


def test_one_loop_body_in_two_steps(strategy):
    v = variable(strategy, 2.0)

    def body(carry, _):
        return carry * v, None

    steps = [
        rx.function(lambda: jax.lax.scan(body, jnp.float32(1), length=3)[0]),
        rx.function(lambda: jax.lax.scan(body, jnp.float32(1), length=3)[0] + 1),
    ]
    for value in (2.0, 3.0):
        v.assign(value)
        close([step() for step in steps], [value**3, value**3 + 1])


@pytest.mark.parametrize("where", ["scan", "cond", "jit", "grad"])
def test_writes_in_control_flow(strategy, where):
    """The written value could not leave the loop."""
    v = variable(strategy, 1.0, name="counter", aggregation=SUM)

    def write(x):
        v.assign_add(x)
        return x

    def compute(x):
        match where:
            case "scan":
                return jax.lax.scan(lambda c, _: (write(c), None), x, length=2)[0]
            case "cond":
                return jax.lax.cond(x > 0, write, write, x)
            case "jit":
                return jax.jit(write)(x)
            case "grad":
                return jax.grad(write)(x)

    step = rx.function(lambda: strategy.run(lambda: compute(jnp.float32(1))))
    with pytest.raises(RuntimeError, match=r"counter.*assign"):
        step()
    close(v, 1)


# Other programs.


def test_jit_around_a_variable(strategy):
    """JAX would bake the current value into the program."""
    v = variable(strategy, 1.0, name="weights", aggregation=SUM)
    for use in (lambda: v + 1, lambda: v.value, lambda: v.assign(2.0), lambda: v.read_value()):
        with pytest.raises(RuntimeError, match=r"weights.*rx\.function.*jax\.jit"):
            jax.jit(use)()
    close(v, 1)


def test_jit_around_a_step(strategy):
    v = variable(strategy, 1.0, aggregation=SUM)
    step = rx.function(lambda x: strategy.run(lambda x: v.assign_add(x), args=(x,)))
    for fn in (step, lambda x: strategy.run(lambda x: v * x, args=(x,))):
        with pytest.raises(RuntimeError, match=r"rx\.function"):
            jax.jit(fn)(jnp.float32(1))
    close(v, 1)


def test_eager_loops_around_a_variable(strategy):
    """Also inside a replica; outside of a compiled step `lax.scan` compiles by itself."""
    v = variable(strategy, 1.0, name="weights")

    def scan():
        return jax.lax.scan(lambda c, _: (c * v, None), jnp.float32(1), length=2)[0]

    for use in (scan, lambda: strategy.run(scan), lambda: jax.lax.cond(True, lambda: v * 1, lambda: 0.0)):
        with pytest.raises(RuntimeError, match=r"weights.*rx\.function"):
            use()


def test_eager_differentiation_reads_the_value(strategy):
    """`jax.grad` does not compile, so a variable may be read in it."""
    v = variable(strategy, 2.0)
    loss = jax.value_and_grad(lambda x: x * v)
    for value in (2.0, 3.0):
        v.assign(value)
        close(loss(5.0), (5 * value, value))
        n = strategy.num_replicas_in_sync
        close(parts(strategy, strategy.run(lambda: loss(5.0)[1])), [value] * n)


# Errors.


def test_an_error_leaves_everything_usable(strategy, mode):
    v = variable(strategy, 1.0, aggregation=SUM)

    def replica_fn(x, fail):
        v.assign_add(x)
        if fail:
            raise KeyError("in the step")
        return rx.get_replica_context().all_reduce("SUM", x)

    step = mode(lambda x, fail: strategy.run(replica_fn, args=(x, fail)))
    n = strategy.num_replicas_in_sync
    for _ in range(2):
        before = v.numpy()
        with pytest.raises(KeyError, match="in the step"):
            step(jnp.float32(1), True)
        if mode is rx.function:
            close(v, before)
        v.assign(1.0)
        close(parts(strategy, step(jnp.float32(2), False)), [2 * n] * n)
        close(v, 1 + 2 * n)


def test_a_failed_collective_leaves_everything_usable(several, mode):
    x = each(several, lambda i: np.ones(i + 1))
    step = mode(lambda x: several.reduce("SUM", x, axis=None))
    n = several.num_replicas_in_sync
    for _ in range(2):
        with pytest.raises(ValueError, match="the same shape"):
            step(x)
        close(step(each(several, lambda i: np.ones(2))), [n, n])


def test_many_strategies(mode):
    """Strategies are independent: hundreds can be created, used in turn and dropped."""
    alive = [rx.MirroredStrategy(["CPU:0", "CPU:1"]) for _ in range(100)]
    chosen = [alive[0], alive[50], rx.MirroredStrategy(["CPU:1", "CPU:2"]), alive[99]]
    variables = [variable(s, float(k), aggregation=SUM) for k, s in enumerate(chosen)]
    for _ in range(2):
        for s, v in zip(chosen, variables, strict=True):
            mode(lambda s=s, v=v: s.run(lambda: v.assign_add(1.0)))()
    close(variables, np.arange(4) + 4)


def test_two_strategies_in_one_step(mode):
    first = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    second = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    v, w = variable(first, 1.0, aggregation=SUM), variable(second, 10.0, aggregation=SUM)

    def step():
        first.run(lambda: v.assign_add(1.0))
        total = first.reduce("SUM", first.run(lambda: v * 1.0), axis=None)
        second.run(lambda: w.assign_add(1.0))
        return total

    close(mode(step)(), 6)
    close(v, 3)
    close(w, 12)


def test_print_a_variable_in_a_step(strategy, mode):
    """A repr never fails."""
    v = variable(strategy, 1.0, name="weights")
    texts = []
    mode(lambda: strategy.run(lambda: texts.append(repr(v))))()
    assert texts and all("weights" in text for text in texts)


def test_a_method_of_an_instance_that_nobody_keeps(two):
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @rx.function
        def step(self, x):
            return x * self.scale

    class Doubled(Model):
        @rx.function
        def step(self, x):
            return 2 * super().step(x)

    assert Model(3.0).step(jnp.float32(2)) == 6
    assert Doubled(3.0).step(jnp.float32(2)) == 12
    close(two.local_results(two.run(Model(5.0).step, args=(jnp.float32(2),))), [10, 10])
    model = Model(1.0)
    model.step(jnp.float32(2))
    assert model.step == model.step and hash(model.step) == hash(model.step)
    assert model.step.num_programs == 1 and model.step != Model(1.0).step


def test_generators_and_coroutines_are_refused():
    def generator(x):
        yield x

    async def coroutine(x):
        return x

    for fn in (generator, coroutine):
        with pytest.raises(TypeError, match="returns its results"):
            rx.function(fn)
