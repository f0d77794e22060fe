"""The writers of a `Tracker`: functions of a step and its numbers."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Writer", "csv_writer", "json_lines_writer", "mlflow_writer", "wandb_writer"]

Writer = Callable[[int, Mapping[str, float]], None]


def csv_writer(path: str | os.PathLike[str]) -> Writer:
    """Writes one row per step; a number with a new name gets a new column."""
    file = _file(path, "csv")
    columns: list[str] = []

    def write(step: int, numbers: Mapping[str, float]) -> None:
        if not columns and file.exists():  # from an earlier run
            with file.open(newline="") as lines:
                columns.extend(next(csv.reader(lines), []))
        new = [name for name in ("step", *numbers) if name not in columns]
        if new:
            columns.extend(new)
            _rewrite(file, columns)
        with file.open("a", newline="") as lines:
            csv.DictWriter(lines, columns).writerow({"step": step, **numbers})

    return write


def _rewrite(file: Path, columns: list[str]) -> None:
    """Add columns to the file, empty in the existing rows."""
    rows: list[dict[str, str]] = []
    if file.exists():
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
    beside = file.with_name(f"{file.name}.new")
    with beside.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, columns)
        writer.writeheader()
        writer.writerows(rows)
    beside.replace(file)


def json_lines_writer(path: str | os.PathLike[str]) -> Writer:
    """Writes one JSON object per step, on its own line; NaN and infinity become null."""
    file = _file(path, "json_lines")

    def write(step: int, numbers: Mapping[str, float]) -> None:
        finite = {name: x if math.isfinite(x) else None for name, x in numbers.items()}
        with file.open("a") as lines:
            print(json.dumps({"step": step, **finite}), file=lines)

    return write


def wandb_writer(run: Any) -> Writer:
    """Logs to a Weights & Biases run; True means the current one."""
    if run is True:
        import wandb  # pyright: ignore[reportMissingImports]

        run = wandb.run
    if not hasattr(run, "log"):
        raise TypeError(
            f"rx.Tracker(wandb={run!r}): pass a run, `wandb.init(project=...)`, or True for the current "
            "one."
        )
    return lambda step, numbers: run.log(dict(numbers), step=step)


def mlflow_writer(active: Any) -> Writer:
    """Logs to the active MLflow run."""
    if active is not True:
        raise TypeError(f"rx.Tracker(mlflow={active!r}): pass True, for the active run of MLflow.")
    import mlflow  # pyright: ignore[reportMissingImports]

    return lambda step, numbers: mlflow.log_metrics(dict(numbers), step=step)


def _file(path: str | os.PathLike[str], argument: str) -> Path:
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(
            f"rx.Tracker({argument}={str(path)!r}) is a folder; pass the name of a file."
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
