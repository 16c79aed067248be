"""The director between environments of this file and a policy that goes by a script."""

import dataclasses
import time
from typing import ClassVar

import numpy as np
import pytest

from rl_sync.cluster.session import HandOverError
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.ending import Ending, Fault
from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.dialogue.conversation import Conversation
from rl_sync.environments.dialogue.reader import ReplyReader
from rl_sync.environments.dialogue.sight import Sight
from rl_sync.environments.environment_settings import EnvironmentSettings
from rl_sync.environments.first_messages import first_messages
from rl_sync.environments.hosts.host import HostAnswer
from rl_sync.environments.hosts.inline_host import InlineHost
from rl_sync.environments.interface import ANEW, Message, Outcome, Turn
from rl_sync.images import Image
from rl_sync.isolation.codec import decode, encode
from rl_sync.references import resolve
from rl_sync.roles.explorer.director import Director
from rl_sync.rollout.episodes.episode_records import BeginEpisode, Continue, End, Said
from rl_sync.tasks.pictures.tile_processor import SquareTiles
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.thoughts import marks_of

TOKENIZER = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz!?. ")


class Echo:
    """Says a reply again with `!`, for ½ each, until it hears `stop`; `task["turns"]` bounds it."""

    inline = True
    faults: ClassVar = {"reset": 0, "step": 0}
    """How often the next environments are to fail."""

    def reset(self, task, seed):
        self._task, self._said = task, 0
        if self.faults["reset"]:
            self.faults["reset"] -= 1
            raise LookupError("no board")
        return Turn(first_messages(task), stop_strings=("?",), **task.get("turn", {}))

    def step(self, reply):
        self._said += 1
        if self.faults["step"]:
            self.faults["step"] -= 1
            raise ArithmeticError("no move")
        if reply.answer == "stop":
            return Outcome({"won": 1.0}, {"said": self._said})
        return Turn((Message("user", f"{reply.text}!"),), reward=0.5)

    def close(self):
        pass


@pytest.fixture(name="faults")
def _faults():
    """The faults of the class that the host finds, whose module is another copy of this one."""
    faults = resolve(f"{__file__}:Echo").faults
    yield faults
    faults.update(reset=0, step=0)


def _director(bridge=None, tokenizer=TOKENIZER, **settings):
    limits = EnvironmentSettings(
        **{"name": "x:Y", "max_tokens": 64, "max_turns": 4, "attempts": 2, **settings}
    )
    return Director(
        InlineHost(f"{__file__}:Echo"),
        bridge or Bridge(tokenizer),
        ReplyReader(tokenizer),
        limits,
    )


def _begin(director, prompt="hello.", **task):
    director.begin([BeginEpisode(7, {"prompt": prompt, **task}, seed=1)])
    return _only(director)


def _say(director, text, is_cut=False):
    ids = np.array(TOKENIZER.encode(text), np.int32)
    numbers = np.arange(len(ids))
    director.take([Said(7, ids, is_cut, -numbers / 8, numbers)])
    return _only(director)


def _only(director, all_of_them=True):
    (answer,) = director.answers(1.0, all_of_them)
    assert answer.episode == 7
    return answer


def _text(answer):
    assert isinstance(answer, Continue), answer
    return TOKENIZER.decode(answer.ids.tolist())


def test_first_turn_and_answers_come_as_ids_with_their_rewards():
    director = _director()
    first = _begin(director)
    assert (_text(first), first.begins_segment, first.stop_strings) == ("hello.", True, ("?",))
    assert first.room == 64 - len("hello.")
    second = _say(director, "yes")
    assert (_text(second), second.begins_segment, second.reward) == ("yes!", False, 0.5)
    assert second.room == 64 - len("hello.") - len("yes") - len("yes!")


def test_an_outcome_ends_the_episode_with_the_rewards_of_its_turns():
    director = _director()
    _begin(director)
    _say(director, "yes")
    _say(director, "no")
    ended = _say(director, "stop")
    assert ended == End(
        7, Ending({"turns": 1.0, "won": 1.0}, {"said": 3}, "done", "", turns=3, segments=1)
    )


