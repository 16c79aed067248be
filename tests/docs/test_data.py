"""The commands and the example of docs/data.md."""

import re
import shlex
from pathlib import Path

import pytest

from rl_sync.launcher import command_line
from rl_sync.launcher.processes import run_directory
from rl_sync.roles.trainer.experience_pipeline import pipeline_of
from tests.roles.trainer.test_experience_pipeline import TASK, group, learned

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/data.md").read_text()
COMMANDS = [
    command.replace("\\\n", "").replace("my_config.py", "configs/arithmetic.py")
    for command in re.findall(r"^    python -m launcher ((?:[^\n]*\\\n)*[^\n]*)", PAGE, re.M)
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda text: text[-40:])
def test_a_command_is_valid(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    arguments = command_line.parse(shlex.split(command, comments=True))
    assert arguments.config is not None
    run_directory.settings_of(arguments.config.to_dict())


def test_the_example_of_a_pipeline_does_what_it_says(tmp_path):
    (text,) = re.findall(r"file `cleaning\.py`:\n\n```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "cleaning.py").write_text(text)
    names = "without_duplicates", "shorter_is_better(price=0.5)"
    pipeline = pipeline_of(", ".join(f"{tmp_path}/cleaning.py:{name}" for name in names), TASK)
    groups = [
        group(0, "12", "12", "3", rewards=[1.0, 1.0, 0.0]),
        group(1, "7", "7", "7", rewards=[1.0, 1.0, 1.0]),
    ]
    made, metrics = pipeline(1, groups)
    assert learned(made) == [[True, False, True], [False] * 3]
    assert made[0].rewards.tolist() == [-0.5, -0.75, -1.0]
    assert metrics["pipeline/duplicates"] == pytest.approx(3 / 6)
