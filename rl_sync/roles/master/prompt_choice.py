"""The master's choice of prompts for new leases.

With shuffled prompts, an ordinal has a fixed prompt. Otherwise the choice depends on the history of
prompts. Under latest pulls this is the history at the time of the lease. Under exact pulls the
choice must be the same in every run of the seed, so it uses the history up to the trainer step
whose weights generate the groups, however far the trainer is ahead of it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from rl_sync.messages.events import Assignment, LiveLease
from rl_sync.roles.master.state import MasterState, counted
from rl_sync.tasks.curriculum import BAND, IN_BAND, UNSEEN, Curriculum, shuffled_at
from rl_sync.types import ChosenPrompt


def may_choose(state: MasterState, step: int) -> bool:
    """Says whether, under exact pulls, the history that a step's choice needs is complete."""
    settings = state.settings
    if not settings.follows_history:
        return True
    return state.trained_steps >= settings.schedule.exact_version(step)


def chosen(
    state: MasterState, todo: Sequence[Assignment], step: int
) -> tuple[MasterState, list[Assignment]]:
    """Chooses the prompts of work to be leased.

    Args:
      step: explorer step of the work, under exact pulls.
    """
    settings = state.settings
    if not settings.follows_history:
        pool, seed = settings.pool, settings.seed
        prompts = [shuffled_at(pool, seed, one.ordinal, one.replacement) for one in todo]
        return state, [
            one._replace(choice=ChosenPrompt(prompt))
            for one, prompt in zip(todo, prompts, strict=True)
        ]
    if settings.schedule.pull == "exact":
        state = _planned(state, step)
        plan, first = state.plans[step], (step - 1) * settings.groups_per_step
        places = [settings.groups_per_step * one.replacement + one.ordinal - first for one in todo]
        return state, [
            one._replace(choice=plan[place]) for one, place in zip(todo, places, strict=True)
        ]
    open_ones = [one for one in todo if one.choice is None]
    busy = {lease.choice.prompt for lease in state.live.values()}
    busy |= {one.choice.prompt for one in (*state.again, *todo) if one.choice is not None}
    ordinals = [one.ordinal for one in open_ones]
    found = iter(_choices(state, ordinals, busy) if ordinals else ())
    return state, [
        one if one.choice is not None else one._replace(choice=next(found)) for one in todo
    ]


def _planned(state: MasterState, step: int) -> MasterState:
    """Plans all explorer steps up to `step`, in order."""
    settings = state.settings
    for at in range(state.trained_steps + 1, step + 1):
        if at in state.plans:
            continue
        known = settings.schedule.exact_version(at)
        state = counted(state, known)
        plans = {other: plan for other, plan in state.plans.items() if other > known}
        size = settings.groups_per_step
        busy = {choice.prompt for plan in plans.values() for choice in plan[:size]}
        ordinals = [*range((at - 1) * size, at * size)] * settings.screening.max_attempts
        plans[at] = tuple(_choices(state, ordinals, busy))
        state = dataclasses.replace(state, plans=plans)
    return state


def _choices(state: MasterState, ordinals: Sequence[int], busy: set[int]) -> list[ChosenPrompt]:
    settings = state.settings
    curriculum = Curriculum(settings.curriculum, settings.pool, settings.seed)
    return curriculum.choose(state.history, ordinals, busy)


def metrics(state: MasterState, leases: Sequence[LiveLease]) -> dict[str, float]:
    """Returns metrics of the prompts that a step has trained on.

    Args:
      state: state after the step.
    """
    settings = state.settings
    uses = state.history.after(sorted(state.pending.values()), 1.0).of(settings.pool.count).uses
    values = {"prompts/seen": float((uses > 0).mean())}
    successes = [lease.success for lease in leases if lease.success is not None]
    if successes:
        values["prompts/success_rate"] = sum(successes) / len(successes)
    for one in settings.pool.sets:
        of_set = set(one.members.tolist())
        own = [lease for lease in leases if lease.choice.prompt in of_set]
        rates = [lease.success for lease in own if lease.success is not None]
        values[f"prompts/share/{one.name}"] = len(own) / len(leases) if leases else 0.0
        if rates:
            values[f"prompts/success_rate/{one.name}"] = sum(rates) / len(rates)
    if settings.curriculum.selection == BAND and leases:
        whys = collections.Counter(lease.choice.why for lease in leases)
        values["prompts/in_band"] = whys[IN_BAND] / len(leases)
        values["prompts/unseen"] = whys[UNSEEN] / len(leases)
    return values
