"""Eight CPU devices for every test and doctest, requested before anything uses JAX."""

import gc
import importlib.util
import os
import shutil
import tempfile

import replicax

replicax.set_cpu_devices(8)
os.environ["KERAS_BACKEND"] = "jax"

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from tests import quick_jax  # noqa: E402

jax.devices()  # starts JAX, so that no test can change the devices of later ones
jax.config.update("jax_traceback_in_locations_limit", 0)  # programs without source lines are lowered faster

# The same examples in every run; `--hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile("repeat", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("repeat")


@pytest.fixture(autouse=True)
def _names_in_doctests(request, doctest_namespace):
    """Names for the examples of docstrings. Pages import what they use, so that they run as shown."""
    doctest_namespace.clear()
    if request.path.suffix != ".md":
        doctest_namespace.update(rx=replicax, jax=jax, jnp=jnp, np=np)


# Doctests import their module, and this one needs Ray.
collect_ignore = [] if importlib.util.find_spec("ray") else ["src/replicax/integrations/ray"]


# Tests marked `long` repeat at length what shorter tests check.


def pytest_addoption(parser):
    parser.addoption("--everything", action="store_true", help="also run the tests marked `long`")
    parser.addoption("--plain-jax", action="store_true", help="leave JAX as it is: see tests/quick_jax.py")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--everything"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_collection_finish(session):
    """Keep the thousands of collected tests out of every later garbage collection."""
    gc.collect()
    gc.freeze()


# Many tests, and all processes of a run, compile the same small programs: they share JAX's persistent
# compilation cache in a temporary folder. Programs that tests start as processes do not use it.

_COMPILED = pytest.StashKey[str]()


def pytest_configure(config):
    if not config.getoption("--plain-jax"):
        quick_jax.install()
    workerinput = getattr(config, "workerinput", None)
    folder = workerinput["compiled"] if workerinput else tempfile.mkdtemp(prefix="replicax-compiled-")
    config.stash[_COMPILED] = folder
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.stash[_COMPILED], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_configure_node(node):
    node.workerinput["compiled"] = node.config.stash[_COMPILED]
