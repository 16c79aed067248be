"""Exit statuses of a role's process and of the launcher, which say whether a restart may help."""

FAILED = 1
"""It failed with an error."""

ENDED = 5
"""It ended itself, for a reason that a restart does not change."""

ORPHANED = 4
"""Its launcher is gone."""

HANDED_OVER = 6
"""It was asked to end (SIGTERM), and has told the master its work in flight, which goes on from
there."""

DEVICE_FULL = 7
"""A device has no more memory, of which a restart makes no more."""

MACHINE_LOST = 75
"""The launcher's: a machine of the run was lost, and none has joined in its place. Of `join`: the
launcher was lost."""
