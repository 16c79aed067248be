"""The examples of docs/how-to; `test_examples` has their commands."""

import re
from pathlib import Path
from typing import Any

from rl_sync.configs import base
from rl_sync.launcher import config_file
from rl_sync.launcher.mistakes import setting_names
from rl_sync.launcher.processes import run_directory
from rl_sync.references import resolve
from rl_sync.rewards.judgement import ONE_MESSAGE, Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from tests.docs.pages import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/how-to").glob("*.md"))


def test_each_page_is_found_with_its_commands():
    found = {Path(one.page).stem for one in commands() if "/how-to/" in one.page}
    assert found == {page.stem for page in PAGES}
    assert len(PAGES) == 11


def _code(page):
    page = (ROOT / f"docs/how-to/{page}.md").read_text()
    (text,) = re.findall(r"```python\n(.*?)```", page, re.S)
    return text


def _example(page, name, folder):
    text = _code(page)
    (folder / f"{page}.py").write_text(text)
    return resolve(f"{folder / page}.py:{name}")


def test_the_reward_judges(tmp_path):
    number = _example("reward", "number", tmp_path)
    scores = {text: number({}, Completion(text)).score for text in ("-12", "12", "1a", "")}
    assert scores == {"-12": 1.0, "12": 1.0, "1a": 0.0, "": 0.0}


def test_rewards_of_other_trainers_judge_as_they_are():
    page = (ROOT / "docs/how-to/from-trl-or-verl.md").read_text()
    (text,) = re.findall(r"```python\n(import re\n.*?)```", page, re.S)
    given: dict[str, Any] = {}
    exec(text, given)
    row = {"prompt": "1+1?", "answer": "2", "ground_truth": "2", ONE_MESSAGE: True}
    for name, right in (("boxed", r"\boxed{2}"), ("compute_score", "It is 2.")):
        rubric = Rubric(given[name])
        rubric.check([row])
        asked = [ScoringRequest(row, Completion(one)) for one in (right, "3")]
        assert [one.score for one in rubric.judge(asked)] == [1.0, 0.0]


def test_the_task_has_the_same_rows_for_the_same_seed(tmp_path):
    sums = _example("task", "sums", tmp_path)
    rows = list(sums(seed=1, most=20))
    assert rows == list(sums(seed=1, most=20)) != list(sums(seed=2, most=20))
    assert all(str(eval(row["prompt"][:-1])) == row["answer"] for row in rows)


def test_the_config_file_is_loaded_from_any_directory_with_its_argument(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/sums.py").write_text(_code("config-files"))
    for given, steps in (("experiments/sums.py", 100), ("experiments/sums.py:20", 20)):
        settings = run_directory.settings_of(config_file.load(given).to_dict())
        assert (settings.name, settings.trainer.steps, settings.trainer.groups_per_step) == (
            "sums", steps, 64,
        )  # fmt: skip


def test_settings_for_those_of_others_exist():
    page = (ROOT / "docs/how-to/from-trl-or-verl.md").read_text()
    known = set(setting_names(base.get_config().to_dict()))
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 55
    ours = [name for row in rows for name in re.findall(r"`([a-z_.]+)(?:=[^`]*)?`", row[-1])]
    sections = {name.partition(".")[0] for name in known if "." in name}
    named = [name for name in ours if name.partition(".")[0] in sections and "." in name]
    assert len(named) > 70
    assert set(named) <= known


def test_values_for_those_of_others_make_a_run():
    """All of TRL's and verl's choices that a table gives a value for."""
    page = (ROOT / "docs/how-to/from-trl-or-verl.md").read_text()
    rows = [line.strip("| ").split(" | ")[-1] for line in page.splitlines() if " | " in line]
    tried = 0
    for row in rows:
        for name, more in re.findall(
            r"`(algorithm\.(?:name|aggregation|advantage|correction|kl_place)\b[^`]*)`"
            r"((?:[,:] `[a-z_]+`(?=[,;]|$| ))*)",
            row,
        ):
            setting, equals, value = name.partition("=")
            values = [*([value] if equals else []), *re.findall(r"`([a-z_]+)`", more)]
            for one in values:
                config = base.get_config()
                changes = {setting: one, "workdir": ""}
                if setting == "algorithm.correction":
                    changes["algorithm.proximal"] = "start"
                config.update_from_flattened_dict(changes)
                config.sync.mode = "synchronous"
                config.algorithm.allow_unsafe = True
                run_directory.settings_of(config.to_dict())
                tried += 1
    assert tried > 20
