"""Runs many cases in one group of processes, because starting JAX takes most of the time.

A case is a function `check_...(strategy, mode)` of a module; `mode` compiles a step or leaves it eager.
Cases marked `depends_on` run with several numbers of workers and devices, others only with `--everything`.
"""

import importlib
import traceback

import jax
from tests import quick_jax

import replicax as rx
from replicax.cluster import exchange_between_processes

MODES = {"eager": lambda step: step, "compiled": rx.function}
_NUMBERS = ("workers", "local replicas")


def depends_on(number):
    """Mark a case whose result depends on the number of "workers" or of "local replicas"."""
    assert number in _NUMBERS, number

    def mark(case):
        case.depends_on = number
        return case

    return mark


def cases_of(modules, *, depending_on=None):
    """The names of the cases of some modules, each with a mode: all cases, or those with this mark."""
    return [
        f"{module}.{name}-{mode}"
        for module in modules
        for name, case in vars(importlib.import_module(module)).items()
        if name.startswith("check_")
        if depending_on in (None, getattr(case, "depends_on", None))
        for mode in MODES
    ]


def run_cases(names):
    """In a worker: run the cases, one after the other; returns the traceback of each that failed."""
    quick_jax.install()
    strategy = rx.MultiWorkerMirroredStrategy()
    failures = {}
    for number, name in enumerate(names):
        print(name, flush=True)
        path, mode = name.split("-")
        module, case = path.rsplit(".", 1)
        try:
            getattr(importlib.import_module(module), case)(strategy, MODES[mode])
        except Exception:
            failures[name] = traceback.format_exc()
        # A case that failed here may still run elsewhere: begin the next one together.
        exchange_between_processes(range(jax.process_count()), "cases", number, name, bool, 120.0)
    return failures
