"""How much of the library one warm call enters: functions, files and calls, without the user's code.

    python benchmarks/touched.py [--peers PYTHON] [--list]

It counts with `sys.setprofile`, on two CPU devices: `strategy.run` of an eager replica function without
arguments, and of one that gets and returns a per-replica value; `assign` of a mirrored variable;
`strategy.reduce`; and a compiled step that updates a variable. Comprehensions count as functions where
Python calls them. `--peers` names a Python with TensorFlow, in which the same calls of its MirroredStrategy
are counted, in all threads: in the whole package, and in its folder `python/distribute` alone. `--list`
prints each function.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("run, no arguments", "run", "assign", "reduce", "compiled step")
Entered = list[tuple[str, str, int]]  # the file, the function with its first line, and how often


def with_replicax() -> dict[str, Callable[[], Any]]:
    import replicax as rx

    rx.set_cpu_devices(2)
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = rx.Variable(1.0, aggregation="MEAN")
    value = strategy.distribute_values_from_function(lambda ctx: float(ctx.replica_id_in_sync_group))
    value = strategy.run(lambda x: x + variable, args=(value,))
    return calls_of(strategy, variable, value, rx.function)


def with_tensorflow() -> dict[str, Callable[[], Any]]:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        variable = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
    value = strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.constant(float(ctx.replica_id_in_sync_group))
    )
    return calls_of(strategy, variable, value, tf.function)


def calls_of(strategy: Any, variable: Any, value: Any, function: Any) -> dict[str, Callable[[], Any]]:
    @function
    def step(x: Any) -> Any:
        strategy.run(variable.assign_add, args=(x,))
        return strategy.reduce("SUM", x, axis=None)

    return {
        "run, no arguments": lambda: strategy.run(no_arguments),
        "run": lambda: strategy.run(user_function, args=(value,)),
        "assign": lambda: variable.assign(2.0),
        "reduce": lambda: strategy.reduce("SUM", value, axis=None),
        "compiled step": lambda: step(value),
    }


def no_arguments() -> None:
    pass


def user_function(x: Any) -> Any:
    return x


def entered_by(call: Callable[[], Any], package: Path) -> Entered:
    """The functions of `package` that a warm call enters."""
    for _ in range(3):
        call()
    found: Counter[tuple[str, str]] = Counter()

    def count(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        file = Path(code.co_filename)
        if event == "call" and package in file.parents:
            found[str(file.relative_to(package)), f"{code.co_qualname}:{code.co_firstlineno}"] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]
    return [(*place, times) for place, times in sorted(found.items())]


def count_here(library: str) -> dict[str, Entered]:
    calls = with_tensorflow() if library == "tensorflow" else with_replicax()
    package = Path(sys.modules[library].__file__ or "").parent
    return {name: entered_by(call, package) for name, call in calls.items()}


def count_elsewhere(python: str) -> dict[str, Entered]:
    command = [python, __file__, "--library", "tensorflow"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return json.loads(output.splitlines()[-1])


def only_in(folder: str, counts: dict[str, Entered]) -> dict[str, Entered]:
    return {
        name: [place for place in entered if place[0].startswith(folder)]
        for name, entered in counts.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="How much of the library one warm call enters.")
    parser.add_argument("--peers", metavar="PYTHON", help="a Python with TensorFlow")
    parser.add_argument("--list", action="store_true", help="print each function")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        print(json.dumps(count_here(options.library)))
        return 0
    counts = {"Replicax": count_here("replicax")}
    if options.peers:
        counts["TensorFlow"] = count_elsewhere(options.peers)
        counts["its distribute"] = only_in("python/distribute/", counts["TensorFlow"])
    for name in CALLS:
        for library, found in counts.items():
            entered = found[name]
            files, times = {file for file, _, _ in entered}, sum(n for _, _, n in entered)
            print(f"{name:17} {library:14} {len(entered):4} functions {len(files):3} files {times:5} calls")
            if options.list:
                print(*(f"    {file}: {function} x{n}" for file, function, n in entered), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
