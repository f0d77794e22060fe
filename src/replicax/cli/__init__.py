"""The command line: `python -m replicax demo`, `python -m replicax doctor`, `python -m replicax launch`."""

from replicax.cli._main import main

__all__ = ["main"]
