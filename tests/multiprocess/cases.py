"""Runs many cases in one group of processes, because starting JAX takes most of the time.

A case is a function `check_...(strategy, mode)` of a module; `mode` compiles a step or leaves it eager.
"""

import importlib
import traceback

import jax

import replicax as rx
from replicax.cluster import exchange_between_processes

MODES = {"eager": lambda step: step, "compiled": rx.function}


def cases_of(module):
    """The names of the cases of a module, each with a mode."""
    names = [name for name in vars(importlib.import_module(module)) if name.startswith("check_")]
    return [f"{module}.{name}-{mode}" for name in names for mode in MODES]


def run_cases(names):
    """In a worker: run the cases, one after the other; returns the traceback of each that failed."""
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
