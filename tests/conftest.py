"""A test that leaves something behind fails, rather than the one after it."""

import os
import threading

import pytest

from replicax.contexts import _stack, current

# pytest's own, which changes between the phases of a test, and what Keras and scikit-learn set when they
# are imported.
_NOT_OURS = ("PYTEST_CURRENT_TEST", "TF_FORCE_GPU_ALLOW_GROWTH", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def _environment():
    return {name: value for name, value in os.environ.items() if name not in _NOT_OURS}


@pytest.fixture(autouse=True)
def _no_leaked_environment_variable():
    before = _environment()
    yield
    changed = {name for name, _ in before.items() ^ _environment().items()}
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert not changed, f"the test left environment variables changed: {sorted(changed)}"


@pytest.fixture(autouse=True)
def _no_leaked_thread():
    before = set(threading.enumerate())
    yield
    leaked = [t.name for t in threading.enumerate() if t not in before]
    assert not leaked, f"the test left threads running: {leaked}"


@pytest.fixture(autouse=True)
def _no_leaked_strategy():
    before = current()
    yield
    leaked = current() is not before
    if leaked:
        _stack._stack.set(())
    assert not leaked, "the test left a strategy's scope open or a strategy set"
