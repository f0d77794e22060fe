"""The program of every task of a cluster: TF_CONFIG says which it is. Started by test_joining.py.

The coordinator counts to `last` with its workers, saves after each step, and prints what it has seen.
"""

import json
import logging
import os
import sys
import time

import replicax as rx
from replicax.parameter_server import Server


def main(folder, last):
    logging.basicConfig(level=logging.INFO)
    resolver = rx.cluster.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        spec = resolver.cluster_spec()
        Server(spec, job_name=resolver.task_type, task_index=resolver.task_id).join()
    strategy = rx.ParameterServerStrategy(resolver, snapshot_seconds=0.5)
    with strategy.scope():
        count = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM, name="count")

    def step():
        count.assign_add(1.0)
        time.sleep(0.05)
        return rx.get_current_worker_index()

    coordinator = rx.ClusterCoordinator(strategy)
    manager = rx.CheckpointManager(rx.Checkpoint(count=count), folder, asynchronous=False)
    first = manager.restore_or_initialize() or 0
    workers = set()
    print("RESULT", json.dumps({"first": first, "count": float(count.numpy())}), flush=True)
    for number in range(first, int(last)):
        workers |= set(coordinator.fetch([coordinator.schedule(step) for _ in range(2)]))
        coordinator.join()
        manager.save(number + 1)
        seen = {"step": number + 1, "count": float(count.numpy()), "workers": sorted(workers)}
        print("RESULT", json.dumps({**seen, "pid": os.getpid()}), flush=True)
    strategy.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