def test_thoughts_that_a_turn_has_begun_are_no_part_of_the_answer():
    thinker = dataclasses.replace(TOKENIZER, thoughts=marks_of("! !!"))
    director = _director(tokenizer=thinker)
    _begin(director)
    assert _text(_say(director, "not yet")) == "not yet!"
    assert isinstance(_say(director, "so!!stop"), End)


def test_thoughts_that_a_message_has_begun_are_no_part_of_the_answer():
    director = _director(tokenizer=dataclasses.replace(TOKENIZER, thoughts=marks_of("! !!")))
    asked = {"role": "user", "content": "hello."}
    _begin(director, prompt_messages=[asked, {"role": "assistant", "content": "!three times"}])
    assert isinstance(_say(director, " is so!!stop"), End)


def test_the_last_turn_is_rewarded_and_cut():
    director = _director(max_turns=2)
    _begin(director)
    _say(director, "a")
    ended = _say(director, "b")
    assert (ended.ending.reason, ended.ending.turns, ended.reward) == ("turns", 2, 0.5)
    assert ended.ending.rewards == {"turns": 1.0}


@pytest.mark.parametrize("is_cut", [True, False])
def test_an_end_says_whether_a_limit_ended_the_last_reply(is_cut):
    director = _director()
    _begin(director)
    _say(director, "so", is_cut=not is_cut)
    assert _say(director, "stop", is_cut=is_cut).ending.is_cut == is_cut


def test_an_episode_without_room_for_a_reply_is_cut():
    director = _director(max_tokens=16)
    assert _begin(director).room == 10
    ended = _say(director, "abcde")  # And six that answer it: 17 in all.
    assert (ended.ending.reason, ended.reward) == ("context", 0.5)
    assert _begin(_director(max_tokens=6)).ending.reason == "context"


def test_one_that_leaves_room_for_one_token_goes_on():
    director = _director(max_tokens=18)
    _begin(director)
    assert _say(director, "abcde").room == 1


@pytest.mark.parametrize("place", ["reset", "step"])
def test_an_episode_whose_environment_fails_begins_again(place, faults):
    faults[place] = 1
    director = _director()
    answer = _begin(director)
    if place == "step":
        assert not answer.restarts
        answer = _say(director, "yes")
    assert (_text(answer), answer.restarts, answer.begins_segment) == ("hello.", True, True)
    assert not _say(director, "yes").restarts
    ended = _say(director, "stop")
    assert (ended.ending.turns, ended.ending.rewards) == (2, {"turns": 0.5, "won": 1.0})
    why = "LookupError: no board" if place == "reset" else "ArithmeticError: no move"
    assert ended.ending.faults == (Fault("environment failure", why),)


def test_one_that_fails_too_often_ends_with_the_fault_and_without_rewards(faults):
    director = _director(attempts=3)
    _begin(director)
    _say(director, "yes")
    faults.update(step=1, reset=2)
    ended = _say(director, "yes").ending
    assert (ended.reason, ended.rewards, ended.failed) == ("environment failure", {}, True)
    assert "LookupError: no board" in ended.why
    whys = ["ArithmeticError: no move", *["LookupError: no board"] * 2]
    assert ended.faults == tuple(Fault("environment failure", why) for why in whys)


def test_a_turn_that_the_tokenizer_cannot_say_is_a_fault_of_the_environment():
    director = _director()
    ended = _begin(director, prompt="HELLO").ending
    assert ended.reason == "environment failure"
    assert ended.why.startswith("its turn cannot be said: Character 'H' at 0 of 'HELLO'")


def test_a_first_turn_without_a_token_is_a_fault_of_the_environment():
    ended = _begin(_director(), prompt="").ending
    assert ended.reason == "environment failure"
    assert ended.why.startswith("its turn cannot be said: all messages are empty")


def test_a_reply_after_the_deadline_of_its_turn_ends_the_episode():
    director = _director()
    _begin(director, turn={"deadline_secs": 0.01})
    time.sleep(0.05)
    ended = _say(director, "late").ending
    assert (ended.reason, ended.failed) == ("time-out", True)
    assert ended.why == "the reply took longer than the 0.01 s of its turn"
    assert ended.faults == (Fault("time-out", ended.why),)


