"""`TFConfigClusterResolver`: reads the environment variable TF_CONFIG, in TensorFlow's format.

    {"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}

The cluster is the same for all processes; the task is different for each. As an extension of TensorFlow's
format, a task may also say how many of its devices a strategy uses:

    {"cluster": ..., "task": {"type": "worker", "index": 0, "num_accelerators": {"CPU": 2}}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, final

from replicax.cluster._resolver import ClusterResolver, checked_task_id, master_url, refuse_config_proto
from replicax.cluster._spec import ClusterSpec
from replicax.errors import ClusterError, ClusterFormatError

__all__ = ["TFConfigClusterResolver"]

_VARIABLE = "TF_CONFIG"


@final
class TFConfigClusterResolver(ClusterResolver):
    """A resolver that reads TF_CONFIG, on every call.

    Args:
        task_type: overrides `"task": {"type": ...}`.
        task_id: overrides `"task": {"index": ...}`.
        rpc_layer: overrides `"rpc_layer"`.
        environment: overrides `"environment"`.

    Properties and methods raise `ClusterFormatError`, a `json.JSONDecodeError`, if TF_CONFIG is not JSON,
    and `ClusterError` if it is JSON but not a cluster.

    >>> import os
    >>> from replicax.cluster import TFConfigClusterResolver
    >>> os.environ["TF_CONFIG"] = '''{
    ...     "cluster": {"worker": ["host0:2222", "host1:2222"]},
    ...     "task": {"type": "worker", "index": 1}}'''
    >>> resolver = TFConfigClusterResolver()
    >>> resolver.task_type, resolver.task_id, resolver.master()
    ('worker', 1, 'host1:2222')
    >>> del os.environ["TF_CONFIG"]
    >>> bool(resolver.cluster_spec())
    False
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self.task_type, self.task_id = task_type, task_id
        self._rpc_layer = rpc_layer
        self._environment = environment

    def cluster_spec(self) -> ClusterSpec:
        """The cluster; empty if TF_CONFIG is not set or has no cluster."""
        cluster = _read_section("cluster")
        try:
            return ClusterSpec(cluster)
        except TypeError as error:
            raise ClusterError(f'{_VARIABLE}["cluster"]: {error}') from None

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """`"session_master"` if TF_CONFIG has it, otherwise the address of a task, by default this one.

        Returns "" if the cluster has at most one task.

        Raises:
            ClusterError: the cluster has no such task.
        """
        session_master = _checked_string(_read().get("session_master"), '["session_master"]')
        if session_master is not None:
            return session_master
        spec = self.cluster_spec()
        if sum(map(spec.num_tasks, spec.jobs)) <= 1:
            return ""
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if job is None or index is None:
            raise ClusterError(
                f'{_VARIABLE} has a cluster but no "task", so the task of this process is unknown. Add '
                '{"task": {"type": "worker", "index": ...}}.'
            )
        return master_url(spec.task_address(job, index), rpc_layer or self.rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: None = None
    ) -> Mapping[str, int]:
        """The number of devices of this task: as TF_CONFIG says, otherwise its accelerators.

        Raises:
            ClusterError: you asked for another task, whose devices this process can't see.
        """
        given = _read_section("task").get("num_accelerators")
        if given is None or (task_type, task_id) != (None, None):
            return super().num_accelerators(task_type, task_id, config_proto)
        refuse_config_proto(config_proto)
        return _checked_counts(given)

    @property
    def task_type(self) -> str | None:
        """The job of this process."""
        if self._task_type is not None:
            return self._task_type
        job = _read_section("task").get("type")
        if isinstance(job, int | float) and not isinstance(job, bool):
            return str(job)
        return _checked_string(job, '["task"]["type"]')

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = None if task_type is None else str(task_type)

    @property
    def task_id(self) -> int | None:
        """The index of this process in its job."""
        if self._task_id is not None:
            return self._task_id
        return checked_task_id(_read_section("task").get("index"), f'{_VARIABLE}["task"]["index"]')

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = checked_task_id(task_id, "TFConfigClusterResolver: task_id")

    @property
    def rpc_layer(self) -> str | None:
        """The protocol of the URLs that `master` returns."""
        return self._rpc_layer or _checked_string(_read().get("rpc_layer"), '["rpc_layer"]')

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str | None:
        """The environment that the cluster runs in; None if it is not specified."""
        return self._environment or _checked_string(_read().get("environment"), '["environment"]')


def _read() -> Mapping[str, Any]:
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        return {}
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ClusterFormatError(
            f"The environment variable {_VARIABLE} is not JSON; {_near(error)}{error.msg}",
            error.doc,
            error.pos,
        ) from None
    return _checked_object(config, "")


def _near(error: json.JSONDecodeError) -> str:
    rest = error.doc[error.pos : error.pos + 20]
    return f"at {rest!r}: " if rest else "at its end: "


def _read_section(name: str) -> Mapping[str, Any]:
    return _checked_object(_read().get(name, {}), f"[{json.dumps(name)}]")


def _checked_object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ClusterError(
            f"{_VARIABLE}{where} must be a JSON object, as in "
            '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}; '
            f"got {json.dumps(value)}."
        )
    return value


def _checked_counts(value: Any) -> dict[str, int]:
    counts = value.values() if isinstance(value, Mapping) else [value]
    if not isinstance(value, Mapping) or any(type(count) is not int or count < 1 for count in counts):
        raise ClusterError(
            f'{_VARIABLE}["task"]["num_accelerators"] must be the number of devices by platform, such as '
            f'{{"CPU": 2}}; got {json.dumps(value)}.'
        )
    return dict(value)


def _checked_string(value: Any, where: str) -> str | None:
    if not isinstance(value, str | None):
        raise ClusterError(f"{_VARIABLE}{where} must be a string; got {json.dumps(value)}.")
    return value
