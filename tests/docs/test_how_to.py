"""The commands and examples of docs/how-to."""

import re
import shlex
from pathlib import Path

import pytest

from rl_sync.launcher import command_line, workdir
from rl_sync.references import resolve
from rl_sync.rewards.judgement import Completion

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/how-to").glob("*.md"))
COMMAND = re.compile(r"^    python -m launcher ((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
COMMANDS = [
    (page.stem, command.replace("\\\n", ""))
    for page in PAGES
    for command in COMMAND.findall(page.read_text())
]


def test_each_page_is_found_with_its_commands():
    assert {page for page, _ in COMMANDS} == {page.stem for page in PAGES}
    assert len(PAGES) == 6


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda text: text[:40])
def test_a_command_is_valid(page, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    arguments = command_line.parse(shlex.split(command, comments=True))
    if arguments.config is not None and "Qwen/" not in command:
        workdir.settings_of(arguments.config.to_dict())


def _example(page, name, folder):
    (text,) = re.findall(
        r"```python\n(.*?)```", (ROOT / f"docs/how-to/{page}.md").read_text(), re.S
    )
    (folder / f"{page}.py").write_text(text)
    return resolve(f"{folder / page}.py:{name}")


def test_the_reward_judges(tmp_path):
    number = _example("reward", "number", tmp_path)
    scores = {text: number({}, Completion(text)).score for text in ("-12", "12", "1a", "")}
    assert scores == {"-12": 1.0, "12": 1.0, "1a": 0.0, "": 0.0}


def test_the_task_has_the_same_rows_for_the_same_seed(tmp_path):
    sums = _example("task", "sums", tmp_path)
    rows = list(sums(seed=1, most=20))
    assert rows == list(sums(seed=1, most=20)) != list(sums(seed=2, most=20))
    assert all(str(eval(row["prompt"][:-1])) == row["answer"] for row in rows)
