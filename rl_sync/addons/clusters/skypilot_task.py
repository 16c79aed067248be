"""Renders a run as a task of SkyPilot."""

from __future__ import annotations

from rl_sync.addons.clusters.cluster_job import MAKE_SECRET, ClusterJob, Rendered, rendered_text
from rl_sync.addons.clusters.cluster_job import SECRET as SECRET_NAME
from rl_sync.addons.clusters.memory_note import memory_note
from rl_sync.addons.clusters.node_placement import Node, NodeRoom, check_count, fill
from rl_sync.settings.records import ConfigError

_WORKDIR = "~/rl_sync_runs"


def render_skypilot(job: ClusterJob) -> Rendered:
    """Writes a task whose first node runs the launcher; every node joins with its processes.

    Raises:
      ConfigError: the processes do not fit the nodes, or the config is invalid.
    """
    flags, config = job.flags, job.config_inside()
    accelerator, gpus = _accelerator(flags.get("accelerator"))
    most = flags.get("processes-per-node")
    room = NodeRoom(gpus, most if gpus or most else 1)
    nodes = fill(job.processes, room, room)
    if "nodes" in flags:
        text = f"--nodes={flags['nodes']}"
        if not flags["nodes"].isdigit():
            raise ConfigError(f"{text} must be the number of nodes, such as --nodes=4.")
        check_count(nodes, int(flags["nodes"]), text)
    settings = job.joined()
    file = f"{job.name}.sky.yaml"
    extra = "" if gpus is None else "[cuda]"
    text = rendered_text(
        "run.sky.yaml",
        file=file,
        name=job.name,
        secret=SECRET_NAME,
        memory=memory_note(settings, "gpu" if gpus else "cpu"),
        count=len(nodes),
        resources={"accelerators": accelerator} if accelerator else {},
        package=f"-e '.{extra}'" if job.in_clone else f"'rl_sync{extra}'",
        workdir=f"{_WORKDIR}/{job.name}",
        port=job.port,
        program=job.program,
        words=[f"--config={config}", *job.changes],
        hosts=job.all_joining,
        ranks=[_starts(node, gpus) for node in nodes],
    )
    secret = f"export {SECRET_NAME}=$(python3 -c '{MAKE_SECRET}')"
    return Rendered({file: text}, [secret, f"sky launch --secret {SECRET_NAME} {{0}}"])


def _accelerator(given: str | None) -> tuple[str | None, int | None]:
    """Reads the accelerators of a node, such as `H100:8`."""
    if given is None:
        return None, None
    name, _, count = given.partition(":")
    if not name or not (count or "1").isdigit() or name.lower().startswith("tpu"):
        raise ConfigError(
            f"--accelerator={given} must be GPUs of a node as SkyPilot names them, such as H100:8"
            " (TPUs: --to=jobset)."
        )
    return given, int(count or 1)


def _starts(node: Node, gpus: int | None) -> list[str]:
    """Returns the commands that start a node's processes, each with GPUs of its own."""
    commands, first = [], 0
    for one in node:
        alone = gpus is None or len(node) == 1
        ids = ",".join(map(str, range(first, first + one.devices)))
        commands.append(f"{'' if alone else f'CUDA_VISIBLE_DEVICES={ids} '}join {one.name} &")
        first += one.devices
    return commands
