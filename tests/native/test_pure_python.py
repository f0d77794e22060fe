"""Without the C module, steps run in Python: the same tests pass."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.environment import of_programs

from replicax import _native

ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/execution/test_debugging.py",
    "tests/execution/test_interrupts.py",
    "tests/execution/test_step_state.py",
    "tests/execution/test_threads.py",
    "tests/native/test_warm.py",
]


def test_steps_run_in_python():
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT,
        env=of_programs(REPLICAX_PURE_PYTHON="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-5000:]
    program = "from replicax import _native; assert not _native.is_built"
    subprocess.run([sys.executable, "-c", program], env=of_programs(REPLICAX_PURE_PYTHON="1"), check=True)


def test_the_module_is_built_where_there_is_a_compiler():
    """The installation only prints a warning if the C file can't be compiled."""
    assert _native.is_built or shutil.which("cc") is None
