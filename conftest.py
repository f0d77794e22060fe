"""Eight CPU devices for every test and doctest, asked for before anything uses JAX."""

import os

import replicax

replicax.set_cpu_devices(8)
os.environ["KERAS_BACKEND"] = "jax"

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

jax.devices()  # starts JAX, so that no test can change the devices of the others

# The same examples in every run; `--hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile("repeat", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("repeat")


@pytest.fixture(autouse=True)
def _names_in_doctests(doctest_namespace):
    doctest_namespace.update(rx=replicax, jax=jax, jnp=jnp, np=np)


# Every strategy runs in both modes, but for these, which take longest: two replicas show the same, and each
# number of replicas is there in the other mode.
_LEFT_OUT = (("mirrored_8", "eager"), ("mirrored_3", "compiled"), ("tpu_2x2", "eager"))


def pytest_addoption(parser):
    parser.addoption("--everything", action="store_true", help="run all strategies in all modes")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--everything"):
        return
    left_out = [
        item for item in items if any(one in item.name and two in item.name for one, two in _LEFT_OUT)
    ]
    config.hook.pytest_deselected(items=left_out)
    dropped = set(left_out)
    items[:] = [item for item in items if item not in dropped]
