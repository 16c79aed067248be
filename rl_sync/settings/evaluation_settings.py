"""`config.evaluation` as a frozen, validated record."""

from __future__ import annotations

import dataclasses

from rl_sync.setting import check, setting

TRAINER, EXPLORERS = "trainer", "explorers"


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """`config.evaluation`."""

    every_steps: int = setting(
        0,
        "Trainer steps between two evaluations on held-out problems; 0 for the first and the last"
        " only.",
        least=0,
    )
    problems: int = setting(512, "Maximum number of held-out problems in an evaluation.", least=1)
    samples: int = setting(
        1,
        "Completions of each problem: 1 takes the likeliest tokens; more are drawn at random, and"
        " give mean@k, majority@k and pass@k.",
        least=1,
        greatest=1024,
    )
    temperature: float | None = setting(
        None,
        "Number that logits are divided by before a token is drawn, where there are several"
        " completions.",
        above=0,
        implied="rollout.temperature",
    )
    category: str = setting(
        "category",
        "Field of a row of data that names the problem's category: accuracy is also given for each"
        " category.",
    )
    by: str | None = setting(
        None,
        "Role that generates the completions of evaluations between steps. `trainer` does it"
        " between two steps; an explorer does it beside its rollouts, while the trainer goes on.",
        choices=(TRAINER, EXPLORERS),
        implied="explorers if pulls are latest and checkpoint.best is not set, else the trainer",
    )
    slots: int | None = setting(
        None,
        "Maximum number of sequences that an explorer decodes at once for an evaluation, beside"
        " those of its rollouts.",
        least=1,
        implied="the largest power of 2 up to a quarter of the explorer's slots, but at least 8, or"
        " all of them",
    )
    waiting: int = setting(
        1,
        "Maximum number of evaluations that wait in an explorer for the end of an earlier one, each"
        " with its weights in host memory. If explorers have no room, an evaluation is left out"
        " once the next one is due.",
        least=0,
    )

    def __post_init__(self) -> None:
        check(self, "evaluation")
