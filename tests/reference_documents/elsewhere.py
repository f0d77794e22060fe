"""Runs blocks in other processes: one that has a single device, or two that are the workers of a cluster.

As a program, `python elsewhere.py name...` runs the named blocks and prints what failed, as JSON.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_WORKERS, _PROCESS = "REPLICAX_TEST_WORKERS", "REPLICAX_TEST_PROCESS"
_FOUND = "found "


def run_with_one_device(names):
    """Run the blocks in one process with one CPU device; what failed, by name: None or a traceback."""
    done = subprocess.run(
        [sys.executable, __file__, *names],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return _found(done.stdout)


def run_with_two_workers(name, *more_changes):
    """Run the block in two processes that both are workers.

    Args:
        name: of the block.
        more_changes: (old, new) pairs; what to replace in the block, besides the addresses.

    Returns:
        What failed in either, by name: None or a traceback.
    """
    from tests.multiprocess.launch import launch

    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("localhost", 0))
        addresses = [f"localhost:{probe.getsockname()[1]}" for probe in (first, second)]
    changes = [*zip(["localhost:12345", "localhost:23456"], addresses, strict=True), *more_changes]
    os.environ[_WORKERS] = json.dumps({"name": name, "addresses": addresses, "changes": changes})
    try:
        printed = launch(__file__, num_processes=2)
    finally:
        del os.environ[_WORKERS]
    failures = [_found(text)[name] for text in printed]
    return {name: next((failure for failure in failures if failure), None)}


def _found(printed):
    line = next(x for x in printed.splitlines() if x.startswith(_FOUND))
    return json.loads(line.removeprefix(_FOUND))


def main():
    """Run what the environment or the command line names."""
    sys.path.insert(0, str(ROOT))
    import replicax as rx

    rx.set_cpu_devices(1)
    if _WORKERS in os.environ:
        found = _run_as_worker(int(os.environ[_PROCESS]), **json.loads(os.environ[_WORKERS]))
    else:
        found = {name: _failure(name) for name in sys.argv[1:]}
    print(_FOUND + json.dumps(found))


def _run_as_worker(index, name, addresses, changes):
    def change(text):
        for old, new in [*changes, ("'index': 0", f"'index': {index}")]:
            assert old in text, f"the block has no {old!r} to be replaced"
            text = text.replace(old, new)
        return text

    return {name: _failure(name, change, {"ADDRESSES": addresses, "INDEX": index})}


def _failure(name, *changed):
    from tests.reference_documents.blocks import failure

    return failure(name, *changed)


if __name__ == "__main__":
    main()
