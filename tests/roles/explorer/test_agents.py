"""Agents of other people, in episodes with a policy that goes by a script."""

import contextlib
import dataclasses
import json
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rl_sync.environments.dialogue.bridge import Bridge
from rl_sync.environments.dialogue.reader import ReplyReader
from rl_sync.environments.dialogue.tool_call_text import call_format
from rl_sync.environments.environment_settings import EnvironmentSettings
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.hosts.episode_limits import HostLimits
from rl_sync.environments.hosts.host_choice import host_of
from rl_sync.models.sharding import Layout
from rl_sync.roles.explorer.director import Director
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.episodes.episode_engine import EpisodeEngine
from rl_sync.rollout.episodes.episode_records import BeginEpisode, End, EpisodeRequest, Said
from rl_sync.rollout.sampling import Sampling
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from tests.environments.families import family
from tests.models import tiny

AGENTS = Path(__file__).parents[2] / "addons" / "agents" / "agents.py"
CHARACTERS = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz0123456789!?. ")
PAGE = Path(__file__).parents[3] / "docs" / "agents.md"
LATEST = 110.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def command(name):
    return f"agent(command={f'{sys.executable} {AGENTS} {name}'!r}, deadline_secs=100)"


class Episodes:
    """The explorer's part: replies by a script, and the segments of ids that come of it."""

    def __init__(self, name, tokenizer=CHARACTERS, limit_secs=40.0, **settings):
        self.settings = EnvironmentSettings(
            **{"name": name, "max_tokens": 200, "max_turns": 8, "attempts": 1, **settings}
        )
        reference = name.replace("agent(", "rl_sync.addons.agents.agent:Agent(", 1)
        bridge = Bridge(tokenizer)
        self.host = host_of(
            reference,
            HostLimits(workers=4, limit_secs=limit_secs),
            count=lambda turn: len(bridge.first(turn).ids),
        )
        self.tokenizer = tokenizer
        self.director = Director(
            self.host,
            bridge,
            ReplyReader(tokenizer, call_format(tokenizer)),
            self.settings,
        )

    def play(self, replies, prompt="hi.", **row):
        """Plays an episode; returns its end and its segments, as lists of (ids, drawn)."""
        self.director.begin([BeginEpisode(5, {"prompt": prompt, **row}, seed=9)])
        segments, left, self.continued = [], list(replies), []
        until = time.monotonic() + LATEST
        while time.monotonic() < until:
            for answer in self.director.answers(0.1, False):
                if isinstance(answer, End):
                    return answer.ending, segments
                self.continued.append(answer)
                segments = [] if answer.restarts else segments
                if answer.begins_segment:
                    segments.append([])
                ids = left.pop(0)
                ids = self.tokenizer.encode(ids) if isinstance(ids, str) else ids
                ids = ids[: answer.room]
                segments[answer.segment] += [(i, False) for i in answer.ids.tolist()]
                segments[answer.segment] += [(i, True) for i in ids]
                versions = np.full(len(ids), len(self.continued), np.int32)
                logprobs = np.full(len(ids), -0.5, np.float32)
                is_cut = len(ids) == answer.room
                said = Said(
                    5, np.array(ids, np.int32), is_cut, logprobs, versions, request=answer.request
                )
                self.director.take([said])
        raise AssertionError("the episode has no end")

    def texts(self, segments):
        return [self.tokenizer.decode_all([i for i, _ in segment]) for segment in segments]


