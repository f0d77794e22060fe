"""Restoring before variables exist: they get their values when they are made, or somebody says so."""

import logging

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.checkpoint.helpers import STRATEGIES, copies, identical, mirrored, variable

import replicax as rx
from replicax.errors import CheckpointMismatchError
from replicax.variables import awaiting_values


@pytest.fixture(autouse=True)
def _nobody_waits_afterwards():
    before = list(awaiting_values)
    yield
    awaiting_values[:] = before


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


def saved(tmp_path, **values):
    """A checkpoint of `model`, a dict of variables that are called by their keys."""
    model = {name: rx.Variable(value, name=name) for name, value in values.items()}
    return rx.Checkpoint(model=model).save(tmp_path)


def test_a_variable_made_later_gets_its_value(strategy, tmp_path):
    path = saved(tmp_path, a=np.float32([1, 2]), b=np.float32(3))
    model = {"a": variable(strategy, jnp.zeros(2), name="a")}
    status = rx.Checkpoint(model=model).restore(path)
    assert status.unused == ["model/b"]
    model["b"] = variable(strategy, 0.0, name="b")
    assert status.unused == []
    status.assert_consumed()
    assert [float(c) for c in copies(strategy, model["b"])] == [3.0] * len(copies(strategy, model["b"]))
    assert not awaiting_values


def test_a_model_that_is_built_by_its_first_call_goes_on(tmp_path):
    class Lazy:
        def __init__(self):
            self.w = None

        def __call__(self, x):
            if self.w is None:
                self.w = rx.Variable(jnp.ones((x.shape[-1], 2)), name="lazy")
            return x @ self.w.value

    x, first = jnp.ones((1, 3)), Lazy()
    first(x)
    first.w.assign(jnp.arange(6.0).reshape(3, 2))
    path = rx.Checkpoint(model=first, epoch=1).save(tmp_path)
    second = Lazy()
    status = rx.Checkpoint(model=second, epoch=0).restore(path)
    identical(second(x), first(x))
    status.assert_consumed()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_slots_made_by_the_first_step_have_the_saved_values(n, compiled, tmp_path):
    def objects(n):
        strategy = mirrored(n)
        with strategy.scope():
            w, optimizer = rx.Variable(jnp.ones(3), name="w"), rx.Optimizer(optax.adam(0.1))

        def step():
            def replica_step():
                loss, gradient = rx.value_and_grad(lambda: jnp.sum(w**2) / n, w)()
                optimizer.apply_gradients([(gradient, w)])
                return loss

            return strategy.reduce("SUM", strategy.run(replica_step), axis=None)

        return w, optimizer, rx.function(step) if compiled else step

    w, optimizer, step = objects(2)
    for _ in range(3):
        step()
    path = rx.Checkpoint(w=w, optimizer=optimizer).save(tmp_path)
    expected = [float(step()) for _ in range(4)]
    w, optimizer, step = objects(n)
    status = rx.Checkpoint(w=w, optimizer=optimizer).restore(path)
    np.testing.assert_allclose([float(step()) for _ in range(4)], expected, rtol=1e-6)
    if n == 2:
        identical(w.read_value(), w.read_value())
    status.assert_consumed()
    assert int(optimizer.iterations.read_value()) == 7


def test_what_waits_is_told_at_the_level_info(tmp_path, caplog):
    path = saved(tmp_path, a=1.0, b=2.0)
    model = {"a": rx.Variable(0.0, name="a")}
    with caplog.at_level(logging.INFO, "replicax"):
        rx.Checkpoint(model=model).restore(path)
    assert "model/b" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_asking_too_early_names_what_is_still_to_come(tmp_path):
    path = saved(tmp_path, a=1.0, b=2.0)
    status = rx.Checkpoint(model={"a": rx.Variable(0.0, name="a")}).restore(path)
    with pytest.raises(CheckpointMismatchError, match="model/b"):
        status.assert_consumed()


# Nothing is skipped in silence.


def test_a_later_variable_of_another_shape_is_not_taken_for_restored(tmp_path, caplog):
    path = saved(tmp_path, a=1.0, b=np.float32([1, 2, 3]))
    model = {"a": rx.Variable(0.0, name="a")}
    status = rx.Checkpoint(model=model).restore(path)
    try:
        model["b"] = rx.Variable(jnp.zeros(4), name="b")
    except CheckpointMismatchError as error:
        assert "b" in str(error)
        return
    with pytest.raises(CheckpointMismatchError, match="model/b"):
        status.assert_consumed()


