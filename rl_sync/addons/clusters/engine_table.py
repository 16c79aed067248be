"""Table of the systems that start runs on several machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rl_sync.addons.clusters.cluster_job import ClusterJob, Rendered
from rl_sync.addons.clusters.jobset_manifest import render_jobset
from rl_sync.addons.clusters.skypilot_task import render_skypilot
from rl_sync.addons.clusters.slurm_script import render_slurm
from rl_sync.addons.clusters.ssh_command import render_hosts


class ClusterEngine(NamedTuple):
    """A system that starts runs.

    Attributes:
      render: function that writes the files of a job.
      flags: the flags of `render` that it takes, besides those that all take.
      check: words of a command that checks the first file without starting it; empty for none.
      place: where that command works, in words.
    """

    render: Callable[[ClusterJob], Rendered]
    flags: tuple[str, ...]
    check: tuple[str, ...] = ()
    place: str = ""


_NODES = ("nodes", "gpus-per-node", "processes-per-node")

ENGINES = {
    "slurm": ClusterEngine(
        render_slurm,
        (
            *_NODES,
            "time",
            "partition",
            "trainer-partition",
            "trainer-gpus-per-node",
            "account",
            "container-image",
            "modules",
            "environment",
            "port",
            "check",
        ),
        ("sbatch", "--test-only"),
        "on a login node",
    ),
    "jobset": ClusterEngine(
        render_jobset,
        ("image", "volume-claim", "accelerator", "topology", "queue", "port", "check"),
        ("kubectl", "apply", "--dry-run=server", "-f"),
        "where kubectl reaches the cluster",
    ),
    "skypilot": ClusterEngine(
        render_skypilot, ("nodes", "processes-per-node", "accelerator", "port")
    ),
    "hosts": ClusterEngine(render_hosts, _NODES),
}
COMMON = ("to", "out", "overwrite")
"""Flags for all engines."""
