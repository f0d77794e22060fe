import pytest

from replicax.cluster import ClusterSpec
from replicax.errors import ClusterError

SPEC = ClusterSpec({"worker": ["a:1", "b:2"], "ps": {2: "c:3", 0: "d:4"}, "empty": []})


def test_jobs_and_tasks():
    assert SPEC.jobs == ["worker", "ps", "empty"]
    assert [SPEC.num_tasks(job) for job in SPEC.jobs] == [2, 2, 0]
    assert [SPEC.task_indices(job) for job in SPEC.jobs] == [[0, 1], [0, 2], []]
    assert [SPEC.job_tasks(job) for job in SPEC.jobs] == [["a:1", "b:2"], ["d:4", None, "c:3"], []]
    assert SPEC.task_address("ps", 2) == "c:3"


def test_as_dict_lists_jobs_without_gaps():
    assert SPEC.as_dict() == {"worker": ["a:1", "b:2"], "ps": {0: "d:4", 2: "c:3"}, "empty": {}}
    assert repr(ClusterSpec({"worker": ("a:1",)})) == "ClusterSpec({'worker': ['a:1']})"


def test_what_as_dict_returns_is_a_copy():
    SPEC.as_dict()["worker"].append("z:1")
    SPEC.as_dict()["ps"][9] = "z:1"
    assert SPEC.num_tasks("worker") == SPEC.num_tasks("ps") == 2


def test_equality():
    assert ClusterSpec(SPEC) == SPEC == ClusterSpec(SPEC.as_dict())
    assert ClusterSpec({"worker": ["a:1"]}) == {"worker": {0: "a:1"}}
    assert ClusterSpec({"worker": ["a:1"]}) != ClusterSpec({"worker": ["a:2"]})
    assert ClusterSpec({"worker": ["a:1"]}) != {"worker": 3}
    assert SPEC != "worker"


def test_truth():
    assert SPEC
    assert not ClusterSpec({})


@pytest.mark.parametrize("method", ["num_tasks", "task_indices", "job_tasks"])
def test_unknown_job(method):
    with pytest.raises(ValueError, match=r"no job 'chief'.*'worker', 'ps', 'empty'"):
        getattr(SPEC, method)("chief")


def test_unknown_task():
    with pytest.raises(ClusterError, match=r"no job 'chief'"):
        SPEC.task_address("chief", 0)
    with pytest.raises(ClusterError, match=r"'ps' has no task 1\. It has 0, 2\."):
        SPEC.task_address("ps", 1)
    with pytest.raises(ClusterError, match="has no tasks"):
        SPEC.task_address("empty", 0)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (["a:1"], "dict from job names"),
        ("a:1", "dict from job names"),
        (None, "dict from job names"),
        ({1: ["a:1"]}, "name of a job"),
        ({"worker": "a:1"}, "tasks of the job 'worker'"),
        ({"worker": [1]}, "address of task 0"),
        ({"worker": {"first": "a:1"}}, "must be an int >= 0, got 'first'"),
        ({"worker": {1.5: "a:1"}}, "must be an int >= 0, got 1.5"),
        ({"worker": {True: "a:1"}}, "must be an int >= 0, got True"),
        ({"worker": {-1: "a:1"}}, "must be an int >= 0, got -1"),
    ],
)
def test_bad_clusters(cluster, message):
    with pytest.raises(TypeError, match=message):
        ClusterSpec(cluster)