def test_slots_of_unnamed_variables_go_on_or_are_reported(tmp_path):
    """All variables are called "Variable" unless the user names them."""

    def objects():
        weights = [rx.Variable(jnp.ones(2)), rx.Variable(jnp.ones(2))]
        return weights, rx.Optimizer(optax.adam(0.1))

    def step(weights, optimizer):
        optimizer.minimize(lambda: jnp.sum(weights[0].value ** 2) + jnp.sum(weights[1].value ** 4), weights)

    weights, optimizer = objects()
    for _ in range(3):
        step(weights, optimizer)
    path = rx.Checkpoint(w=weights, o=optimizer).save(tmp_path)
    step(weights, optimizer)
    resumed, other = objects()
    status = rx.Checkpoint(w=resumed, o=other).restore(path)
    step(resumed, other)
    try:
        status.assert_consumed()
    except CheckpointMismatchError:
        return
    for old, new in zip(weights, resumed, strict=True):
        identical(new.read_value(), old.read_value())


def test_a_stranger_of_the_same_name_gets_nothing(tmp_path):
    """The value is for the variable at its place in the model, not for any that is called alike."""
    old = {"a": rx.Variable(5.0), "b": rx.Variable(1.0, name="b")}
    path = rx.Checkpoint(model=old).save(tmp_path)
    rx.Checkpoint(model={"b": rx.Variable(0.0, name="b")}).restore(path)
    assert float(rx.Variable(0.0).read_value()) == 0.0


def test_expecting_a_partial_restore_ends_the_waiting(tmp_path):
    path = saved(tmp_path, a=1.0, b=2.0)
    rx.Checkpoint(model={"a": rx.Variable(0.0, name="a")}).restore(path).expect_partial()
    assert not awaiting_values
    assert float(rx.Variable(0.0, name="b").read_value()) == 0.0


def test_an_optimizer_goes_on_though_a_partial_restore_is_expected(tmp_path):
    things = updated(two_optimizers(), 3)
    path = rx.Checkpoint(**things, more=rx.Variable(0.0, name="more")).save(tmp_path)
    resumed = two_optimizers()
    rx.Checkpoint(**resumed).restore(path).expect_partial()
    updated(things)
    updated(resumed)
    for here, there in zip(slots(things), slots(resumed), strict=True):
        identical(there, here)
    assert not awaiting_values


def test_the_second_restore_is_the_one_that_counts(tmp_path):
    first, second = saved(tmp_path, a=1.0, b=2.0), saved(tmp_path, a=3.0, b=4.0)
    model = {"a": rx.Variable(0.0, name="a")}
    checkpoint = rx.Checkpoint(model=model)
    checkpoint.restore(first)
    checkpoint.restore(second)
    model["b"] = rx.Variable(0.0, name="b")
    assert [float(v.read_value()) for v in model.values()] == [3.0, 4.0]


def test_a_value_is_given_in_the_dtype_of_the_new_variable_only_if_it_fits(tmp_path):
    path = saved(tmp_path, a=1.0, b=2.7)
    model = {"a": rx.Variable(0.0, name="a")}
    status = rx.Checkpoint(model=model).restore(path)
    try:
        model["b"] = rx.Variable(0, name="b")
        status.assert_consumed()
    except CheckpointMismatchError:
        return
    assert float(model["b"].read_value()) == pytest.approx(2.7)


# Optimizers' slots have their place next to the optimizer, whatever they are called.


def two_optimizers():
    a, b = rx.Variable(1.0, name="w"), rx.Variable(1.0, name="w")
    return {"a": a, "b": b, "of_a": rx.Optimizer(optax.adam(0.1)), "of_b": rx.Optimizer(optax.adam(0.1))}


def updated(things, times=1):
    for i in range(times):
        things["of_a"].apply_gradients([(1.0 + i, things["a"])])
        things["of_b"].apply_gradients([(-2.0 * i, things["b"])])
    return things


def slots(things):
    return [np.asarray(s.read_value()) for name in ("of_a", "of_b") for s in things[name].slots]


