"""The command line: `python -m replicax` with `demo`, `doctor`, `launch` or `report`."""

from replicax.cli._main import main

__all__ = ["main"]