def test_a_rewritten_conversation_stops_the_run_if_that_is_wanted():
    class Rewriting(Bridge):
        def next(self, conversation, reply, drawn, turn):
            step = super().next(conversation, reply, drawn, turn)
            return step._replace(begins_segment=True)

    director = _director(Rewriting(TOKENIZER))
    _begin(director)
    assert _say(director, "yes").begins_segment
    assert _say(director, "stop").ending.segments == 2
    director = _director(Rewriting(TOKENIZER), rewrites="refuse")
    _begin(director)
    with pytest.raises(RunEndedError, match=r"with environment\.rewrites=segment"):
        _say(director, "yes")


def test_answers_come_as_they_are_ready_or_all_in_order():
    director = _director()
    director.begin([BeginEpisode(i, {"prompt": "hi."}, seed=1) for i in (3, 1, 2)])
    assert [answer.episode for answer in director.answers(0.0, False)] == [1, 2, 3]
    assert director.answers(0.0, False) == director.answers(0.0, True) == []


def test_environments_that_never_answer_are_waited_for_twice_their_time(monkeypatch):
    monkeypatch.setattr("rl_sync.roles.explorer.director.START_SECS", 0.3)
    director = _director(limit_secs=0.1)
    director._host.answers = lambda timeout_secs: time.sleep(timeout_secs) or []
    director.begin([BeginEpisode(1, {"prompt": "hi."}, seed=1)])
    assert director.answers(0.05, False) == []
    with pytest.raises(TimeoutError, match=r"1 episodes wait .* 0\.5 s \(twice environment"):
        director.answers(0.0, True)


@pytest.mark.parametrize("all_of_them", [True, False])
def test_a_wait_for_environments_ends_when_the_process_is_asked_to_end(monkeypatch, all_of_them):
    def asked():
        raise HandOverError("explorer1 was asked to end")

    monkeypatch.setattr("rl_sync.roles.explorer.director.START_SECS", 0.3)
    limits = EnvironmentSettings(name="x:Y", max_tokens=64, limit_secs=0.1)
    host = InlineHost(f"{__file__}:Echo")
    director = Director(host, Bridge(TOKENIZER), ReplyReader(TOKENIZER), limits, check=asked)
    director._host.answers = lambda timeout_secs: time.sleep(timeout_secs) or []
    assert director.answers(0.0, all_of_them) == [], "nothing is awaited"
    director.begin([BeginEpisode(1, {"prompt": "hi."}, seed=1)])
    with pytest.raises(HandOverError):
        director.answers(0.5, all_of_them)


class Branches:
    """Gives the turns of its row, one after the other, then ends with the replies that it got."""

    inline = True

    def reset(self, task, seed):
        self._left = list(task["turns"])
        return self._next()

    def step(self, reply):
        Branches.got.append(reply)
        return self._next()

    def _next(self):
        if not self._left:
            return Outcome({}, why="nothing was won")
        text, fields = self._left.pop(0)
        return Turn((Message("user", text),), **fields)

    def close(self):
        pass


@pytest.fixture(name="got")
def _got():
    """The replies that the environment got."""
    found = resolve(f"{__file__}:Branches")
    found.got = []
    return found.got


def _branching(*turns, **settings):
    director = _director(**settings)
    director._host = InlineHost(f"{__file__}:Branches")
    return director, _begin(director, turns=turns)


