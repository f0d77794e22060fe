"""Calling a parameter server, or its replacement."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, final

from replicax.errors import ClusterTimeoutError
from replicax.parameter_server._ray import library

__all__ = ["Call", "ServerHandle"]

_SECONDS_TO_RETURN = 600.0
_SECONDS_BETWEEN_LOOKS = 0.1


@final
class ServerHandle:
    """A server by its name, which a replacement inherits."""

    def __init__(self, name: str, index: int, actor: Any = None) -> None:
        self._name, self.index, self._actor = name, index, actor

    @property
    def actor(self) -> Any:
        """The actor that has the name."""
        if self._actor is None:
            self.find(None)
        return self._actor

    def use(self, actor: Any) -> None:
        """The name now belongs to this actor."""
        self._actor = actor

    def call(self, method: str, *arguments: Any) -> Call:
        """Call a method of the server; it runs while the caller does something else."""
        return Call(self, method, arguments)

    def find(self, dead: Any) -> None:
        """Wait until an actor other than `dead` has the name."""
        deadline = time.monotonic() + _SECONDS_TO_RETURN
        while time.monotonic() < deadline:
            try:
                found = library().get_actor(self._name)
            except ValueError:  # the name is free until the server is replaced
                found = None
            if found is not None and (dead is None or found._actor_id != dead._actor_id):
                self._actor = found
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        raise ClusterTimeoutError(
            f"ps {self.index} has died, and was not replaced within {_SECONDS_TO_RETURN:g} s. The "
            "coordinator replaces it as soon as Ray has room for it: see `ray status`."
        )


@final
class Call:
    """A call that has been sent to a server."""

    def __init__(self, server: ServerHandle, method: str, arguments: tuple[Any, ...]) -> None:
        self._server, self._method, self._arguments = server, method, arguments
        self._send()

    def _send(self) -> None:
        self._actor = self._server.actor
        self._ref = getattr(self._actor, self._method).remote(*self._arguments)

    def result(self, tell: Callable[[], None] | None = None) -> Any:
        """What the server returned. If it dies, the call is repeated on the one that replaces it.

        Args:
            tell: tells the server what it does not know; then the call is repeated.
        """
        from replicax.parameter_server._server import UNKNOWN

        exceptions = library().exceptions
        while True:
            try:
                answer = library().get(self._ref)
            except exceptions.ActorDiedError:
                self._server.find(self._actor)
            except (exceptions.ActorUnavailableError, exceptions.ObjectLostError):
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            else:
                if not (isinstance(answer, str) and answer == UNKNOWN) or tell is None:
                    return answer
                tell()
            self._send()
