"""Decides what follows the deaths of a run's processes, as a pure function of what is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rl_sync.role_names import (
    MASTER,
    TOGETHER,
    TRAINER,
    is_explorer,
    number_of,
    role_of,
    role_order,
)

REPLAY = "replay"
HOUR_SECS = 3600.0
_BEFORE_RL, _END = (None, "start", "sft"), "end"


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """Knowledge of the launcher about a run when processes die.

    Attributes:
      is_elastic: whether programs may come and go while the others stay; otherwise the trainer and
        the explorers form one cluster, or are one process.
      phase: last known phase of the run; None if the master has not answered yet.
      restarts: number of restarts that each role may have in an hour.
      earlier: times of the restarts so far, in seconds, by role.
      now_secs: time now, by the same clock.
    """

    is_elastic: bool
    phase: str | None
    restarts: int
    earlier: Mapping[str, Sequence[float]]
    now_secs: float

    def recent(self, role: str) -> int:
        """Returns the number of a role's restarts in the last hour."""
        return sum(self.now_secs - at < HOUR_SECS for at in self.earlier.get(role, ()))


@dataclasses.dataclass(frozen=True)
class RestartReplay:
    """The replay server is started again, at its port and from its last checkpoint."""

    role: str = REPLAY


@dataclasses.dataclass(frozen=True)
class RestartMaster:
    """The master is started again, at its port and from its journal."""

    role: str = MASTER


@dataclasses.dataclass(frozen=True)
class RestartTrainer:
    """The trainer is started again, while explorers stay."""

    role: str = TRAINER


@dataclasses.dataclass(frozen=True)
class RestartExplorer:
    """An explorer is started again, and its leases are given again."""

    number: int
    role: str


@dataclasses.dataclass(frozen=True)
class RestartPrograms:
    """The trainer and all explorers are started again, as one cluster or one process.

    Attributes:
      role: role that died.
    """

    role: str


Restart = RestartReplay | RestartMaster | RestartTrainer | RestartPrograms | RestartExplorer


@dataclasses.dataclass(frozen=True)
class EndRun:
    """The run ends as failed.

    Attributes:
      why: reason why nothing is restarted, as a sentence.
    """

    why: str


Decision = tuple[Restart, ...] | EndRun


def decide(
    facts: RunFacts,
    dead: Iterable[str],
    *,
    ended: Iterable[str] = (),
    killed: Iterable[str] = (),
    handed_over: Iterable[str] = (),
) -> Decision:
    """Decides what follows the deaths of processes.

    Servers come first, since the others need them: the replay server, the master, the trainer, then
    the explorers.

    Args:
      dead: names of the processes that have died, the likeliest cause first; a role that lost a
        process is dead as a whole.
      ended: names of those that ended themselves for a reason that a restart does not change.
      killed: names of those that were killed from outside. Before RL others would die again, except
        those of a cluster that has lost another process in this way; at the end of a run explorers
        that ended otherwise are a failure.
      handed_over: names of those that were asked to end and handed over their work, however often.

    Returns:
      The restarts, in order, or the end of the run.
    """
    for name in sorted(ended):
        return EndRun(f"{name} ended for a reason that a restart does not change.")
    found = [role_of(name) for name in dead]
    roles = sorted({*found}, key=role_order)
    struck = {role_of(name) for name in killed}
    if not facts.is_elastic and any(map(_is_program, struck)):
        struck.update(filter(_is_program, roles))
    asked = {role_of(name) for name in handed_over}
    for role in roles:
        if (why := _why_not(facts, role, role in struck, role not in asked)) is not None:
            return EndRun(why)
    programs = [role for role in found if _is_program(role)]
    restarts = [_restart(role) for role in roles if facts.is_elastic or not _is_program(role)]
    if programs and not facts.is_elastic:
        restarts.append(RestartPrograms(programs[0]))
    return tuple(sorted(restarts, key=_rank))


def _is_program(role: str) -> bool:
    return is_explorer(role) or role in (TRAINER, TOGETHER)


def _why_not(facts: RunFacts, role: str, was_killed: bool, counts: bool) -> str | None:
    """Returns the reason why a role is not restarted; None if it is."""
    if facts.phase is None and not _is_program(role):
        return f"The run had not begun: {role} would die again."
    if _is_program(role) and facts.phase in _BEFORE_RL and not was_killed:
        return f"RL had not begun: {role} would die again."
    # In one cluster the trainer may have given up already, because of this death. What was killed
    # has no fault that a restart would hide, and may still evaluate.
    if is_explorer(role) and facts.phase == _END and facts.is_elastic and not was_killed:
        return f"The run was about to end without {role}."
    if counts and facts.recent(role) >= facts.restarts:
        return (
            f"{role} was started again {facts.recent(role)} times within an hour, and"
            f" launch.restarts={facts.restarts} allows no more."
        )
    return None


def _restart(role: str) -> Restart:
    if role == REPLAY:
        return RestartReplay()
    if role == MASTER:
        return RestartMaster()
    if role == TRAINER:
        return RestartTrainer()
    return RestartExplorer(number_of(role), role)


def _rank(restart: Restart) -> tuple[int, tuple[int, int, str]]:
    kinds = (RestartReplay, RestartMaster, RestartTrainer, RestartPrograms, RestartExplorer)
    return kinds.index(type(restart)), role_order(restart.role)