def test_two_optimizers_of_one_name_go_on_where_they_were(tmp_path):
    things = updated(two_optimizers(), 3)
    path = rx.Checkpoint(**things).save(tmp_path)
    resumed = two_optimizers()
    status = rx.Checkpoint(**resumed).restore(path)
    for _ in range(2):
        updated(things)
        updated(resumed)
    for here, there in zip(slots(things), slots(resumed), strict=True):
        identical(there, here)
    identical(resumed["a"].read_value(), things["a"].read_value())
    status.assert_consumed()
    for here, there in zip(slots(things), slots(resumed), strict=True):
        identical(there, here)
    assert not awaiting_values


def test_an_optimizer_that_is_not_in_the_checkpoint_starts_afresh(tmp_path):
    things = updated(two_optimizers(), 3)
    path = rx.Checkpoint(a=things["a"], optimizer=things["of_a"]).save(tmp_path)
    a = rx.Variable(0.0, name="w")
    rx.Checkpoint(a=a).restore(path)
    fresh = rx.Optimizer(optax.adam(0.1))
    fresh.build([a])
    assert float(a.read_value()) == float(things["a"].read_value())
    assert all(float(v.read_value()) == 0.0 for v in fresh.variables)


def test_an_optimizer_attached_afterwards_goes_on(tmp_path):
    things = updated(two_optimizers(), 3)
    path = rx.Checkpoint(a=things["a"], optimizer=things["of_a"]).save(tmp_path)
    checkpoint = rx.Checkpoint(a=rx.Variable(0.0, name="w"))
    status = checkpoint.restore(path)
    checkpoint.optimizer = rx.Optimizer(optax.adam(0.1))
    checkpoint.optimizer.build([checkpoint.a])
    status.assert_consumed()
    assert int(checkpoint.optimizer.iterations.read_value()) == 3
    identical(checkpoint.optimizer.slots[1].read_value(), things["of_a"].slots[1].read_value())


def test_what_was_written_in_the_meantime_stays(tmp_path, caplog):
    model = [rx.Variable(1.0), rx.Variable(2.0)]  # without names that would tell which they are
    path = rx.Checkpoint(model=model).save(tmp_path)
    late = [rx.Variable(0.0)]
    checkpoint = rx.Checkpoint(model=late)
    status = checkpoint.restore(path)
    late.append(rx.Variable(0.0))
    late[1].assign(7.0)
    with caplog.at_level(logging.WARNING):
        assert status.unused == ["model/1"]
    assert float(late[1].read_value()) == 7.0
    assert "model/1 keeps its state" in caplog.text
    with pytest.raises(CheckpointMismatchError, match="model/1, which was written before"):
        status.assert_consumed()
    checkpoint.save(tmp_path)
    assert float(late[1].read_value()) == 7.0


def test_what_is_given_to_the_checkpoint_now_is_restored_whatever_it_holds(tmp_path):
    path = rx.Checkpoint(a=rx.Variable(1.0), b=rx.Variable(2.0)).save(tmp_path)
    checkpoint = rx.Checkpoint(a=rx.Variable(0.0))
    checkpoint.restore(path)
    b = rx.Variable(0.0)
    b.assign(5.0)
    checkpoint.b = b
    assert float(b.read_value()) == 2.0


def test_a_number_that_the_user_set_after_restoring_is_what_is_saved(tmp_path, caplog):
    w = rx.Variable(1.0)
    path = rx.Checkpoint(w=w, epoch=2).save(tmp_path)
    checkpoint = rx.Checkpoint(w=w)
    status = checkpoint.restore(path)
    checkpoint.epoch = 5
    assert status.unused == ["epoch"]
    path = checkpoint.save(tmp_path)
    assert checkpoint.epoch == 5
    assert "epoch keeps its state" in caplog.text
    assert rx.Checkpoint(w=w, epoch=0).restore(path).assert_consumed()


def test_an_iterator_that_came_late_and_was_read_from_is_not_turned_back(tmp_path, caplog):
    """Only what is given to the checkpoint itself is surely new."""

    class Counter:
        def __init__(self, n):
            self.n = n

        def state(self):
            return self.n

        def restore(self, state):
            self.n = state

    path = rx.Checkpoint(trainer={"w": rx.Variable(1.0), "data": Counter(3)}).save(tmp_path)
    trainer = {"w": rx.Variable(0.0)}
    checkpoint = rx.Checkpoint(trainer=trainer)
    status = checkpoint.restore(path)
    trainer["data"] = Counter(7)
    checkpoint.save(tmp_path)
    assert trainer["data"].n == 7
    assert "trainer/data keeps its state" in caplog.text
    with pytest.raises(CheckpointMismatchError, match="trainer/data"):
        status.assert_consumed()
    checkpoint.trainer = trainer
    assert trainer["data"].n == 3
    status.assert_consumed()


