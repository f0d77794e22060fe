"""Parameter servers: asynchronous training on Ray.

    ParameterServerStrategy    _strategy.py       variables on servers; starts the processes
    ClusterCoordinator         _coordinator.py    schedules functions on workers
    Server                     _joining.py        a task in a process that the user starts (`_nodes.py`)
    a server                   _server.py         arrays, and what is done to them (`_plans.py`)
    a worker                   _worker.py         calls functions
    both, in the coordinator   _server_task.py,   watched, and replaced if they fail
                               _worker_task.py

Between them: `_servers.py` is a process's view of the servers. `_pulls.py`, `_parcels.py`, `_packing.py`
and `_rows.py` are the messages. `_references.py` and `_pickling.py` pickle functions and variables.
`_handles.py` finds a server that was replaced. `_staleness.py` limits which functions run at the same time.
`_separable.py` and `_row_updates.py` check whether an optimizer can be divided.
"""

from replicax.parameter_server._coordinator import ClusterCoordinator, KeptFunction
from replicax.parameter_server._joining import Server
from replicax.parameter_server._pickling import pickle_with
from replicax.parameter_server._ray import actor_options, cloudpickle
from replicax.parameter_server._references import recall, remember
from replicax.parameter_server._servers import RayServers
from replicax.parameter_server._strategy import ParameterServerStrategy
from replicax.parameter_server._values import PerWorkerValues, RemoteValue, RemoteValueStatus
from replicax.parameter_server._worker import get_current_worker_index

__all__ = [
    "ClusterCoordinator",
    "KeptFunction",
    "ParameterServerStrategy",
    "PerWorkerValues",
    "RayServers",
    "RemoteValue",
    "RemoteValueStatus",
    "Server",
    "actor_options",
    "cloudpickle",
    "get_current_worker_index",
    "pickle_with",
    "recall",
    "remember",
]