@pytest.fixture(name="playing")
def _playing():
    made = []

    def make(*args, **options):
        made.append(Episodes(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.director.close()


@pytest.mark.gate
def test_an_agent_of_three_turns_is_one_conversation_of_the_drawn_ids(playing):
    episodes = playing(command("loop"))
    ending, segments = episodes.play(["aa", "bb", "cc"])
    assert episodes.texts(segments) == ["hi.aaonbboncc"]
    drawn = [i for i, is_drawn in segments[0] if is_drawn]
    assert CHARACTERS.decode_all(drawn) == "aabbcc"
    assert (ending.reason, ending.turns, ending.segments, ending.rewards) == ("done", 3, 1, {})
    assert ending.why == "the agent posted no outcome, and its episode is judged by one"


@pytest.mark.gate
def test_drawn_ids_stay_where_encoding_their_text_gives_others(playing):
    tokenizer = family("chatml")
    end = tokenizer.eos_ids[0]
    drawn = [*(i for letter in "the answer" for i in tokenizer.encode(letter)), end]
    text = tokenizer.decode(drawn)
    assert tokenizer.encode(text) != drawn[:-1]
    episodes = playing(command("loop"), tokenizer, max_tokens=400)
    ending, (segment,) = episodes.play([drawn, drawn, drawn])
    assert ending.turns == 3
    assert [i for i, is_drawn in segment if is_drawn] == drawn * 3
    begun = tokenizer.encode("<|im_start|>user\nhi.<|im_end|>\n<|im_start|>assistant\n")
    between = tokenizer.encode("\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n")
    whole = [*begun, *drawn, *between, *drawn, *between, *drawn]
    assert [i for i, _ in segment] == whole


@pytest.mark.gate
def test_replies_whose_reasoning_is_dropped_stay_in_their_segment_as_they_were_drawn(playing):
    tokenizer = family("chatml")
    thought = [i for letter in "<think>\nwhy?\n</think>\n\nyes" for i in tokenizer.encode(letter)]
    drawn = [*thought, tokenizer.eos_ids[0]]
    name = f"agent(function='{AGENTS}:think', separate_reasoning=True)"
    episodes = playing(name, tokenizer, max_tokens=900)
    ending, (segment,) = episodes.play([drawn] * 4)
    assert (ending.turns, ending.rewards, ending.why) == (4, {"answers": 1.0}, "")
    assert [i for i, is_drawn in segment if is_drawn] == drawn * 4


@pytest.mark.gate
def test_other_conversations_are_segments_and_one_that_goes_on_twice_is_repeated_with_its_ids(
    playing,
):
    episodes = playing(command("branching"))
    ending, segments = episodes.play(["aa", "sub", "bb", "cc"])
    assert ending.segments == 3
    assert episodes.texts(segments) == ["hi.aaonbb", "help.sub", "hi.aaorcc"]
    assert [sum(drawn for _, drawn in segment) for segment in segments] == [4, 3, 2]
    assert [one.begins_segment for one in episodes.continued] == [True, True, False, True]


def test_a_repeated_conversation_has_the_ids_that_were_drawn(playing):
    tokenizer = family("chatml")
    drawn = [*(i for letter in "the answer" for i in tokenizer.encode(letter)), 0]
    _, segments = playing(command("branching"), tokenizer, max_tokens=900).play([drawn] * 4)
    place = next(at for at, (_, is_drawn) in enumerate(segments[0]) if is_drawn) + len(drawn)
    first = [i for i, _ in segments[0][:place]]
    for again in segments[2:]:
        assert [i for i, _ in again[: len(first)]] == first
        assert not any(is_drawn for _, is_drawn in again[: len(first)])
        assert [i for i, is_drawn in again if is_drawn] == drawn


@pytest.mark.gate
def test_tool_calls_are_called_and_answered_in_one_segment(playing):
    tokenizer = family("chatml")
    call = '<tool_call>\n{"name":"look",  "arguments":{"place":"north"}}</tool_call><|im_end|>'
    episodes = playing(command("tooling"), tokenizer, max_tokens=900)
    ending, segments = episodes.play([call, call, "It is 12.<|im_end|>"])
    (text,) = episodes.texts(segments)
    assert ending.turns == 3
    assert text.count("<tool_response>\nnorth\n</tool_response>") == 2
    assert text.count(call) == 2


@pytest.mark.gate
def test_drawn_thoughts_of_an_agent_of_anthropic_stay_as_they_were_drawn(playing):
    tokenizer = family("chatml")
    thought = [i for letter in "<think>\nwhy?\n</think>\n\nyes" for i in tokenizer.encode(letter)]
    drawn = [*thought, tokenizer.eos_ids[0]]
    ending, (segment,) = playing(command("talking"), tokenizer, max_tokens=900).play([drawn] * 3)
    assert (ending.turns, ending.rewards, ending.why) == (3, {"thoughts": 3.0}, "")
    assert ending.metrics == {"counted": 1.0, "grew": 1.0}
    assert [i for i, is_drawn in segment if is_drawn] == drawn * 3


@pytest.mark.gate
def test_tools_of_an_agent_of_anthropic_are_called_and_answered_in_one_segment(playing):
    tokenizer = family("chatml")
    call = '<tool_call>\n{"name":"look",  "arguments":{"place":"north"}}</tool_call><|im_end|>'
    said = f"So.\n{call}"
    episodes = playing(command("calling"), tokenizer, max_tokens=900)
    ending, segments = episodes.play([call, said, "It is 12.<|im_end|>"])
    (text,) = episodes.texts(segments)
    assert ending.turns == 3
    assert text.count("<tool_response>\nnorth\n</tool_response>") == 2
    assert text.count(call) == 2


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("claude"), reason="needs npm's @anthropic-ai/claude-code")
def test_claude_code_calls_its_tool_and_is_answered_in_one_segment(playing, tmp_path):
    tokenizer = family("chatml")
    order = {"command": "echo $((4000 + 711))", "description": "Adds"}
    call = f'<tool_call>\n{{"name": "Bash", "arguments": {json.dumps(order)}}}\n</tool_call>'
    drawn = [
        [*(i for letter in said for i in tokenizer.encode(letter)), tokenizer.eos_ids[0]]
        for said in (f"I add.\n{call}", "It is 4711.")
    ]
    episodes = playing(command("claude_code"), tokenizer, max_tokens=20_000)
    ending, segments = episodes.play(drawn, "What is 4000 + 711?", home=str(tmp_path))
    assert (ending.reason, ending.rewards, ending.metrics) == ("done", {"done": 1.0}, {"turns": 2})
    assert (tmp_path / "said.txt").read_text() == "It is 4711."
    (segment,) = segments
    (text,) = episodes.texts(segments)
    assert "<tool_response>\n4711\n</tool_response>" in text
    assert [i for i, is_drawn in segment if is_drawn] == [*drawn[0], *drawn[1]]


@pytest.mark.gate
def test_what_the_template_refuses_is_told_to_the_agent(playing):
    episodes = playing(command("bad"))
    ending, segments = episodes.play(["aa"])
    assert episodes.texts(segments) == ["faultaa"]
    assert (ending.reason, ending.turns) == ("done", 1)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("limits", "reason", "turns"),
    [({"max_turns": 2}, "turns", 2), ({"max_tokens": 11}, "context", 2)],
)
def test_an_agent_at_a_limit_gets_an_empty_reply_and_ends_in_peace(
    playing, tmp_path, limits, reason, turns
):
    notes = tmp_path / "notes"
    ending, _ = playing(command("untiring"), **limits).play(["aa"] * 4, notes=str(notes))
    assert (ending.reason, ending.turns, ending.failed) == (reason, turns, False)
    assert notes.read_text().splitlines()[-2:] == ["stop 'aa'", "length ''"]