def test_slots_that_are_still_to_come_are_saved_again(tmp_path):
    """A program that is stopped before its first step must not lose the optimizer's state."""
    things = updated(two_optimizers(), 3)
    path = rx.Checkpoint(**things).save(tmp_path)
    between = rx.Checkpoint(**two_optimizers())
    between.restore(path)
    path = between.save(tmp_path)
    resumed = two_optimizers()
    status = rx.Checkpoint(**resumed).restore(path)
    updated(things)
    updated(resumed)
    status.assert_consumed()
    for here, there in zip(slots(things), slots(resumed), strict=True):
        identical(there, here)


def test_slots_of_another_transformation_are_not_saved_for_ever(tmp_path):
    things = updated(two_optimizers(), 3)
    path = rx.Checkpoint(a=things["a"], optimizer=things["of_a"]).save(tmp_path)
    a, optimizer = rx.Variable(1.0, name="w"), rx.Optimizer(optax.sgd(0.1))
    checkpoint = rx.Checkpoint(a=a, optimizer=optimizer)
    checkpoint.restore(path)
    optimizer.apply_gradients([(1.0, a)])
    assert sorted(checkpoint.content().document["entries"]) == ["a", "optimizer/iterations"]


def test_the_first_step_of_an_optimizer_attached_afterwards_has_its_slots(tmp_path):
    things = updated(two_optimizers(), 3)
    path = rx.Checkpoint(a=things["a"], optimizer=things["of_a"]).save(tmp_path)
    checkpoint = rx.Checkpoint(a=rx.Variable(0.0, name="w"))
    status = checkpoint.restore(path)
    checkpoint.optimizer = rx.Optimizer(optax.adam(0.1))
    checkpoint.optimizer.apply_gradients([(1.0, checkpoint.a)])
    things["of_a"].apply_gradients([(1.0, things["a"])])
    identical(checkpoint.a.read_value(), things["a"].read_value())
    status.assert_consumed()


class Lazy:
    """A model whose variable is called as those of all models are."""

    def build(self, value=0.0):
        self.kernel = rx.Variable(value, name="dense/kernel")
        return self


def test_two_checkpoints_that_wait_for_one_name_do_not_exchange_their_values(tmp_path, caplog):
    first = rx.Checkpoint(model=Lazy().build(1.0)).save(tmp_path / "first")
    second = rx.Checkpoint(model=Lazy().build(2.0)).save(tmp_path / "second")
    a, b = Lazy(), Lazy()
    statuses = rx.Checkpoint(model=a).restore(first), rx.Checkpoint(model=b).restore(second)
    b.build()
    a.build()
    assert "is in several checkpoints" in caplog.text
    for status in statuses:
        status.assert_consumed()
    assert [float(model.kernel.read_value()) for model in (a, b)] == [1.0, 2.0]


def test_one_checkpoint_restored_twice_is_no_doubt(tmp_path, caplog):
    path = rx.Checkpoint(model=Lazy().build(1.0)).save(tmp_path)
    a, b = Lazy(), Lazy()
    for model in (a, b):
        rx.Checkpoint(model=model).restore(path)
    assert [float(model.build().kernel.read_value()) for model in (a, b)] == [1.0, 1.0]
    assert not caplog.records
    assert not awaiting_values


def test_a_later_variable_that_does_not_fit_is_no_reason_not_to_save(tmp_path, caplog):
    """A new head on an old model, built by the first call."""
    path = rx.Checkpoint(model=Lazy().build(1.0), epoch=1).save(tmp_path)
    model = Lazy()
    checkpoint = rx.Checkpoint(model=model, epoch=0)
    status = checkpoint.restore(path)
    model.build(np.ones(3, np.float32))
    path = checkpoint.save(tmp_path)
    assert "it has shape (3,) here and () there" in caplog.text
    with pytest.raises(CheckpointMismatchError, match="model/kernel"):
        status.assert_consumed()
    rx.Checkpoint(model=Lazy().build(np.zeros(3, np.float32)), epoch=0).restore(path).assert_consumed()
