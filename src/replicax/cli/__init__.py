"""The command line: `python -m replicax demo`, `python -m replicax doctor`."""

from replicax.cli._main import main

__all__ = ["main"]
