"""Clusters that TensorFlow's resolvers accept, with the answers that they give."""

import json
import os

import numpy as np
import pytest

from replicax.cluster import (
    ClusterDef,
    ClusterResolver,
    ClusterSpec,
    JobDef,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    UnionResolver,
)
from replicax.errors import ClusterError, OverlappingTasksError


@pytest.fixture
def tf_config(monkeypatch):
    return lambda config: monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_indices_in_json_are_strings(tf_config):
    cluster = {"worker": {"1": "b:1", "0": "a:1"}, "chief": {"3": "c:1"}}
    tf_config({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    resolver = TFConfigClusterResolver()
    assert resolver.cluster_spec() == {"worker": ["a:1", "b:1"], "chief": {3: "c:1"}}
    assert resolver.master() == "b:1"
    tf_config({"cluster": {"worker": {"first": "a:1"}}})
    with pytest.raises(ClusterError, match=r"index of a task .* an int >= 0, got 'first'"):
        resolver.cluster_spec()


@pytest.mark.parametrize("index", ["1", 1.0, np.int64(1), b"1"])
def test_indices_of_any_integral_type(index):
    assert ClusterSpec({"worker": {index: "b:1"}}).task_address("worker", 1) == "b:1"


def test_two_spellings_of_one_index():
    with pytest.raises(TypeError, match="two addresses for task 1"):
        ClusterSpec({"worker": {1: "a:1", "1": "b:1"}})


def test_bytes_are_text():
    assert ClusterSpec({b"worker": [b"a:1"]}) == {"worker": ["a:1"]}


def test_session_master_comes_before_the_task(tf_config):
    workers = {"worker": ["a:1", "b:1"]}
    tf_config({"cluster": workers, "session_master": "m:1", "task": {"type": "worker", "index": 0}})
    assert TFConfigClusterResolver().master() == "m:1"
    assert TFConfigClusterResolver(rpc_layer="grpc").master("worker", 1) == "m:1"
    tf_config({"session_master": 1})
    with pytest.raises(ClusterError, match=r'TF_CONFIG\["session_master"\] must be a string'):
        TFConfigClusterResolver().master()


def test_numbers_as_task_type_and_index(tf_config):
    tf_config({"cluster": {"123456": ["a:1", "b:1"]}, "task": {"type": 123456, "index": 1.0}})
    resolver = TFConfigClusterResolver()
    assert (resolver.task_type, resolver.task_id, resolver.master()) == ("123456", 1, "b:1")
    assert TFConfigClusterResolver(123456, np.int32(0)).master() == "a:1"  # pyright: ignore
    for wrong in (1.5, True, -1):
        tf_config({"task": {"type": "worker", "index": wrong}})
        with pytest.raises(ClusterError, match="integer, 0 or more"):
            assert resolver.task_id


def test_setting_the_task_of_any_resolver_checks_it():
    resolver = SimpleClusterResolver(ClusterSpec({}))
    resolver.task_type, resolver.task_id = 7, "2"  # pyright: ignore
    assert (resolver.task_type, resolver.task_id) == ("7", 2)
    with pytest.raises(ClusterError, match="task_id must be an integer"):
        resolver.task_id = "second"  # pyright: ignore


# Slurm


@pytest.fixture
def slurm(monkeypatch):
    monkeypatch.setattr("replicax.cluster._gpus.backends_are_initialized", lambda: False)

    def start(rank, tasks_per_node, **more):
        variables = {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": "5",
            "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
            "SLURM_STEP_NODELIST": "t02n13,t02n41,t02n43",
            **more,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return start


def test_an_empty_list_of_gpus_is_no_list_when_gpus_are_asked_for(slurm):
    slurm(1, "2(x2),1", CUDA_VISIBLE_DEVICES="")
    jobs = {"ps": 1, "worker": 4}
    resolver = SlurmClusterResolver(jobs, gpus_per_node=2, gpus_per_task=1)
    assert resolver.cluster_spec() == {
        "ps": ["t02n13:8888"],
        "worker": ["t02n13:8889", "t02n41:8888", "t02n41:8889", "t02n43:8888"],
    }
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


def test_an_empty_list_of_gpus_hides_those_that_slurm_reports(slurm):
    slurm(1, "2(x2),1", CUDA_VISIBLE_DEVICES="", SLURM_GPUS_ON_NODE="4")
    assert SlurmClusterResolver().num_accelerators() == {}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("shown", "per_node", "gpus", "left"),
    [
        ("0", "1(x3)", 1, "0"),
        ("4,5,6,7", "2(x2),1", 2, "6,7"),
        ("3", "2(x2),1", 1, "3"),  # fewer than tasks: Slurm has chosen those of this task
    ],
)
def test_visible_gpus_are_counted(slurm, shown, per_node, gpus, left):
    slurm(1, per_node, CUDA_VISIBLE_DEVICES=shown)
    assert SlurmClusterResolver({"worker": 3}).num_accelerators() == {"GPU": gpus}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == left


def test_numbers_of_any_integral_type(slurm):
    slurm(0, "1(x3)")
    resolver = SlurmClusterResolver({"worker": np.int64(3)}, gpus_per_node=np.int32(2), auto_set_gpu=False)  # pyright: ignore
    assert resolver.cluster_spec().num_tasks("worker") == 3
    assert resolver.num_accelerators() == {"GPU": 2}


# Unions


@pytest.mark.parametrize("other", [{0: "d:1", 1: "e:1", 7: "f:1"}, {7: "d:1"}])
def test_overlapping_tasks_are_a_key_error(other):
    first, second = (
        SimpleClusterResolver(ClusterSpec({"worker": w})) for w in ({1: "a:1", 7: "b:1"}, other)
    )
    with pytest.raises(KeyError) as caught:
        UnionResolver(first, second).cluster_spec()
    assert isinstance(caught.value, OverlappingTasksError) and isinstance(caught.value, ClusterError)
    assert str(caught.value).startswith("UnionResolver: two clusters have a task")


def test_a_list_and_indices_that_do_not_overlap():
    first, second = (
        SimpleClusterResolver(ClusterSpec({"worker": w})) for w in (["a:1", "b:1"], {3: "c:1", 6: "d:1"})
    )
    assert UnionResolver(first, second).cluster_spec() == {
        "worker": {0: "a:1", 1: "b:1", 3: "c:1", 6: "d:1"}
    }


# ClusterDef


def test_cluster_def_sorts_jobs_and_tasks():
    spec = ClusterSpec({"worker": {5: "c:1", 1: "b:1"}, "ps": ["a:1"]})
    definition = spec.as_cluster_def()
    assert definition == ClusterDef(job=[JobDef("ps", {0: "a:1"}), JobDef("worker", {1: "b:1", 5: "c:1"})])
    assert [job.name for job in definition.job] == ["ps", "worker"]
    assert list(definition.job[1].tasks.items()) == [(1, "b:1"), (5, "c:1")]
    assert ClusterSpec(definition) == spec == ClusterSpec(ClusterSpec(definition).as_dict())
    definition.job[0].tasks[0] = "z:1"
    assert spec.task_address("ps", 0) == "a:1"


# num_accelerators


def test_the_accelerators_of_other_tasks(monkeypatch):
    class Device:
        def __init__(self, process_index, device_id, platform="gpu"):
            self.process_index, self.id, self.platform = process_index, device_id, platform

    gpus = [Device(0, 0), Device(0, 1), Device(1, 2), Device(2, 3), Device(2, 4), Device(2, 5)]
    monkeypatch.setattr("jax.devices", lambda backend=None: gpus)
    monkeypatch.setattr("jax.process_count", lambda: 3)
    spec = ClusterSpec({"worker": ["b:1", "c:1"], "chief": ["a:1"]})

    class Resolver(ClusterResolver):
        def cluster_spec(self):
            return spec

        def master(self, task_type=None, task_id=None, rpc_layer=None):
            return ""

    resolver = Resolver()
    resolver.task_type, resolver.task_id = "worker", 0
    assert resolver.num_accelerators("chief", 0) == {"GPU": 2}
    assert resolver.num_accelerators(task_id=1) == {"GPU": 3}
    with pytest.raises(ClusterError, match="no task 2"):
        resolver.num_accelerators(task_id=2)


def test_accelerators_by_platform_are_a_dict():
    with pytest.raises(TypeError, match=r"num_accelerators must be a dict .*'GPU': 8.*; got 8"):
        SimpleClusterResolver(ClusterSpec({}), num_accelerators=8)  # pyright: ignore
