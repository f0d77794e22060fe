"""Parameter servers: asynchronous training on Ray.

    ParameterServerStrategy    _strategy.py       variables on servers; starts the processes
    ClusterCoordinator         _coordinator.py    schedules functions on workers
    a server                   _server.py         arrays, and what is done to them (`_plans.py`)
    a worker                   _worker.py         calls functions

Between them: `_servers.py` is the servers as a process sees them; `_pulls.py`, `_parcels.py` and
`_packing.py` are what is sent, `_rows.py` rows of variables; `_references.py` says how variables travel,
`_cluster.py` and `_handles.py` what happens if a task fails, `_staleness.py` who may run at the same time,
`_separable.py` and `_row_updates.py` how an optimizer may be divided.
"""

from replicax.parameter_server._coordinator import ClusterCoordinator
from replicax.parameter_server._strategy import ParameterServerStrategy
from replicax.parameter_server._values import PerWorkerValues, RemoteValue, RemoteValueStatus
from replicax.parameter_server._worker import get_current_worker_index

__all__ = [
    "ClusterCoordinator",
    "ParameterServerStrategy",
    "PerWorkerValues",
    "RemoteValue",
    "RemoteValueStatus",
    "get_current_worker_index",
]
