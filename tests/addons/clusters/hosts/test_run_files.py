"""Files that machines without the launcher's directories get."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

from rl_sync.addons.clusters.hosts.rewriting import rewrite
from rl_sync.addons.clusters.hosts.run_files import RunFiles
from rl_sync.configs import base
from rl_sync.models.huggingface.reading import load_config
from rl_sync.references import resolve
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError

QWEN = Path(__file__).resolve().parents[3] / "data" / "models" / "qwen2"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with code and data of a user."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1", "answer": "2"}\n')
    (place / "beside.py").write_text("def twice(x):\n    return 2 * x\n")
    (place / "own.py").write_text(
        "import beside\n\n\ndef score(row):\n    return beside.twice(1)\n"
    )
    (place / "words").mkdir()
    (place / "words" / "a.txt").write_text("a b c")
    return place


def settings_with(tmp_path, **fields):
    config = base.get_config()
    config.workdir = str(tmp_path / "run")
    config.launch.host = "127.0.0.1"
    config.launch.hosts = "explorer1=join"
    for name, value in fields.items():
        section, _, field = name.rpartition("__")
        at = config
        for part in section.split("__"):
            at = at[part]
        at[field] = value
    return read_settings(config.to_dict())


@pytest.mark.gate
def test_code_and_data_that_the_config_names_are_sent_and_found_there(tmp_path, here):
    reward = "exact_match + own.py:score"
    resolve("own.py:score")  # As the check of the config does.
    settings = settings_with(
        tmp_path,
        task__name="jsonl",
        task__jsonl__path="../rows.jsonl",
        task__reward=reward,
        launch__files="words",
    )
    found = RunFiles(settings, here)
    places = {file.place for file in found.files}
    assert {"code/own.py", "code/beside.py", "code/words/a.txt"} <= places
    (rows,) = [place for place in places if place.endswith("rows.jsonl")]
    assert found.read(rows, 2, 6) == b"prompt"
    there = rewrite(settings.resolved(), found.rewritten, Path("/there"))
    assert there["task"]["jsonl"]["path"] == f"/there/{rows}"
    assert there["task"]["reward"] == reward, "a relative path of code stays"
    folders = {folder for place in places for folder in place.split("/")[:-1]}
    assert folders.isdisjoint({"rl_sync", "site-packages"})


@pytest.mark.gate
def test_code_at_an_absolute_path_is_named_anew(tmp_path, here):
    own = tmp_path / "elsewhere" / "judge.py"
    own.parent.mkdir()
    own.write_text("def score(row):\n    return 1.0\n")
    settings = settings_with(tmp_path, task__reward=f"0.5 * {own}:score + exact_match")
    found = RunFiles(settings, here)
    there = rewrite(settings.resolved(), found.rewritten, Path("/there"))
    # Other tests of this process may have imported modules, which are sent, too.
    places = [file.place for file in found.files]
    (place,) = [one for one in places if re.fullmatch(r"outside/\w+/judge\.py", one)]
    assert there["task"]["reward"] == f"0.5 * /there/{place}:score + exact_match"


@pytest.mark.gate
def test_a_checkpoint_is_sent_without_its_weights_but_with_what_they_say(tmp_path, here):
    settings = settings_with(tmp_path, model__path=str(QWEN), sft__steps=0)
    found = RunFiles(settings, here)
    names = {Path(file.place).name for file in found.files}
    assert "config.json" in names
    assert not any("safetensors" in name for name in names)
    (config,) = [file.place for file in found.files if file.place.endswith("/config.json")]
    sent = json.loads(found.read(config, 0, 1 << 20))
    assert sent["tie_word_embeddings"] is load_config(QWEN).tie_embeddings


@pytest.mark.gate
def test_a_file_that_is_too_large_is_told_and_not_read(tmp_path, here):
    with (here / "words" / "large.bin").open("wb") as file:
        file.truncate((1 << 20) + 1)
    settings = settings_with(tmp_path, launch__files="words", launch__file_mib=1)
    found = {file.place: file for file in RunFiles(settings, here).files}
    assert found["code/words/large.bin"].digest == ""
    assert found["code/words/a.txt"].digest


def test_a_file_that_does_not_exist_is_named(tmp_path, here):
    settings = settings_with(tmp_path, launch__files="words,nothing.txt")
    with pytest.raises(ConfigError, match=r"there is no nothing\.txt in"):
        RunFiles(settings, here)


@pytest.mark.gate
def test_hidden_files_and_the_work_directory_are_not_sent(tmp_path, here):
    unsent = (".env", ".git/config", "runs/run/.secret", "runs/run/config.json")
    for name in (*unsent, "data/a.csv"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("x")
    settings = settings_with(tmp_path, launch__files=".")
    settings = dataclasses.replace(settings, workdir=str(here / "runs" / "run"))
    places = {file.place for file in RunFiles(settings, here).files}
    assert {"code/data/a.csv", "code/own.py", "code/words/a.txt"} <= places
    assert not places & {f"code/{name}" for name in unsent}


@pytest.mark.nightly
def test_a_teacher_and_the_secret_of_its_server_are_not_sent(tmp_path, here):
    (here / "teacher.secret").write_text("x")
    one = settings_with(tmp_path, algorithm__name="on_policy_distillation", teacher__path=str(QWEN))
    other = settings_with(
        tmp_path,
        algorithm__name="on_policy_distillation",
        teacher__address="10.0.0.3:8200",
        teacher__secret_path="teacher.secret",
    )
    for settings in (one, other):
        places = {file.place for file in RunFiles(settings, here).files}
        data = {place for place in places if not place.endswith(".py")}  # But for loaded modules.
        assert not [place for place in data if "teacher" in place or "qwen2" in place]
