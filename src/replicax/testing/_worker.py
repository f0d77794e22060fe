"""The program of a worker; its arguments are the folder of its group and its rank.

An exception propagates out of it as out of any script, so that exit status, exception hooks and `atexit`
handlers behave as they do for users.
"""

from __future__ import annotations

import faulthandler
import pickle
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from replicax.testing._faults import Points, use_points
from replicax.testing._files import Files
from replicax.testing._job import Job
from replicax.testing._outcome import Report, write_report

__all__ = ["main"]


def main() -> None:
    """Call the function of the group's job, and report what it returned or raised."""
    faulthandler.enable()  # print the stacks of all threads on an abort
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    files = Files(folder, rank)
    try:
        value = _call(files, rank)
    except BaseException as error:
        write_report(files.report, Report(error=error, traceback=traceback.format_exc()))
        raise
    write_report(files.report, Report(value=value))


def _call(files: Files, rank: int) -> Any:
    job: Job = pickle.loads(files.job.read_bytes())
    use_points(Points(files.points, (fault for fault in job.faults if fault.rank == rank)))
    if job.main_file is not None:
        _load_main(job.main_file)
    function, args, kwargs = pickle.loads(job.call)
    return function(*args, **kwargs)


def _load_main(file: str) -> None:
    """Import the parent's script, without running its `if __name__ == "__main__"` block."""
    names = runpy.run_path(file, run_name="__replicax_worker__")
    vars(sys.modules["__main__"]).update(
        (name, value) for name, value in names.items() if not name.startswith("__")
    )
