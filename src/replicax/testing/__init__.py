"""Test multi-worker programs: real processes on this machine, with faults where you want them.

    from replicax import testing

    def train(steps):                       # every worker calls this
        strategy = rx.MultiWorkerMirroredStrategy()
        ...
        return losses

    def test_workers_agree():
        first, second = testing.run(train, (10,), num_workers=2, devices_per_worker=2)
        assert first == second

`run` returns what the workers returned, or raises an error with the remote traceback and everything they
printed. `start` returns a running group, whose workers you can kill, stop and wait for. Whatever happens to
the test, no process outlives it.
"""

from replicax.testing._faults import Fault, delay, kill, point, rank, starve, stop
from replicax.testing._outcome import Outcome
from replicax.testing._run import run, start
from replicax.testing._workers import Workers

__all__ = [
    "Fault",
    "Outcome",
    "Workers",
    "delay",
    "kill",
    "point",
    "rank",
    "run",
    "starve",
    "start",
    "stop",
]