def test_a_turn_may_follow_an_earlier_reply_whose_ids_are_repeated(got):
    director, first = _branching(
        ("hi.", {"after": ANEW}), ("on.", {"after": 0}), ("no.", {"after": 0}), ("oh.", {})
    )
    assert (_text(first), first.begins_segment) == ("hi.", True)
    second = _say(director, "aa")
    assert (_text(second), second.begins_segment) == ("on.", False)
    third = _say(director, "bb")
    assert (_text(third), third.begins_segment) == ("hi.aano.", True)
    fourth = _say(director, "cc")
    assert (_text(fourth), fourth.begins_segment) == ("oh.", False)
    assert fourth.room == 64 - len("hi.aaon.bb") - len("hi.aano.cc") - len("oh.")
    ended = _say(director, "dd").ending
    assert (ended.reason, ended.why, ended.turns, ended.segments) == (
        "done",
        "nothing was won",
        4,
        2,
    )
    prompts = [TOKENIZER.decode(reply.drawn.prompt.tolist()) for reply in got]
    assert prompts == ["hi.", "hi.aaon.", "hi.aano.", "hi.aano.ccoh."]
    assert [TOKENIZER.decode(reply.drawn.tokens.tolist()) for reply in got] == [
        *("aa", "bb", "cc", "dd")
    ]
    assert got[0].drawn.logprobs.tolist() == [0.0, -0.125]
    assert got[0].drawn.versions.tolist() == [0, 1]


def test_a_turn_that_is_a_whole_conversation_begins_a_segment(got):
    director, _ = _branching(("hi.", {}), ("you.", {"after": ANEW, "most_tokens": 3}))
    turn = _say(director, "aa")
    assert (_text(turn), turn.begins_segment, turn.room) == ("you.", True, 3)


def test_tools_of_a_turn_with_a_place_are_all_there_are():
    tool = {"type": "function", "function": {"name": "look"}}
    before = Conversation((Message("user", "hi"),), (tool,))
    assert before.with_turn(Turn((Message("user", "on"),))).tools == (tool,)
    assert before.with_turn(Turn((Message("user", "on"),), after=0)).tools == ()


@pytest.mark.parametrize("settings", [{"max_turns": 1}, {"max_tokens": 8}])
def test_at_a_limit_a_turn_with_a_place_gets_an_empty_reply_until_the_environment_ends(
    got, settings
):
    director, _ = _branching(("hi.", {}), *[("again", {"after": ANEW})] * 3, **settings)
    ended = _say(director, "aa").ending
    assert (ended.reason, ended.turns) == ("turns" if "max_turns" in settings else "context", 1)
    assert [(reply.text, reply.is_cut, reply.drawn) for reply in got[1:]] == [("", True, None)] * 3


def test_a_turn_with_a_place_that_cannot_be_rendered_is_refused(got):
    tools = ({"type": "function", "function": {"name": "look"}},)
    director, _ = _branching(("hi.", {}), ("you.", {"after": 0, "tools": tools}), ("on.", {}))
    assert _text(_say(director, "aa")) == "on."
    assert "without a chat template" in got[1].refusal


def test_a_conversation_without_a_token_is_refused(got):
    director, _ = _branching(("hi.", {}), ("", {"after": ANEW}), ("on.", {}))
    assert _text(_say(director, "aa")) == "on."
    assert "all messages are empty" in got[1].refusal


def test_a_turn_behind_a_reply_that_never_was_is_a_failure(got):
    director, first = _branching(("hi.", {"after": 0}), attempts=1)
    assert first.ending.reason == "environment failure"
    assert first.ending.why == "the environment's Turn.after=0 is not one of 0 replies"
    director, _ = _branching(("hi.", {}), ("on.", {"after": 1}), attempts=2)
    again = _say(director, "aa")
    assert (_text(again), again.restarts) == ("hi.", True)


def test_a_turn_that_cannot_fit_is_never_tokenized(monkeypatch, got):
    huge = "a" * 5_000_000
    monkeypatch.setattr(
        TOKENIZER.__class__, "encode_literally", _refusing_long(TOKENIZER.__class__, 3000)
    )
    ended = _begin(_director(), prompt=huge).ending
    assert (ended.reason, ended.failed) == ("context", False)
    assert "5,000,000 characters, which environment.max_tokens=64 has no room for" in ended.why
    director, _ = _branching(("hi.", {}), (huge, {"after": ANEW}), ("oh.", {"after": 0}))
    ended = _say(director, "aa").ending
    assert (ended.reason, [reply.is_cut for reply in got]) == ("context", [False, True, True])


