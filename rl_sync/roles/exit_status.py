"""Exit statuses of a role's process, which tell the launcher whether a restart may help."""

FAILED = 1
"""It failed with an error."""

ENDED = 5
"""It ended itself, for a reason that a restart does not change."""

ORPHANED = 4
"""Its launcher is gone."""
