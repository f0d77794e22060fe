import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax.cluster import SlurmClusterResolver
from replicax.cluster._hostlist import expand_counts, expand_hostlist
from replicax.errors import BackendStartedError, ClusterError


@pytest.fixture
def slurm(monkeypatch):
    """Sets the environment of one task; rank 0 of two hosts with two tasks each unless told."""

    def start(rank=0, tasks=4, nodes="node[1-2]", per_node="2(x2)", **more):
        for name in [n for n in os.environ if n.startswith("SLURM_")]:
            monkeypatch.delenv(name)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        variables = {
            "SLURM_PROCID": rank,
            "SLURM_STEP_NUM_TASKS": tasks,
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_STEP_TASKS_PER_NODE": per_node,
            **more,
        }
        for name, value in variables.items():
            if value is not None:
                monkeypatch.setenv(name, str(value))

    return start


@pytest.mark.parametrize(
    ("hostlist", "hosts"),
    [
        ("node1", ["node1"]),
        ("a,b", ["a", "b"]),
        ("node[1-3,7]", ["node1", "node2", "node3", "node7"]),
        ("node[08-10]", ["node08", "node09", "node10"]),
        ("n[9-10],m[1,3].example.org", ["n9", "n10", "m1.example.org", "m3.example.org"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
    ],
)
def test_hostlists(hostlist, hosts):
    assert expand_hostlist(hostlist) == hosts


@pytest.mark.parametrize(
    "hostlist", ["", ",", "a,,b", "node[1-3", "node1-3]", "node[]", "node[3-1]", "n[a-b]"]
)
def test_bad_hostlists(hostlist):
    with pytest.raises(ClusterError, match="Slurm's notation"):
        expand_hostlist(hostlist)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20), st.integers(1, 6))
def test_numbers_in_brackets_are_all_there(numbers, width):
    padded = [str(n).zfill(width) for n in numbers]
    assert expand_hostlist(f"n[{','.join(padded)}]-x") == [f"n{n}-x" for n in padded]


def test_counts():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    for counts in ("", "2(3)", "two", "2(x3)1"):
        with pytest.raises(ClusterError, match="numbers of tasks"):
            expand_counts(counts)


@pytest.mark.parametrize(("rank", "index"), [(0, 0), (3, 3)])
def test_all_tasks_are_workers_by_default(slurm, rank, index):
    slurm(rank)
    resolver = SlurmClusterResolver()
    assert resolver.cluster_spec() == {"worker": ["node1:8888", "node1:8889", "node2:8888", "node2:8889"]}
    assert resolver.get_task_info() == ("worker", index)
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", index, "grpc")
    assert resolver.master("worker", 2) == "grpc://node2:8888"
    assert resolver.master("worker", 2, rpc_layer="") == "node2:8888"


def test_hosts_keep_their_order(slurm):
    slurm(nodes="node[2,10],a", per_node="1(x3)", tasks=3)
    assert SlurmClusterResolver(port_base=1).cluster_spec() == {"worker": ["node2:1", "node10:1", "a:1"]}


def test_jobs(slurm):
    slurm(rank=1)
    resolver = SlurmClusterResolver({"worker": 2, "chief": 1}, port_base=10)
    assert resolver.cluster_spec() == {"chief": ["node1:10"], "worker": ["node1:11", "node2:10"]}
    assert resolver.get_task_info() == ("worker", 0)
    assert resolver.master() == "grpc://node1:11"


def test_tasks_in_turn(slurm):
    slurm(SLURM_DISTRIBUTION="cyclic:block")
    assert SlurmClusterResolver(port_base=1).cluster_spec() == {
        "worker": ["node1:1", "node2:1", "node1:2", "node2:2"]
    }
    slurm(SLURM_DISTRIBUTION="plane")
    with pytest.raises(ClusterError, match=r"plane.*--distribution=block"):
        SlurmClusterResolver()


def test_tasks_per_node_can_be_given(slurm):
    slurm(per_node=None)
    assert SlurmClusterResolver(tasks_per_node=2).cluster_spec().num_tasks("worker") == 4
    slurm(per_node="2", nodes="node[1-2]")
    with pytest.raises(ClusterError, match="lists 2 hosts"):
        SlurmClusterResolver()


