"""`run` and `start`: call a function on several workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from replicax.errors import RunFailedError
from replicax.testing._faults import Fault
from replicax.testing._job import Job, pickle_call
from replicax.testing._outcome import describe_failure, first_failure
from replicax.testing._workers import Workers

__all__ = ["run", "start"]


def run(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_workers: int = 2,
    devices_per_worker: int = 1,
    faults: Iterable[Fault] = (),
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = 240.0,
    grace_seconds: float = 10.0,
) -> list[Any]:
    """Call a function in several processes that form a cluster, and return their results.

    TF_CONFIG is set in each, so that `rx.MultiWorkerMirroredStrategy()` joins the others. They run on
    virtual CPU devices and communicate over the loopback interface.

    Args:
        function: defined at the top level of a module, which the workers import.
        args: its positional arguments, the same for all workers.
        kwargs: its keyword arguments.
        num_workers: the number of processes.
        devices_per_worker: the number of CPU devices of each.
        faults: what happens to which rank at which point.
        environment: environment variables of the workers, in addition to those of this process.
        timeout_seconds: how long the whole run may take.
        grace_seconds: how long the others may continue after one has failed.

    Returns:
        The results, by rank.

    Raises:
        RunFailedError: a worker failed, or the run timed out; the message has the traceback and what all
            workers printed, and `outcomes` has the outcome of each.
        TypeError: the function or its arguments can't be sent to another process.

    >>> from replicax import testing
    >>> testing.run(testing.rank, num_workers=2)
    [0, 1]
    """
    workers = start(
        function,
        args,
        kwargs,
        num_workers=num_workers,
        devices_per_worker=devices_per_worker,
        faults=faults,
        environment=environment,
    )
    with workers:
        outcomes = workers.wait(timeout_seconds, grace_seconds)
    if (first := first_failure(outcomes)) is not None:
        raise RunFailedError(describe_failure(outcomes, first), outcomes) from first.error
    return [outcome.value for outcome in outcomes]


def start(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_workers: int = 2,
    devices_per_worker: int = 1,
    faults: Iterable[Fault] = (),
    environment: Mapping[str, str] | None = None,
) -> Workers:
    """Start workers as `run` does and return at once, so that the test can act on them while they run.

    Args:
        function: defined at the top level of a module, which the workers import.
        args: its positional arguments, the same for all workers.
        kwargs: its keyword arguments.
        num_workers: the number of processes.
        devices_per_worker: the number of CPU devices of each.
        faults: what happens to which rank at which point.
        environment: environment variables of the workers, in addition to those of this process.

    Raises:
        TypeError: the function or its arguments can't be sent to another process.

    >>> import time
    >>> from replicax import testing
    >>> with testing.start(time.sleep, (60,), num_workers=1) as workers:
    ...     workers.kill(rank=0)
    ...     print(*workers.wait())
    rank 0 was killed by SIGKILL after ... s
    """
    for name, number in (("num_workers", num_workers), ("devices_per_worker", devices_per_worker)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be an integer, 1 or more; got {number!r}.")
    faults = tuple(faults)
    for fault in faults:
        if not 0 <= fault.rank < num_workers:
            raise ValueError(f"{fault} is for a rank that does not exist: there are {num_workers} workers.")
    job = Job(pickle_call(function, args, kwargs), faults)
    return Workers(job, num_workers, devices_per_worker, environment or {})
