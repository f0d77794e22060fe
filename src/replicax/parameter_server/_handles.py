"""Calling a parameter server, also one that has just been replaced."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, final

from replicax.errors import ClusterTimeoutError
from replicax.parameter_server._ray import library

__all__ = ["Call", "ServerHandle"]

_SECONDS_TO_RETURN = 120.0
_SECONDS_BETWEEN_LOOKS = 0.1


@final
class ServerHandle:
    """A server by its name, which a replacement inherits."""

    def __init__(self, name: str, index: int) -> None:
        self._name, self.index = name, index
        self._actor: Any = None

    @property
    def actor(self) -> Any:
        """The actor that has the name."""
        if self._actor is None:
            self._actor = library().get_actor(self._name)
        return self._actor

    def call(self, method: str, *arguments: Any) -> Call:
        """Call a method of the server; it runs while the caller does something else."""
        return Call(self, method, arguments)

    def replaced(self, actor: Any) -> bool:
        """Whether another actor has the name; returns when one has, or False if that takes too long."""
        deadline = time.monotonic() + _SECONDS_TO_RETURN
        while time.monotonic() < deadline:
            try:
                found = library().get_actor(self._name)
            except ValueError:
                found = None
            if found is not None and found._actor_id != actor._actor_id:
                self._actor = found
                return True
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return False


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

        while True:
            try:
                answer = library().get(self._ref)
            except library().exceptions.ActorDiedError as error:
                self._await_replacement(error)
            except library().exceptions.ActorUnavailableError:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            else:
                if not (isinstance(answer, str) and answer == UNKNOWN) or tell is None:
                    return answer
                tell()
            self._send()

    def _await_replacement(self, error: Exception) -> None:
        if not self._server.replaced(self._actor):
            raise ClusterTimeoutError(
                f"ps {self._server.index} has died, and was not replaced within {_SECONDS_TO_RETURN:g} s. "
                "The coordinator replaces it while its program runs."
            ) from error
