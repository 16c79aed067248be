"""Renders a run as a JobSet of Kubernetes, and the Dockerfile of its image."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from rl_sync.addons.clusters.cluster_job import (
    MAKE_SECRET,
    SECRET,
    ClusterJob,
    Rendered,
    rendered_text,
)
from rl_sync.addons.clusters.memory_note import memory_note
from rl_sync.addons.clusters.node_placement import PlacedProcess, by_program
from rl_sync.models.platform import Platform
from rl_sync.role_names import TRAINER
from rl_sync.settings.records import ConfigError

_MASTER, _EXPLORER = "master", "explorer"
_MOUNT = "/runs"
_MISTAKE = 2  # Exit status of the launcher for a mistake, which a restart does not mend.
_MOST_CHIPS = 8  # Of a TPU host.
_POOL = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
_EXTRAS: Mapping[Platform, str] = {"gpu": "cuda,gcs", "tpu": "tpu,gcs", "cpu": "gcs"}


@dataclasses.dataclass(frozen=True)
class PodGroup:
    """A replicated job whose pods join the run.

    Attributes:
      name: its name.
      replicas: number of programs.
      processes: number of processes of each program, which are its pods.
      process: name of a pod's process, as an expression of the shell.
      annotations: annotations of its jobs.
      selector: labels of the nodes that it needs.
      resources: devices of each pod.
      stores: whether the pods need the volume of the work directory.
    """

    name: str
    replicas: int
    processes: int
    process: str
    annotations: Mapping[str, str]
    selector: Mapping[str, str]
    resources: Mapping[str, Any]
    stores: bool


def render_jobset(job: ClusterJob) -> Rendered:
    """Writes a JobSet with the replicated jobs master, trainer and explorer, and a Dockerfile.

    Raises:
      ConfigError: a flag is missing, or the programs do not fit the accelerators.
    """
    flags, config = job.flags, job.config_inside()
    _require(job)
    accelerator = flags.get("accelerator")
    platform = _platform(accelerator)
    topologies = _topologies(job, platform)
    groups = _groups(job, platform, accelerator, topologies)
    settings = job.joined()
    names = [group.name for group in groups]
    file = f"{job.name}.jobset.yaml"
    labels = {"kueue.x-k8s.io/queue-name": flags["queue"]} if "queue" in flags else {}
    manifest = rendered_text(
        "run.jobset.yaml",
        file=file,
        name=job.name,
        labels=labels,
        memory=memory_note(settings, platform),
        rules=[*_rules(names)],
        image=flags["image"],
        secret_object=f"{job.name}-secret",
        secret=SECRET,
        claim=flags["volume-claim"],
        mount=_MOUNT,
        workdir=f"{_MOUNT}/{job.name}",
        port=job.port,
        words=[f"--config={config}", *job.changes],
        hosts=job.all_joining,
        mistake=_MISTAKE,
        groups=groups,
    )
    dockerfile = rendered_text(
        "Dockerfile",
        image=flags["image"],
        package=f"{'.' if job.in_clone else 'rl_sync'}[{_EXTRAS[platform]}]",
    )
    make_secret = (
        f"python3 -c '{MAKE_SECRET}' | tr -d '\\n' | kubectl create secret generic"
        f" {job.name}-secret --from-file={SECRET}=/dev/stdin"
    )
    image = f"docker build -t {flags['image']} -f {{1}} . && docker push {flags['image']}"
    files = {file: manifest, "Dockerfile": dockerfile}
    return Rendered(files, [image, make_secret, "kubectl apply --server-side -f {0}"])


def _require(job: ClusterJob) -> None:
    if "image" not in job.flags:
        raise ConfigError(
            "--to=jobset needs --image=REGISTRY/NAME:TAG, a container image with rl_sync that the"
            " cluster can pull. `render` writes a Dockerfile for it: docker build -t"
            " REGISTRY/NAME:TAG . && docker push REGISTRY/NAME:TAG"
        )
    if "volume-claim" not in job.flags:
        raise ConfigError(
            "--to=jobset needs --volume-claim=NAME, a PersistentVolumeClaim (ReadWriteMany) for the"
            " work directory, which the master and the trainer share; `kubectl get pvc` lists them."
        )


def _platform(accelerator: str | None) -> Platform:
    if accelerator is None:
        return "cpu"
    return "tpu" if accelerator.startswith("tpu") else "gpu"


def _topologies(job: ClusterJob, platform: Platform) -> dict[str, str]:
    """Returns the topology of the TPU slice of each kind of program; empty for other devices."""
    given = job.flags.get("topology")
    if (platform == "tpu") != (given is not None):
        raise ConfigError(
            f"--topology={given} is for TPUs: give --accelerator, such as tpu-v5-lite-podslice."
            if given
            else f"--accelerator={job.flags['accelerator']} needs --topology, such as 2x4, or"
            " trainer:4x4,explorer:2x4."
        )
    if given is None:
        return {}
    parts = [part.strip().rpartition(":")[::2] for part in given.split(",")]
    found = {role: shape for name, shape in parts for role in ([name] if name else _ROLES)}
    valid = all(re.fullmatch(r"\d+(x\d+){1,2}", shape) for shape in found.values())
    if not valid or {*found} != {*_ROLES} or len(parts) > len(_ROLES):
        raise ConfigError(
            f"--topology={given} must be the chips along each axis of a slice, such as 2x4, or"
            " trainer:4x4,explorer:2x4."
        )
    return found


_ROLES = (TRAINER, _EXPLORER)


def _groups(
    job: ClusterJob, platform: Platform, accelerator: str | None, topologies: Mapping[str, str]
) -> list[PodGroup]:
    programs = dict(by_program(job.processes))
    explorers = [of for program, of in programs.items() if program != TRAINER]
    kinds: list[tuple[str, int, list[PlacedProcess], str]] = [
        (TRAINER, 1, programs[TRAINER], "trainer${index:+/$index}")
    ]
    if explorers:
        expression = "explorer$((JOB_INDEX + 1))${index:+/$index}"
        kinds.append((_EXPLORER, len(explorers), explorers[0], expression))
    groups = []
    for kind, replicas, processes, expression in kinds:
        share = processes[0].devices
        selector, resources = {}, {}
        if platform == "tpu":
            _check_slice(kind, processes, topologies[kind])
            selector = {
                "cloud.google.com/gke-tpu-accelerator": str(accelerator),
                "cloud.google.com/gke-tpu-topology": topologies[kind],
            }
            resources = {"limits": {"google.com/tpu": share}}
        elif platform == "gpu":
            selector = {"cloud.google.com/gke-accelerator": str(accelerator)}
            resources = {"limits": {"nvidia.com/gpu": share}}
        groups.append(
            PodGroup(
                name=kind,
                replicas=replicas,
                processes=len(processes),
                process=expression,
                annotations=_POOL if platform == "tpu" and len(processes) > 1 else {},
                selector=selector,
                resources=resources,
                stores=kind == TRAINER,
            )
        )
    return groups


def _check_slice(kind: str, processes: list[PlacedProcess], topology: str) -> None:
    """Checks that a program takes all chips of its slice, by one process on each host."""
    chips, share = math.prod(map(int, topology.split("x"))), processes[0].devices
    if chips != share * len(processes):
        raise ConfigError(
            f"--topology={topology} is a slice of {chips} chips, and {kind}.mesh takes"
            f" {share * len(processes)}: a program must take its whole slice. Change {kind}.mesh,"
            " or give each role its own slice, as in --topology=trainer:4x4,explorer:2x4."
        )
    if share > _MOST_CHIPS:
        raise ConfigError(
            f"{kind}.processes={len(processes)} gives each process {share} chips, and a TPU"
            f" host has at most {_MOST_CHIPS}: set {kind}.processes to the number of the slice's"
            " hosts."
        )


def _rules(names: list[str]) -> list[dict[str, Any]]:
    """Returns the rules on failures; the first that fits a failure counts."""
    mistake = {
        "name": "mistake",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
        "targetReplicatedJobs": [_MASTER],
    }
    explorers = {
        "name": "explorer",
        "action": "RestartJob",
        "targetReplicatedJobs": [_EXPLORER],
    }
    rest = {
        "name": "others",
        "action": "RestartJobSet",
        "targetReplicatedJobs": [_MASTER, TRAINER],
    }
    return [mistake, *([explorers] if _EXPLORER in names else []), rest]
