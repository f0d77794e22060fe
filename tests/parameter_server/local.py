"""Parameter servers in this process: the engine without Ray, for tests that need no other process."""

import contextlib
import functools

import replicax as rx
from replicax.parameter_server import _references, _strategy
from replicax.parameter_server._placement import Placer
from replicax.parameter_server._server import UNKNOWN, ParameterServer
from replicax.parameter_server._servers import RayServers
from replicax.topology import resolve_devices


class LocalCall:
    def __init__(self, server, method, arguments):
        self._call = lambda: getattr(server, method)(*arguments)
        self._answer = self._call()

    def result(self, tell=None):
        while isinstance(self._answer, str) and self._answer == UNKNOWN and tell is not None:
            tell()
            self._answer = self._call()
        return self._answer


class LocalHandle:
    def __init__(self):
        self.server = ParameterServer()

    def call(self, method, *arguments):
        return LocalCall(self.server, method, arguments)


@contextlib.contextmanager
def local_strategy(monkeypatch, num_ps=1, partitioner=None, num_devices=1):
    """A strategy whose only worker is this process, with this many devices."""
    monkeypatch.setattr(_strategy, "resolve_devices", lambda _: resolve_devices(None)[:num_devices])
    servers = RayServers("local", [LocalHandle() for _ in range(num_ps)])
    servers.push = functools.partial(servers.push, wait=True)  # as a worker does when a function ends
    strategy = rx.ParameterServerStrategy.__new__(rx.ParameterServerStrategy)
    strategy._set_up(servers, Placer(num_ps, partitioner), None)
    _references.join("local", _references.Member(strategy, is_worker=False))
    try:
        yield strategy
    finally:
        _references.leave("local")
