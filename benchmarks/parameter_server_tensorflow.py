"""TensorFlow's half of `parameter_server.py`: a coordinator, two workers and some servers, each a process.

Answers each line of its standard input, a number of steps, with "seconds", the seconds per step and the
bytes per step that went over the loopback interface.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ports import free_ports

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""


def make_cluster(num_workers: int, num_ps: int) -> dict[str, list[str]]:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(num_workers + num_ps + 1)]
    return {"worker": addresses[:num_workers], "ps": addresses[num_workers:-1], "chief": addresses[-1:]}


def start_tasks(cluster: dict[str, list[str]]) -> list[subprocess.Popen[bytes]]:
    """A process for each worker and server; they end when their standard input does."""
    found = []
    for job in ("worker", "ps"):
        for index in range(len(cluster[job])):
            config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
            environment = os.environ | {"TF_CONFIG": config}
            command = [sys.executable, __file__, "task"]
            found.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=environment))
    return found


def serve() -> None:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    sys.stdin.read()
    del server
    os._exit(0)


def loopback_bytes() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


def make_step(name: str, variables: dict[str, Any]) -> Any:
    import parameter_server_work as work
    import tensorflow as tf

    def loss_fn(x: Any, y: Any) -> Any:
        if name == "embedding":
            rows = tf.nn.embedding_lookup(variables["table"], x)
            return tf.reduce_mean((tf.linalg.matvec(rows, variables["w"]) - y) ** 2)
        for i in range(len(variables) // 2):
            x = tf.matmul(x, variables[f"w{i}"]) + variables[f"b{i}"]
            x = tf.nn.relu(x) if i < len(variables) // 2 - 1 else x
        return tf.reduce_mean((x - y) ** 2)

    @tf.function
    def step(iterator: Any) -> Any:
        flat = [part for v in variables.values() for part in getattr(v, "variables", [v])]
        with tf.GradientTape() as tape:
            loss = loss_fn(*next(iterator))
        for gradient, variable in zip(tape.gradient(loss, flat), flat, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                change = tf.IndexedSlices(work.LEARNING_RATE * gradient.values, gradient.indices)
                variable.scatter_sub(change)
            else:
                variable.assign_sub(work.LEARNING_RATE * gradient)
        return loss

    return step


def main() -> None:
    import numpy as np
    import parameter_server_work as work

    given = np.load(sys.argv[1])
    name, num_ps = str(given["workload"]), int(given["num_ps"])
    cluster = make_cluster(2, num_ps)
    tasks = start_tasks(cluster)
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(),
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=work.DIVIDE_BYTES, max_shards=num_ps
        ),
    )
    with strategy.scope():
        variables = {key: tf.Variable(value) for key, value in work.parameters(name).items()}
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step = make_step(name, variables)

    def dataset_fn() -> Any:
        dataset = tf.data.Dataset.from_tensor_slices(work.examples(name, 0))
        return dataset.repeat().batch(work.batch_size(name)).prefetch(2)

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    try:
        for line in sys.stdin:
            num_steps, before, start = int(line), loopback_bytes(), time.perf_counter()
            for _ in range(num_steps):
                coordinator.schedule(step, args=(iterator,))
            coordinator.join()
            seconds = (time.perf_counter() - start) / num_steps
            print("seconds", seconds, (loopback_bytes() - before) / num_steps, flush=True)
    finally:
        for task in tasks:
            task.kill()


if __name__ == "__main__":
    serve() if sys.argv[1] == "task" else main()
