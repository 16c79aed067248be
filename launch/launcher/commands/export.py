"""`export`: writes a run's policy as a checkpoint of transformers."""

from __future__ import annotations

from pathlib import Path

from rl_sync.launcher.command import Arguments


def execute(arguments: Arguments) -> int:
    """Writes the policy, and prints the directory.

    Raises:
      ConfigError: a flag is invalid, or the run has no such snapshot.
    """
    flags = arguments.flags
    workdir, target = flags["workdir"], flags["to"]

    from rl_sync.roles.policy_export import export

    step = export(Path(workdir), Path(target), flags.get("dtype"), flags.get("step"))
    print(f"The policy after trainer step {step} is in {target}.")
    return 0
