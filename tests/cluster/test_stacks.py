"""Where a program is, seen from another thread."""

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
