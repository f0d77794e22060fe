"""Stopping a process because of another worker, whatever native code does meanwhile."""

import signal
import subprocess
import sys

from replicax.cluster._stopping import BLOCKED_STATUS

ABORTING = """
import ctypes, hashlib, sys, threading, time
from replicax.cluster._stopping import Stopper
from replicax.errors import WorkerLostError

reports = []
stopper = Stopper(reports.append, cleanup_seconds=10.0)

def learn_the_cause():
    while not reports:
        time.sleep(0.01)
    print(reports[0]["type"], reports[0]["by_another"], flush=True)
    stopper.stop(WorkerLostError("rank 1 has died"))

if "another has died" in sys.argv:
    threading.Thread(target=learn_the_cause, daemon=True).start()
threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()
while True:
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000_000)  # native code, which no signal ends
"""


def run(*args):
    command = [sys.executable, "-c", ABORTING, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_an_abort_of_native_code_does_not_hide_which_worker_has_failed():
    result = run("another has died")
    assert result.stdout == "SIGABRT True\n"
    assert "WorkerLostError: rank 1 has died" in result.stderr
    assert result.returncode in (1, BLOCKED_STATUS)


def test_an_abort_without_another_cause_continues():
    assert run().returncode == -signal.SIGABRT


AT_THE_END = """
import ctypes
from replicax.cluster._aborts import before_abort

before_abort(lambda: print("before the abort", flush=True))
library = ctypes.CDLL(None)
library.on_exit(ctypes.cast(library.abort, ctypes.c_void_p), None)
"""


def test_an_abort_after_the_end_of_python_is_an_abort():
    result = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=200)
    assert (result.returncode, result.stdout) == (-signal.SIGABRT, "")
