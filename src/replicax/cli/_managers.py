"""Recognises cluster managers, which start processes themselves; says what to run instead of `launch`."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["explain_manager"]

_SLURM = """\
this is a Slurm job with several tasks, and Slurm starts processes itself. Run
    srun --ntasks-per-node=1 python {program}
and create the strategy with `rx.MultiWorkerMirroredStrategy(SlurmClusterResolver())`."""

_KUBERNETES = """\
this is a pod of a Kubernetes Job, which starts one pod for each worker itself. Let the pods run
    python {program}
and find their cluster with a resolver; see "Several workers" in the documentation."""

_RAY = """\
this is a Ray worker, and Ray places processes itself. Call the training function with
    replicax.integrations.ray.run(train, num_workers=...)
from the driver."""


def explain_manager(environment: Mapping[str, str], program: str) -> str | None:
    """What to run instead, if a cluster manager started this process as one of several; otherwise None."""
    if "SLURM_JOB_ID" in environment and _more_than_one(environment, "SLURM_NTASKS", "SLURM_JOB_NUM_NODES"):
        return _SLURM.format(program=program)
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return _KUBERNETES.format(program=program)
    if "RAY_RAYLET_PID" in environment or "RAY_JOB_ID" in environment:
        return _RAY
    return None


def _more_than_one(environment: Mapping[str, str], *names: str) -> bool:
    return any(environment.get(name, "1") not in ("", "1") for name in names)
