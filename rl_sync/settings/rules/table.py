"""Checks settings by rules beyond the bounds, choices and types that each setting declares.

A config is checked against all rules before any process starts. Rules that need a task's data or a
model are in the modules that load these: `rl_sync.roles.assembly.wiring` and `rl_sync.tasks` (where
a mixture also makes a task's section for each of its sets). Rules of the schedule are in
`rl_sync.schedule`.
"""

from __future__ import annotations

from rl_sync.settings.rules.algorithm_rules import ALGORITHM_RULES
from rl_sync.settings.rules.batch_rules import BATCH_RULES
from rl_sync.settings.rules.engine_rules import ENGINE_RULES
from rl_sync.settings.rules.evaluation_rules import EVALUATION_RULES
from rl_sync.settings.rules.process_rules import PROCESS_RULES
from rl_sync.settings.rules.rule import Rule
from rl_sync.settings.rules.schedule_rules import SCHEDULE_RULES
from rl_sync.settings.rules.single_rules import SINGLE_RULES
from rl_sync.settings.rules.task_rules import TASK_RULES
from rl_sync.settings.run_settings import RunSettings

RULES: dict[str, Rule] = {
    **SINGLE_RULES,
    **ALGORITHM_RULES,
    **SCHEDULE_RULES,
    **BATCH_RULES,
    **TASK_RULES,
    **EVALUATION_RULES,
    **PROCESS_RULES,
    **ENGINE_RULES,
}
"""Rules by the names of their settings, separated by commas; a colon precedes a further subject."""


def check_rules(settings: RunSettings) -> None:
    """Checks a run's settings against all rules.

    Raises:
      ValueError: the message has the rule, the value and the way out.
    """
    for rule in RULES.values():
        rule(settings)
