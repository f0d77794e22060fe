"""A Keras model that is made in a scope is distributed, in whatever order the program imports things."""

import importlib.util
import os
import subprocess
import sys

import pytest
from tests.environment import xla_flags

pytest.importorskip("keras")

import replicax  # noqa: F401

_MAKE_AND_REPORT = """
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(jnp.ones((4, 2)), jnp.ones((4, 1)), verbose=0)
print(len(model.weights[0].replicax_variable.copies), keras.__spec__.loader is keras.__loader__)
"""

_ORDERS = {
    "keras first": """
import keras, jax.numpy as jnp, replicax as rx
with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
""",
    "replicax first": """
import replicax as rx, jax.numpy as jnp
import importlib.util
assert importlib.util.find_spec("keras") is not None  # only looks: nothing is imported or installed
from keras.layers import Dense
import keras
from replicax._jax import backends_are_initialized
assert not backends_are_initialized()  # importing keras does not start JAX
assert "replicax.integrations.keras" in __import__("sys").modules
with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
""",
    "inside the scope": """
import replicax as rx, jax.numpy as jnp
with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    import keras
""",
    "tf first": """
import replicax.tf as tf, jax.numpy as jnp
import keras
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
""",
}


def _run(program, **environment):
    # Keras looks for these two, whose imports take longer than all else here.
    program = "import sys; sys.modules.update(sklearn=None, matplotlib=None)\n" + program
    flags = f"{xla_flags()} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, **environment}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=environment
    )


@pytest.mark.parametrize("order", _ORDERS)
def test_models_are_distributed_without_importing_the_integration(order):
    result = _run(_ORDERS[order] + _MAKE_AND_REPORT, KERAS_BACKEND="jax")
    assert result.stdout.split() == ["2", "True"], result.stderr


def test_the_tf_namespace_chooses_jax(tmp_path):
    environment = {**os.environ, "KERAS_HOME": str(tmp_path)}
    environment.pop("KERAS_BACKEND", None)
    program = "import replicax.tf, keras; print(keras.backend.backend())"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=environment
    )
    assert result.stdout.split() == ["jax"], result.stderr


@pytest.mark.parametrize(
    "order", ["import keras, replicax as rx", "import replicax as rx, keras", "import replicax.tf, keras"]
)
def test_another_backend_is_kept_and_refused_in_scopes_only(order):
    result = _run(
        f"""
{order}
import replicax as rx
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
print(model.predict(model.weights[0].numpy().T, verbose=0).shape)
with rx.OneDeviceStrategy("CPU:0").scope():
    for make in (keras.Sequential, lambda: keras.layers.Dense(1).build((None, 2))):
        try:
            make()
        except rx.errors.ContextError as error:
            print("refused", error)
""",
        KERAS_BACKEND="numpy",
    )
    shape, *messages = result.stdout.strip().split("refused ")
    assert shape == "(1, 1)\n", result.stderr
    assert len(messages) == 2
    for message in messages:
        assert "Keras runs on numpy" in message and "KERAS_BACKEND=jax" in message


def test_a_module_that_can_not_be_imported_says_so_itself(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "keras"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ModuleNotFoundError, match="No module named 'keras'"):
        import keras  # noqa: F401
    assert importlib.util.find_spec("keras") is None


def test_a_release_with_other_internals_is_refused_in_scopes_and_only_there():
    result = _run(
        """
import keras.src.trainers.data_adapters
del keras.src.trainers.data_adapters.get_data_adapter
import replicax as rx
keras.Sequential()
with rx.OneDeviceStrategy("CPU:0").scope():
    try:
        keras.Sequential()
    except rx.errors.ContextError as error:
        print(error)
""",
        KERAS_BACKEND="jax",
    )
    assert "Replicax does not support Keras 3." in result.stdout, result.stderr
