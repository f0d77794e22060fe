"""A traced value used as a Python number: the message, and that variables stay as they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import TracedValueError

USES = {
    "if": lambda x: 1 if x > 3 else 2,
    "float": float,
    "int": int,
    "range": range,
    "numpy": np.asarray,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]])
def test_the_step_says_what_to_do_and_leaves_variables_as_they_were(use, devices):
    strategy = rx.MirroredStrategy(devices)
    with strategy.scope():
        v = rx.Variable(5)

    @rx.function
    def step(x):
        v.assign_add(1)
        total = strategy.reduce("SUM", strategy.run(lambda: x * v), axis=None)
        return USES[use](total)

    with pytest.raises(TracedValueError, match=r"A compiled step .* leave out `rx\.function`.*JAX says: ."):
        step(jnp.asarray(2))
    assert int(v) == 5


def test_variables_and_steps_without_a_strategy():
    v = rx.Variable(2.0)
    with pytest.raises(TracedValueError, match="A compiled step"):
        rx.function(lambda: float(v))()
    with pytest.raises(TracedValueError, match="A compiled step"):
        rx.function(lambda x: [0, 1][x])(jnp.asarray(1))


def test_the_innermost_explanation_is_the_one_that_is_shown():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica_fn():
        return [10, 20][rx.get_replica_context().replica_id_in_sync_group]

    with pytest.raises(TracedValueError, match="A compiled replica function"):
        rx.function(lambda: strategy.run(replica_fn))()


def test_other_errors_pass():
    def step(x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        rx.function(step)(1.0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]])
def test_a_custom_gradient_that_reads_the_variable_says_what_to_do(compiled, devices):
    strategy = rx.MirroredStrategy(devices)
    with strategy.scope():
        w = rx.Variable(2.0)

    @jax.custom_vjp
    def scaled(x):
        return w * x

    scaled.defvjp(lambda x: (w * x, x), lambda x, g: (g * w,))

    def replica_fn():
        return rx.value_and_grad(lambda: scaled(jnp.float32(1.0)), w)()[1]

    step = (rx.function if compiled else lambda f: f)(lambda: strategy.run(replica_fn))
    with pytest.raises(rx.errors.TracingError, match=r"custom_vjp.*argument"):
        step()
