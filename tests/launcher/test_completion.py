"""Completion of unfinished command lines, by itself and in the shells that are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

import rl_sync
from rl_sync.launcher import known
from rl_sync.launcher.command_table import COMMANDS, PROGRAM
from rl_sync.launcher.completing import Tab
from rl_sync.schedule import MODES
from rl_sync.setting import sections
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.task_catalog import TASKS
from tests.launcher.command import ROOT, said_here

SETTINGS = [entry.name for section in sections(RunSettings) for entry in section.entries]
CACHE_SECS = 60.0


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    """Keeps the names in a directory of these tests, where they have been read once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        known._contents.cache_clear()
        known.settings()
        yield
    known._contents.cache_clear()


def texts(*words):
    *before, last = words
    return [one.value for one in Tab(PROGRAM, ()).get_completions(before, last)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory with two runs, a config, and other things."""
    for name in ("first", "second"):
        (tmp_path / "runs" / name / "logs").mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    (tmp_path / "runs" / "old").mkdir()
    (tmp_path / "my config.py").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".hidden").mkdir()
    monkeypatch.chdir(tmp_path)


def test_commands_are_completed_before_one_is_given_and_after_help():
    assert texts("") == [*COMMANDS]
    assert texts("pl") == ["plan"]
    assert texts("--config=x", "pl") == ["plan"]
    assert texts("help", "ti") == ["timeline", "tinker"]
    assert texts("completion", "") == ["bash", "zsh", "fish"]


def test_flags_are_those_of_the_command(subtests):
    for name, command in COMMANDS.items():
        with subtests.test(name):
            found = texts(name, "--")
            flags = {f"--{flag}{'' if of.is_flag else '='}" for flag, of in command.flags.items()}
            assert set(found) - flags <= {"--help", "--config."}
            assert flags <= set(found)
            assert ("--config." in found) == ("config" in command.flags)


@pytest.mark.gate
def test_the_name_of_any_setting_is_reached_section_by_section(subtests):
    for name in SETTINGS:
        with subtests.test(name):
            typed, steps = "--config.", 0
            while not typed.endswith("="):
                parts = f"--config.{name}="[len(typed) :].partition(".")
                before, typed = typed, typed + "".join(parts[:2])
                assert typed in texts("plan", before)
                steps += 1
            assert steps == name.count(".") + 1


def test_values_are_those_that_a_setting_takes(folder):
    assert texts("--config.sync.mo") == ["--config.sync.mode="]
    assert texts("--config.sync.mode=") == [f"--config.sync.mode={mode}" for mode in MODES]
    assert texts("plan", "--config.sync.mode", "as") == ["asynchronous"]
    assert texts("--config.launch.colocate=") == [
        f"--config.launch.colocate={value}" for value in ("true", "false")
    ]
    assert texts("--config.task.name=") == [f"--config.task.name={name}" for name in TASKS]
    assert "--config.task.jsonl.path=notes.txt" in texts("--config.task.jsonl.path=n")
    assert texts("--config.workdir=runs/f") == ["--config.workdir=runs/first"]
    assert texts("--config.seed=") == []


def test_values_of_flags_are_their_choices_and_paths(folder):
    assert texts("export", "--dtype=b") == ["--dtype=bfloat16"]
    assert texts("eval", "--step=") == ["--step=best"]
    assert texts("--config=ar") == ["--config=arithmetic"]
    assert texts("--config=my") == ["--config=my config.py"]
    assert "--config=runs/" in texts("--config=")
    assert "--config=notes.txt" not in texts("--config=")
    runs = ["runs/first", "runs/second", "runs/"]
    assert texts("timeline", "--workdir=") == [f"--workdir={run}" for run in runs]
    assert texts("timeline", "--workdir", "") == runs
    assert texts("page", "--workdir=runs/first,runs/s") == ["--workdir=runs/first,runs/second"]
    assert texts("export", "--to=.h") == ["--to=.hidden/"]
    assert texts("timeline", "--workdir=nowhere/") == []


def test_names_of_lists_and_settings_are_completed_as_patterns():
    assert texts("algorithms", "da") == ["dapo"]
    assert texts("modes", "") == [*MODES]
    assert texts("settings", "sync.mo") == ["sync.mode"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rl-sync pl", ["pl"]),
        ("JAX_PLATFORMS=cpu /x/bin/rl-sync plan ", ["plan", ""]),
        ("python -X dev -m launcher --config='my con", ["--config=my con"]),
        ("rl-sync --config=my\\ con", ["--config=my con"]),
        ("python -m rl_sync plan --wor", ["plan", "--wor"]),
        ("rl-sync --config=my\\", ["--config=my"]),
        ("rl-sync", [""]),
    ],
)
def test_a_line_is_split_as_a_shell_does(line, words):
    before, last = Tab(PROGRAM, ["--line", line]).get_completion_args()
    assert [*before, last] == words


def test_the_names_are_read_anew_when_the_source_has_changed(monkeypatch):
    read = []
    monkeypatch.setattr(known, "_read", lambda: read.append(1) or {"settings": [], "lists": {}})
    known._contents.cache_clear()
    assert known.settings(), "those of the file"
    assert not read
    monkeypatch.setattr(known, "_stamp", lambda: "another")
    monkeypatch.setattr(known, "_path", lambda: ROOT / "README.md" / "no.json")
    known._contents.cache_clear()
    assert not known.settings()
    assert read
    monkeypatch.undo()
    known._contents.cache_clear()


@pytest.mark.parametrize("torn", ["", "[]", '{"stamp": 3}', '"text"'])
def test_a_torn_file_of_names_is_made_anew(torn, tmp_path, monkeypatch):
    monkeypatch.setattr(known, "_path", lambda: tmp_path / "a" / "names.json")
    (tmp_path / "a").mkdir()
    known._path().write_text(torn)
    known._contents.cache_clear()
    assert [*known.settings()] == SETTINGS
    known._contents.cache_clear()
    assert known._path().stat().st_size > 1000


def test_a_stamp_is_another_when_any_file_is(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    file = tmp_path / "inner" / "a.py"
    file.write_text("a = 1")
    monkeypatch.setattr(rl_sync, "__file__", str(tmp_path / "__init__.py"))
    stamps = [known._stamp()]
    file.write_text("a = 10")
    stamps.append(known._stamp())
    (tmp_path / "b.py").touch()
    stamps.append(known._stamp())
    assert len(set(stamps)) == 3
    assert known._stamp() == stamps[-1]


def test_an_answer_takes_little_time_of_a_processor():
    command = [sys.executable, "-m", "launcher", "complete", "--line", "rl-sync --config.sync.mo"]
    best = 9.0
    for _ in range(3):
        before = os.times()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        after = os.times()
        best = min(best, after.children_user - before.children_user)
        assert done.stdout.startswith("--config.sync.mode=\tNamed schedule")
    assert best < 0.4, "JAX alone would take a second"


def test_an_unknown_shell_is_a_mistake(capsys):
    assert "did you mean 'fish'?" in said_here(capsys, "completion", "fsh").err
    assert said_here(capsys, "completion").err.startswith("error: Name a shell: completion takes b")


KEYS = [
    ("rl-sync pla\t", ["plan"]),
    (
        "rl-sync --config=arith\t--config.sync.mo\tasyn\t",
        ["--config=arithmetic", "--config.sync.mode=asynchronous"],
    ),
    (
        "rl-sync timeline --workdir=runs/fi\t--st\t1:8",
        ["timeline", "--workdir=runs/first", "--steps=1:8"],
    ),
    ("rl-sync --config=my\t", ["--config=my config.py"]),
    ("python -m launcher help timel\t", ["-m", "launcher", "help", "timeline"]),
    ("python notes\t", ["notes.txt"]),
]
START = {
    "bash": ["--norc", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
SET_UP = {
    "bash": "PS1='READY> '",
    "zsh": "PS1='READY> '; autoload -U compinit && compinit -u -D; unsetopt zle_bracketed_paste",
    "fish": "function fish_prompt; echo 'READY> '; end",
}


@pytest.fixture
def programs(folder, tmp_path):
    """A `rl-sync` and a `python` that complete, and otherwise print what they were given."""
    places = tmp_path / "bin"
    places.mkdir()
    for name, asks in (("rl-sync", '"$1"'), ("python", '"$3"')):
        file = places / name
        ours = f"{sys.executable} {'-m rl_sync ' if name == 'rl-sync' else ''}"
        file.write_text(
            f'#!/bin/sh\n[ {asks} = complete ] && exec {ours} "$@"\n'
            'printf "GOT["; printf "<%s>" "$@"; echo "]"\n'
        )
        file.chmod(0o755)
    return places


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command, environment):
        pid, self._end = pty.fork()
        if not pid:
            os.execvpe(command[0], command, environment)
        self._pid = pid

    def type(self, keys):
        os.write(self._end, keys.encode())

    def read_until(self, pattern, secs=CACHE_SECS):
        """Returns what the shell shows until it fits a pattern."""
        shown, deadline = "", time.monotonic() + secs
        while not re.search(pattern, shown):
            ready, _, _ = select.select([self._end], [], [], deadline - time.monotonic())
            assert ready, f"{pattern} never came: {shown!r}"
            shown += os.read(self._end, 65536).decode(errors="replace")
        return shown

    def read_until_quiet(self, secs=0.1):
        while select.select([self._end], [], [], secs)[0]:
            os.read(self._end, 65536)

    def close(self):
        os.close(self._end)
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)


@pytest.mark.samples("bash")
@pytest.mark.parametrize("shell", START)
def test_a_shell_completes_what_is_typed(shell, programs, tmp_path):
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'launch'}",
        "TERM": "dumb" if shell != "fish" else "xterm",
        "HOME": str(tmp_path),
    }
    terminal = Terminal([path, *START[shell]], environment)
    try:
        script = ROOT / f"launch/launcher/shells/rl_sync.{shell}"
        terminal.type(f"{SET_UP[shell]}; source {script}; echo BE''GUN\n")
        terminal.read_until("BEGUN")
        for keys, meant in KEYS:
            terminal.read_until_quiet()
            for part in re.findall(r"[^\t]+\t?", keys):
                terminal.type(part)
                terminal.read_until_quiet()
            terminal.type("\n")
            shown = terminal.read_until(r"GOT\[.*\]")
            assert re.findall("<(.*?)>", shown[shown.rindex("GOT[") :]) == meant, shown
    finally:
        terminal.close()
