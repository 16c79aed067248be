"""Admission of groups to the replay buffer, once they are scored."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float

from rl_sync.ending import Ending
from rl_sync.messages.events import Admit, Command, FailedEpisode, GroupsJudged, LiveLease, Record
from rl_sync.messages.scoring_calls import ScoredCompletion
from rl_sync.roles.master.state import MasterState, Outcome, drop

EPISODE_FAILED = "episode failed"


def admit(state: MasterState, event: GroupsJudged) -> Outcome:
    """Drops groups that lack episodes, or that give no gradient.

    If a group lacks episodes because their environments failed, its prompt is leased again, up to a
    limit. If a group gives no gradient, another prompt is tried.

    Groups that are reported again, because the answer was lost, are admitted if they are live, and
    change nothing. The trainer refuses those that were dropped.
    """
    admitted: list[int] = []
    failed: dict[str, list[int]] = {}
    replaced: dict[str, list[int]] = {}
    out_of_attempts: dict[str, list[LiveLease]] = {}
    screening, lost = state.settings.screening, _lost(event.failed)
    for lease_id, rewards in event.judged:
        lease = state.live.get(lease_id)
        # The trainer refuses a group whose lease has ended.
        if lease is None or lease.is_admitted:
            admitted.append(lease_id)
        elif lease_id in lost and _may_be_leased_again(state, lease):
            failed.setdefault(lost[lease_id], []).append(lease_id)
        elif (fault := screening.fault(rewards)) is None or not screening.replaces:
            admitted.append(lease_id)
        elif lease.replacement + 1 < screening.max_attempts:
            replaced.setdefault(fault, []).append(lease_id)
        else:
            admitted.append(lease_id)
            out_of_attempts.setdefault(fault, []).append(lease)
    told_of = {i for i, _ in event.judged} | {one.lease_id for one in event.failed}
    known = {i for i in told_of if (lease := state.live.get(i)) and lease.is_admitted}
    known |= {*state.turned_down}
    state, told = _tell(state, [one for one in event.failed if one.lease_id not in known])
    commands: list[Command] = [Admit(tuple(admitted)), *told]
    state = _marked(state, [i for i in admitted if i in state.live and i not in known])
    for fault, leases in out_of_attempts.items():
        state = dataclasses.replace(state, out_of_attempts=state.out_of_attempts + len(leases))
        commands.append(Record("out of attempts", tuple(leases), fault))
    for reason, lease_ids in failed.items():
        state, records = drop(state, tuple(lease_ids), reason, failed=True)
        commands += records
    for fault, lease_ids in replaced.items():
        state, records = drop(state, tuple(lease_ids), fault, replaced=True)
        commands += records
    dropped = {i for of in (*failed.values(), *replaced.values()) for i in of}
    if dropped:
        turned_down = tuple(sorted({*state.turned_down, *dropped}))
        state = dataclasses.replace(state, turned_down=turned_down)
    return state, tuple(commands)


def _marked(state: MasterState, lease_ids: Sequence[int]) -> MasterState:
    """Marks leases as admitted."""
    if not lease_ids:
        return state
    marked = {i: state.live[i]._replace(is_admitted=True) for i in lease_ids}
    return dataclasses.replace(state, live={**state.live, **marked})


def score_columns(
    verdicts: Sequence[ScoredCompletion],
) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, "rows K"] | None]:
    """Returns a group's rewards, and scores by each part of the reward; None if it has one part.

    Completions that could not be scored have NaN. To others, a part that gives them no score gives
    its mean over the group, which changes no advantage, or 0 if it scores none of them.
    """
    known = np.array([one.score is not None for one in verdicts], bool)
    rewards = np.array([one.score if one.score is not None else np.nan for one in verdicts])
    parts = np.array([one.parts for one in verdicts], np.float32).reshape(len(verdicts), -1)
    parts = np.where(known[:, None], parts, np.float32(np.nan))
    columns = [np.where(known, filled(column, False)[0], column) for column in parts.T]
    return rewards.astype(np.float32), np.stack(columns, axis=1) if columns else None


def filled(
    rewards: Float[np.ndarray, " rows"], with_baselines: bool
) -> tuple[Float[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Replaces the rewards of completions that could not be scored.

    Such a completion gets the mean reward of the scored ones, so that it changes no baseline. If no
    completion was scored, or if the greedy completion was not, all completions get 0.

    Args:
      rewards: rewards of the rows, with a greedy completion's last; NaN for completions that could
        not be scored.

    Returns:
      The rewards, and for each completion whether it can be trained on.
    """
    judged = np.isfinite(rewards)
    if judged.all():
        return rewards, judged
    sampled = judged[:-1] if with_baselines else judged
    if not sampled.any() or (with_baselines and not judged[-1]):
        judged, mean = np.zeros_like(judged), np.float32(0.0)
    else:
        # In float64, the mean of equal rewards is exact, so it adds no spread to the group.
        mean = rewards[: len(sampled)][sampled].mean(dtype=np.float64)
    return np.where(judged, rewards, mean).astype(np.float32), judged


def failed_episodes(
    lease_id: int, prompt_id: int, endings: Iterable[Ending | None]
) -> Iterator[FailedEpisode]:
    """Yields a record of each failed attempt at the group's episodes.

    Args:
      endings: ends of the group's episodes, in the order of its rows.
    """
    for sample, ending in enumerate(endings):
        for attempt, fault in enumerate(ending.faults if ending else ()):
            yield FailedEpisode(
                lease_id=lease_id,
                prompt_id=prompt_id,
                sample=sample,
                attempt=attempt,
                reason=fault.reason,
                why=fault.why,
                is_lost=ending is not None and ending.failed and attempt == len(ending.faults) - 1,
            )


def _lost(failed: Sequence[FailedEpisode]) -> dict[int, str]:
    """Maps each lease whose group lacks episodes to the reason of its first lost episode."""
    return {one.lease_id: one.reason for one in reversed(failed) if one.is_lost}


def _may_be_leased_again(state: MasterState, lease: LiveLease) -> bool:
    """Says whether a prompt may be leased again after its episodes failed."""
    settings = state.settings
    return settings.schedule.pull == "latest" and lease.failures + 1 < settings.max_leases


def _tell(state: MasterState, failed: Sequence[FailedEpisode]) -> Outcome:
    """Counts failed attempts at episodes, and records each of them."""
    if not failed:
        return state, ()
    counts = collections.Counter(state.failed)
    counts.update(one.reason for one in failed)
    records = []
    for one in failed:
        lease = state.live.get(one.lease_id)
        records.append(Record(EPISODE_FAILED, (lease,) if lease else (), one.reason, one))
    return dataclasses.replace(state, failed=dict(counts)), tuple(records)
