"""Mistakes on the command line: one line names the way out, quickly, and nothing is started."""

from __future__ import annotations

import time

import pytest

from rl_sync.checkpoints.snapshots import snapshot_path
from rl_sync.launcher.commands import run
from rl_sync.records.backends import backend_catalog
from rl_sync.records.backends.backend_catalog import BackendKind
from rl_sync.workdir import Workdir
from tests.launcher.command import said_here

CONFIG = "--config=configs/arithmetic.py"
QUICK_SECS = 20.0  # Without the load of other tests it is one.


@pytest.fixture
def mistake(monkeypatch, capsys, tmp_path):
    """Runs a wrong command line; returns its one line of output."""

    def start(*_: object) -> None:
        raise AssertionError("A run was started.")

    monkeypatch.setattr(run, "LocalRun", start)
    monkeypatch.setenv("HOME", str(tmp_path))

    def told(*words: str) -> str:
        began = time.monotonic()
        said = said_here(capsys, *(word.replace("TMP", str(tmp_path)) for word in words))
        assert time.monotonic() - began < QUICK_SECS
        assert said.status == 2, said
        line = said.err.rstrip("\n").splitlines()[-1]
        assert line.startswith("error: ")
        assert "Traceback" not in said.err
        return line

    return told


FLAGS = [
    ("", "Give a config, such as --config=arithmetic or a file"),
    ("plan", "Give a config"),
    ("plane CONFIG", "'plane' is not a command", "did you mean 'plan'?"),
    ("run plan CONFIG", "run and plan are 2 commands"),
    ("configs/arithmetic.py", "did you mean --config=configs/arithmetic.py?"),
    ("timeline TMP", "did you mean --workdir="),
    ("CONFIG CONFIG", "--config is given 2 times"),
    ("--confg=configs/arithmetic.py", "did you mean --config=configs/arithmetic.py?"),
    ("--config.seed=1", "--config.seed=1 changes a setting of a config", "Give a config"),
    (
        "CONFIG --workdir=x",
        "for resume, plan, tune, timeline, rollouts, page, report, eval and export, not for run",
        "--config.workdir=x?",
    ),
    ("plan CONFIG --workdir=x", "--workdir=x is not a directory"),
    ("plan CONFIG --compile=v5e", "'v5e' is not a target", "such as v5e:4x4"),
    ("plan CONFIG --find=v6:2x2", "'v6' is not one of the chips", "v6e"),
    ("CONFIG --steps=5", "did you mean --config.trainer.steps=5?"),
    ("CONFIG --out=x", "did you mean --config.workdir=x?"),
    ("CONFIG --to=x", "--to=x is for render, export and follow, not for run"),
    ("CONFIG --seed=5", "--seed=5 is for chaos, not for run; did you mean --config.seed=5?"),
    ("CONFIG --lr=5", "did you mean --config.optimizer.learning_rate=5?"),
    ("CONFIG --sync.mode=async", "did you mean --config.sync.mode=async?"),
    ("CONFIG --confg.seed=5", "did you mean --config.seed=5?"),
    ("CONFIG --zzz=1", "Unknown flag: --zzz=1; --help names all"),
    ("CONFIG -x", "Unknown flag: -x"),
    (
        "settings CONFIG",
        "for run, resume, plan, render, chaos, sweep, eval, reward and teacher, not for settings",
        "settings takes a PATTERN",
    ),
    ("settings zzz", "No setting has 'zzz'", "without a pattern all are listed"),
    ("setings", "did you mean 'settings'?"),
    ("timeline", "timeline needs --workdir=DIRECTORY, as in: rl-sync timeline --workdir=runs/"),
    ("timeline --workdir=", "timeline needs --workdir=DIRECTORY"),
    ("timeline --workdir", "Missing value for flag --workdir. Write it as --NAME=VALUE"),
    ("timeline --wokrdir=x", "did you mean --workdir=x?"),
    ("timeline --workdir=no/such/run", "no/such/run is not a directory"),
    ("timeline --workdir=README.md", "README.md is not a directory"),
    ("timeline --workdir=tests", "tests holds no spans"),
    ("timeline --workdir=tests --steps=x", "--steps=x", "3:8"),
    (
        "timeline --workdir=tests --to=x",
        "--to=x is for render, export",
        "timeline takes --workdir, --out",
    ),
    ("timeline --workdir=tests CONFIG", "--config=configs/arithmetic.py is for run, resume, plan"),
    (
        "compare one two --at=token",
        "--at=token must be one of steps",
        "did you mean 'tokens'?",
    ),
    ("page --workdir=tests --port=70000", "--port=70000 must be a whole number from 0 to 65535."),
    ("page --workdir=tests --port x", "--port=x must be a whole number from 0 to 65535."),
    ("rollouts --workdir=tests --json=yes", "--json takes no value"),
    ("tinker --model=x --samplers=-1", "--samplers=-1 must be a whole number of at least 0."),
    ("timeline --workdir=tests --dtype=x", "--dtype=x is for export and tinker, not for timeline"),
    (
        "export --workdir=tests",
        "export needs --workdir=DIRECTORY and --to=DIRECTORY, as in",
    ),
    ("export --to=x", "export needs --workdir=DIRECTORY and --to=DIRECTORY"),
    (
        "export --workdir=tests --out=x",
        "--out=x is for tune, render, sweep, timeline",
        "takes --workdir, --to, --dtype",
    ),
    ("export --workdir=tests --to=TMP/x", "tests is not the work directory", "config"),
    ("export --workdir=README.md --to=TMP/x", "README.md/config.json cannot be read"),
]

