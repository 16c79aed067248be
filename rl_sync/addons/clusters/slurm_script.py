"""Renders a run as a batch script of Slurm."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_sync.addons.clusters.cluster_job import MAKE_SECRET, ClusterJob, Rendered, rendered_text
from rl_sync.addons.clusters.memory_note import memory_note
from rl_sync.addons.clusters.node_placement import (
    Node,
    NodeRoom,
    PlacedProcess,
    check_count,
    fill,
)
from rl_sync.role_names import TRAINER
from rl_sync.roles.exit_status import MACHINE_LOST
from rl_sync.settings.records import ConfigError

_TIME = "24:00:00"
_TIMES = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}|UNLIMITED|INFINITE")


class JobComponent(NamedTuple):
    """Nodes of one partition; a heterogeneous job has two components.

    Attributes:
      partition: its partition; None for the cluster's default.
      nodes: its nodes, with the processes on each.
      suffix: end of the names of its variables of Slurm; empty unless there are two components.
      gpus: GPUs of each node; None on CPUs.
    """

    partition: str | None
    nodes: Sequence[Node]
    suffix: str
    gpus: int | None


def render_slurm(job: ClusterJob) -> Rendered:
    """Writes a batch script that starts the launcher, and a step for each process.

    Raises:
      ConfigError: the processes do not fit the nodes, or the config is invalid.
    """
    components = _components(job)
    settings = job.joined()
    container, address = _container(job), _address(components)
    launch, stop, ready = job.program, 'kill -TERM "$launcher"', list[str]()
    if container:
        launch, stop, ready = _contained(job, components, 1 if len(address) > 1 else 0)
    file = f"{job.name}.sbatch"
    text = rendered_text(
        "run.sbatch",
        file=file,
        name=job.name,
        options=[*_options(job, components)],
        memory=memory_note(settings, "gpu" if components[0].gpus else "cpu"),
        preparation=[*_preparation(job)],
        directory=job.directory,
        workdir=job.workdir,
        port=job.port,
        make_secret=MAKE_SECRET,
        node_lists=[
            (f"nodes_{number}", f"SLURM_JOB_NODELIST{component.suffix}")
            for number, component in enumerate(components)
        ],
        cores=[
            (f"cores_{number}", f"SLURM_JOB_CPUS_PER_NODE{component.suffix}")
            for number, component in enumerate(components)
            if max(map(len, component.nodes)) > 1
        ],
        address=address,
        launch=launch,
        words=[f"--config={job.config}", *job.changes],
        hosts=job.all_joining,
        stop=stop,
        ready=ready,
        container=container,
        lost=MACHINE_LOST,
        program=job.program,
        steps=[*_steps(components)],
    )
    return Rendered({file: text}, ["sbatch {0}"])


def _contained(
    job: ClusterJob, components: Sequence[JobComponent], step: int
) -> tuple[str, str, list[str]]:
    """Returns the commands that start a launcher in a container, have it save, and await it.

    Args:
      step: number of its step.
    """
    first = '"${nodes_0[0]}"'
    group = " --het-group=0" if components[0].suffix else ""
    launch = (
        f"srun{group} --overlap --mem=0 --nodes=1 --ntasks=1 --nodelist={first} \\\n"
        f'  "${{container[@]}}" {job.program}'
    )
    # srun answers SIGTERM by killing its step at once.
    stop = f'scancel --signal=TERM "$SLURM_JOB_ID.{step}"'
    ready = [
        f"# The launcher's step has number {step}, by which it is told to save.",
        f'until scontrol show step "$SLURM_JOB_ID.{step}" > /dev/null 2>&1; do',
        '  kill -0 "$launcher" 2> /dev/null || break # It has failed to start.',
        "  sleep 1",
        "done",
    ]
    return launch, stop, ready


def _components(job: ClusterJob) -> list[JobComponent]:
    flags, processes = job.flags, job.processes
    own, gpus = flags.get("trainer-partition"), flags.get("gpus-per-node")
    trainer_gpus = flags.get("trainer-gpus-per-node", gpus)
    if trainer_gpus != gpus and own is None:
        raise ConfigError(
            f"--trainer-gpus-per-node={trainer_gpus} is for a partition of the trainer's own: name"
            " it by --trainer-partition, or leave this flag out."
        )
    trainer = [one for one in processes if one.program == TRAINER]
    explorers = [one for one in processes if one.program != TRAINER]
    apart = own is not None and bool(explorers)
    parts: list[list[PlacedProcess]] = [trainer, explorers] if apart else [processes]
    rooms = [_room(flags, count) for count in (trainer_gpus, gpus)]
    filled = [fill(part, room, room) for part, room in zip(parts, rooms, strict=False)]
    if "nodes" in flags:
        text = f"--nodes={flags['nodes']}"
        if not flags["nodes"].isdigit():
            raise ConfigError(f"{text} must be the number of nodes, such as --nodes=4.")
        check_count([node for nodes in filled for node in nodes], int(flags["nodes"]), text)
    partition = flags.get("partition")
    if not apart:
        return [JobComponent(own or partition, filled[0], "", trainer_gpus)]
    return [
        JobComponent(own, filled[0], "_HET_GROUP_0", trainer_gpus),
        JobComponent(partition, filled[1], "_HET_GROUP_1", gpus),
    ]


def _room(flags: Mapping[str, Any], gpus: int | None) -> NodeRoom:
    room = NodeRoom(gpus, flags.get("processes-per-node"))
    # Processes on CPUs would share a node's cores.
    return NodeRoom(processes=1) if room == NodeRoom() else room


def _time(text: str) -> str:
    """Returns a time limit that Slurm understands.

    Raises:
      ConfigError: it is none.
    """
    if _TIMES.fullmatch(text) is None:
        raise ConfigError(
            f"--time={text} is no time limit of Slurm: give minutes, HOURS:MINUTES:SECONDS or"
            " DAYS-HOURS, such as --time=12:00:00 or --time=2-0."
        )
    return text


def _options(job: ClusterJob, components: Sequence[JobComponent]) -> Iterator[str]:
    """Yields the options of sbatch."""
    yield f"--job-name={job.name}"
    yield f"--output={job.name}-%j.log"
    yield "--open-mode=append"
    yield f"--time={_time(job.flags.get('time', _TIME))}"
    if "account" in job.flags:
        yield f"--account={shlex.quote(job.flags['account'])}"
    yield "--requeue"
    if sum(len(component.nodes) for component in components) > 1:
        yield "--no-kill"
    yield "--signal=B:USR1@120"
    for number, component in enumerate(components):
        if number:
            yield "hetjob"
        if component.partition is not None:
            yield f"--partition={shlex.quote(component.partition)}"
        yield f"--nodes={len(component.nodes)}"
        yield "--exclusive"
        yield "--mem=0"
        if component.gpus:
            yield f"--gpus-per-node={component.gpus}"


def _preparation(job: ClusterJob) -> Iterator[str]:
    """Yields the commands that make Python and the libraries of devices available."""
    if modules := job.flags.get("modules"):
        yield f"module load {shlex.join(modules.replace(',', ' ').split())}"
    if given := job.flags.get("environment"):
        path = Path(given).absolute()
        is_script = path.is_file() or path.suffix == ".sh"
        yield f"source {shlex.quote(str(path if is_script else path / 'bin' / 'activate'))}"


def _address(components: Sequence[JobComponent]) -> list[str]:
    """Returns the commands that find the first node's address.

    A node's name may mean its loopback interface on the node itself, and a node may have several
    networks, or no default route. So another node is asked.
    """
    if sum(len(component.nodes) for component in components) == 1:
        return ["host=127.0.0.1"]
    number, last = len(components) - 1, components[-1]
    group = f"--het-group={number} " if last.suffix else ""
    other = f'"${{nodes_{number}[{len(last.nodes) - 1}]}}"'
    return [
        "# The first node's address, as another node knows it.",
        f"host=$(srun {group}--overlap --mem=0 --nodes=1 --ntasks=1 --nodelist={other} \\",
        "  getent ahosts \"${nodes_0[0]}\" | awk 'NR == 1 { print $1 }')",
    ]


def _container(job: ClusterJob) -> list[str]:
    """Returns the options of srun that start a container, by pyxis."""
    if "container-image" not in job.flags:
        return []
    places = dict.fromkeys([job.directory, job.workdir.parent])
    mounts = ",".join(f"{place}:{place}" for place in places)
    return [
        f"--container-image={job.flags['container-image']}",
        f"--container-mounts={mounts}",
        f"--container-workdir={job.directory}",
    ]


def _steps(components: Sequence[JobComponent]) -> Iterator[str]:
    """Yields the process and the options of srun of each step.

    Steps with `--overlap` may get the same GPUs, so processes that share a node get theirs by
    `--exact`, with an equal part of its cores.
    """
    for number, component in enumerate(components):
        group = f"--het-group={number} " if component.suffix else ""
        for index, node in enumerate(component.nodes):
            share = "--overlap"
            if len(node) > 1:
                share = f"--exact --cpus-per-task=$((cores_{number} / {len(node)}))"
            for one in node:
                gres = f" --gres=gpu:{one.devices}" if component.gpus else ""
                where = f'--nodelist="${{nodes_{number}[{index}]}}"'
                yield f"{one.name} {group}{where} {share}{gres}"
