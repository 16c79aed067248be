"""The live display: its contents, and the times at which it prints."""

import dataclasses
import io

import pytest
from matplotlib.colors import to_rgba
from rich.console import Console
from rich.style import Style

from rl_sync.display.live import LiveDisplay, describe_activity, plain_line, render
from rl_sync.display.span_styles import SPAN_STYLES
from rl_sync.messages.run_status import Alarm, RoleStatus, RunStatus
from rl_sync.records.spans import SpanKind, sync_kind
from rl_sync.transfer import TRANSFERS

STATUS = RunStatus(
    phase="rl",
    step=12,
    steps=60,
    roles=(
        RoleStatus("explorer1", "rollout", 1.2, step=13, version=11, tokens_per_sec=5321.2),
        RoleStatus("explorer2", "wait", 3.21, waits_for="synchronization", step=14, version=11),
        RoleStatus("trainer", "train", 0.4, step=12, version=11, reward=0.61, staleness=1.0),
    ),
    buffer_size=16,
    buffer_capacity=64,
    elapsed_secs=83.0,
    message="snapshot saved",
)


def _text(status: RunStatus) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(render(status))
    return console.file.getvalue()


def test_each_role_has_a_line_with_its_state_and_numbers():
    lines = _text(STATUS).splitlines()
    (explorer,) = [line for line in lines if line.startswith("explorer1")]
    assert explorer.split() == ["explorer1", "rollout", "e13", "13", "11", "5,321"]
    (waiting,) = [line for line in lines if line.startswith("explorer2")]
    assert "waits for synchronization 3.2 s" in waiting
    (trainer,) = [line for line in lines if line.startswith("trainer")]
    assert trainer.split() == ["trainer", "train", "t12", "12", "11", "0.610", "1.0"]
    text = "\n".join(lines)
    for part in ("step 12/60", "1:23", "16 of 64 groups", "snapshot saved"):
        assert part in text


def test_a_status_of_which_nothing_is_known_yet_renders():
    assert "starting" in _text(RunStatus("starting", 0, 0, (RoleStatus("master", "starting", 0),)))


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (RoleStatus("explorer3", "rollout", 1, step=7), "rollout e7"),
        (RoleStatus("trainer", "sync_checkpoint", 1, version=4), "sync v4"),
        (RoleStatus("explorer1", "sync_server", 1, version=4), "sync v4"),
        (RoleStatus("trainer", "sft", 1, step=7), "SFT"),
        (RoleStatus("trainer", "evaluation", 1, step=7, done=64, of=500), "evaluation 64/500"),
        (RoleStatus("explorer1", "compile", 1, done=3), "compile 3"),
        (
            RoleStatus("trainer", "wait", 3.25, waits_for="experiences"),
            "waits for experiences 3.2 s",
        ),
    ],
)
def test_states_in_words(role, words):
    assert describe_activity(role) == words


@pytest.mark.parametrize("kind", SpanKind)
def test_every_kind_of_span_has_words_and_a_colour_in_each_picture(kind):
    look = SPAN_STYLES[kind]
    assert look.words
    assert "_" not in describe_activity(RoleStatus("trainer", str(kind), 1.0))
    table = render(RunStatus("rl", 1, 2, (RoleStatus("trainer", str(kind), 1.0),))).renderables[1]
    (shown,) = table.columns[1].cells
    assert Style.parse(str(shown.style)), "its line has no colour"
    assert to_rgba(look.colour)


@pytest.mark.parametrize("name", TRANSFERS)
def test_every_transfer_has_a_kind_of_span_of_its_own_colours(name):
    looks = [SPAN_STYLES[kind] for kind in SpanKind]
    look = SPAN_STYLES[sync_kind(name)]
    for of in ("colour", "style", "trace_colour"):
        assert [getattr(one, of) for one in looks].count(getattr(look, of)) == 1


def test_the_plain_line_says_it_all():
    assert plain_line(STATUS) == (
        "[1:23] rl 12/60 | explorer1: rollout e13, v11, 5,321 tokens/s"
        " | explorer2: waits for synchronization 3.2 s, v11"
        " | trainer: train t12, v11, reward 0.610, staleness 1.0"
        " | buffer: 16 of 64 groups | snapshot saved"
    )


def test_sft_is_shown_with_its_own_steps_and_its_loss():
    status = RunStatus("sft", 120, 400, (RoleStatus("trainer", "sft", 4.0),), loss=0.3512)
    assert plain_line(status) == "[0:00] sft 120/400, loss 0.351 | trainer: SFT"
    assert "step 120/400, loss 0.351" in _text(status)


def test_the_time_left_stands_beside_the_time_so_far():
    status = RunStatus("rl", 12, 60, elapsed_secs=83.0, left_secs=3725.0)
    assert plain_line(status) == "[1:23] rl 12/60, 1:02:05 left"
    assert "1:23  1:02:05 left" in _text(status)


def _plain_display():
    """Makes a display on a file, with a clock that the test moves."""
    now = [0.0]
    console = Console(file=io.StringIO(), width=80)
    return LiveDisplay(console, 10.0, lambda: now[0]), now, console.file


def test_away_from_a_terminal_a_line_comes_every_ten_seconds():
    display, now, file = _plain_display()
    with display:
        for second in range(0, 25):
            now[0] = float(second)
            display.update(dataclasses.replace(STATUS, step=second))
        assert [line.split()[2] for line in file.getvalue().splitlines()] == [
            "0/60", "10/60", "20/60",
        ]  # fmt: skip
    assert file.getvalue().splitlines()[-1].split()[2] == "24/60"


def test_a_new_phase_and_a_new_message_are_printed_at_once():
    display, _, file = _plain_display()
    with display:
        display.update(STATUS)
        display.update(dataclasses.replace(STATUS, phase="evaluation"))
        display.update(dataclasses.replace(STATUS, phase="evaluation", message="done [1/2]"))
        display.update(dataclasses.replace(STATUS, phase="evaluation", message="done [1/2]"))
    lines = file.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1].endswith("done [1/2]")


ALARM = Alarm("no reward", "No completion earned a reward. Read [them].")
ALARMED = dataclasses.replace(STATUS, alarms=(ALARM,), examples=("'1+1=' → '\x1b': wrong",))


def test_an_alarm_is_printed_when_it_is_raised_and_when_it_comes_back():
    display, _, file = _plain_display()
    with display:
        for status in (STATUS, ALARMED, dataclasses.replace(ALARMED, step=13), STATUS, ALARMED):
            display.update(status)
    lines = [line for line in file.getvalue().splitlines() if not line.startswith("[1:23]")]
    assert lines == ["ALARM: " + ALARM.text, "  '1+1=' → '\\x1b': wrong"] * 2


def test_on_a_terminal_alarms_stay_below_the_roles():
    *_, alarm, example = _text(ALARMED).splitlines()
    assert (alarm, example) == ("ALARM: " + ALARM.text, "  '1+1=' → '\\x1b': wrong")


def test_on_a_terminal_the_last_state_stays():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with LiveDisplay(console) as display:
        display.update(STATUS)
    assert "rollout e13" in console.file.getvalue()