NAMES = [
    ("sync.intervall=2", "did you mean --config.sync.interval=2?"),
    ("optimizer.lr=1", "Unknown setting", "did you mean --config.optimizer.learning_rate=1?"),
    ("optimzer.lr=1", "did you mean --config.optimizer.learning_rate=1?"),
    ("optimzer.lerning_rate=1", "did you mean --config.optimizer.learning_rate=1?"),
    ("critic.lr=1", "did you mean --config.critic.learning_rate=1?"),
    ("lr=1", "did you mean --config.optimizer.learning_rate=1?"),
    ("learning_rate=1", "optimizer.learning_rate=1 or --config.sft.learning_rate=1?"),
    ("algorithm.clip=1", "did you mean --config.algorithm.clip_"),
    ("algorithm.typo=1", "algorithm.typo; `rl-sync settings` lists all"),
    ("sync.group_size=1", "did you mean --config.trainer.group_size=1?"),
    ("synk.mode=x", "did you mean --config.sync.mode=x?"),
    ("warm_up.steps=1", "it is now --config.sft.steps=1."),
    ("num_explorers=2", "did you mean --config.explorer.count=2?"),
    ("lora_rank=8", "did you mean --config.model.lora.rank=8?"),
    ("max_new_tokens=8", "did you mean --config.task.max_completion_tokens=8?"),
    ("dataset.path=x", "did you mean --config.task.dataset.path=x?"),
    ("sync=3", "--config.sync is a section", "--config.sync.interval"),
    ("sync", "--config.sync is a section"),
    ("=3", "Unknown setting"),
    ("seed", "Missing value for flag --config.seed. Write it as"),
]

