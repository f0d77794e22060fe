"""Prints how many recorded cases are covered, differ on purpose, or are left out.

`python -m tests.oracle` counts the cases that are written with Replicax; `python -m tests.oracle programs`
runs the recorded programs with `replicax.tf` and counts the results of their cases.
"""

import os
import sys
import tempfile

import replicax as rx

from .recorded import every_case, table

if sys.argv[1:] == ["programs"]:
    rx.set_cpu_devices(8)
    from pytest import MonkeyPatch

    from . import programs

    os.chdir(tempfile.mkdtemp())
    print(programs.table(MonkeyPatch()))
else:
    print(table(every_case()))
