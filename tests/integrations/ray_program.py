"""Workers on a local Ray cluster; prints one line of JSON for each scenario. Started by test_ray.py.

A program of its own: Ray leaves threads behind in the process that starts it.
"""

import functools
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import ray

import replicax as rx
from replicax.integrations import ray as rx_ray


def train(folder, fail=lambda restart, rank: None):
    """Sum the ranks; the rest is what the scenario asks for."""
    strategy = rx.MultiWorkerMirroredStrategy()
    rank = strategy.cluster_resolver.task_id
    Path(folder, f"{os.getpid()}.pid").touch()
    fail(int(os.environ["REPLICAX_RESTART_COUNT"]), rank)
    add = rx.function(lambda: strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 1.0))
    total = strategy.reduce("SUM", add(), axis=None)
    return {
        "rank": rank,
        "total": total,
        "kind": type(total).__name__,
        "addresses": strategy.cluster_resolver.cluster_spec().as_dict()["worker"],
        "restart": os.environ["REPLICAX_RESTART_COUNT"],
    }


def describe(results):
    return [
        {**r, "total": float(r["total"]), "kind": type(r["total"]).__name__, "addresses": r["addresses"]}
        for r in results
    ]


def recover(folder):
    """Three workers are asked for and two fit. Rank 0 is killed, without a word; all start again."""

    def fail(restart, rank):
        if (restart, rank) == (0, 0):
            os.kill(os.getpid(), signal.SIGKILL)

    partial = functools.partial(train, folder, fail)
    return describe(rx_ray.run(partial, 3, max_failures=1, min_workers=1, placement_timeout_seconds=0.1))


def name_the_rank(folder):
    """Rank 1 raises while rank 0 waits in a collective."""

    def fail(restart, rank):
        if rank == 1:
            raise ValueError("no such file: weights.npz")

    try:
        rx_ray.run(functools.partial(train, folder, fail), 2)
    except rx.errors.RunFailedError as error:
        return {"message": str(error), "cause": repr(error.__cause__)}


def refuse(folder):
    """What can't be placed, and numbers that make no sense."""
    messages = []
    for arguments in ({"resources_per_worker": {"CPU": 3}}, {"min_workers": 4}, {"max_failures": -1}):
        try:
            rx_ray.run(lambda: None, 2, placement_timeout_seconds=0.1, **arguments)
        except (rx.errors.ClusterError, rx.errors.ClusterTimeoutError) as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def in_ray_train(folder):
    """`JaxTrainer` on CPU does not call `jax.distributed`: the strategy finds the workers itself."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer

    def loop():
        os.environ["REPLICAX_RESTART_COUNT"] = "0"
        result = describe([train(folder)])[0]
        Path(folder, f"train{result['rank']}.json").write_text(json.dumps(result))

    config = RunConfig(storage_path=folder)
    JaxTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=config).fit()
    return [json.loads(Path(folder, f"train{rank}.json").read_text()) for rank in range(2)]


def survivors(folder):
    """The workers that still run, some seconds after the group has ended."""
    pids = [int(file.stem) for file in Path(folder).glob("*.pid")]
    deadline = time.monotonic() + 10
    while (alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"started": len(pids), "alive": alive}


def main(folder, *scenarios):
    logging.basicConfig(level=logging.WARNING)
    ray.init(
        "local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", configure_logging=False
    )
    for name in scenarios:
        start = time.monotonic()
        result = globals()[name](folder)
        seconds = round(time.monotonic() - start, 1)
        print("RESULT", json.dumps({"scenario": name, "result": result, "seconds": seconds}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
