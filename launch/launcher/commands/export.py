"""`export`: writes a run's policy as a checkpoint of transformers, or its adapters for PEFT."""

from __future__ import annotations

from pathlib import Path

from rl_sync.launcher.command import Arguments


def execute(arguments: Arguments) -> int:
    """Writes the policy or its adapters, and prints the directory.

    Raises:
      ConfigError: a flag is invalid, or the run has no such snapshot.
    """
    flags = arguments.flags
    workdir, target = flags["workdir"], flags["to"]

    from rl_sync.roles.policy_export import export, export_adapters

    of_adapters = flags.get("adapter")
    write = export_adapters if of_adapters else export
    step = write(Path(workdir), Path(target), flags.get("dtype"), flags.get("step"))
    what = "adapters" if of_adapters else "policy"
    print(f"The {what} after trainer step {step} {'are' if of_adapters else 'is'} in {target}.")
    return 0
