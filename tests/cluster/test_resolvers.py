"""What the resolvers answer; results named `recorded` are those of TensorFlow 2.21."""

import json

import pytest

import replicax.cluster as cluster
from replicax.cluster import (
    ClusterResolver,
    ClusterSpec,
    SimpleClusterResolver,
    TFConfigClusterResolver,
    UnionResolver,
)
from replicax.errors import ClusterError

TWO = ClusterSpec({"worker": ["a:1", "b:2"]})


@pytest.fixture
def tf_config(monkeypatch):
    """Sets TF_CONFIG; None unsets it."""

    def write(text):
        if text is None:
            monkeypatch.delenv("TF_CONFIG", raising=False)
        else:
            monkeypatch.setenv("TF_CONFIG", text if isinstance(text, str) else json.dumps(text))

    return write


def answers(r):
    return [
        r.task_type,
        r.task_id,
        r.rpc_layer,
        r.environment,
        r.cluster_spec().as_dict(),
        r.master(),
        dict(r.num_accelerators()),
    ]


# TF_CONFIG


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        (None, [None, None, None, None, {}, "", {}]),
        ("", [None, None, None, None, {}, "", {}]),
        ("{}", [None, None, None, None, {}, "", {}]),
        (
            '{"cluster":{"worker":["h0:1","h1:2"]},"task":{"type":"worker","index":1}}',
            ["worker", 1, None, None, {"worker": ["h0:1", "h1:2"]}, "h1:2", {}],
        ),
        (
            '{"cluster":{"worker":["h0:1"]}}',
            [None, None, None, None, {"worker": ["h0:1"]}, "", {}],
        ),
        (
            '{"cluster":{"worker":["h0:1"]},"task":{"type":"worker","index":5}}',
            ["worker", 5, None, None, {"worker": ["h0:1"]}, "", {}],
        ),
        (
            '{"cluster":{"worker":["h0:1","h1:2"]},"task":{"type":"worker","index":"1"}}',
            ["worker", 1, None, None, {"worker": ["h0:1", "h1:2"]}, "h1:2", {}],
        ),
    ],
)
def test_tf_config_as_recorded(tf_config, text, recorded):
    tf_config(text)
    assert answers(TFConfigClusterResolver()) == recorded


def test_tf_config_that_is_no_json_says_where(tf_config):
    tf_config("{oops")
    resolver = TFConfigClusterResolver()
    for ask in (resolver.cluster_spec, resolver.master, lambda: resolver.task_type):
        with pytest.raises(json.JSONDecodeError, match=r"TF_CONFIG.*'oops'.*line 1 column 2") as caught:
            ask()
        assert isinstance(caught.value, ClusterError)
        assert caught.value.pos == 1
    tf_config('{"cluster": ')
    with pytest.raises(ClusterError, match="at its end"):
        resolver.cluster_spec()


def test_tf_config_with_a_task_type_that_the_cluster_does_not_have(tf_config):
    tf_config(
        {
            "cluster": {"chief": ["c:1"], "worker": ["h0:1"], "ps": ["p:1"]},
            "task": {"type": "evaluator", "index": 0},
            "rpc_layer": "grpc",
            "environment": "cloud",
        }
    )
    resolver = TFConfigClusterResolver()
    assert (resolver.rpc_layer, resolver.environment) == ("grpc", "cloud")
    assert resolver.master("chief", 0) == "grpc://c:1"
    assert resolver.master("chief", 0, rpc_layer="http") == "http://c:1"
    with pytest.raises(ValueError, match="no job 'evaluator'"):
        resolver.master()


def test_tf_config_of_several_tasks_without_a_task(tf_config):
    tf_config({"cluster": {"worker": ["h0:1", "h1:1"]}})
    with pytest.raises(ClusterError, match='no "task"'):
        TFConfigClusterResolver().master()
    with pytest.raises(ClusterError, match="has no task 2"):
        TFConfigClusterResolver("worker", 2).master()


def test_arguments_replace_parts_of_tf_config(tf_config):
    tf_config({"cluster": {"worker": ["h0:1", "h1:1"]}, "task": {"type": "worker", "index": 0}})
    resolver = TFConfigClusterResolver("worker", 1, rpc_layer="grpc", environment="here")
    assert answers(resolver)[:4] == ["worker", 1, "grpc", "here"]
    assert resolver.master() == "grpc://h1:1"
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "chief", "0", "http"
    assert answers(TFConfigClusterResolver())[:2] == ["worker", 0]
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("chief", 0, "http")


