"""Names of roles and of their processes: `trainer`, `explorer2`, `explorer2/1`."""

from __future__ import annotations

MASTER, TRAINER = "master", "trainer"
TOGETHER = "trainer+explorers"
"""Name of the single process that runs trainer and explorers under `launch.colocate`."""
EXPLORER = "explorer"
_RANKS = {EXPLORER: 0, TRAINER: 1, MASTER: 2}


def explorer_name(number: int) -> str:
    """Returns the role name of an explorer from its number, which counts from 1."""
    return f"{EXPLORER}{number}"


def split(role: str) -> tuple[str, int]:
    """Splits a role name into its kind and its number; 0 for a kind with only one role."""
    kind = role.rstrip("0123456789")
    return kind, int(role[len(kind) :] or 0)


def is_explorer(role: str) -> bool:
    """Says whether a role generates rollouts."""
    return split(role)[0] == EXPLORER


def number_of(role: str) -> int:
    """Returns the number of an explorer from its role name."""
    assert is_explorer(role), f"{role} is no explorer"
    return split(role)[1]


def role_order(role: str) -> tuple[int, int, str]:
    """Returns a sort key: explorers by their number, then the trainer, the master, and others."""
    kind, number = split(role)
    return _RANKS.get(kind, len(_RANKS)), number, role


def process_name(role: str, process: int) -> str:
    """Returns the name of a role's process: the role, and the process index unless it is 0."""
    return f"{role}/{process}" if process else role


def role_of(process: str) -> str:
    """Returns the role that a process belongs to, from the process's name."""
    return process.partition("/")[0]
