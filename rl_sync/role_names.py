"""The names of roles and of their processes: `trainer`, `explorer2`, `explorer2/1`."""

from __future__ import annotations

MASTER, TRAINER = "master", "trainer"
TOGETHER = "trainer+explorers"
"""The one process that they share under `launch.colocate`."""
_EXPLORER = "explorer"
_RANKS = {_EXPLORER: 0, TRAINER: 1, MASTER: 2}


def explorer_name(number: int) -> str:
    """The role of an explorer, by its number from 1."""
    return f"{_EXPLORER}{number}"


def split(role: str) -> tuple[str, int]:
    """The kind of a role, and which of that kind it is; 0 where there is one alone."""
    kind = role.rstrip("0123456789")
    return kind, int(role[len(kind) :] or 0)


def is_explorer(role: str) -> bool:
    """Says whether a role generates rollouts."""
    return split(role)[0] == _EXPLORER


def number_of(role: str) -> int:
    """The number of an explorer, by its role."""
    assert is_explorer(role), f"{role} is no explorer"
    return split(role)[1]


def role_order(role: str) -> tuple[int, int, str]:
    """Returns a sort key: explorers by their number, then the trainer, the master, and others."""
    kind, number = split(role)
    return _RANKS.get(kind, len(_RANKS)), number, role


def process_name(role: str, process: int) -> str:
    """The name of a role's process: that of the role, and which process unless it is the first."""
    return f"{role}/{process}" if process else role


def role_of(process: str) -> str:
    """The role of a process, by the process's name."""
    return process.partition("/")[0]
