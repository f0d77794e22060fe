"""The module that the recorded programs import as `pc`, built on `replicax.tf` instead of TensorFlow.

The programs in `recorded_programs/` were run with TensorFlow and are unchanged. Each does `from pc
import *` and passes its cases to `case`; `run_program` provides that module and returns the outcome of
every case.
"""

from __future__ import annotations

import contextvars
import gc
import json
import logging
import os
import re
import runpy
import sys
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import replicax as rx
import replicax.tf as tf
from replicax.topology import device_name

from .describe import Observation, describe, observe
from .world import context

PROGRAMS = Path(__file__).parent / "recorded_programs"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case of a program."""

    section: str
    name: str
    observed: Observation


_SPELLINGS = {
    r"\bPlainVariable\b|\bVariableCopy\b": "Variable",
    r"\bArrayImpl\b": "Array",
    r"\bDefaultStrategy\b": "default",
    r"\bdefaultdict\{": "{",
    # Specs were recorded as their repr.
    r"TensorSpec\(shape=\((.*?),?\), dtype=(\w+)\)": r"TensorSpec<\2,[\1]>",
    r"PerReplicaSpec\((.*?)\)": r"PerReplicaSpec{\1}",
    r"""^(['"])(.*(?:TensorSpec<|PerReplicaSpec{).*)\1$""": r"\2",
}


def _spelled(text: str) -> str:
    """A description in which classes have the names that the recordings use."""
    for ours, theirs in _SPELLINGS.items():
        text = re.sub(ours, theirs, text)
    return text


class Refused:
    """Stands for a strategy that can't be created: every use raises the error again."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def _mirrored_strategy(*args: Any, **kwargs: Any) -> Any:
    """TensorFlow makes some strategies that it can't use; we refuse to make them."""
    try:
        return tf.distribute.MirroredStrategy(*args, **kwargs)
    except rx.errors.CollectiveError as error:
        return Refused(error)


_distribute = types.SimpleNamespace(
    **{name: getattr(tf.distribute, name) for name in tf.distribute.__all__}
)
_distribute.MirroredStrategy = _mirrored_strategy


def _names(kind: str) -> dict[str, Any]:
    """The names that `from pc import *` gives a program."""
    outcomes: list[Outcome] = []
    sections = [""]
    devices = ["/cpu:0", "/cpu:1"]

    def section(title: str) -> None:
        sections[0] = re.sub(r" \[\w+( N=\d)?\]$| N=2$", "", title)

    def case(name: str, fn: Any, maxlen: int = 0, iso: bool = False) -> None:
        # In a context of its own: a case may leave its scopes in disorder.
        observed = contextvars.copy_context().run(observe, fn)
        if observed.error is not None:
            observed.error.__traceback__ = None  # which would keep iterators, and their threads, alive
        outcomes.append(Outcome(sections[0], name, Observation(_spelled(observed.text), observed.error)))

    def dev(name: Any) -> str:
        named = re.search(r"(CPU|GPU):(\d+)", name if isinstance(name, str) else device_name(name), re.I)
        return f"{named[1][0].lower()}{named[2]}" if named else str(name)

    def pr(strategy: Any, fn: Any) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda value_context: fn(value_context.replica_id_in_sync_group)
        )

    def mirrored(n: int | None = None) -> Any:
        return tf.distribute.MirroredStrategy(devices[:n] if n else devices)

    def central(n: int | None = None) -> Any:
        return tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=devices[:n] if n else devices, parameter_device="/cpu:0"
        )

    return {
        "os": os,
        "sys": sys,
        "re": re,
        "json": json,
        "np": np,
        "tf": tf,
        "logging": logging,
        "NDEV": len(devices),
        "DEVS": devices,
        "D": _distribute,
        "OP": tf.distribute.ReduceOp,
        "AGG": tf.VariableAggregation,
        "SYN": tf.VariableSynchronization,
        "V": rx,
        "DL": rx,
        "d": describe,
        "dev": dev,
        "section": section,
        "case": case,
        "ctxdesc": context,
        "finish": lambda: None,
        "pr": pr,
        "mirrored": mirrored,
        "central": central,
        "onedev": lambda: tf.distribute.OneDeviceStrategy("/cpu:1"),
        "_outcomes": outcomes,
    }


def run_program(program: str, kind: str, monkeypatch: Any) -> list[Outcome]:
    """Run a recorded program with one kind of strategy and return the outcome of each case."""
    module = types.ModuleType("pc")
    names = _names(kind)
    vars(module).update(names)
    module.__all__ = [name for name in names if name != "_outcomes"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pc", module)
    monkeypatch.setenv("KIND", kind)
    environment = dict(os.environ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", ResourceWarning)  # the programs do not close what they open
        warnings.filterwarnings("ignore", "Explicitly requested dtype int64")
        runpy.run_path(str(PROGRAMS / program))
        gc.collect()
    os.environ.clear()
    os.environ.update(environment)
    return names["_outcomes"]
