"""How long `import replicax` takes, beside `import jax`, each in a Python of its own.

    python benchmarks/imports.py [--quick] [--json FILE] [--no-check]

The package is compiled to bytecode first, as `pip install` does. (An editable install leaves that to the
first import, and `PYTHONDONTWRITEBYTECODE` to every one, which then takes about 0.1 s more.)
"""

from __future__ import annotations

import compileall
import functools
import subprocess
import sys
import time
from pathlib import Path

from harness import compare, run, take_turns
from rows import Row

import replicax


def seconds_of(module: str) -> float:
    """The seconds that a fresh Python takes to start, import `module` and end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def bench_imports(quick: bool) -> list[Row]:
    compileall.compile_dir(Path(replicax.__file__).parent, quiet=1)
    contenders = {name: functools.partial(seconds_of, name) for name in ("jax", "replicax")}
    rounds = take_turns(
        contenders, lambda contender, _: contender(), num_rounds=7 if quick else 31, num_steps=1
    )
    return [compare(rounds, "python -c 'import ...'", "replicax", ["jax"])]


BENCHMARKS = {"imports": bench_imports}

if __name__ == "__main__":
    sys.exit(run("How long an import takes.", BENCHMARKS, num_devices=1))
