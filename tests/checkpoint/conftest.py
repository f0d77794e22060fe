"""Orbax's event loops leave threads that end a moment after it returned."""

import threading
import time

import pytest


@pytest.fixture(autouse=True)
def _time_for_threads_of_orbax_to_end():
    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(t.name.startswith("asyncio_") for t in threading.enumerate()):
        time.sleep(0.01)