def test_a_huge_message_is_cut_where_that_is_wanted(monkeypatch):
    monkeypatch.setattr(
        TOKENIZER.__class__, "encode_literally", _refusing_long(TOKENIZER.__class__, 3000)
    )
    director = _director(observation_chars=20)
    assert _text(_begin(director, prompt="a" * 4_000_000 + "z")) == "a" * 10 + "a" * 9 + "z"


def test_a_huge_message_fails_the_episode_where_that_is_wanted(got):
    director = _director(observation_chars=20, long_observations="fail", attempts=2)
    ended = _begin(director, prompt="a" * 21).ending
    assert (ended.reason, len(ended.faults)) == ("environment failure", 2)
    assert "21 characters, more than environment.observation_chars=20" in ended.why
    settings = {"observation_chars": 20, "long_observations": "fail"}
    director, _ = _branching(("hi.", {}), ("b" * 21, {"after": 0}), ("on.", {}), **settings)
    assert _text(_say(director, "aa")) == "on."
    assert "environment.observation_chars=20" in got[1].refusal


def _refusing_long(kind, most):
    encode = kind.encode_literally

    def refusing(self, text, begins=False):
        assert len(text) < most, "a huge text is tokenized"
        return encode(self, text, begins)

    return refusing


class Parallel:
    """A host whose episode asks for several replies at once, as agents do."""

    queued = 0

    def __init__(self):
        self.ready, self.got, self.ended = [], [], []

    def begin(self, episode, task, seed, seating=None):
        self.ready += [HostAnswer(episode, turn) for turn in task["turns"]]

    def step(self, episode, reply):
        self.got.append((reply.request, reply.text, reply.is_cut))
        if reply.request in self.later:
            self.ready.append(HostAnswer(episode, self.later[reply.request]))

    def answers(self, timeout_secs):
        ready, self.ready = self.ready, []
        return ready

    def end(self, episode):
        self.ended.append(episode)


def _asks(text, request, after=ANEW, **fields):
    return Turn((Message("user", text),), after=after, request=request, **fields)


def _parallel(*turns, later=None, most_tokens=4, **settings):
    director = _director(**settings)
    director._host = host = Parallel()
    host.later = later or {}
    director.begin([BeginEpisode(7, {"turns": turns}, seed=1, most_tokens=most_tokens)])
    return director, host, director.answers(0.0, True)


def _said(text, request, is_cut=False):
    ids = np.array(TOKENIZER.encode(text), np.int32)
    return Said(7, ids, is_cut, np.zeros(len(ids)), np.zeros(len(ids), np.int32), request=request)


def test_requests_side_by_side_are_segments_that_grow_by_themselves():
    later = {2: _asks("more.", 4, after=0), 1: _asks("on.", 5, after=1)}
    turns = [_asks("one.", 1), _asks("two.", 2), _asks("three.", 3)]
    director, host, asked = _parallel(*turns, later=later, max_tokens=200, max_turns=9)
    assert [(one.request, one.segment, one.begins_segment) for one in asked] == [
        (1, 0, True),
        (2, 1, True),
        (3, 2, True),
    ]
    director.take([_said("bb", 2)])
    (more,) = director.answers(0.0, True)  # Nobody waits for the others.
    assert (_text(more), more.request, more.segment, more.begins_segment) == ("more.", 4, 1, False)
    director.take([_said("aa", 1)])
    (on,) = director.answers(0.0, True)
    assert (_text(on), on.request, on.segment, on.begins_segment) == ("on.", 5, 0, False)
    director.take([_said("cc", 3), _said("dd", 4), _said("ee", 5)])
    host.ready = [HostAnswer(7, Outcome({"won": 1.0}))]
    (ended,) = director.answers(0.0, True)
    assert (ended.ending.turns, ended.ending.segments) == (5, 3)
    assert [text for _, text, _ in host.got] == ["bb", "aa", "cc", "dd", "ee"]


