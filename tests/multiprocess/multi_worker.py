"""The program that every worker runs; see `test_multi_worker.py`.

Each worker sets its own TF_CONFIG from the addresses in the environment, and prints its results as JSON.
"""

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
import replicax.errors
from replicax import tf
from replicax.cluster import ClusterSpec, SimpleClusterResolver

ADDRESSES, FOLDER = "REPLICAX_TEST_ADDRESSES", "REPLICAX_TEST_FOLDER"
OWN_FOLDERS = "REPLICAX_TEST_OWN_FOLDERS"
NUM_EXAMPLES, BATCH, EPOCHS = 18, 8, 3


def train(strategy):
    """A few steps of a linear model; 2 examples of each epoch are left over and dropped."""
    random = np.random.default_rng(3)
    x = random.normal(size=(NUM_EXAMPLES, 3)).astype(np.float32)
    y = (x @ np.array([[1.0], [-2.0], [3.0]]) + 0.5).astype(np.float32)
    with strategy.scope():
        params = rx.create_variables({"w": jnp.zeros((3, 1)), "b": jnp.zeros(1)})
        optimizer = rx.Optimizer(optax.adam(0.1))
        mean_loss = rx.Mean("loss")

    def loss_fn(x, y):
        p = rx.read_values(params)
        errors = jnp.sum((x @ p["w"] + p["b"] - y) ** 2, axis=-1)
        mean_loss.update_state(errors)
        return rx.compute_average_loss(errors)

    def replica_step(x, y):
        loss, gradients = rx.value_and_grad(loss_fn, params)(x, y)
        optimizer.apply_gradients(zip(gradients.values(), params.values(), strict=True))
        return loss

    @rx.function
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    arrays = rx.from_arrays((x, y)).shuffle(seed=1).batch(BATCH)
    dataset = strategy.distribute_dataset(arrays, rx.InputOptions(partial_batch="drop"))
    losses = [float(step(*batch)) for _ in range(EPOCHS) for batch in dataset]
    weights = {name: v.numpy().tolist() for name, v in params.items()}
    return {"losses": losses, "weights": weights, "mean": float(mean_loss.result())}, params


def save_and_restore(strategy, params, folder):
    """All workers ask for a checkpoint, of which the chief writes one; all restore it."""
    with strategy.scope():
        parts = rx.Variable(0, synchronization="ON_READ", aggregation="SUM")
    strategy.run(lambda: parts.assign(10 + rx.get_replica_context().replica_id_in_sync_group))
    checkpoint = rx.Checkpoint(params=params, parts=parts)
    trained = {name: v.numpy() for name, v in params.items()}
    checkpoint.save(folder)
    for v in params.values():
        v.assign(jnp.zeros_like(v.value))
    parts.assign(0)
    checkpoint.restore(folder).assert_consumed()
    own = [int(part) for part in strategy.local_results(parts)]
    assert own == [10 + jax.process_index()], own
    return all(np.array_equal(v.numpy(), trained[name]) for name, v in params.items())


def save_in_own_folders(folder, task):
    """As in TensorFlow, each worker saves in a folder of its own, and all but the first delete it."""
    v = tf.Variable(3.0)
    own = os.path.join(folder, f"worker{task}") if task else os.path.join(folder, "chief")
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=v), own, max_to_keep=1)
    for _ in range(2):
        manager.save()
        if task:
            tf.io.gfile.rmtree(own)
    v.assign(0.0)
    newest = tf.train.latest_checkpoint(os.path.join(folder, "chief"))
    tf.train.Checkpoint(v=v).restore(newest).assert_consumed()
    return [float(v.numpy()), os.path.basename(newest or "none"), sorted(os.listdir(folder))]