@pytest.mark.gate
def test_an_outcome_that_is_posted_at_a_limit_counts(playing):
    ending, segments = playing(command("peaceful"), max_turns=2).play(["aa", "bb"])
    assert (ending.reason, ending.rewards) == ("turns", {"patience": 0.5})
    assert len(segments) == 2


@pytest.mark.gate
def test_an_agent_that_does_not_heed_a_limit_is_ended(playing, tmp_path):
    row = {"notes": str(tmp_path / "notes"), "forever": True}
    started = time.monotonic()
    ending, _ = playing(command("untiring"), limit_secs=5.0, max_turns=1).play(["aa"], **row)
    assert (ending.reason, ending.turns) == ("turns", 1)
    assert 5.0 < time.monotonic() - started < 60.0  # Sooner than its deadline_secs.


@pytest.mark.gate
def test_requests_at_once_are_answered_one_after_the_other(playing):
    ending, segments = playing(command("several")).play(["a", "b", "c", "d"])
    assert ending.rewards == {"replies": 4.0}
    assert len(segments) == 4


@pytest.mark.nightly
def test_rewards_are_posted_or_returned(playing):
    ending, _ = playing(command("rewarded")).play(["abc"])
    assert (ending.rewards, ending.metrics) == ({"length": 3.0}, {"words": 2.0})
    ending, _ = playing(f"agent(function='{AGENTS}:play')").play(["abcd"])
    assert ending.rewards == {"reward": 4.0}
    ending, _ = playing(f"agent(function='{AGENTS}:play_async')").play(["abcd"])
    assert (ending.rewards, ending.why) == ({"seed": 9.0, "length": 4.0}, "")


@pytest.mark.gate
@pytest.mark.parametrize(
    ("agent", "why"),
    [
        (command("crashing"), r"(?s)exit code 3: .*the line that says why"),
        (command("dying"), "signal 15"),
        (command("silent"), "without a request: it is to use OPENAI_BASE_URL"),
        (f"agent(function='{AGENTS}:fail')", "LookupError: no way"),
    ],
)
def test_an_agent_that_fails_is_an_environment_that_failed(playing, agent, why):
    ending, _ = playing(agent, attempts=2).play(["aa", "aa"])
    assert ending.reason == "environment failure"
    assert re.search(why, ending.why), ending.why


@pytest.mark.gate
def test_an_agent_that_fails_is_started_again(playing):
    episodes = playing(command("crashing"), attempts=2)
    episodes.play(["aa", "bb"])
    assert [one.restarts for one in episodes.continued] == [False, True]


@pytest.mark.gate
def test_a_limit_of_the_agents_own_is_a_time_out_without_rewards(playing):
    late = AGENTS.with_name("late_agent.py")
    ending, _ = playing(f"{late}:LateAgent(command='true')", attempts=2).play([])
    assert (ending.reason, ending.rewards) == ("time-out", {})
    assert [fault.why for fault in ending.faults] == ["its judge took too long"] * 2


def _lives(process):
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    return False


