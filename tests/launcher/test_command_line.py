"""The command line's messages about mistakes, and the output of `plan`."""

from __future__ import annotations

import importlib.metadata
import json
import re
import time
import tomllib

import pytest
import yaml

import rl_sync
from rl_sync.launcher import command_line
from tests.launcher.command import ROOT, launcher, said_here

CONFIG = "--config=configs/arithmetic.py"


def test_the_settings_that_a_pattern_fits_are_listed_with_default_bounds_and_meaning(capsys):
    said = said_here(capsys, "settings", "Adapters", "rank")
    assert said.status == 0, said.err
    assert "\nmodel.lora.rank: whole number, at least 0; default 0\n    Rank of the" in said.out
    assert "learning_rate" not in said.out


def test_a_pattern_that_fits_no_setting_is_a_mistake_that_gets_the_nearest(capsys):
    said = said_here(capsys, "settings", "lerning", "rate")
    assert (said.status, said.out) == (2, "")
    assert "'lerning rate'" in said.err
    assert said.err.endswith(
        "did you mean sft.learning_rate or critic.learning_rate or optimizer.learning_rate?\n"
    )


@pytest.mark.nightly
def test_a_mistake_ends_the_process_with_status_2_and_one_line():
    done = launcher(CONFIG, "--config.sync.mode=asinchronous")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert "did you mean 'asynchronous'" in done.stderr


def test_help_comes_before_any_mistake(capsys):
    assert said_here(capsys, "plan", "--zzz=1", "--help").out.startswith("Usage: rl-sync plan")


def test_the_version_is_the_packages_in_every_place_that_says_it(capsys):
    said = said_here(capsys, "--version")
    assert said.out == f"rl_sync {rl_sync.__version__}\n"
    metadata = importlib.metadata.metadata("rl_sync")
    assert metadata["Version"] == rl_sync.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "rl_sync.__version__"}
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^version: {re.escape(rl_sync.__version__)}$", citation, re.M)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[([^\]]+)\]", changelog, re.M)[:2] == [
        "Unreleased",
        rl_sync.__version__,
    ]


def test_the_citation_has_what_its_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["authors"] == [{"name": "The rl_sync developers"}]
    assert {"message", "title"} <= citation.keys()


def test_the_license_is_the_one_that_the_package_and_the_citation_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert re.search(r"^license: Apache-2.0$", (ROOT / "CITATION.cff").read_text(), re.M)
    text = (ROOT / "LICENSE").read_text()
    assert text.split("\n")[1].strip() == "Apache License"
    assert "END OF TERMS AND CONDITIONS" in text


def test_a_setting_may_stand_apart_from_its_value_and_a_switch_without_one():
    words = [CONFIG, "--config.seed", "5", "plan", "--config.launch.colocate"]
    parsed = command_line.parse(words)
    assert parsed.command == "plan"
    assert (parsed.config.seed, parsed.config.launch.colocate) == (5, True)


