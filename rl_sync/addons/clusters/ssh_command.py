"""Renders a run on machines that the launcher reaches over ssh, as a shell command."""

from __future__ import annotations

import shlex

from rl_sync.addons.clusters.cluster_job import ClusterJob, Rendered, rendered_text
from rl_sync.addons.clusters.memory_note import memory_note
from rl_sync.addons.clusters.node_placement import NodeRoom, check_count, fill
from rl_sync.settings.records import ConfigError


def render_hosts(job: ClusterJob) -> Rendered:
    """Writes a command that starts the launcher with `launch.hosts`.

    Raises:
      ConfigError: the processes do not fit the machines, or the config is invalid.
    """
    flags = job.flags
    if "nodes" not in flags:
        raise ConfigError(
            "--to=hosts needs --nodes=ADDRESS,ADDRESS,…: the machines, with the launcher's first."
        )
    addresses = [one.strip() for one in flags["nodes"].split(",")]
    twice = next((one for one in addresses if addresses.count(one) > 1), None)
    if "" in addresses or twice:
        raise ConfigError(
            f"--nodes={flags['nodes']} must be different addresses, such as 10.0.0.1,10.0.0.2."
        )
    gpus, most = flags.get("gpus-per-node"), flags.get("processes-per-node")
    # A process that is started over ssh sees all GPUs of its machine. The launcher shares out
    # those of its own.
    first = NodeRoom(gpus, most if gpus or most else 1)
    nodes = fill(job.processes, first, NodeRoom(gpus, 1 if gpus else most or 1))
    alone = (
        "as a process that ssh starts sees all GPUs of its machine, and so has it alone; or lower"
        " explorer.count, trainer.processes or explorer.processes"
    )
    check_count(nodes, len(addresses), f"--nodes={flags['nodes']}", *([alone] if gpus else []))
    elsewhere = {
        one.name: address
        for address, node in zip(addresses[1:], nodes[1:], strict=True)
        for one in node
    }
    settings = job.settings(addresses[0], elsewhere)
    file = f"{job.name}.hosts.sh"
    visible = [",".join(map(str, range(gpus)))] if gpus and len(nodes[0]) > 1 else []
    words = job.starting_words(addresses[0], elsewhere)
    text = rendered_text(
        "run.hosts.sh",
        file=file,
        name=job.name,
        host=addresses[0],
        memory=memory_note(settings, "gpu" if gpus else "cpu"),
        directory=job.directory,
        visible=visible,
        program=job.program,
        words=words,
    )
    return Rendered({file: text}, ["bash {0}", f"# {job.program} {shlex.join(words)}"])
