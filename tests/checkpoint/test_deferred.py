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
