"""An input pipeline: the part of the input that one process reads for its replicas.

A single process has one pipeline, which feeds all replicas.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, Protocol, final

from replicax.cluster import exchange_between_processes, publish, published
from replicax.topology import ReplicaMesh

__all__ = ["Board", "Exchange", "Pipeline", "split_sizes"]

Exchange = Callable[[str, int, Any, Callable[[], bool]], list[Any]]
"""`exchange(topic, number, message, cancelled)` sends a message and returns all pipelines' messages.

Messages are numbered from 0. It waits for the other pipelines, and raises as soon as `cancelled()` is true.
"""


class Board(Protocol):
    """Where pipelines publish messages for the others to read, without waiting for each other."""

    def put(self, topic: str, message: Any) -> None:
        """Publish this pipeline's latest message about a topic."""
        ...

    def get(self, topic: str, pipeline: int) -> Any:
        """A pipeline's latest message about a topic; None if there is none."""
        ...


# How long a pipeline waits for the others' next step: they may be compiling.
_PATIENCE_SECONDS = 1800.0


def split_sizes(num_rows: int, num_parts: int) -> list[int]:
    """The number of rows of each part: sizes differ by at most one, larger ones first."""
    size, rest = divmod(num_rows, num_parts)
    return [size + (i < rest) for i in range(num_parts)]


@final
@dataclasses.dataclass(frozen=True)
class Pipeline:
    """One of the pipelines of a strategy.

    Args:
        pipeline_id: the index of this pipeline.
        replicas: for each pipeline, the replicas that it feeds.
        exchange: sends messages between pipelines that read different data.
        board: publishes messages of pipelines that read the same data.
    """

    pipeline_id: int
    replicas: tuple[tuple[int, ...], ...]
    exchange: Exchange | None = None
    board: Board | None = None

    _topics = itertools.count()

    @classmethod
    def of(cls, mesh: ReplicaMesh) -> Pipeline:
        """The pipeline of this process."""
        by_process: dict[int, list[int]] = {}
        for replica, devices in enumerate(mesh.replica_devices):
            by_process.setdefault(devices[0].process_index, []).append(replica)
        processes, replicas = tuple(by_process), tuple(map(tuple, by_process.values()))

        def exchange(topic: str, number: int, message: Any, cancelled: Callable[[], bool]) -> list[Any]:
            return exchange_between_processes(
                processes, topic, number, message, cancelled, _PATIENCE_SECONDS
            )

        own = mesh.local_replica_ids
        board = _ClusterBoard(processes) if len(processes) > 1 else None
        return cls(replicas.index(own) if own in replicas else 0, replicas, exchange, board)

    @property
    def num_pipelines(self) -> int:
        """How many pipelines feed the strategy's replicas together, each in a process of its own."""
        return len(self.replicas)

    @property
    def num_replicas(self) -> int:
        """The number of replicas that all pipelines feed."""
        return sum(map(len, self.replicas))

    @property
    def own(self) -> tuple[int, ...]:
        """The replicas that this pipeline feeds."""
        return self.replicas[self.pipeline_id]

    def new_topic(self) -> str:
        """A name for messages about a dataset, the same in all processes that make the same datasets."""
        # A process may read a dataset alone, so datasets with a single pipeline are not counted.
        return f"replicax/input/{next(self._topics)}" if self.num_pipelines > 1 else "replicax/input"

    def tell(self, topic: str, number: int, message: Any, cancelled: Callable[[], bool]) -> list[Any]:
        """Exchange messages for step `number`; every pipeline must call this."""
        if self.num_pipelines == 1:
            return [message]
        assert self.exchange is not None
        return self.exchange(topic, number, message, cancelled)


@final
class _ClusterBoard:
    """The board of the pipelines of `processes`, one pipeline each."""

    def __init__(self, processes: tuple[int, ...]) -> None:
        self._processes = processes

    def put(self, topic: str, message: Any) -> None:
        publish(topic, message)

    def get(self, topic: str, pipeline: int) -> Any:
        return published(topic, self._processes[pipeline])
