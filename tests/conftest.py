"""Both modes of a step, and leak checks: a test that leaves something behind fails, not the next one."""

import concurrent.futures.thread
import gc
import os
import sys
import threading
import traceback

import pytest

import replicax as rx
from replicax.checkpoint import _pending
from replicax.contexts import _stack, current

collect_ignore = ["multiprocess/tutorials", "parameter_server/tutorial"]  # programs that tests start

MODES = {"eager": lambda step: step, "compiled": rx.function}


@pytest.fixture(params=MODES)
def mode(request):
    """Both ways to run a step: `mode(step)` is the step itself, or the step compiled."""
    return MODES[request.param]


# Set by pytest between the phases of a test, or by Keras and scikit-learn when they are imported.
_NOT_OURS = ("PYTEST_CURRENT_TEST", "TF_FORCE_GPU_ALLOW_GROWTH", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def _environment():
    return {name: value for name, value in os.environ.items() if name not in _NOT_OURS}


@pytest.fixture(autouse=True, scope="module")
def _garbage_of_this_module_only():
    """Keep what other modules left in caches out of collections, which then take a tenth of the time."""
    gc.collect()
    gc.freeze()


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


def _wake(thread):
    """Let a thread whose executor was collected end.

    A callback of the collector wakes it, but Python ignores exceptions there, such as those of interrupts.
    """
    queue = concurrent.futures.thread._threads_queues.get(thread)
    if queue is not None:
        queue.put(None)


@pytest.fixture(autouse=True)
def _no_leaked_thread():
    before = set(threading.enumerate())
    yield
    # A thread without an identifier was interrupted before it started, and never will.
    started = [t for t in threading.enumerate() if t not in before and t.ident is not None]
    if started:
        gc.collect()  # an interrupted `fit` leaves a thread of Keras' callbacks to the collector
    for thread in started:
        _wake(thread)
        thread.join(timeout=5)  # asyncio, which Orbax uses, does not wait for the threads of a closed loop
    leaked = [t for t in started if t.is_alive()]
    frames = sys._current_frames()
    stacks = "".join(f"\n{t.name}:\n{''.join(traceback.format_stack(frames.get(t.ident)))}" for t in leaked)
    assert not leaked, f"the test left threads running:{stacks}"


@pytest.fixture(autouse=True)
def _no_leaked_strategy():
    before = current()
    yield
    leaked = current() is not before
    if leaked:
        _stack._stack.set(())
    assert not leaked, "the test left a strategy's scope open or a strategy set"


@pytest.fixture(autouse=True)
def _no_values_wait_for_the_variables_of_other_tests():
    yield
    for restored in list(_pending._waiting):
        restored.stop()
