"""`MultiWorkerMirroredStrategy` in one process; `tests/multiprocess` has the others."""

import json

import jax.numpy as jnp
import pytest

import replicax as rx
from replicax.cluster import ClusterSpec, SimpleClusterResolver, Task, TFConfigClusterResolver, find_place
from replicax.errors import BackendStartedError, ClusterError, CollectiveError, DeviceError


@pytest.fixture
def tf_config(monkeypatch):
    def write(cluster, job=None, index=None):
        task = {} if job is None else {"task": {"type": job, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, **task}))

    monkeypatch.delenv("TF_CONFIG", raising=False)
    return write


def simple(jobs, job=None, index=None, **options):
    return SimpleClusterResolver(ClusterSpec(jobs), task_type=job, task_id=index, **options)


# One worker. What TensorFlow does was recorded with two CPU devices.


@pytest.mark.usefixtures("tf_config")
def test_without_tf_config():
    strategy = rx.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 1
    assert strategy.extended.worker_devices == ("CPU:0",)
    assert isinstance(strategy.cluster_resolver, TFConfigClusterResolver)
    assert strategy.cluster_resolver.task_type is None
    assert float(strategy.reduce("SUM", strategy.run(lambda: jnp.float32(1)), axis=None)) == 1
    assert repr(strategy) == "MultiWorkerMirroredStrategy(['CPU:0'])"


@pytest.mark.parametrize("job", ["chief", "worker"])
def test_a_cluster_of_one(tf_config, job):
    tf_config({job: ["localhost:12391"]}, job, 0)
    strategy = rx.MultiWorkerMirroredStrategy()
    assert [strategy.num_replicas_in_sync, strategy.extended.should_checkpoint] == [1, True]
    assert strategy.cluster_resolver.task_type == job


def test_an_evaluator_runs_by_itself(tf_config):
    for cluster in ({"worker": ["a:1", "b:1"]}, {"worker": ["a:1", "b:1"], "evaluator": ["c:1"]}):
        tf_config(cluster, "evaluator", 0)
        assert rx.MultiWorkerMirroredStrategy().num_replicas_in_sync == 1


def test_variables_are_mirrored():
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        v = rx.Variable(1.0)
        total = rx.Variable(
            0.0, synchronization=rx.VariableSynchronization.ON_READ, aggregation=rx.VariableAggregation.SUM
        )
    assert isinstance(v, rx.MirroredVariable)
    assert isinstance(total, rx.SyncOnReadVariable)


def test_a_resolver_says_how_many_devices_to_use():
    strategy = rx.MultiWorkerMirroredStrategy(simple({}, num_accelerators={"CPU": 3}))
    assert strategy.extended.worker_devices == ("CPU:0", "CPU:1", "CPU:2")
    for number in (0, 99):
        with pytest.raises(DeviceError, match=f"gives this worker {number} CPU"):
            rx.MultiWorkerMirroredStrategy(simple({}, num_accelerators={"CPU": number}))


# Clusters that can't be joined.


@pytest.mark.parametrize(
    ("cluster", "job", "index", "message"),
    [
        ({"worker": ["a:1"]}, None, None, "task of this process is unknown"),
        ({"worker": ["a:1"]}, "worker", 3, "'worker' has no task 3"),
        ({"worker": ["a:1"]}, "worker", -1, "must be an integer, 0 or more; got -1"),
        ({"worker": ["a:1"]}, "chief", 0, "no job 'chief'"),
        ({"worker": ["a:1", "b:1"]}, "ps", 0, "is a 'ps' task, a parameter server"),
        ({"worker": ["a:1"], "ps": ["b:1"]}, "ps", 0, "is a 'ps' task, a parameter server"),
        ({"worker": ["a:1"]}, "boss", 0, "has a job 'boss'"),
        ({"chief": ["a:1", "b:1"]}, "chief", 0, "one chief"),
        ({"worker": ["a:1"], "evaluator": ["b:1", "c:1"]}, "worker", 0, "one evaluator"),
    ],
)
def test_clusters_that_make_no_sense(tf_config, cluster, job, index, message):
    tf_config(cluster, job, index)
    with pytest.raises(ValueError, match=message) as caught:
        rx.MultiWorkerMirroredStrategy()
    assert isinstance(caught.value, ClusterError)


