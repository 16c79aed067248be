"""The warning about a checkpoint that solves nothing before RL."""

from pathlib import Path

import pytest

from rl_sync.roles.master.unsolved import alarm, is_unsolved
from tests.settings.changed import settings_with

CHECKPOINT = str(Path(__file__).parents[2] / "data" / "models" / "qwen2")
NONE = {"accuracy": 0.0, "problems": 50}
ONE = {"accuracy": 0.02, "problems": 50}
UNJUDGED = {"accuracy": 0.0, "problems": 0}


@pytest.mark.parametrize(
    ("path", "moment", "values", "expected"),
    [
        (CHECKPOINT, "before RL", NONE, True),
        (CHECKPOINT, "before RL", ONE, False),
        (CHECKPOINT, "before RL", UNJUDGED, False),
        (CHECKPOINT, "after RL", NONE, False),
        (CHECKPOINT, "before SFT", NONE, False),
        (None, "before RL", NONE, False),
    ],
)
def test_a_checkpoint_that_solves_nothing_before_rl_is_warned_of(path, moment, values, expected):
    settings = settings_with(model__path=path)
    assert is_unsolved(settings, moment, values) is expected
    assert bool(alarm(settings, {moment: values})) is expected


def test_the_warning_names_the_settings_that_help():
    text = alarm(settings_with(model__path=CHECKPOINT), {"before RL": NONE, "after RL": ONE})
    assert text.startswith("ALARM: the model solved none of 50 held-out problems before RL, so ")
    for way in ("task.shots=3", "chat template", "stop_strings", "reward=math", "tasks.md"):
        assert way in text


def test_a_run_that_has_evaluated_nothing_is_not_warned():
    assert alarm(settings_with(model__path=CHECKPOINT), {}) == ""
