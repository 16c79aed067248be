"""The layer without confinement: programs run with our rights, within process limits only."""

from __future__ import annotations

import dataclasses

from rl_sync.sandbox import layer


@dataclasses.dataclass(frozen=True)
class Unconfined:
    """Runs programs with our rights. They can read, write and kill all that we can."""

    @property
    def name(self) -> str:
        """The layer."""
        return "unsandboxed"

    @property
    def languages(self) -> frozenset[str] | None:
        """None, since the layer runs any command."""
        return None

    def prepare(self) -> None:
        """Does nothing: the layer is ready."""

    def command(self, job: layer.Job) -> layer.SandboxCommand:
        """Makes the command that runs a job with our rights."""
        python = layer.launch_arguments(job, folder=job.folder)
        return layer.SandboxCommand([layer.interpreter(), *python])