def refused(make):
    try:
        make()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def eager_numbers(strategy):
    """The results of eager steps on values that differ between two workers with one replica each."""
    own = 1.0 + strategy.cluster_resolver.task_id
    with strategy.scope():
        total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
        first = rx.Variable(0.0, aggregation=rx.VariableAggregation.ONLY_FIRST_REPLICA)
    strategy.run(lambda: (total.assign_add(own), first.assign(own)))
    all_reduced = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", own))
    return {
        "sum": float(strategy.reduce("SUM", strategy.run(lambda: jnp.float32(own)), axis=None)),
        "mean": float(strategy.reduce("MEAN", strategy.run(lambda: jnp.full(2, own)), axis=0)),
        "all_reduce": [float(x) for x in strategy.local_results(all_reduced)],
        "variables": [float(total.numpy()), float(first.numpy())],
        "gather": strategy.gather(strategy.run(lambda: jnp.full(1, own)), axis=0).tolist(),
    }


def host_batches(strategy):
    """What workers get of batches that each of them makes: the same one, on two replicas each."""

    def parts(batch):
        return [part.tolist() for part in strategy.local_results(batch)]

    def mean(batch):
        return float(strategy.reduce("MEAN", strategy.run(lambda x: x * 2, args=(batch,)), axis=0))

    even = strategy.distribute_batch(np.arange(8.0))
    padded = strategy.distribute_batch(np.arange(6.0), partial_batch="pad", batch_size=8)
    return {
        "parts": parts(even),
        "means": [mean(even), mean(padded)],
        "masks": parts(padded.example_mask),
        "uneven": parts(strategy.distribute_batch(np.arange(6.0))),
    }


def write_tf_config():
    task = {"type": "worker", "index": int(os.environ["REPLICAX_TEST_PROCESS"])}
    cluster = {"worker": os.environ[ADDRESSES].split()}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})


def main():
    rx.set_cpu_devices(2)
    strategy = rx.MultiWorkerMirroredStrategy()
    task = strategy.cluster_resolver.task_id
    with strategy.scope():
        initial = rx.Variable(10.0 + task)
    ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    trained, params = train(strategy)
    spec = strategy.cluster_resolver.cluster_spec()
    two_each = SimpleClusterResolver(spec, task_type="worker", task_id=task, num_accelerators={"CPU": 2})
    wider = rx.MultiWorkerMirroredStrategy(two_each, rx.CommunicationOptions(timeout_seconds=60))
    ones = wider.distribute_values_from_function(lambda ctx: np.float32(1))
    elsewhere = SimpleClusterResolver(
        ClusterSpec({"worker": ["a:1", "b:1", "c:1"]}), task_type="worker", task_id=task
    )
    found = {
        "replicas": strategy.num_replicas_in_sync,
        "process": jax.process_index(),
        "worker_devices": strategy.extended.worker_devices,
        "chief": [strategy.extended.should_checkpoint, strategy.extended.should_save_summary],
        "ids": [int(i) for i in strategy.local_results(ids)],
        "initial": float(initial.read_value()),
        "eager": eager_numbers(strategy),
        "host_batches": host_batches(wider),
        "trained": trained,
        "restored": save_and_restore(strategy, params, os.environ[FOLDER]),
        "own folders": save_in_own_folders(os.environ[OWN_FOLDERS], task),
        "wider": [wider.num_replicas_in_sync, float(wider.reduce("SUM", ones, axis=None))],
        "elsewhere": refused(lambda: rx.MultiWorkerMirroredStrategy(elsewhere)),
    }
    print("found", json.dumps(found))
    jax.distributed.shutdown()


def come_alone(timeout_seconds):
    """Wait for workers that do not come, then go on without them."""
    options = rx.CommunicationOptions(timeout_seconds=timeout_seconds)
    try:
        rx.MultiWorkerMirroredStrategy(communication_options=options)
    except replicax.errors.ClusterTimeoutError as error:
        print("timeout", error)
    print("alone", rx.MirroredStrategy(["CPU:0"]).run(lambda: jnp.float32(7)))


if __name__ == "__main__":
    write_tf_config()
    if sys.argv[1:]:
        come_alone(float(sys.argv[1]))
    else:
        main()