def _assert_ended(processes):
    until = time.monotonic() + LATEST
    while alive := [one for one in processes if _lives(one)]:
        assert time.monotonic() < until, alive
        time.sleep(0.05)


@pytest.mark.gate
@linux
@pytest.mark.parametrize(
    ("limit_secs", "options", "why"),
    [
        (4.0, "", "sent no request for 4 s"),
        pytest.param(
            40.0,
            ", deadline_secs=12",
            "ran longer than deadline_secs=12",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_an_agent_that_hangs_is_killed_with_all_that_it_started(
    playing, tmp_path, limit_secs, options, why
):
    notes = tmp_path / "notes"
    agent = f"agent(command={f'{sys.executable} {AGENTS} idle'!r}{options})"
    ending, _ = playing(agent, limit_secs=limit_secs).play(["aa"], notes=str(notes))
    assert ending.reason == "time-out"
    assert why in ending.why
    _assert_ended(notes.read_text().split())


@pytest.mark.gate
@linux
def test_what_an_agent_leaves_running_is_killed_and_the_agent_has_ended_well(playing, tmp_path):
    notes = tmp_path / "notes"
    ending, _ = playing(command("leaving")).play(["aa"], notes=str(notes))
    assert ending.reason == "done"
    _assert_ended([notes.read_text()])


def test_agents_that_cannot_be_are_refused_before_the_run():
    made = "rl_sync.addons.agents.agent:Agent"
    for options, rule in {
        "": "needs a program or a function",
        "(command='no-such-program x')": "names the program 'no-such-program'",
        '(command="python \'x")': "cannot be read",
        "(command='python3 missing.py')": "runs 'missing.py', and there is no such file",
        f"(function='{AGENTS}:plya')": "did you mean",
        f"(command='true', function='{AGENTS}:play')": "and not both: leave one of them out",
        "(function='play')": "must name a function",
        "(command='true', deadline_secs=0)": "a number of seconds above 0",
        "(command='true', separate_reasoning='yes')": "must be True or False",
    }.items():
        with pytest.raises(ValueError, match=rule):
            Construction.of(made + options)
    for command in ("bash -c 'missing.py'", "python3 -m missing", "true missing.py"):
        Construction.of(f"{made}(command={command!r})")


@pytest.mark.gate
def test_the_agent_of_the_page_calculates_and_is_rewarded(playing, tmp_path):
    text, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_agent.py").write_text(text)
    agent = f"agent(command='{sys.executable} {tmp_path / 'my_agent.py'}')"
    tokenizer = CharacterTokenizer("".join(map(chr, range(32, 127))) + "\n")
    episodes = playing(agent, tokenizer, max_tokens=400)
    ending, (segment,) = episodes.play(["2+3*4\n", "x\n", "so: 14\n"], answer="14")
    assert (ending.rewards, ending.metrics) == ({"right": 1.0}, {"messages": 6.0})
    said = "2+3*4\n14\nx\nThat is no expression.\nso: 14\n"
    assert episodes.texts([segment])[0].endswith(said)


@pytest.mark.nightly
def test_an_agent_reads_the_policy_s_reply_chunk_by_chunk(tmp_path):
    """From the engine to the agent, with nothing in between played by a script."""
    notes = tmp_path / "notes"
    settings = EnvironmentSettings(name="agent(...)", max_tokens=64, attempts=1)
    reference = f"rl_sync.addons.agents.agent:Agent(function='{AGENTS}:stream')"
    host = host_of(reference, HostLimits(workers=1, limit_secs=40.0))
    director = Director(host, Bridge(CHARACTERS), ReplyReader(CHARACTERS), settings)
    model = dataclasses.replace(tiny.CONFIG, vocab_size=CHARACTERS.vocab_size, max_length=64)
    engine = Engine(model, Layout.single(), EngineOptions(slots=2, chunk_tokens=4))
    episodes = EpisodeEngine(engine, lambda: director, repeats=False)
    episodes.load(tiny.params(model), version=3)
    sampling = Sampling(max_new_tokens=10, stop_ids=())
    row = {"prompt": "hi.", "notes": str(notes)}
    with contextlib.closing(episodes):
        ((played,),) = episodes.generate([EpisodeRequest(row, sampling, seed=(3,))])
    assert (played.ending.reason, played.ending.segments) == ("done", 1)
    (segment,) = played.trajectory.segments
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    for (text, ids), (_, start, stop) in zip(lines, played.trajectory.replies, strict=True):
        tokens = segment.tokens[start:stop].tolist()
        given = len("on") if start > len("hi.") else 0  # In the first chunk steps read it.
        sizes = [4 - given, 4, 2 + given, 0]
        assert [len(part) for part in ids] == sizes, "chunks of the engine, and the end"
        assert [token for part in ids for token in part] == tokens
        assert text == CHARACTERS.decode_all(tokens)
