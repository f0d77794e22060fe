"""`Job`: what a worker has to do, a function by its import path, its arguments, and faults."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from replicax.testing._faults import Fault

__all__ = ["Job", "pickle_call"]


@final
@dataclass(frozen=True)
class Job:
    """The job of all workers of a group.

    Args:
        call: the pickled function, positional arguments and keyword arguments.
        faults: the faults of all ranks.
        main_file: the script that this process runs, if the function may be defined there.
    """

    call: bytes
    faults: tuple[Fault, ...] = ()
    main_file: str | None = field(default_factory=lambda: _main_file())


def pickle_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> bytes:
    """Pickle a call.

    Raises:
        TypeError: the function can't be imported by its name, or an argument can't be pickled.
    """
    name = getattr(function, "__qualname__", repr(function))
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"{name} can't be sent to the workers: {error}. They import the function by its name, so it "
            "must be defined with `def` at the top level of a module: not a lambda, and not inside another "
            "function. Pass what it needs as arguments."
        ) from None
    try:
        return pickle.dumps((function, tuple(args), dict(kwargs or {})))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"The arguments of {name} can't be sent to the workers: {error}. Pass NumPy arrays, numbers, "
            "strings, and containers of them."
        ) from None


def _main_file() -> str | None:
    """The running script; None for `python -c`, an interactive session or `python -m`."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return None
    file = getattr(main, "__file__", None)
    return None if file is None else str(Path(file).resolve())
