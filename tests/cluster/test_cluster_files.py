"""The files of examples/cluster: the workers that they start find each other."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from replicax.cluster import JAXClusterResolver, SlurmClusterResolver, detect_cluster

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pod_environment(container, index):
    """The variables of a pod, as Kubernetes resolves them."""
    variables = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": str(index)}
    for entry in container["env"]:
        if "value" in entry:
            variables[entry["name"]] = entry["value"]
        else:
            assert entry["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
            variables[entry["name"]] = str(index)
    assert all(isinstance(value, str) for value in variables.values()), "Kubernetes takes strings only"
    return variables


def check_job(job, first_pod, monkeypatch):
    """All pods of the Job find the first one."""
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 4
    [container] = spec["template"]["spec"]["containers"]
    for index in range(4):
        for name, value in pod_environment(container, index).items():
            monkeypatch.setenv(name, value)
        resolver = detect_cluster()
        assert type(resolver) is JAXClusterResolver and resolver.task_id == index
        assert resolver.cluster_spec().num_tasks("worker") == 4
        assert resolver.master() == f"{first_pod}:{container['ports'][0]['containerPort']}"


def test_an_indexed_job_with_its_service(monkeypatch):
    service, job = documents("kubernetes-job.yaml")
    name, domain = job["metadata"]["name"], job["spec"]["template"]["spec"]["subdomain"]
    assert (service["kind"], service["metadata"]["name"]) == ("Service", domain)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    check_job(job, f"{name}-0.{domain}", monkeypatch)


def test_a_job_set(monkeypatch):
    [job_set] = documents("kubernetes-jobset.yaml")
    assert (job_set["apiVersion"], job_set["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert job_set["spec"]["network"]["enableDNSHostnames"]
    [job] = job_set["spec"]["replicatedJobs"]
    assert job["replicas"] == 1
    name = job_set["metadata"]["name"]
    check_job(job["template"], f"{name}-{job['name']}-0-0.{name}", monkeypatch)


def test_a_train_job(monkeypatch):
    [job] = documents("kubeflow-trainjob.yaml")
    assert job["kind"] == "TrainJob" and job["spec"]["runtimeRef"]["name"] == "jax-distributed"
    workers, name = job["spec"]["trainer"]["numNodes"], job["metadata"]["name"]
    # What the runtime sets.
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", f"{name}-node-0-0.{name}:29500")
    monkeypatch.setenv("JAX_NUM_PROCESSES", str(workers))
    monkeypatch.setenv("JAX_PROCESS_ID", str(workers - 1))
    resolver = detect_cluster()
    assert resolver is not None and resolver.task_id == 3


def test_the_batch_script(monkeypatch):
    script = FOLDER / "slurm.sbatch"
    subprocess.run(["bash", "-n", script], check=True, timeout=60)
    text = script.read_text()
    assert text.startswith("#!/bin/bash\n")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE))
    nodes, per_node = int(options["nodes"]), int(options["ntasks-per-node"])
    last_option = max(match.start() for match in re.finditer("^#SBATCH", text, re.MULTILINE))
    assert last_option < text.index("set -euo"), "Slurm stops reading options at the first command"
    variables = {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        "SLURM_STEP_NODELIST": f"node[1-{nodes}]",
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{nodes})",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    resolver = detect_cluster()
    assert type(resolver) is SlurmClusterResolver and resolver.task_id == 1
    assert resolver.cluster_spec() == {"worker": ["node1:8888", "node2:8888"]}


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_the_readme_lists_every_file(path):
    assert path.name == "README.md" or f"[`{path.name}`]({path.name})" in (FOLDER / "README.md").read_text()