def test_too_late_to_join(tf_config):
    tf_config({"worker": ["localhost:12391", "localhost:12392"]}, "worker", 1)
    with pytest.raises(
        BackendStartedError, match=r"worker 1 \(localhost:12392\).*Create the strategy first"
    ):
        rx.MultiWorkerMirroredStrategy()


def test_an_address_without_a_port(monkeypatch):
    monkeypatch.setattr("replicax.cluster._bootstrap.backends_are_initialized", lambda: False)
    monkeypatch.setattr("replicax.cluster._bootstrap._prepare_cpu_collectives", lambda: None)
    for address in ("host", "host:", "host:http", ":1"):
        with pytest.raises(ClusterError, match=rf"'host:port'; got '{address}'"):
            rx.MultiWorkerMirroredStrategy(simple({"worker": [address, "b:1"]}, "worker", 0))


def test_the_chief_comes_first():
    jobs = {"worker": {4: "e:1", 1: "b:1"}, "evaluator": ["v:1"], "chief": ["c:1"]}
    tasks = (Task("chief", 0, "c:1"), Task("worker", 1, "b:1"), Task("worker", 4, "e:1"))
    for process_id, task in enumerate(tasks):
        place = find_place(simple(jobs, task.job, task.index))
        assert place is not None
        assert (place.tasks, place.process_id, place.own) == (tasks, process_id, task)
    assert find_place(simple({})) is None


# Arguments.


def test_wrong_arguments():
    with pytest.raises(TypeError, match="ClusterResolver"):
        rx.MultiWorkerMirroredStrategy({"worker": ["a:1"]})  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="CommunicationOptions"):
        rx.MultiWorkerMirroredStrategy(communication_options="RING")  # pyright: ignore[reportArgumentType]


def test_nccl_without_gpus_is_refused():
    with pytest.raises(CollectiveError, match="NCCL"):
        rx.MultiWorkerMirroredStrategy(communication_options=rx.CommunicationOptions(implementation="NCCL"))


@pytest.mark.parametrize("mode", [lambda step: step, rx.function], ids=["eager", "compiled"])
def test_options_apply_unless_a_call_has_its_own(monkeypatch, mode):
    seen = []
    waits = "replicax.collectives._cross_device_ops.await_or_limit"
    monkeypatch.setattr(waits, lambda results, options, what: seen.append(options))
    options = rx.CommunicationOptions(bytes_per_pack=64, timeout_seconds=50, implementation="RING")
    strategy = rx.MultiWorkerMirroredStrategy(simple({}, num_accelerators={"CPU": 2}), options)

    def replica_fn(own):
        return rx.get_replica_context().all_reduce("SUM", jnp.ones(3), own)

    total = mode(lambda: strategy.reduce("SUM", strategy.run(lambda: jnp.ones(3)), axis=None))
    assert total().tolist() == [2, 2, 2]
    assert set(seen) == {options}
    seen.clear()
    own = rx.CommunicationOptions(timeout_seconds=7)
    parts = mode(lambda: strategy.run(lambda: replica_fn(own)))()
    assert strategy.local_results(parts)[1].tolist() == [2, 2, 2]
    assert set(seen) == {rx.CommunicationOptions(64, 7, "RING")}


def test_the_timeout_also_limits_gathers_and_broadcasts(monkeypatch):
    seen = []
    waits = "replicax.collectives._communicator.await_or_limit"
    monkeypatch.setattr(waits, lambda results, options, what: seen.append((what, options.timeout_seconds)))
    options = rx.CommunicationOptions(timeout_seconds=50)
    strategy = rx.MultiWorkerMirroredStrategy(simple({}, num_accelerators={"CPU": 2}), options)
    with strategy.scope():
        v = rx.Variable(0.0, aggregation=rx.VariableAggregation.ONLY_FIRST_REPLICA)
    strategy.gather(strategy.run(lambda: jnp.ones(1)), axis=0)
    strategy.run(lambda: v.assign(rx.get_replica_context().replica_id_in_sync_group + 1.0))
    assert seen == [("A gather across replicas", 50), ("A broadcast from the first replica", 50)]
