"""Resolvers in the environments of launchers, as those launchers make them.

The variables of Open MPI are recorded from versions 4.1.8 and 5.0.11.
"""

import os
import sys
from types import SimpleNamespace as Object

import pytest

from replicax.cluster import (
    JAXClusterResolver,
    KubernetesJobClusterResolver,
    OpenMPIClusterResolver,
    RayTrainClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TorchrunClusterResolver,
    detect_cluster,
    find_place,
)
from replicax.errors import BackendStartedError, ClusterError, NotInClusterError

OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "2105606144.0;tcp://192.0.2.2:38459;tcp6://[fd00::2]:36465",
    "PMIX_NAMESPACE": "2105606145",
}
OPEN_MPI_5 = {
    **OPEN_MPI_4,
    "OMPI_MCA_num_procs": "4",
    "OMPI_VERSION": "5.0.11",
    "PMIX_NAMESPACE": "prterun-login-node-3571@1",
}
del OPEN_MPI_5["OMPI_MCA_orte_hnp_uri"]
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
KUBEFLOW = {
    "JAX_COORDINATOR_ADDRESS": "mnist-node-0-0.mnist:29500",
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "3",
}
JAX_JOB = {
    "COORDINATOR_ADDRESS": "mnist-worker-0",
    "COORDINATOR_PORT": "6666",
    "NUM_PROCESSES": "4",
    "PROCESS_ID": "3",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"}


@pytest.fixture
def environment(monkeypatch):
    """Sets the variables, and removes those of all launchers."""
    known = [*OPEN_MPI_4, *OPEN_MPI_5, *TORCHRUN, *KUBEFLOW, *JAX_JOB, *SLURM, *POD]
    for name in [*known, "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "JAX_COORDINATOR_PORT"]:
        monkeypatch.delenv(name, raising=False)

    def write(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return write


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    """Makes the host have GPUs, before JAX starts."""
    monkeypatch.setattr("replicax.cluster._gpus._DEVICE_FILES", tmp_path)
    monkeypatch.setattr("replicax.cluster._gpus.backends_are_initialized", lambda: False)

    def install(number):
        for i in range(number):
            (tmp_path / f"nvidia{i}").touch()
        (tmp_path / "nvidia-uvm").touch()

    yield install
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)


@pytest.mark.parametrize(
    ("variables", "resolver", "coordinator"),
    [
        (OPEN_MPI_4, OpenMPIClusterResolver, "192.0.2.2:63504"),
        (OPEN_MPI_5, OpenMPIClusterResolver, "login-node:65011"),
        ({**OPEN_MPI_5, "JAX_COORDINATOR_PORT": "7000"}, OpenMPIClusterResolver, "login-node:7000"),
        ({**OPEN_MPI_4, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, OpenMPIClusterResolver, "127.0.0.1:63504"),
        (TORCHRUN, TorchrunClusterResolver, "node1:29501"),
        ({**TORCHRUN, "MASTER_ADDR": "fd00::2"}, TorchrunClusterResolver, "[fd00::2]:29501"),
        (KUBEFLOW, JAXClusterResolver, "mnist-node-0-0.mnist:29500"),
        ({**KUBEFLOW, "JAX_COORDINATOR_ADDRESS": "n0"}, JAXClusterResolver, "n0:8476"),
        (JAX_JOB, JAXClusterResolver, "mnist-worker-0:6666"),
    ],
)
def test_the_fourth_of_four_workers(environment, variables, resolver, coordinator):
    environment(variables)
    found = detect_cluster(auto_set_gpu=False)
    assert type(found) is resolver
    assert found.cluster_spec() == {"worker": [coordinator, *["unknown"] * 3]}
    assert (found.task_type, found.task_id, found.master()) == ("worker", 3, coordinator)
    assert found.master("worker", 0, rpc_layer="grpc") == f"grpc://{coordinator}"
    place = find_place(found)
    assert place is not None
    assert (place.process_id, place.tasks[0].address, str(place.own)) == (
        3,
        coordinator,
        "worker 3 (unknown)",
    )


def test_slurm_is_detected_in_a_step_of_several_tasks_only(environment):
    assert detect_cluster() is None
    environment(SLURM)
    assert type(detect_cluster()) is SlurmClusterResolver
    environment({"SLURM_STEP_NUM_TASKS": "1"})
    assert detect_cluster() is None
    del os.environ["SLURM_STEP_NUM_TASKS"]  # as in a batch script outside of `srun`
    assert detect_cluster() is None


def test_variables_that_may_mean_anything_are_not_a_cluster(environment):
    environment({name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")})
    environment({"OMPI_COMM_WORLD_SIZE": "1", "PROCESS_ID": "3", **POD})
    assert detect_cluster() is None
    assert TorchrunClusterResolver().master() == "node1:29500"


def test_inner_launchers_come_first(environment):
    nested = [
        (SLURM, SlurmClusterResolver),
        (OPEN_MPI_5, OpenMPIClusterResolver),
        (TORCHRUN, TorchrunClusterResolver),
        (KUBEFLOW, JAXClusterResolver),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, TFConfigClusterResolver),
    ]
    for variables, resolver in nested:
        environment(variables)
        assert type(detect_cluster(auto_set_gpu=False)) is resolver


def test_a_program_that_has_joined_its_processes_is_left_alone(environment, monkeypatch):
    environment(SLURM)
    monkeypatch.setattr("jax.distributed.is_initialized", lambda: True)
    assert detect_cluster() is None


def test_a_task_of_ray_inherits_the_variables_of_rays_own_process(environment, monkeypatch):
    environment({**SLURM, **OPEN_MPI_5, **TORCHRUN})
    monkeypatch.setattr("replicax.cluster._detect.runs_in_ray_worker", lambda: True)
    assert detect_cluster() is None


@pytest.mark.parametrize(
    ("resolver", "variables", "missing"),
    [
        (TorchrunClusterResolver, TORCHRUN, ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]),
        (JAXClusterResolver, KUBEFLOW, list(KUBEFLOW)),
        (OpenMPIClusterResolver, OPEN_MPI_4, list(OPEN_MPI_4)[:4]),
    ],
)
def test_missing_variables_are_named(environment, monkeypatch, resolver, variables, missing):
    for name in missing:
        environment(variables)
        monkeypatch.delenv(name)
        with pytest.raises(NotInClusterError, match=f"{name} is not set: "):
            resolver()


def test_wrong_numbers(environment):
    environment({**TORCHRUN, "RANK": "4"})
    with pytest.raises(ClusterError, match="has the index 4, but there are only 4 processes"):
        TorchrunClusterResolver()
    environment({"RANK": "first"})
    with pytest.raises(ClusterError, match="RANK must be a number, 0 or more; it is 'first'"):
        TorchrunClusterResolver()


def test_open_mpi_without_the_host_of_mpirun(environment):
    environment({**OPEN_MPI_5, "PMIX_NAMESPACE": "7"})
    with pytest.raises(ClusterError, match=r"Pass OpenMPIClusterResolver\(coordinator="):
        OpenMPIClusterResolver()
    assert OpenMPIClusterResolver("node7:1").master() == "node7:1"


def test_ray_train_needs_a_worker():
    with pytest.raises(NotInClusterError, match=r"integrations\.ray\.run"):
        RayTrainClusterResolver()


# GPUs


@pytest.mark.parametrize(
    ("variables", "resolver"), [(TORCHRUN, TorchrunClusterResolver), (OPEN_MPI_4, OpenMPIClusterResolver)]
)
@pytest.mark.parametrize(
    ("present", "shown", "seen"),
    [(0, None, None), (8, None, "4,5,6,7"), (2, None, "1"), (8, "6,7", "7"), (8, "5", "5"), (8, "", "")],
)
def test_processes_of_a_host_share_its_gpus(environment, gpus, variables, resolver, present, shown, seen):
    gpus(present)
    environment({**variables, **({} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})})
    resolver()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen


def test_gpus_that_do_not_divide(environment, gpus):
    gpus(3)
    environment(TORCHRUN)
    with pytest.raises(
        ClusterError, match=r"divide the 3 GPUs of this host, 0, 1, 2, evenly between its 2"
    ):
        TorchrunClusterResolver()
    TorchrunClusterResolver(auto_set_gpu=False)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_gpus_are_chosen_before_jax_starts(environment, gpus, monkeypatch):
    gpus(2)
    environment(TORCHRUN)
    monkeypatch.setattr("replicax.cluster._gpus.backends_are_initialized", lambda: True)
    with pytest.raises(BackendStartedError, match="TorchrunClusterResolver chooses the GPUs"):
        TorchrunClusterResolver()


# Kubernetes Jobs


def test_the_pods_of_a_job(environment, monkeypatch):
    environment(POD)
    name = "mnist-workers-0-3.mnist.ml.svc.cluster.local"  # of a JobSet: jobset, job, its index, the pod's
    monkeypatch.setattr("socket.getfqdn", lambda: name)
    resolver = KubernetesJobClusterResolver(num_workers=4, port=1234)
    assert resolver.cluster_spec().task_address("worker", 0) == name.replace("-3.", "-0.") + ":1234"
    assert resolver.cluster_spec().task_address("worker", 3) == name + ":1234"
    assert resolver.task_id == 3
    with pytest.raises(ClusterError, match="index 3, but there are only 2"):
        KubernetesJobClusterResolver(num_workers=2)


@pytest.mark.parametrize("name", ["mnist-3", "mnist-2.workers.ml.svc", "pod.workers"])
def test_a_pod_without_a_name(environment, monkeypatch, name):
    environment(POD)
    monkeypatch.setattr("socket.getfqdn", lambda: name)
    with pytest.raises(ClusterError, match=r"headless Service .*`subdomain`"):
        KubernetesJobClusterResolver(num_workers=4)


def test_not_a_pod_of_an_indexed_job(environment):
    with pytest.raises(NotInClusterError, match="does not run in a Kubernetes pod"):
        KubernetesJobClusterResolver(2)
    environment({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    with pytest.raises(NotInClusterError, match="completionMode: Indexed"):
        KubernetesJobClusterResolver(2)


def test_kubernetes_knows_the_number_of_pods(environment, monkeypatch):
    environment(POD)
    with pytest.raises(ClusterError, match=r"Pass num_workers.*'jax\[k8s\]'"):
        KubernetesJobClusterResolver()
    monkeypatch.setattr(
        "replicax.cluster._kubernetes_job.detect_kubernetes_job", lambda port: (f"a:{port}", 4)
    )
    assert KubernetesJobClusterResolver(port=5).cluster_spec() == {"worker": ["a:5", *["unknown"] * 3]}

    def refuse(port):
        raise RuntimeError("Kubernetes API Error: 403 - Forbidden")

    monkeypatch.setattr("replicax.cluster._kubernetes_job.detect_kubernetes_job", refuse)
    with pytest.raises(ClusterError, match=r"403 - Forbidden\nPass num_workers"):
        KubernetesJobClusterResolver()


# Ray Train


@pytest.fixture
def ray_train(monkeypatch):
    """Makes this process a worker of Ray Train; what rank 0 sends is in the list."""
    sent = []

    def start(rank, num_local, task="task"):
        context = Object(
            get_world_rank=lambda: rank, get_world_size=lambda: 2, get_local_world_size=lambda: num_local
        )
        runtime = Object(get_task_id=lambda: task, get_actor_id=lambda: None)
        ray = Object(
            is_initialized=lambda: True,
            get_runtime_context=lambda: runtime,
            util=Object(get_node_ip_address=lambda: "127.0.0.2"),
        )
        collective = Object(broadcast_from_rank_zero=lambda data: sent.append(data) or sent[0])
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.train", Object(get_context=lambda: context))
        monkeypatch.setitem(sys.modules, "ray.train.collective", collective)
        return sent

    return start


@pytest.mark.parametrize(("num_local", "host"), [(2, "127.0.0.1"), (1, "127.0.0.2")])
def test_workers_of_ray_train_agree_on_an_address(environment, ray_train, num_local, host):
    environment(SLURM)  # inherited from the process that started Ray
    sent = ray_train(0, num_local)
    first = detect_cluster()
    assert type(first) is RayTrainClusterResolver
    ray_train(1, num_local)
    second = detect_cluster()
    assert second is not None and (first.task_id, second.task_id) == (0, 1)
    assert first.cluster_spec() == second.cluster_spec() == {"worker": [sent[0], "unknown"]}
    assert sent[0].startswith(f"{host}:") and sent[1] is None


def test_a_driver_is_not_a_worker_of_ray(environment, ray_train):
    environment(SLURM)
    ray_train(0, 2, task=None)
    assert type(detect_cluster()) is SlurmClusterResolver


def test_the_old_ray_train_has_no_messages(environment, ray_train, monkeypatch):
    ray_train(0, 2)
    monkeypatch.setitem(sys.modules, "ray.train.collective", None)
    with pytest.raises(ClusterError, match="RAY_TRAIN_V2_ENABLED=1"):
        RayTrainClusterResolver()
