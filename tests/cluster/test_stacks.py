"""Where a program is, seen from another thread."""

import subprocess
import sys
import threading
import time

import jax.numpy as jnp

import replicax as rx
from replicax.cluster import _stacks


def test_the_line_and_the_stacks_of_other_threads():
    seen = []
    thread = threading.Thread(target=lambda: seen.append((_stacks.main_stack(), _stacks.all_stacks())))
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
    ((stack, text),) = seen
    line = _stacks.user_line(stack)
    assert line.startswith("test_stacks.py:")
    assert line.endswith("in test_the_line_and_the_stacks_of_other_threads")
    assert text.startswith("Thread MainThread:\n")
    assert ", in test_the_line_and_the_stacks_of_other_threads\n    " in text
    assert not _stacks.is_inside(stack, "checkpoint")


def test_greenlets_may_switch_meanwhile():
    """Reading frames one by one, Python crashed: eager replicas replaced them."""
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
    done = threading.Event()
    lines = []

    def watch():
        while not done.is_set():
            lines.append(_stacks.user_line(_stacks.main_stack()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        merge = lambda strategy, x: x  # noqa: E731
        for _ in range(200):
            strategy.run(lambda: rx.get_replica_context().merge_call(merge, args=(jnp.float32(1),)))
    finally:
        done.set()
        thread.join()
    assert any("test_greenlets" in line or "lambda" in line for line in lines)


NATIVE_THREADS = """
import ctypes, threading, time
from replicax.cluster._stacks import main_stack

end, stacks = time.monotonic() + 5, []
Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
function = Function(lambda _: 0)  # calls Python, so Python gets to know the thread
library = ctypes.CDLL(None)
library.pthread_create.argtypes = ctypes.c_void_p, ctypes.c_void_p, Function, ctypes.c_void_p
library.pthread_join.argtypes = ctypes.c_ulong, ctypes.c_void_p

def start_threads():
    while time.monotonic() < end:
        threads = (ctypes.c_ulong * 20)()
        for i in range(20):
            library.pthread_create(ctypes.addressof(threads) + 8 * i, None, function, None)
        for thread in threads:
            library.pthread_join(thread, None)

def watch():
    while time.monotonic() < end:
        stacks.append(main_stack())

thread = threading.Thread(target=watch)
thread.start()
start_threads()
thread.join()
assert len(stacks) > 100 and all(stack[-1].name == "<module>" for stack in stacks if stack)
print(sum(map(bool, stacks)) / len(stacks))
"""


def test_native_threads_may_call_python_meanwhile():
    """Reading the stacks of all threads, Python 3.11 crashed."""
    command = [sys.executable, "-c", NATIVE_THREADS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr[-2000:]
    assert float(result.stdout) > 0.9
