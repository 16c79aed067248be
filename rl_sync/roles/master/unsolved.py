"""Warning and remedies for a pretrained model that solves no held-out problem before RL."""

from __future__ import annotations

from collections.abc import Mapping

from rl_sync.settings.run_settings import RunSettings

MOMENT = "before RL"
"""Name of the evaluation before RL, which follows SFT if there is any."""

HINT = ": rewards may have nothing to tell apart; see Small models in docs/tasks.md"
"""Short form of the warning, which ends a line."""

_WAYS_OUT = (
    "so rewards may have nothing to tell apart. A small model seldom writes the answer alone. Show"
    " it solved problems in front of the question (--config.task.shots=3, which leaves the chat"
    " template out); end completions with --config.rollout.stop_strings; take a reward that finds"
    " the answer in the text (--config.task.reward=math, or final_answer). See Small models in"
    " docs/tasks.md."
)


def is_unsolved(settings: RunSettings, moment: str, values: Mapping[str, float]) -> bool:
    """Says whether a checkpoint solves nothing, so that RL has nothing to start from.

    Args:
      moment: name of the evaluation, and `values` its metrics; see
        `rl_sync.records.accuracy.measure`.
    """
    return (
        moment == MOMENT
        and settings.model.path is not None
        and values["problems"] > 0
        and values["accuracy"] == 0
    )


def alarm(settings: RunSettings, evaluations: Mapping[str, Mapping[str, float]]) -> str:
    """Returns the warning for a run's report; empty if there is none."""
    values = evaluations.get(MOMENT)
    if values is None or not is_unsolved(settings, MOMENT, values):
        return ""
    return (
        f"ALARM: the model solved none of {values['problems']} held-out problems {MOMENT},"
        f" {_WAYS_OUT}"
    )