@pytest.mark.parametrize(
    ("config", "question", "message"),
    [
        ([1], "cluster_spec", r"TF_CONFIG must be a JSON object.*\[1\]"),
        ({"cluster": ["a:1"]}, "cluster_spec", r'TF_CONFIG\["cluster"\] must be a JSON object'),
        ({"cluster": {"worker": "a:1"}}, "cluster_spec", r'TF_CONFIG\["cluster"\].*tasks of the job'),
        ({"task": "worker"}, "task_type", r'TF_CONFIG\["task"\] must be a JSON object'),
        ({"task": {"type": ["a"]}}, "task_type", r'TF_CONFIG\["task"\]\["type"\] must be a string'),
        ({"task": {"index": "x"}}, "task_id", r'TF_CONFIG\["task"\]\["index"\].*\'x\''),
        ({"task": {"index": 1.5}}, "task_id", r'TF_CONFIG\["task"\]\["index"\].*1.5'),
        ({"task": {"index": True}}, "task_id", r'TF_CONFIG\["task"\]\["index"\].*True'),
        ({"rpc_layer": 1}, "rpc_layer", r'TF_CONFIG\["rpc_layer"\]'),
        ({"environment": {}}, "environment", r'TF_CONFIG\["environment"\]'),
    ],
)
def test_tf_config_that_is_no_cluster(tf_config, config, question, message):
    tf_config(config)
    with pytest.raises(ClusterError, match=message):
        answer = getattr(TFConfigClusterResolver(), question)
        answer()  # a method; the properties have raised


# SimpleClusterResolver


def test_simple_as_recorded():
    resolver = SimpleClusterResolver(
        TWO, task_type="worker", task_id=1, num_accelerators={"GPU": 2}, rpc_layer="grpc"
    )
    assert answers(resolver) == ["worker", 1, "grpc", "", TWO.as_dict(), "grpc://", {"GPU": 2}]
    assert SimpleClusterResolver(TWO, rpc_layer="grpc").master("worker", 1) == "grpc://b:2"
    with pytest.raises(TypeError, match="takes a ClusterSpec"):
        SimpleClusterResolver({"worker": ["a:1"]})  # pyright: ignore[reportArgumentType]


def test_simple():
    resolver = SimpleClusterResolver(TWO, "m:1", environment="here")
    assert answers(resolver) == [None, None, None, "here", TWO.as_dict(), "m:1", {}]
    assert resolver.master("worker", 0, "http") == "http://a:1"
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 0, "grpc"
    assert answers(resolver)[:3] == ["worker", 0, "grpc"]
    with pytest.raises(ClusterError, match="no task 7"):
        resolver.master("worker", 7)
    with pytest.raises(ClusterError, match="task_id"):
        SimpleClusterResolver(TWO, task_type="worker", task_id="first")  # pyright: ignore
    with pytest.raises(TypeError, match="config_proto"):
        resolver.num_accelerators(config_proto=object())  # pyright: ignore[reportArgumentType]


# UnionResolver


def simple(jobs, **options):
    return SimpleClusterResolver(ClusterSpec(jobs), **options)


def test_union_as_recorded():
    union = UnionResolver(simple({"worker": ["a:1"]}), simple({"worker": ["b:1"], "ps": ["c:1"]}))
    assert union.cluster_spec().as_dict() == {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    with pytest.raises(ValueError, match="one or more resolvers"):
        UnionResolver()
    assert cluster.UnionClusterResolver is UnionResolver


def test_union_asks_the_first_resolver():
    first = simple(
        {"worker": ["a:1"]},
        master="m:1",
        task_type="worker",
        task_id=0,
        environment="here",
        num_accelerators={"GPU": 4},
        rpc_layer="grpc",
    )
    union = UnionResolver(first, simple({"worker": ["b:1"]}, task_type="ps", task_id=3))
    assert answers(union) == [
        "worker",
        0,
        "grpc",
        "here",
        {"worker": ["a:1", "b:1"]},
        "grpc://m:1",
        {"GPU": 4},
    ]
    assert union.master("worker", 1) == "grpc://b:1"
    other = UnionResolver(first, task_type="chief", task_id=2, rpc_layer="http")
    assert answers(other)[:3] == ["chief", 2, "http"]


def test_union_of_numbered_tasks():
    union = UnionResolver(simple({"worker": {0: "a:1", 2: "c:1"}}), simple({"worker": {1: "b:1"}}))
    assert union.cluster_spec().as_dict() == {"worker": ["a:1", "b:1", "c:1"]}
    with pytest.raises(
        ClusterError, match=r"two clusters have a task 0 of the job 'worker', at a:1 and at b:1"
    ):
        UnionResolver(simple({"worker": {0: "a:1", 2: "c:1"}}), simple({"worker": ["b:1"]})).cluster_spec()


def test_union_of_something_else():
    with pytest.raises(TypeError, match=r"UnionResolver\(a, b\)"):
        UnionResolver([simple({})])  # pyright: ignore[reportArgumentType]


# The base class


class Fixed(ClusterResolver):
    def cluster_spec(self):
        return TWO

    def master(self, task_type=None, task_id=None, rpc_layer=None):
        return "a:1"


def test_a_resolver_of_ones_own():
    resolver = Fixed()
    assert answers(resolver) == [None, None, None, "", TWO.as_dict(), "a:1", {}]
    resolver.task_type, resolver.task_id = "worker", 1
    assert resolver.num_accelerators("worker", 1) == {}
    with pytest.raises(ClusterError, match="only its own devices"):
        resolver.num_accelerators("worker", 0)
    with pytest.raises(TypeError, match="config_proto"):
        resolver.num_accelerators(config_proto=object())  # pyright: ignore[reportArgumentType]


def test_the_base_class_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        ClusterResolver()  # pyright: ignore[reportAbstractUsage]
