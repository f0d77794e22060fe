"""The files through which a worker and the process that started it communicate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import final

__all__ = ["Files"]


@final
@dataclass(frozen=True)
class Files:
    """The files of one worker, in the folder of its group."""

    folder: Path
    rank: int

    @property
    def job(self) -> Path:
        """The pickled `Job`, the same for all workers."""
        return self.folder / "job"

    @property
    def output(self) -> Path:
        """What the worker prints."""
        return self.folder / f"{self.rank}.output"

    @property
    def report(self) -> Path:
        """The worker's `Report`: what its function returned or raised."""
        return self.folder / f"{self.rank}.report"

    @property
    def points(self) -> Path:
        """The points that the worker has reached."""
        return self.folder / f"{self.rank}.points"

    def read_output(self) -> str:
        """What the worker has printed so far."""
        return self.output.read_text(errors="replace")

    def read_points(self) -> list[str]:
        """The points that the worker has reached so far."""
        if not self.points.exists():
            return []
        *complete, _ = self.points.read_text().split("\n")
        return [json.loads(line) for line in complete]
