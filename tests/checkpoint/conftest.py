"""Orbax's event loops leave threads that end a moment after it returned."""

import threading
import time

import pytest

from replicax.checkpoint import _pending


@pytest.fixture(autouse=True)
def _time_for_threads_of_orbax_to_end():
    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(t.name.startswith("asyncio_") for t in threading.enumerate()):
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _no_values_wait_for_the_variables_of_other_tests():
    yield
    for restored in list(_pending._waiting):
        restored.stop()
