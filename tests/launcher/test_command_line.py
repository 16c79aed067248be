"""What the command line says to mistakes, and what `plan` prints."""

from __future__ import annotations

import json

import pytest

from tests.launcher.command import launcher

CONFIG = "--config=configs/arithmetic.py"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["Give a config"]),
        (["--config=configs/arithmetik.py"], ["configs/arithmetik.py", "no such file"]),
        (["plane", CONFIG], ["'plane' is not a command", "plan"]),
        ([CONFIG, "--config.sync.mode=asinchronous"], ["did you mean 'asynchronous'"]),
        ([CONFIG, "--config.sync.intervall=2"], ["sync.intervall;", "--config.sync.interval?"]),
        ([CONFIG, "--config.algorithm.clip=1"], ["algorithm.clip;", "--config.algorithm.clip_"]),
        (
            [CONFIG, "--config.learning_rate=1"],
            ["--config.critic.learning_rate or --config.optimizer.learning_rate?"],
        ),
        ([CONFIG, "--config.sync.group_size=1"], ["--config.trainer.group_size?"]),
        ([CONFIG, "--config.algorithm.typo=1"], ["algorithm.typo; configs/base.py has all"]),
        ([CONFIG, "--config.synk.mode=x"], ["synk.mode;", "--config.sync.mode?"]),
        ([CONFIG, "--config.sync.interval=two"], ["sync.interval", "two"]),
        (["--config=configs/jsonl.py"], ["task.jsonl.path is not set"]),
        (["timeline"], ["--workdir"]),
        (["timeline", "--workdir=no/such/run"], ["no/such/run"]),
        (["timeline", "--workdir=tests"], ["tests holds no spans"]),
        (["timeline", "--workdir=tests", "--steps=x"], ["--steps=x", "3:8"]),
        (["export", "--workdir=tests"], ["--workdir=", "--to="]),
        (["export", "--workdir=tests", "--to=x"], ["tests is not the work directory", "config"]),
    ],
)
def test_a_mistake_gets_one_clear_message_and_starts_nothing(arguments, parts, tmp_path):
    workdir = tmp_path / "run"
    if any(argument.startswith("--config=") for argument in arguments):
        arguments = [*arguments, f"--config.workdir={workdir}"]
    done = launcher(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    # The first time, Matplotlib may have said before it that it looks for fonts.
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ('{"prompt": "a", "answer": "b"', "is not JSON"),
        ('["a", "b"]', "is not an object"),
        ('{"prompt": "a"}', "'answer' is missing"),
        ('{"prompt": "a", "answer": "  "}', "'answer' is '  '"),
        ('{"prompt": ["a"], "answer": "b"}', "'prompt' is ['a']"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(row, complaint, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "1", "answer": "1"}\n\n' + row + "\n")
    done = launcher("--config=configs/jsonl.py", f"--config.task.jsonl.path={path}")
    assert done.returncode == 2
    assert f"{path}, line 3" in done.stderr
    assert complaint in done.stderr


def test_plan_prints_the_schedule_in_words_and_as_a_drawing():
    done = launcher("plan", CONFIG, "--config.sync.mode=custom", "--config.sync.interval=2")
    assert done.returncode == 0, done.stderr
    for phrase in ("e1: v0, e2: v0, e3: v2, e4: v2", "at most 1 trainer step", "<v2>[ e3 v2 ]"):
        assert phrase in done.stdout


def test_plan_reads_the_users_own_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{i}+1=", "answer": i + 1} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = launcher(
        "plan",
        "--config=configs/jsonl.py",
        f"--config.task.jsonl.path={path}",
        "--config.task.max_prompt_tokens=4",
    )
    assert done.returncode == 0, done.stderr
    assert "at most 4 tokens a prompt and 3 a completion" in done.stdout
    assert "starts at random" not in done.stdout
    assert "training problems are dropped: their prompts are longer than" in done.stdout


def test_plan_warns_of_a_policy_that_has_learned_nothing():
    done = launcher("plan", CONFIG, "--config.warm_up.steps=0")
    assert done.returncode == 0, done.stderr
    assert "starts at random and imitates nothing (model.path is not set" in done.stdout
