"""The examples of docs/environments.md."""

import re
from pathlib import Path

import numpy as np
import pytest

from rl_sync.environments.dialogue.tool_call_text import read_tagged
from rl_sync.environments.hosts.process_host import ProcessHost
from rl_sync.environments.interface import Outcome, Reply
from rl_sync.environments.opponents import Seating
from rl_sync.tasks.pictures.places import PLACE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "environments.md"


@pytest.fixture(name="examples")
def _examples(tmp_path):
    """Files with the Python texts of the page, in their order."""
    texts = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(texts) == 5
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"example_{number}.py")
        files[-1].write_text(text)
    return files


def _answer(host):
    (answer,) = host.answers(60.0)
    return answer.result


def test_the_game_can_be_won_and_lost(examples):
    assert len(examples[0].read_text().splitlines()) <= 35
    with ProcessHost(f"{examples[0]}:Nim(stones=3)") as host:
        for said, won in {"3": 1.0, "4": 0.0, "three": 0.0}.items():
            host.begin(1, {}, seed=0)
            assert _answer(host).messages[0].content == "3 stones. You take: "
            host.step(1, Reply(said))
            assert _answer(host).rewards == {"won": won}
        host.begin(2, {"stones": 6}, seed=0)
        assert "6 stones" in _answer(host).messages[0].content
        host.step(2, Reply("1"))
        assert "stones. You take" in _answer(host).messages[0].content


@pytest.mark.gate
def test_the_tool_is_called_and_the_answer_judged(examples):
    with ProcessHost(f"{examples[1]}:Sums") as host:
        host.begin(1, {"prompt": "12 * 34?", "answer": "408"}, seed=0)
        (schema,) = _answer(host).tools
        assert schema["function"]["name"] == "multiply"
        call = read_tagged(
            '<tool_call>{"name": "multiply", "arguments": {"a": 12, "b": 34}}</tool_call>'
        )
        host.step(1, Reply("", tool_calls=tuple(call.calls)))
        assert _answer(host).messages[0].content == "408"
        host.step(1, Reply("It is 408."))
        assert _answer(host) == Outcome({"right": 1.0})


@pytest.mark.gate
def test_the_camera_shows_a_ball_on_either_side(examples):
    with ProcessHost(f"{examples[2]}:Camera") as host:
        for seed, side in enumerate(("left", "right")):
            host.begin(1, {}, seed)
            message = _answer(host).messages[0]
            assert message.content == f"{PLACE}Where is the ball?"
            (image,) = message.images
            bright = np.nonzero(image.pixels().any(axis=(0, 2)))[0]
            assert (bright.max() < 8) == (side == "left")
            host.step(1, Reply(side))
            assert _answer(host) == Outcome({"right": 1.0})


def test_the_game_of_two_is_played_against_a_player_of_one_s_own(examples):
    with ProcessHost(f"{examples[4]}:Higher") as host:
        for opponent, digit in {f"{examples[3]}:last": "9", "first": "0"}.items():
            host.begin(1, {}, 4, Seating(1, None, opponent))
            turn = _answer(host)
            limit = int(turn.messages[0].content.split()[3].rstrip("."))
            assert turn.played == ((0, opponent, digit),)
            host.step(1, Reply("2"))
            outcome = _answer(host)
            assert limit < 9
            assert outcome.rewards == {"won": 1.0}
            assert outcome.metrics["won"] == 1.0
        host.begin(2, {}, 4, Seating(0, None, "first"))
        assert _answer(host).played == ()
        host.step(2, Reply("ten"))
        assert _answer(host).metrics["lost"] == 1.0
