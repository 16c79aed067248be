"""`follow`: keeps a checkpoint of transformers up to date with a run."""

from __future__ import annotations

from pathlib import Path

from rl_sync.launcher.command import Arguments


def execute(arguments: Arguments) -> int:
    """Follows the run until Ctrl-C, and prints a line for each version.

    Raises:
      ConfigError: the source has no versions, or they cannot be verified.
    """
    flags = arguments.flags

    from rl_sync.roles.version_follower import FollowedVersion, follow

    def tell(one: FollowedVersion) -> None:
        print(
            f"Version {one.version}: digest {one.digest} verified, {one.received_bytes:,} bytes"
            f" read, {one.secs:.1f} s",
            flush=True,
        )

    follow(
        str(flags["from"]),
        Path(flags["to"]),
        tell,
        once=bool(flags.get("once")),
        idle_secs=flags.get("idle"),
        on_wait=lambda told: print(told, flush=True),
    )
    return 0
