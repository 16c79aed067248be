"""The help, in words and width, and the table of commands that it is made from."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shlex
from typing import get_args

import pytest
from click.exceptions import Exit

from rl_sync.launcher import command_line
from rl_sync.launcher.command import CONFIG
from rl_sync.launcher.command_table import COMMANDS
from rl_sync.models.huggingface.writing import STORED
from rl_sync.page.reach import By
from rl_sync.records.rollouts.rollout_records import ORDERS
from tests.launcher.command import ROOT, launcher, said_here
from tests.runs import tiny

EXAMPLES = [(name, words) for name, one in COMMANDS.items() for words in one.examples]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A directory that holds what the examples name, and is the current one."""
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(tiny.get_config().to_dict()))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("word", ["-h", "--help", "help"])
def test_the_help_names_every_command_in_its_group(word, capsys):
    said = said_here(capsys, word)
    assert said.status == 0
    for name, command in COMMANDS.items():
        heading = said.out.index(f"\n{command.group}\n")
        line = re.search(rf"^  {name} +{re.escape(command.short_help)}$", said.out[heading:], re.M)
        assert line is not None
        assert "\n\n" not in said.out[heading : heading + line.start()]
    assert len(said.out.splitlines()) <= 50


def test_a_commands_help_has_its_flags_alone_with_defaults_and_everything_else(subtests, capsys):
    for name, command in COMMANDS.items():
        with subtests.test(name):
            said = said_here(capsys, "help", name)
            assert said == said_here(capsys, name, "--help")
            usage, flags = (
                said.out.split("Examples")[0],
                re.findall(r"^  --([a-z-]+)", said.out, re.M),
            )
            assert usage.startswith(f"Usage: rl-sync {name}")
            settings = ["config"] if CONFIG in command.flags else []
            assert sorted(flags) == sorted([*command.flags, *settings, "help"])
            text = " ".join(re.sub(r"(?<=\w-)\n *", "", said.out).split())
            for flag in command.flags.values():
                assert f"{flag.help}{' [required]' * flag.required}" in text
            for part in (command.about, *command.examples.values(), command.page):
                assert part in text
            for status in {0, 2, 130, *command.statuses}:
                assert re.search(rf"^  {status}  ", said.out, re.M)
            assert max(map(len, said.out.splitlines())) <= 100
            assert not re.search(r" $|\x1b", said.out, re.M)


def test_an_example_of_the_help_is_a_command_line_that_makes_sense(subtests, directory):
    for name, words in EXAMPLES:
        with subtests.test(f"{name} {words}"):
            given = [name, *shlex.split(words.replace("$SLURM_ARRAY_TASK_ID", "0"))]
            if name == "help":
                with pytest.raises(Exit):
                    command_line.parse(given)
                continue
            parsed = command_line.parse(given)
            assert parsed.command == name
            assert (parsed.config is not None) == (CONFIG in COMMANDS[name].flags)


@pytest.mark.parametrize("words", ["--workdir=runs/first", "--workdir runs/first"])
def test_an_evaluation_takes_the_config_of_its_run(words, directory):
    assert command_line.parse(["eval", *words.split()]).config is not None


def test_every_command_has_a_module_an_example_a_page_and_a_few_sentences():
    for name, command in COMMANDS.items():
        if name != "help":
            execute = importlib.import_module(command.module).execute
            assert [*inspect.signature(execute).parameters] == ["arguments"], name
        assert command.examples
        assert (ROOT / command.page).is_file(), command.page
        assert 2 <= len(re.findall(r"\.(?= |$)", command.about)) <= 5, name
        for flag in command.flags.values():
            assert flag.help.endswith("."), (name, flag)


def test_offered_values_are_those_that_the_modules_take():
    assert COMMANDS["rollouts"].flags["sort"].type.choices[: len(ORDERS)] == (*ORDERS,)
    assert COMMANDS["export"].flags["dtype"].type.choices == tuple(STORED)
    assert COMMANDS["compare"].flags["at"].type.choices == get_args(By)
    assert all(key in COMMANDS["rollouts"].flags["sort"].help for key in ORDERS)


def test_commands_agree_on_which_flags_take_a_value():
    flags = {(name, flag.is_flag) for one in COMMANDS.values() for name, flag in one.flags.items()}
    assert len(flags) == len(dict(flags))


def test_a_misspelt_command_gets_the_one_that_was_meant(capsys):
    said = said_here(capsys, "help", "timelime")
    assert (said.status, said.out) == (2, "")
    assert said.err.endswith("did you mean 'timeline'?\n")
    assert said_here(capsys, "timelime", "--workdir=x").err.endswith("did you mean 'timeline'?\n")


def test_help_for_a_run_is_shown_where_its_word_is_left_out(capsys):
    assert said_here(capsys, "--config=x", "--help") == said_here(capsys, "run", "--help")


@pytest.fixture
def shown(monkeypatch, capsys):
    """Shows the help on a terminal of some width."""

    def show(columns, *words, **environment):
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"COLUMNS": str(columns), "TERM": "xterm", **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        return said_here(capsys, *words).out

    return show


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_help_is_as_wide_as_the_terminal_but_no_wider_than_one_reads(columns, shown):
    lines = shown(columns, "help", "plan", NO_COLOR="1").splitlines()
    lines = [line for line in lines if not line.startswith("  rl-sync")]
    assert max(map(len, lines)) in range(min(columns, 100) // 2, min(columns, 100) + 1)


def test_a_long_example_is_one_line_that_can_be_pasted(shown):
    text = shown(50, "help", "rollouts", NO_COLOR="1")
    (found,) = re.findall(r"^  (rl-sync.*'1.*)$", text, re.M)
    words = shlex.split(found)
    assert words[1:] == ["rollouts", *shlex.split([*COMMANDS["rollouts"].examples][1])]


def test_colors_are_for_terminals_alone_and_not_where_they_are_unwanted(shown):
    colored = shown(80, "help", "plan")
    assert "\x1b[" in colored
    plain = shown(80, "help", "plan", NO_COLOR="1")
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    assert "\x1b" not in launcher("help", "plan").stdout