def test_requests_without_room_beside_others_wait_for_what_these_leave():
    turns = [_asks("abcdefgh", number) for number in (1, 2, 3)]
    director, _, asked = _parallel(*turns, max_tokens=38, most_tokens=10)
    assert [(one.request, one.room) for one in asked] == [(1, 30), (2, 12)]
    director.take([_said("a", 1)])
    (third,) = director.answers(0.0, True)
    assert (third.request, third.room) == (3, 38 - 3 * 8 - 1 - 10)
    director.take([_said("b", 2), _said("c", 3)])
    assert director._dialogues[7].side.tokens == 3 * 9


def test_replies_side_by_side_count_as_turns_and_those_beyond_are_empty():
    turns = [_asks("one.", number) for number in (1, 2, 3)]
    director, host, asked = _parallel(*turns, max_turns=2, max_tokens=200)
    assert [one.request for one in asked] == [1, 2]
    assert host.got == [(3, "", True)]
    director.take([_said("a", 1), _said("b", 2)])
    host.ready = [HostAnswer(7, Outcome({"won": 0.5}))]
    (ended,) = director.answers(0.0, True)
    assert (ended.ending.reason, ended.ending.rewards) == ("turns", {"won": 0.5})


class Gallery:
    """Shows the images of the row, one a turn, each before `look.`."""

    inline = True
    shows_images = True

    def reset(self, task, seed):
        self._left = list(task["images"])
        return self._turn(None)

    def step(self, reply):
        return self._turn(reply) if self._left else Outcome({"seen": 1.0})

    def _turn(self, reply):
        return Turn((Message("user", [self._left.pop(0), "look."]),))

    def close(self):
        pass


def _seeing(most_pixels=1 << 20, **settings):
    tokenizer = CharacterTokenizer(TOKENIZER.charset, shows_images=True)
    sight = Sight(SquareTiles(8, 4), tokenizer.image_id(), most_pixels)
    limits = EnvironmentSettings(**{"name": "x:Y", "max_tokens": 64, "attempts": 1, **settings})
    host = InlineHost(f"{__file__}:Gallery")
    return Director(host, Bridge(tokenizer, sight), ReplyReader(tokenizer), limits)


def _image(seed, side=8):
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    return Image.of_array(pixels)


def test_turns_have_the_images_of_their_own_tokens():
    director = _seeing()
    images = [_image(1), _image(2)]
    first = _begin(director, images=images)
    assert first.images.digests == (f"{images[0].digest}:0",)
    assert np.array_equal(first.images.tiles[0], images[0].pixels())
    assert first.room == 64 - 4 - len("look.")
    second = _say(director, "a")
    assert second.images.digests == (f"{images[1].digest}:0",)
    assert second.images.at.tolist() == [0, 1, 2, 3, *[-1] * 5]
    assert second.room == first.room - 1 - 9
    again = decode(encode(second))
    assert np.array_equal(again.images.tiles, second.images.tiles)


def test_tokens_of_images_count_toward_the_limit_before_anything_is_decoded(monkeypatch):
    director = _seeing(max_tokens=12)
    _begin(director, images=[_image(1), _image(2)])
    monkeypatch.setattr(Image, "pixels", None)
    ended = _say(director, "a")
    assert (ended.ending.reason, ended.ending.turns) == ("context", 1)


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (_image(1, side=40), "40 × 40 pixels, and 1,000 are allowed"),
        (Image(data=_image(1).content()[:60]), "an image of 60 bytes is damaged"),
        (Image(data=b"GIF?"), "is not an image that can be read"),
    ],
)
def test_an_image_that_cannot_be_shown_fails_the_episode(image, why):
    ended = _begin(_seeing(most_pixels=1000), images=[image])
    assert ended.ending.reason == "environment failure"
    assert why in ended.ending.why


def test_images_for_a_policy_that_reads_text_alone_fail_the_episode():
    limits = EnvironmentSettings(name="x:Y", max_tokens=64, attempts=1)
    host = InlineHost(f"{__file__}:Gallery")
    director = Director(host, Bridge(TOKENIZER), ReplyReader(TOKENIZER), limits)
    ended = _begin(director, images=[_image(1)])
    assert "the policy reads text alone" in ended.ending.why
