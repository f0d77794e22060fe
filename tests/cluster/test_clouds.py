"""The resolvers that ask an API, with clients that return recorded answers."""

import sys
from types import SimpleNamespace as Object

import pytest

from replicax import tf
from replicax.cluster import (
    GCEClusterResolver,
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
    UnionResolver,
)
from replicax.errors import ClusterError, NotInClusterError


def kubernetes(pods_by_label):
    """A `CoreV1Api` with these pods: name, phase, address."""

    def list_pods(label_selector):
        return Object(
            items=[
                Object(metadata=Object(name=name), status=Object(phase=phase, pod_ip=ip))
                for name, phase, ip in pods_by_label[label_selector]
            ]
        )

    return Object(list_pod_for_all_namespaces=list_pods)


PODS = [
    ("train-b", "Running", "10.1.2.4"),
    ("train-a", "Running", "10.1.2.5"),
    ("train-c", "Running", "fd00::3"),
]


def test_pods_in_the_order_of_their_names():
    resolver = KubernetesClusterResolver(override_client=kubernetes({"job-name=tensorflow": PODS}))
    assert resolver.cluster_spec() == {"worker": ["10.1.2.5:8470", "10.1.2.4:8470", "[fd00::3]:8470"]}
    assert (resolver.task_type, resolver.task_id, resolver.master()) == (None, None, "")
    resolver.task_type, resolver.task_id = "worker", 1
    assert resolver.master() == "grpc://10.1.2.4:8470"
    assert resolver.master("worker", 0, rpc_layer="test") == "test://10.1.2.5:8470"
    with pytest.raises(ClusterError, match="no task 3"):
        resolver.master("worker", 3)


def test_several_jobs_and_labels():
    pods = {"a": PODS[:1], "b": PODS[1:2], "ps": [("p", "Running", "10.1.2.9")]}
    resolver = KubernetesClusterResolver(
        {"worker": ["a", "b"], "ps": ["ps"]}, 1, override_client=kubernetes(pods)
    )
    assert resolver.cluster_spec() == {"worker": ["10.1.2.4:1", "10.1.2.5:1"], "ps": ["10.1.2.9:1"]}


def test_the_pod_of_this_process_has_its_address():
    pods = {"a": PODS[:1], "b": [PODS[1], ("train-z", "Running", "127.0.0.1")]}
    resolver = KubernetesClusterResolver(
        {"chief": ["a"], "worker": ["b"]}, override_client=kubernetes(pods)
    )
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)


def test_a_pod_that_does_not_run():
    client = kubernetes({"a": [("train-a", "Failed", None)]})
    with pytest.raises(RuntimeError, match="pod 'train-a' is not running: its phase is 'Failed'") as caught:
        KubernetesClusterResolver({"worker": ["a"]}, override_client=client).cluster_spec()
    assert isinstance(caught.value, NotInClusterError)


def test_connecting_to_kubernetes(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ImportError, match="pip install kubernetes"):
        KubernetesClusterResolver()
    loaded = []
    package = Object(
        client=Object(CoreV1Api=lambda: kubernetes({"job-name=tensorflow": PODS[:1]})),
        config=Object(
            load_incluster_config=lambda: loaded.append("in"), load_kube_config=lambda: loaded.append("off")
        ),
    )
    monkeypatch.setitem(sys.modules, "kubernetes", package)
    assert KubernetesClusterResolver().cluster_spec().num_tasks("worker") == 1
    KubernetesClusterResolver(executable_location=KubernetesExecutableLocation.OFF_CLUSTER)
    assert loaded == ["in", "off"]
    with pytest.raises(ValueError, match=r"executable_location must be .* got None"):
        KubernetesClusterResolver(executable_location=None)  # pyright: ignore
    assert tf.distribute.cluster_resolver.KubernetesExecutableLocation is KubernetesExecutableLocation


def compute_engine(pages):
    """A client of Compute Engine: pages of machines, each a dict from names to addresses."""
    addresses = {name: ip for page in pages for name, ip in page.items()}

    def request(number):
        def execute():
            items = [{"instance": f"https://compute.example/{name}"} for name in pages[number]]
            return {"items": items} if items else {}

        return Object(execute=execute, number=number)

    def list_next(previous_request, previous_response):
        number = previous_request.number + 1
        return request(number) if number < len(pages) else None

    def list_first(project, zone, instanceGroup, body, orderBy):
        assert (project, zone, instanceGroup) == ("p", "z", "g")
        assert (body, orderBy) == ({"instanceState": "RUNNING"}, "name")
        return request(0)

    def get(project, zone, instance):
        return Object(execute=lambda: {"networkInterfaces": [{"networkIP": addresses[instance]}]})

    groups = Object(listInstances=list_first, listInstances_next=list_next)
    return Object(instanceGroups=lambda: groups, instances=lambda: Object(get=get))


def group(pages, port=8470, **options):
    return GCEClusterResolver("p", "z", "g", port, service=compute_engine(pages), **options)


def test_the_machines_of_a_group():
    resolver = group([{"vm2": "10.2.3.4", "vm1": "10.1.2.3"}, {"vm3": "10.3.4.5"}])
    assert resolver.cluster_spec() == {"worker": ["10.1.2.3:8470", "10.2.3.4:8470", "10.3.4.5:8470"]}
    assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", 0, "")
    assert resolver.master() == "grpc://10.1.2.3:8470"
    assert resolver.master("worker", 2, "test") == "test://10.3.4.5:8470"
    resolver.task_id, resolver.rpc_layer = 1, "http"
    assert resolver.master() == "http://10.2.3.4:8470"
    with pytest.raises(RuntimeError, match="can't be changed to 'chief'"):
        resolver.task_type = "chief"


def test_the_machine_of_this_process_can_be_found():
    resolver = group([{"a": "192.0.2.1", "b": "127.0.0.1"}], task_id=None)
    assert (resolver.task_id, resolver.master()) == (0, "grpc://127.0.0.1:8470")
    stranger = group([{"a": "192.0.2.1"}], task_id=None)
    assert (stranger.task_id, stranger.master()) == (None, "")


def test_an_empty_group():
    with pytest.raises(NotInClusterError, match=r"instance group 'g' in z .* no running machine"):
        group([{}]).cluster_spec()


def test_groups_as_one_cluster():
    workers, more = group([{"a": "10.1.2.3"}]), group([{"b": "10.4.5.6"}], 2222, task_type="ps")
    assert UnionResolver(workers, more).cluster_spec() == {
        "worker": ["10.1.2.3:8470"],
        "ps": ["10.4.5.6:2222"],
    }


def test_connecting_to_compute_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "googleapiclient", None)
    with pytest.raises(ImportError, match="google-api-python-client"):
        GCEClusterResolver("p", "z", "g", 1)
    built = []
    discovery = Object(build=lambda *names, **options: built.append((*names, options)))
    monkeypatch.setitem(sys.modules, "googleapiclient", Object(discovery=discovery))
    GCEClusterResolver("p", "z", "g", 1)
    GCEClusterResolver("p", "z", "g", 1, credentials="mine")
    assert built == [("compute", "v1", {}), ("compute", "v1", {"credentials": "mine"})]