def test_outside_of_slurm(slurm):
    slurm(rank=None)
    with pytest.raises(RuntimeError, match=r"SLURM_PROCID is not set.*`srun`"):
        SlurmClusterResolver()


@pytest.mark.parametrize(
    "name", ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"]
)
def test_missing_variables(slurm, monkeypatch, name):
    slurm()
    monkeypatch.delenv(name)
    with pytest.raises(RuntimeError, match=f"{name} is not set"):
        SlurmClusterResolver()


def test_bad_numbers(slurm):
    slurm(rank="first")
    with pytest.raises(ClusterError, match="SLURM_PROCID to a number"):
        SlurmClusterResolver()
    slurm()
    with pytest.raises(RuntimeError, match="needs 5 tasks, but Slurm has 4"):
        SlurmClusterResolver({"worker": 5})
    for jobs in ({"worker": 0}, {"worker": "2"}, {"worker": 1.5}):
        with pytest.raises(ValueError, match="number of tasks of the job 'worker'"):
            SlurmClusterResolver(jobs)
    with pytest.raises(TypeError, match="jobs must be a dict"):
        SlurmClusterResolver(["worker"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ClusterError, match="gpus_per_task"):
        SlurmClusterResolver(gpus_per_task=-1)


def test_a_rank_without_a_job(slurm):
    slurm(rank=3)
    with pytest.raises(ClusterError, match="has the Slurm rank 3"):
        SlurmClusterResolver({"worker": 3})


# GPUs. JAX runs already in these tests, so a change of the devices is refused unless JAX is hidden from it.


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr("replicax.cluster._gpus.backends_are_initialized", lambda: False)


@pytest.mark.parametrize(
    ("options", "environment", "gpus"),
    [
        ({"gpus_per_node": 4}, {}, 2),
        ({"gpus_per_task": 1}, {}, 1),
        ({}, {"SLURM_GPUS_ON_NODE": "8"}, 4),
        ({}, {"SLURM_GPUS_PER_NODE": "a100:2"}, 1),
        ({}, {"SLURM_GPUS_PER_TASK": "3"}, 3),
        ({"gpus_per_task": 1}, {"SLURM_GPUS_ON_NODE": "8"}, 1),
    ],
)
def test_number_of_gpus(slurm, options, environment, gpus):
    slurm(**environment)
    resolver = SlurmClusterResolver(auto_set_gpu=False, **options)
    assert resolver.num_accelerators() == {"GPU": gpus}
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_without_a_word_about_gpus_jax_counts(slurm):
    slurm()
    assert SlurmClusterResolver().num_accelerators() == {}


@pytest.mark.parametrize(
    ("rank", "before", "after"),
    [(0, None, "0,1"), (3, None, "2,3"), (2, "4,5,6,7", "4,5"), (1, "4,5,6,7", "6,7"), (1, "0,1", "0,1")],
)
@pytest.mark.usefixtures("fresh")
def test_each_task_sees_its_own_gpus(slurm, rank, before, after):
    slurm(rank, CUDA_VISIBLE_DEVICES=before)
    SlurmClusterResolver(gpus_per_node=4)
    seen = os.environ.pop("CUDA_VISIBLE_DEVICES")
    assert seen == after


@pytest.mark.usefixtures("fresh")
def test_too_few_gpus(slurm):
    slurm(1, CUDA_VISIBLE_DEVICES="0,1,2")
    with pytest.raises(ClusterError, match="lists 3 for all tasks"):
        SlurmClusterResolver(gpus_per_node=4)
    with pytest.raises(ClusterError, match="need 8 GPUs, but a host has 4"):
        SlurmClusterResolver(gpus_per_node=4, gpus_per_task=4)


def test_gpus_can_not_be_chosen_once_jax_runs(slurm):
    slurm()
    with pytest.raises(BackendStartedError, match="auto_set_gpu=False"):
        SlurmClusterResolver(gpus_per_node=4)