def test_paths_after_an_equals_sign_may_start_at_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    parsed = command_line.parse(["timeline", "--workdir=~/run", "--out=~/pictures"])
    assert parsed.flags == {"workdir": "/home/ada/run", "out": "/home/ada/pictures"}


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ('{"prompt": "a", "answer": "b"', "is not JSON"),
        ('["a", "b"]', "is not an object"),
        ('{"answer": "a"}', "'prompt' is missing"),
        ('{"prompt": "  ", "answer": "a"}', "'prompt' is '  '"),
        ('{"prompt": ["a"], "answer": "b"}', "'prompt' is ['a']"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(row, complaint, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "1", "answer": "1"}\n\n' + row + "\n")
    done = said_here(capsys, "--config=configs/jsonl.py", f"--config.task.jsonl.path={path}")
    assert done.status == 2
    assert f"{path}, line 3" in done.err
    assert complaint in done.err


@pytest.mark.gate
def test_plan_prints_the_schedule_in_words_and_as_a_drawing(capsys):
    done = said_here(
        capsys, "plan", CONFIG, "--config.sync.mode=custom", "--config.sync.interval=2"
    )
    assert done.status == 0, done.err
    for phrase in ("e1: v0, e2: v0, e3: v2, e4: v2", "at most 1 trainer step", "<v2>[ e3 v2 ]"):
        assert phrase in done.out


@pytest.mark.gate
def test_plan_says_what_streaming_means(capsys):
    flags = ("--config.sync.mode=asynchronous", "--config.rollout.streaming=True")
    done = said_here(capsys, "plan", CONFIG, *flags, "--config.rollout.slots=24")
    assert done.status == 0, done.err
    assert "Explorers stream: each keeps its 24 slots full" in done.out


@pytest.mark.gate
def test_plan_reads_the_users_own_file(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{i}+1=", "answer": i + 1} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = said_here(
        capsys,
        "plan",
        "--config=configs/jsonl.py",
        f"--config.task.jsonl.path={path}",
        "--config.task.max_prompt_tokens=4",
    )
    assert done.status == 0, done.err
    assert "at most 4 tokens a prompt and 3 a completion" in done.out
    assert "starts at random" not in done.out
    assert "training problems are dropped: their prompts are longer than" in done.out


@pytest.mark.gate
def test_plan_warns_of_a_policy_that_has_learned_nothing(capsys):
    done = said_here(capsys, "plan", CONFIG, "--config.sft.steps=0")
    assert done.status == 0, done.err
    assert "starts at random, without demonstrations (model.path is not set" in done.out
    assert "--config.sft.steps=400" in done.out
    done = said_here(capsys, "plan", "--config=configs/base.py")
    assert done.status == 0, done.err
    assert done.out.count("starts at random, without demonstrations") == 1


@pytest.mark.gate
def test_plan_says_the_sft_steps_and_both_learning_rates(capsys):
    done = said_here(capsys, "plan", CONFIG)
    assert "400 SFT steps before it, each on 128 demonstrations" in done.out
    assert "at a learning rate of 0.002 (cosine)" in done.out
    assert "groups of 4 completions, at a learning rate of 0.0014 (cosine)." in done.out
    done = said_here(capsys, "plan", CONFIG, "--config.sft.steps=0")
    assert "SFT steps before" not in done.out
    flags = ("--config.sft.steps=1", "--config.sft.schedule=constant")
    done = said_here(capsys, "plan", CONFIG, *flags)
    assert "  1 SFT step before it, each on 128 demonstrations" in done.out
    assert "at a learning rate of 0.002\n" in done.out


@pytest.mark.nightly
def test_plan_warns_of_sft_steps_that_overwrite_a_checkpoint(capsys):
    given = (CONFIG, "--config.model.path=tests/data/models/qwen2", "--config.tokenizer.chat=no")
    done = said_here(capsys, "plan", *given)
    assert done.status == 0, done.err
    assert "WARNING" not in done.out
    assert "SFT steps" not in done.out
    assert "starts at random" not in done.out
    high = ("--config.sft.steps=20", "--config.sft.learning_rate=0.002")
    done = said_here(capsys, "plan", *given, *high)
    assert done.status == 0, done.err
    assert "20 steps at sft.learning_rate=0.002, which overwrites" in done.out
    done = said_here(capsys, "plan", *given, "--config.sft.steps=20")
    assert "20 SFT steps before it" in done.out
    assert "WARNING" not in done.out
    adapters = ("--config.model.lora.rank=4", "--config.sft.learning_rate=5e-4")
    done = said_here(capsys, "plan", *given, "--config.sft.steps=20", *adapters)
    assert "WARNING" not in done.out


@pytest.mark.gate
@pytest.mark.parametrize(
    "settings",
    [
        ["mode=custom", "offset=100"],
        ["mode=custom", "interval=1000000000"],
        ["mode=custom", "offset=100", "interval=4000000000", "transfer=server"],
        ["mode=asynchronous", "max_staleness=1000000000"],
    ],
)
def test_plan_answers_at_once_however_far_explorers_may_run_ahead(settings, capsys):
    began = time.monotonic()
    done = said_here(capsys, "plan", CONFIG, *(f"--config.sync.{setting}" for setting in settings))
    assert done.status == 0, done.err
    assert time.monotonic() - began < 20
    assert max(map(len, done.out.splitlines())) < 500


def test_flags_have_the_values_of_their_types_and_those_that_are_left_out_are_not_there():
    assert command_line.parse(["rollouts", "--workdir=a", "--limit", "3", "--prompt=0"]).flags == {
        "workdir": "a",
        "limit": 3,
        "prompt": 0,
    }
    words = ["sweep", CONFIG, "--set=a=1", "--set", "b=2", "--list"]
    assert command_line.parse(words).flags == {"set": ("a=1", "b=2"), "list": True}


def test_flags_may_stand_before_the_command():
    parsed = command_line.parse(["--workdir=a", CONFIG, "plan", "--config.seed=3"])
    assert (parsed.command, parsed.flags, parsed.config.seed) == ("plan", {"workdir": "a"}, 3)
