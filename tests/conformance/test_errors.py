"""Bad input: the message names what arrived and what to do, and the type is the one that users catch."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ReplicaxError

from .helpers import ON_READ, close, each, parts, rid, rows, variable

MEAN = rx.VariableAggregation.MEAN

# `strategy.run`.


def test_arguments_that_are_not_a_sequence(strategy, mode, subtests):
    for args in ({"x": 1}, 5, jnp.ones(2), "ab"):
        refused = pytest.raises(ValueError, match=r"args.*tuple or list.*args=\(x,\)")
        with subtests.test(args=args), refused:
            mode(lambda args=args: strategy.run(lambda *a: a, args=args))()


def test_arguments_that_are_an_array_are_described(strategy):
    with pytest.raises(ValueError, match=r"got an array float32\[3\]"):
        strategy.run(lambda x: x, args=(jnp.ones(3)))
    with pytest.raises(ValueError, match="got a value of type set"):
        strategy.run(lambda x: x, args={1})


def test_values_that_no_function_makes(strategy):
    with pytest.raises(TypeError, match="takes a function of a replica's ValueContext, got 3"):
        strategy.distribute_values_from_function(3)


def test_keywords_that_are_not_a_mapping(strategy, mode, subtests):
    for kwargs in ([1], 5):
        with subtests.test(kwargs=kwargs), pytest.raises((TypeError, ValueError), match="kwargs"):
            mode(lambda kwargs=kwargs: strategy.run(lambda **k: k, kwargs=kwargs))()


def test_something_else_as_the_function(strategy, mode, subtests):
    for fn in (None, 5, "fn"):
        with subtests.test(fn=fn), pytest.raises(TypeError, match=f"function.*{fn!r}"):
            mode(lambda fn=fn: strategy.run(fn))()


def test_options_of_another_kind(strategy, mode):
    with pytest.raises(TypeError, match=r"RunOptions"):
        mode(lambda: strategy.run(lambda: 1, options={"a": 1}))()


@pytest.mark.parametrize("option", ["experimental_bucketizing_dynamic_shape", "experimental_xla_options"])
def test_run_options_that_are_not_offered(option):
    with pytest.raises(ValueError, match=option):
        rx.RunOptions(**{option: True})


def test_too_few_components(several, mode):
    value = rx.PerReplica([jnp.ones(2)])
    n = several.num_replicas_in_sync
    with pytest.raises(IndexError, match=f"1 components for {n} replicas"):
        mode(lambda x: several.run(lambda x: x, args=(x,)))(value)


def test_components_of_another_strategy(several, mode):
    n = several.num_replicas_in_sync
    other = rx.MirroredStrategy([f"CPU:{i}" for i in range(n - 1)])
    value = other.run(lambda: jnp.ones(2) + rid())
    if n == 2:
        value = rx.PerReplica([value])
    for use in (
        lambda x: several.run(lambda x: x, args=(x,)),
        lambda x: several.reduce("SUM", x, axis=None),
        lambda x: several.gather(x, axis=0),
    ):
        with pytest.raises((ValueError, IndexError, RuntimeError), match="replicas"):
            mode(use)(value)


# Reductions.


@pytest.mark.parametrize("use", ["reduce", "reduce_to", "batch_reduce_to"])
def test_bad_reductions(strategy, mode, use):
    def step(op, x):
        extended = strategy.extended
        match use:
            case "reduce":
                return strategy.reduce(op, x, axis=None)
            case "reduce_to":
                return extended.reduce_to(op, x, x)
            case "batch_reduce_to":
                return extended.batch_reduce_to(op, [(x, x)])

    x = each(strategy, rows)
    with pytest.raises(ValueError, match=r"'MAX'.*SUM.*MEAN"):
        mode(lambda x: step("MAX", x))(x)
    for op in (rx.VariableAggregation.SUM, None, 1):
        for error in (AssertionError, TypeError):
            with pytest.raises(error, match=r"SUM.*MEAN"):
                mode(lambda x, op=op: step(op, x))(x)


def test_an_axis_that_is_not_there(strategy, mode, subtests):
    for axis in (2, -3, (0, 2), 7):
        with subtests.test(axis=axis), pytest.raises(ValueError, match=r"axis.*\(2, 3\)") as caught:
            mode(lambda x, axis=axis: strategy.reduce("SUM", x, axis=axis))(each(strategy, rows))
        assert "-2 <= axis < 2" in str(caught.value)


def test_something_else_as_the_axis(strategy, mode, subtests):
    for axis in ([0], "0", 0.5, (0, None)):
        with subtests.test(axis=axis), pytest.raises(TypeError, match="axis"):
            mode(lambda x, axis=axis: strategy.reduce("SUM", x, axis=axis))(each(strategy, rows))


def test_an_axis_named_twice(strategy, mode):
    with pytest.raises(ValueError, match=r"axis"):
        mode(lambda x: strategy.reduce("SUM", x, axis=(0, -2)))(each(strategy, rows))


def test_the_axis_is_required(strategy):
    with pytest.raises(TypeError, match="axis"):
        strategy.reduce("SUM", 1.0)


def test_values_that_are_not_numbers(strategy, mode, subtests):
    values = ["text", None, object(), [jnp.ones(1), "text"]]
    for value, axis in itertools.product(values, [None, 0]):
        refused = pytest.raises((ValueError, TypeError), match=r"[Oo]nly arrays|numbers")
        with subtests.test(value=value, axis=axis), refused:
            mode(lambda value=value, axis=axis: strategy.reduce("SUM", value, axis=axis))()


def test_components_that_are_not_numbers(several, mode):
    x = several.distribute_values_from_function(lambda ctx: f"text {ctx.replica_id_in_sync_group}")
    for axis in (None, 0):
        with pytest.raises(ValueError, match="text 0"):
            mode(lambda axis=axis: several.reduce("SUM", x, axis=axis))()


def test_booleans(several, mode):
    with pytest.raises((ValueError, TypeError), match=r"Booleans.*astype"):
        mode(lambda x: several.reduce("SUM", x, axis=None))(each(several, lambda i: i == 0))


def test_indexed_slices_with_an_axis(strategy, mode):
    def step():
        rows = strategy.run(lambda: rx.IndexedSlices(jnp.ones((1, 2)), rid()[None]))
        return strategy.reduce("SUM", rows, axis=0)

    with pytest.raises((ValueError, TypeError), match=r"IndexedSlices.*axis=None"):
        mode(step)()


def test_something_else_as_the_pairs(strategy, mode, subtests):
    for pairs in ([1.0], [(1.0, 2.0, 3.0)], 5):
        with subtests.test(pairs=pairs), pytest.raises((TypeError, ValueError), match="pairs"):
            mode(lambda pairs=pairs: strategy.extended.batch_reduce_to("SUM", pairs))()


def test_two_spellings_at_once(strategy, mode):
    options = rx.CommunicationOptions()
    with pytest.raises(ValueError, match=r"options.*experimental_hints"):
        mode(
            lambda: strategy.extended.reduce_to(
                "SUM", 1.0, "CPU:0", options=options, experimental_hints=options
            )
        )()


def test_broadcast_of_something_else(strategy, mode):
    v = variable(strategy, 0.0)
    for value in ("text", None, [1.0, 2.0]):
        with pytest.raises(TypeError, match="broadcast_to"):
            mode(lambda value=value: strategy.extended.broadcast_to(value, v))()


# A value for each replica is not one number.


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: x * x,
        lambda x: -x,
        lambda x: x > 0,
        lambda x: x[0],
        float,
        bool,
        np.asarray,
        jnp.asarray,
        jnp.sum,
        len,
        lambda x: f"{x:.3f}",
    ],
    ids=[
        "add",
        "rsub",
        "mul",
        "neg",
        "gt",
        "item",
        "float",
        "bool",
        "numpy",
        "jnp",
        "sum",
        "len",
        "format",
    ],
)
def test_a_per_replica_value_as_a_number(two, mode, use):
    step = mode(lambda x: use(two.run(lambda x: x, args=(x,))))
    with pytest.raises(TypeError, match=r"PerReplica.*strategy\.reduce.*local_results"):
        step(each(two, rows))


@pytest.mark.parametrize("name", ["shape", "dtype", "item", "numpy", "mean", "block_until_ready"])
def test_a_per_replica_value_has_no_attributes_of_arrays(two, name):
    x = each(two, rows)
    assert not hasattr(x, name)
    with pytest.raises(AttributeError, match=rf"{name!r}.*strategy\.reduce.*local_results"):
        getattr(x, name)
    with pytest.raises(AttributeError, match=r"'other'\.$"):
        x.other  # noqa: B018


def test_formats(two):
    x = each(two, lambda context: jnp.float32(1.5))
    total = two.extended.reduce_to("SUM", x, x)
    assert f"{total:.2f} {total}" == f"3.00 {total!r}"
    assert f"{x}" == repr(x)


# Variables.


def test_no_initial_value(strategy):
    with strategy.scope(), pytest.raises(ValueError, match="initial_value"):
        rx.Variable()


def test_initial_values_that_are_not_arrays(strategy, subtests):
    for value in ("text", object(), {"a": 1}):
        with subtests.test(value=value), pytest.raises((ValueError, TypeError), match="initial value"):
            variable(strategy, value)


def test_initial_value_for_each_replica(several):
    with pytest.raises(ValueError, match=r"initial value.*PerReplica"):
        variable(several, each(several, float))


def test_initial_value_of_another_shape(strategy):
    with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)"):
        variable(strategy, [1.0, 2.0], shape=(3,))


def test_synchronization_none(mirrored):
    with pytest.raises(ValueError, match=r"weights.*NONE.*ON_READ"):
        variable(mirrored, 1.0, name="weights", synchronization=rx.VariableSynchronization.NONE)


def test_mean_of_integers(mirrored):
    with pytest.raises(ValueError, match=r"count.*int32.*MEAN.*float"):
        variable(mirrored, 1, name="count", aggregation=MEAN)


def test_policies_that_do_not_exist(strategy, subtests):
    for argument, value in [
        ("synchronization", "LATER"),
        ("aggregation", "MAX"),
        ("aggregation", rx.ReduceOp.SUM),
    ]:
        refused = pytest.raises(ValueError, match=rf"{argument}.*{value!r}")
        with subtests.test(argument=argument, value=value), refused:
            variable(strategy, 1.0, **{argument: value})


@pytest.mark.parametrize("write", ["assign", "assign_add", "assign_sub"])
def test_writes_that_do_not_fit(strategy, mode, write):
    v = variable(strategy, [1.0, 2.0], name="weights", aggregation=MEAN)
    count = variable(strategy, [1, 2], name="count")
    for where in (lambda f: f(), strategy.run):
        with pytest.raises(ValueError, match=r"weights.*\(2,\).*\(3,\)"):
            mode(lambda where=where: where(lambda: getattr(v, write)(jnp.ones(3))))()
    with pytest.raises(ValueError, match=r"count.*int32.*float32.*astype"):
        mode(lambda: getattr(count, write)(jnp.ones(2)))()
    with pytest.raises((ValueError, TypeError)):
        mode(lambda: getattr(v, write)("text"))()
    close(v, [1, 2])
    close(count, [1, 2])


def test_per_replica_writes_that_do_not_fit(several, mode):
    v = variable(several, [1.0, 2.0], name="weights", aggregation=MEAN)
    with pytest.raises(ValueError, match=r"weights.*\(2,\).*\(3,\)"):
        mode(lambda x: several.run(lambda x: v.assign(x), (x,)))(each(several, lambda i: np.ones(3)))
    close(v, [1, 2])


def test_one_copy_can_not_be_written(mirrored):
    v = variable(mirrored, 1.0, name="weights")
    with pytest.raises(RuntimeError, match=r"weights.*update"):
        mirrored.local_results(v)[0].assign(2.0)
    close(parts(mirrored, v), [1] * mirrored.num_replicas_in_sync)


def test_unreadable_variables_can_be_printed(mirrored):
    v = variable(mirrored, 1.0, name="local", synchronization=ON_READ)
    assert "local" in repr(v)


# Strategies.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rx.MirroredStrategy(["CPU:0", "CPU:0"]), r"CPU:0"),
        (lambda: rx.MirroredStrategy(["CPU:0", "CPU:99"]), r"CPU:99.*CPU:7"),
        (lambda: rx.MirroredStrategy(["GPU:0"]), r"GPU:0.*CPU:7"),
        (lambda: rx.MirroredStrategy(["nonsense"]), "nonsense"),
        (lambda: rx.OneDeviceStrategy("CPU:99"), r"CPU:99.*CPU:7"),
        (lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:99"), r"CPU:99.*CPU:7"),
    ],
    ids=["twice", "missing", "no gpu", "nonsense", "one device", "parameter device"],
)
def test_devices(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_one_string_for_the_devices():
    with pytest.raises((TypeError, ValueError), match=r"CPU:0.*\[|list"):
        rx.MirroredStrategy("CPU:0")


def test_one_root_for_all_errors(two):
    with pytest.raises(ReplicaxError):
        two.reduce("MAX", 1.0, axis=None)
    with pytest.raises(ReplicaxError):
        two.run(lambda: two.run(lambda: 1))
    with pytest.raises(ReplicaxError):
        variable(two, 1, aggregation=MEAN)
