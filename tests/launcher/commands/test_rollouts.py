"""`rollouts`: what a run's policy wrote, in a terminal and as JSON lines."""

import io
import json

import orjson
import pytest
from rich.console import Console

from rl_sync.display import text
from rl_sync.launcher.commands import rollout_view, rollouts
from rl_sync.records.metrics_writer import MetricsWriter
from rl_sync.records.rollouts.rollout_parts import RolloutParts
from rl_sync.records.rollouts.rollout_records import Rollout
from rl_sync.workdir import Workdir
from tests.launcher.command import said_here


def _rollout(step, sample, reward, text, **fields):
    said = {"prompt": "say it", "completion": text, "logprobs": [-0.5] * len(text)}
    made = {"lease": 10 * step + sample // 2, "prompt_id": step, "versions": [[step, len(text)]]}
    return Rollout(step=step, sample=sample, reward=reward, **{**said, **made, **fields})


RUN = [
    _rollout(1, 0, 0.0, "abc", why="not it", expected="it", advantage=-0.5, mask=[[0, 3]]),
    _rollout(1, 1, 1.0, "it", components={"exact": 1.0, "short": 0.0}, truncated=True),
    _rollout(1, 2, 0.5, "so\x1b[31m", staleness=3),
    _rollout(1, 3, None, "?"),
    _rollout(2, 0, 0.25, "", lease=20, versions=[[1, 2], [-1, 1], [2, 4]],
             turns=[{"by": "policy", "text": "guess", "segment": 0},
                    {"by": "environment", "text": "warmer", "segment": 0}],
             episode={"reason": "turns"}),
]  # fmt: skip


@pytest.fixture
def workdir(tmp_path):
    parts = RolloutParts(tmp_path)
    for step in (1, 2):
        parts.write(step, [orjson.dumps(one) for one in RUN if one.step == step])
    parts.close()
    return tmp_path


@pytest.fixture
def shown(workdir, capsys):
    return lambda *flags: said_here(capsys, "rollouts", f"--workdir={workdir}", *flags)


def _samples(said):
    """The step and sample of each whole record."""
    heads = [line.split("─")[0].split() for line in said.out.splitlines() if "· sample" in line]
    return [(int(words[1]), int(words[-1])) for words in heads]


def test_without_conditions_there_is_a_line_for_each_step_and_the_alarms(shown, workdir):
    said = shown()
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[1] == ["1", "2", "4", "0.500", "0.000", "1.000", "3.2", "25%", "3"]
    assert lines[2] == ["2", "1", "1", "0.250", "0.250", "0.250", "6.0", "0"]
    assert "ALARM" not in said.out
    with MetricsWriter(workdir) as metrics:
        metrics.write("rl", 1, {"logprob_gap": 2.0})
    config = {"observe": {}, "trainer": {"group_size": 2}, "algorithm": {"logprob_gap_alarm": 1.0}}
    Workdir(workdir).config.write_text(json.dumps(config))
    assert "ALARM since trainer step 1: The logprobs of trainer" in shown().out
    assert "1 earlier steps: --limit=2" in shown("--limit=1").out


def test_a_step_alone_is_a_line_for_each_group(shown):
    said = shown("--step=1")
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[1][:7] == ["1", "10", "1", "0.500", "2.5", "0.000", "1.000"]
    assert lines[2][:7] == ["1", "11", "1", "0.500", "4.0", "0.500", "?"]
    assert "1 more groups: --limit=2" in shown("--step=1", "--limit=1").out


@pytest.mark.parametrize(
    ("flags", "samples"),
    [
        (["--sort=reward"], [(1, 0), (2, 0), (1, 2), (1, 1), (1, 3)]),
        (["--sort=-reward"], [(1, 1), (1, 2), (2, 0), (1, 0), (1, 3)]),
        (["--sort=-reward", "--limit=1"], [(1, 1)]),
        (["--step=1", "--sort=tokens", "--reward=0.5:"], [(1, 1), (1, 2)]),
        (["--reward=:0.3"], [(1, 0), (2, 0)]),
        (["--reward=1"], [(1, 1)]),
        (["--grep=^so"], [(1, 2)]),
        (["--grep=guesswarm"], [(2, 0)]),
        (["--grep=say", "--step=2"], [(2, 0)]),
        (["--prompt=2"], [(2, 0)]),
        (["--sort=-staleness", "--limit=1"], [(1, 2)]),
        (["--sort=advantage", "--limit=1"], [(1, 0)]),
    ],
)
def test_conditions_and_orders(shown, flags, samples):
    said = shown(*flags)
    assert said.status == 0, said.err
    assert _samples(said) == samples


def test_a_whole_record_says_all_that_is_known(shown):
    said = shown("--reward=0")
    for part in ("reward 0.000 · advantage -0.500 · 3 tokens · staleness 0 · v1", "masked",
                 "logprob -0.500", "not it · expected: it", "say it", "\nabc\n"):  # fmt: skip
        assert part in said.out
    said = shown("--reward=1")
    assert "reward 1.000 (exact 1, short 0) · 2 tokens" in said.out
    assert "cut by a limit" in said.out
    said = shown("--step=2", "--lease=20")
    assert "v1–2" in said.out
    assert "ended: turns" in said.out
    assert "guesswarmer" in said.out


def test_images_of_a_prompt_have_a_line_each_without_their_bytes():
    images = [
        {"digest": "ab" * 32, "width": 28, "height": 20, "bytes": 1234},
        {"error": "gone.png cannot be read\x1b[31m"},
    ]
    group = [_rollout(1, i, 0.0, "abc", images=images) for i in range(2)]
    for shown in (rollout_view.sample(group[0]), rollout_view.side_by_side(group, 80)):
        console = Console(file=io.StringIO(), width=80)
        console.print(shown)
        said = console.file.getvalue()
        assert "image 1: 28x20, 1,234 bytes, sha256 abababababab…" in said
        assert "image 2: gone.png cannot be read\\x1b[31m" in said


def test_what_the_policy_wrote_cannot_command_the_terminal(shown):
    said = shown("--grep=so")
    assert "so\\x1b[31m" in said.out
    assert "\x1b" not in said.out


@pytest.mark.parametrize(("width", "columns"), [(80, 2), (40, 1), (200, 4)])
def test_a_group_is_side_by_side_where_there_is_room(width, columns):
    group = [_rollout(1, i, 0.0, f"text{i}", lease=1) for i in range(4)]
    console = Console(file=io.StringIO(), width=width)
    console.print(rollout_view.side_by_side(group, width))
    lines = [line.split() for line in console.file.getvalue().splitlines() if "text" in line]
    assert [len(line) for line in lines] == [columns] * (4 // columns)
    assert [text for line in lines for text in line] == [f"text{i}" for i in range(4)]


def test_colours_are_for_terminals_alone(workdir, monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(
        rollouts, "Console", lambda **_: Console(file=file, width=80, force_terminal=True)
    )
    assert rollouts.show({"workdir": str(workdir), "sort": "reward"}) == 0
    assert "\x1b[" in file.getvalue()


def test_for_machines_there_are_json_lines(shown):
    said = shown("--json", "--sort=-reward", "--limit=2")
    some = [json.loads(line) for line in said.out.splitlines()]
    assert [(one["reward"], one["completion"]) for one in some] == [
        (1.0, "it"),
        (0.5, "so\x1b[31m"),
    ]
    assert Rollout(**some[0]) == RUN[1]
    assert len(shown("--json").out.splitlines()) == len(RUN)


@pytest.mark.parametrize("more", [[], ["--json"], ["--sort=reward"]])
def test_where_nothing_fits_the_status_says_so(shown, more):
    said = shown("--step=7", *more)
    assert (said.status, said.out) == (1, "")
    assert bool(said.err) is (more != ["--json"])


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--grep=(", "not a regular expression"),
        ("--sort=rewards", "did you mean 'reward'"),
        ("--step=2:1", "write 1:2"),
        ("--step=:", "a number or a range"),
        ("--step=1.5", "a number or a range"),
        ("--reward=low", "a number or a range"),
        ("--lease=x", "whole number"),
        ("--limit=0", "at least 1"),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(shown, flag, message):
    said = shown(flag)
    assert (said.status, said.out) == (2, "")
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_directory_without_records_is_a_mistake(tmp_path, capsys):
    for flags in ([], [f"--workdir={tmp_path}"], [f"--workdir={tmp_path}/none"]):
        said = said_here(capsys, "rollouts", *flags)
        assert said.status == 2
        assert said.err.startswith("error: ")


def test_the_mean_logprob_is_of_the_tokens_that_were_drawn():
    assert Rollout(step=1, lease=1, logprobs=[-1.0, None, -2.0]).mean_logprob == -1.5
    assert Rollout(step=1, lease=1, logprobs=[None]).mean_logprob is None


def test_rewards_that_differ_are_not_written_alike():
    values = (1.0, 0.9996, 0.99951, 1 / 3, 0.333, 0.5, -0.25, None)
    written = [rollout_view._reward(value) for value in values]
    assert written == ["1.000", "0.999600", "0.999510", "0.333333", "0.333", "0.500", "-0.250", "?"]
    assert [text.number(value, 6) for value in values[:4]] == ["1", "0.9996", "0.99951", "0.333333"]


def test_records_that_have_gone_are_told_of_wherever_completions_are_shown(tmp_path, capsys):
    lines = {step: [orjson.dumps(_rollout(step, 0, 0.5, "abc"))] for step in range(1, 9)}
    each = len(lines[1][0]) + 1
    parts = RolloutParts(tmp_path, most_bytes=3 * each)
    for step in (3, 4, 5, 6, 7, 8):
        parts.write(step, lines[step])
    parts.close()

    def shown(*flags):
        said = said_here(capsys, "rollouts", f"--workdir={tmp_path}", *flags)
        return said.status, " ".join(said.out.split()), " ".join(said.err.split())

    gone = "The completions of steps 3 to 5 are no longer there"
    assert gone in shown()[1]
    assert gone in shown("--step=7")[1]
    assert gone in shown("--sort=reward")[1]
    status, out, told = shown("--step=4")
    assert (status, out) == (1, "")
    assert f"begin with step 6. {gone}" in told
    status, out, told = shown("--json")
    assert [json.loads(line)["step"] for line in out.replace("} {", "}\n{").splitlines()] == [
        6,
        7,
        8,
    ]
    assert told.startswith(gone)
    for part in Workdir(tmp_path).rollouts.iterdir():
        part.unlink()
    assert gone in shown()[2]
