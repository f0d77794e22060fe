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


# Every strategy runs in both modes, but for some: two replicas show the same, and each number of replicas
# is there in the other mode. The recorded programs run with two eager replicas, and their cases with one
# device and central storage. The rest take long, and others like them are run.
_LEFT_OUT = (
    ("mirrored_8", "eager"),
    ("mirrored_3", "compiled"),
    ("mirrored_1", "eager"),
    ("tpu_2x2", "eager"),
    ("tests/conformance/", "mirrored_2-eager"),
    ("test_oracle.py::test_case", "-central-"),
    ("test_oracle.py::test_case", "-onedev-"),
    ("test_one_device_equals_many.py::test_eager", "[transformer"),
    ("test_one_device_equals_many.py::test_exact", "[cnn-8"),
    ("test_one_device_equals_many.py::test_other_strategies", "[cnn-default"),
    ("test_one_device_equals_many.py::test_other_strategies", "-pad]"),
    ("test_every_write.py::test_write", "[central-"),
)


def pytest_addoption(parser):
    description = "run all strategies in all modes, all recorded cases twice, and what takes long"
    parser.addoption("--everything", action="store_true", help=description)


def _is_left_out(item):
    return any(first in item.nodeid and second in item.nodeid for first, second in _LEFT_OUT)


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--everything"):
        config.hook.pytest_deselected(items=list(filter(_is_left_out, items)))
        items[:] = [item for item in items if not _is_left_out(item)]
