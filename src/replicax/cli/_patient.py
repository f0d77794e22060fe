"""The process that runs the checks of `python -m replicax doctor`: `python -m replicax.cli._patient`.

Its arguments are the names of the checks. It prints one line when it is ready, then one line of JSON per
result. What libraries print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys

from replicax.cli._check import run_check
from replicax.cli._check_devices import request_cpu_devices
from replicax.cli._checks import all_checks


def main(names: list[str]) -> None:
    """Run the checks with these names, in order."""
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        request_cpu_devices()
        checks = {check.name: check for check in all_checks()}
        print("ready", file=answers)
        for name in names:
            print(json.dumps(run_check(checks[name]).as_dict()), file=answers)
        answers.flush()
        os._exit(0)  # even if libraries have left threads running


if __name__ == "__main__":
    main(sys.argv[1:])