VALUES = [
    ("seed=-1", "seed=-1 must be at least 0"),
    ("seed=36893488147419103232", "config.seed=36893488147419103232 is too large", "4294967295"),
    ("seed=1.5", "--config.seed=1.5 must be a whole number"),
    ("seed=", "--config.seed= must be a whole number"),
    ("name=", "name='' is part of a directory's name"),
    ("name=..", "name='..'"),
    ("launch.colocate=maybe", "must be true or false"),
    ("optimizer.learning_rate=fast", "must be a number"),
    ("optimizer.name=sdg", "did you mean 'sgd'?"),
    ("sync.mode=async", "did you mean 'asynchronous'?"),
    ("sync.interval=two", "sync.interval=two must be a whole number"),
    ("sync.mode=custom sync.offset=1000000000", "sync.offset=1000000000 is beyond trainer.steps"),
    ("model.path=", "model.path"),
    ("model.path=~/nothing", "/nothing' is no directory: give that of a checkpoint"),
    ("trainer.steps=1000000000", "more than the 2,147,483,647 that an optimizer counts"),
    ("algorithm.over_sampling=1e9", "completions a step are more than arrays can hold"),
    ("task.name=", "task.name='' is not one of"),
    ("task.reward=exact(", "task.reward='exact(' cannot be read from '(' on"),
    ("task.reward=exact(1)", "task.reward='exact(1)': options are written as name=value"),
    ("task.name=mixture task.mixture.sets=a+(", "task.mixture.sets='a+(' cannot be read"),
    ("task.name=school task.school.generators=(", "task.school.generators='(' must be names"),
    ("task.name=mine.py:load(", "task.name='mine.py:load(' must be one name with options"),
    ("environment.name=guess(", "environment.name='guess(' must be one name with options"),
    ("task.max_prompt_tokens=1", "all prompts are longer"),
    ("task.arithmetic.operators=*", "must be made of + -"),
    ("task.arithmetic.greatest_operand=10000000", "more than 10,000,000 pairs"),
    ("rollout.stop_ids=99999999999999", "must be token ids"),
    ("algorithm.name=GRPO", "did you mean 'grpo'?"),
    ("master.port=5000 replay.port=5000", "master.port and replay.port are both 5000", "0 for any"),
    ("master.port=-1", "master.port=-1 must be at least 0 and at most 65535", "0 for any free one"),
    ("launch.wait_secs=1e30", "at most 1e+08"),
    ("launch.remote_shell=ssh {host} {", "with that alone in braces"),
    ("launch.remote_shell=ssh '{host}", "quotation marks that are closed"),
    ("launch.hosts=trainer=10.0.0.2 launch.host=", "needs launch.host"),
    ("launch.host=203.0.113.1", "launch.host=203.0.113.1 must be an address of this machine"),
    (f"launch.host={'a' * 70}", "cannot be looked up", "Give an address"),
    (
        "workdir=README.md",
        "README.md cannot be created: File exists. Give another --config.workdir",
    ),
    ("workdir=README.md/x", "cannot be created: Not a directory"),
    (f"workdir=TMP/{'a' * 300}", "cannot be created: File name too long"),
    ("sync.transfer=checkpoint sync.directory=", "must be an absolute path"),
]


def test_a_wrong_command_or_flag_is_refused(subtests, mistake):
    for words, *parts in FLAGS:
        with subtests.test(words):
            said = mistake(*words.replace("CONFIG", CONFIG).split())
            for part in parts:
                assert part in said


def test_an_unknown_setting_is_refused_with_the_one_that_was_meant(subtests, mistake):
    for setting, *parts in NAMES:
        with subtests.test(setting):
            said = mistake(CONFIG, f"--config.{setting}")
            for part in parts:
                assert part in said


def test_a_wrong_value_is_refused_with_the_rule(subtests, mistake):
    for settings, *parts in VALUES:
        with subtests.test(settings):
            values = [settings] if "remote_shell" in settings else settings.split()
            own = [] if "workdir" in settings else ["--config.workdir=TMP/run"]
            said = mistake(CONFIG, *own, *(f"--config.{value}" for value in values))
            for part in parts:
                assert part in said
            for value in values:
                assert said.count(f"{value.partition('=')[0]}=") <= 1


FILES = [
    ("def get_config(:\n", ", line 1: SyntaxError"),
    ("\0\x01\x02", "SyntaxError: source code string cannot contain null bytes"),
    ("a = '\udcff'\n", "SyntaxError", "utf-8"),
    ("", "has no function get_config()", "configs/arithmetic.py shows"),
    ("get_config = 3\n", "has no function get_config()"),
    ("\nimport nosuchmodule\n", ", line 2: ModuleNotFoundError: No module named 'nosuchmodule'"),
    ("def get_config():\n    raise KeyError('x\\ny')\n", ", line 2: KeyError"),
    ("def get_config():\n    raise RuntimeError()\n", ", line 2: RuntimeError: no reason given"),
    ("import sys\nsys.exit(3)\n", ", line 2: SystemExit: 3"),
    ("def get_config():\n    return get_config()\n", "RecursionError"),
    ("def get_config():\n    pass\n", "get_config() returned nothing", "and return it"),
    ("def get_config():\n    return {'seed': 1}\n", "get_config() returned a dict"),
    ("def get_config(kind):\n    return kind\n", "missing 1 required positional argument"),
    (
        "import ml_collections\ndef get_config():\n    return ml_collections.ConfigDict()\n",
        "config lacks name, seed, task",
        "start from rl_sync.configs.base",
    ),
    (
        "import ml_collections\ndef get_config():\n"
        "    return ml_collections.ConfigDict({'sync': 3, 'workdir': 5})\n",
        "config lacks name",
    ),
    (
        "from rl_sync.configs import base\ndef get_config():\n    config = base.get_config()\n"
        "    config.trainer.stepz = 3\n    return config\n",
        "config.trainer.stepz is not a setting; did you mean config.trainer.steps?",
    ),
    (
        "from rl_sync.configs import base\ndef get_config():\n    config = base.get_config()\n"
        "    config.seed = 'x'\n    return config\n",
        ", line 4: TypeError: Could not override field 'seed'",
    ),
]


