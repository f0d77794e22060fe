"""`ClusterDef` and `JobDef`: dataclasses shaped like TensorFlow's protocol buffers of these names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

__all__ = ["ClusterDef", "JobDef"]


@final
@dataclass
class JobDef:
    """A job: its name, and the addresses of its tasks by index.

    >>> from replicax.cluster import JobDef
    >>> JobDef(name="worker", tasks={0: "host0:2222"}).tasks[0]
    'host0:2222'
    """

    name: str = ""
    tasks: dict[int, str] = field(default_factory=dict)


@final
@dataclass
class ClusterDef:
    """A cluster: its jobs. `ClusterSpec` takes one, and `ClusterSpec.as_cluster_def` returns one.

    >>> from replicax.cluster import ClusterDef, ClusterSpec, JobDef
    >>> ClusterSpec(ClusterDef(job=[JobDef("worker", {0: "host0:2222"})]))
    ClusterSpec({'worker': ['host0:2222']})
    """

    job: list[JobDef] = field(default_factory=list)