def test_a_broken_config_file_is_named_with_the_line(subtests, mistake, tmp_path):
    for number, (text, *parts) in enumerate(FILES):
        path = tmp_path / f"mine{number}.py"
        path.write_text(text, errors="surrogateescape")
        for command in ("run", "plan"):
            with subtests.test(f"{command} {text!r}"):
                said = mistake(command, f"--config={path}")
                for part in (str(path) if "config lacks" not in parts[0] else "", *parts):
                    assert part in said or "is not a setting" in said


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ("--config=", ["names no file"]),
        ("--config", ["names no file"]),
        ("--config=configs", ["--config=configs is a directory"]),
        ("--config=nosuch.py", ["no such file. configs/arithmetic.py shows"]),
        ("--config=nosuch.py", ["Those of the package are arithmetic, base, "]),
        ("--config=somewhere/arithmetic.py", ["did you mean --config=configs/arithmetic.py?"]),
        ("--config=arithmetic:x", ["takes 0 positional arguments but 1 was given"]),
        ("--config=configs.arithmetic", ["did you mean --config=configs/arithmetic.py?"]),
        ("--config=configs/arithmetik.py", ["did you mean --config=configs/arithmetic.py?"]),
        ("--config=configs/arithmetic.py:x", ["takes 0 positional arguments but 1 was given"]),
        ("--config=configs/jsonl.py", ["task.jsonl.path is not set"]),
    ],
)
def test_a_config_that_is_not_there_is_refused(config, parts, mistake):
    said = mistake(config)
    for part in parts:
        assert part in said


@pytest.mark.parametrize("text", ['{"name": "ru', "[]", "\udcff", "[" * 5000])
def test_a_torn_config_of_a_work_directory_is_named(text, mistake, tmp_path):
    (Workdir(tmp_path / "run").snapshots / "5").mkdir(parents=True)
    path = Workdir(tmp_path / "run").config
    path.write_text(text, errors="surrogateescape")
    said = mistake("export", "--workdir=TMP/run", "--to=TMP/new")
    assert f"{path} " in said
    assert "put a copy of it back" in said


def test_a_run_does_not_go_on_from_a_torn_config(mistake, tmp_path):
    snapshot_path(Workdir(tmp_path / "run").snapshots, 5).mkdir(parents=True)
    Workdir(tmp_path / "run").config.write_text('{"name": "ru')
    said = mistake(CONFIG, "--config.workdir=TMP/run")
    assert f"{tmp_path}/run/config.json cannot be read" in said


def test_a_timeline_of_a_run_that_has_done_nothing_yet_is_refused(mistake, tmp_path):
    Workdir(tmp_path).spans.mkdir()
    Workdir(tmp_path).spans_of("trainer").write_text("")
    assert "holds no spans yet" in mistake("timeline", "--workdir=TMP")


def test_ctrl_c_before_a_run_starts_ends_it_quietly(monkeypatch, capsys):
    def interrupted(words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rl_sync.launcher.command_line.parse", interrupted)
    said = said_here(capsys, CONFIG)
    assert said.status == 130
    assert said.err == "\nInterrupted.\n"


def test_a_backend_of_metrics_that_is_unknown_or_not_installed_is_refused(mistake, monkeypatch):
    told = mistake(CONFIG, "--config.observe.backends=tensorboard,wanb")
    assert "'wanb' is not one of" in told
    assert "did you mean 'wandb'?" in told
    gone = BackendKind("none:start", "no_such_package", "wandb")
    monkeypatch.setitem(backend_catalog.BACKENDS, "wandb", gone)
    told = mistake(CONFIG, "--config.observe.backends=wandb")
    assert 'not installed. Install it: pip install "rl_sync[wandb]"' in told
    assert "there is no file none.py" in mistake(CONFIG, "--config.observe.backends=none.py:start")
