"""The endpoint as clients of OpenAI see it, with a policy that replies by a script."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

import numpy as np
import pytest

from rl_sync.addons.agents.endpoint.http_server import MOST_BYTES, AgentEndpoint
from rl_sync.addons.agents.endpoint.inbox import Inbox
from rl_sync.environments.hosts.episode_limits import Access
from rl_sync.environments.interface import ANEW, DrawnReply, Message, Reply, ToolCall
from rl_sync.images import Image
from tests.addons.agents.agents import LOOK, said, user

pytestmark = pytest.mark.gate

LATEST = 30.0
PIXEL = (
    "data:image/png;base64,"
    + base64.b64encode(Image.of_array(np.full((2, 3, 3), 9, np.uint8)).content()).decode()
)


def shown_at(url):
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def drawn(*tokens):
    numbers = np.array(tokens, np.int32)
    return DrawnReply(np.array([7, 8], np.int32), numbers, -numbers / 8, numbers + 1)


def reply(text="fine", **fields):
    return Reply(text, **{"drawn": drawn(3, 4), **fields})


class Policy:
    """An episode at an endpoint; a thread replies to each request as the test says."""

    def __init__(self, endpoint):
        self.endpoint, self.replies, self.turns = endpoint, [], []
        self.arrived = threading.Event()
        self.inbox = Inbox(self.arrived)
        self.key = endpoint.open(self.inbox)
        self.url = endpoint.base_url(self.key)
        self.halted = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self):
        while not self.halted.is_set():
            if (turn := self.inbox.take()) is not None:
                self.turns.append(turn)
                self.inbox.answer(self.replies.pop(0) if self.replies else reply())
            time.sleep(0.002)

    def client(self, **options):
        import openai

        return openai.OpenAI(base_url=self.url, api_key=self.key, max_retries=0, **options)

    def ask(self, *messages, **options):
        chat = self.client().chat.completions
        return chat.create(model="any", messages=messages or [user("hi")], **options)

    def send(self, path, body, method="POST", headers=()):
        """Sends bytes as they are; returns the status and the JSON of the answer."""
        parts = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=LATEST)
        with contextlib.closing(connection):
            connection.request(method, f"{parts.path}/{path}", body, dict(headers))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@pytest.fixture(name="endpoint", scope="module")
def _endpoint():
    endpoint = AgentEndpoint(Access(connections=40))
    yield endpoint
    endpoint.close()


def test_a_reply_comes_with_its_ids_logprobs_and_versions(policy):
    found = policy.ask(logprobs=True, temperature=0.1, top_p=0.5)
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "fine")
    assert choice.message.tool_calls is None
    assert (choice.finish_reason, found.object, found.model) == (
        "stop",
        "chat.completion",
        "policy",
    )
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (2, 2)
    assert (found.prompt_token_ids, choice.token_ids) == ([7, 8], [3, 4])
    assert (choice.policy_versions, found.policy_version) == ([4, 5], 5)
    logprobs = [(one.token, one.logprob) for one in choice.logprobs.content]
    assert logprobs == [("token_id:3", -3 / 8), ("token_id:4", -0.5)]
    assert found.ignored == ["temperature", "top_p"]
    assert policy.ask().choices[0].logprobs is None


def test_a_request_is_a_turn_with_all_that_it_says(policy):
    policy.ask(
        {"role": "developer", "content": "be brief"},
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        tools=[LOOK],
        stop=["\n", "end"],
        max_completion_tokens=5,
    )
    (turn,) = policy.turns
    assert turn.messages == (Message("system", "be brief"), Message("user", "ab"))
    assert turn.tools == (LOOK,)
    assert (turn.stop_strings, turn.most_tokens, turn.after) == (("\n", "end"), 5, ANEW)


def test_a_conversation_that_goes_on_is_a_turn_behind_its_reply(policy):
    policy.replies = [reply("one"), reply("two"), reply("three")]
    first = [user("hi")]
    text = policy.ask(*first).choices[0].message.content
    policy.ask(user("other"))
    again = [*first, said(text), user("on")]
    policy.ask(*again)
    policy.ask(*again, said("three"), user("more"))
    policy.ask(*again, said("edited"), user("more"))
    policy.ask(*again)
    turns = [(turn.after, len(turn.messages)) for turn in policy.turns]
    assert turns == [(ANEW, 1), (ANEW, 1), (0, 1), (2, 1), (0, 3), (0, 1)]


def test_tool_calls_go_out_and_come_back_as_they_were(policy):
    call = ToolCall("look", {"place": "north"}, "call00000")
    policy.replies = [reply("<look>", tool_calls=(call,), content="")]
    (choice,) = policy.ask(tools=[LOOK]).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (found,) = choice.message.tool_calls
    assert (found.id, found.function.name) == ("call00000", "look")
    assert json.loads(found.function.arguments) == {"place": "north"}
    answer = {"role": "tool", "tool_call_id": found.id, "content": "a door"}
    policy.ask(user("hi"), choice.message.model_dump(), answer, tools=[LOOK])
    assert policy.turns[1].after == 0
    assert policy.turns[1].messages == (Message("tool", "a door", tool_call_id="call00000"),)


def test_a_stop_text_is_no_part_of_the_content_and_the_conversation_goes_on_without_it(policy):
    policy.replies = [reply("look north. Seen: ")]
    (choice,) = policy.ask(stop="Seen:").choices
    assert (choice.message.content, choice.finish_reason) == ("look north. ", "stop")
    policy.ask(user("hi"), said("look north. "), user("Seen: a door"))
    assert policy.turns[1].after == 0


def test_a_limit_of_the_episode_is_an_empty_reply_that_was_cut(policy):
    policy.replies = [reply("cut", is_cut=True), Reply("", is_cut=True)]
    (choice,) = policy.ask().choices
    assert (choice.message.content, choice.finish_reason) == ("cut", "length")
    found = policy.ask(logprobs=True)
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("", "length")
    assert found.usage.total_tokens == 0
    policy.ask(user("hi"), said(""), user("on"))
    assert policy.turns[2].after == ANEW  # An empty reply that nobody drew is none.


def test_a_stream_has_the_same_reply(policy):
    call = ToolCall("look", {"place": "north"}, "call00000")
    policy.replies = [reply("it is"), reply("so <look>", tool_calls=(call,), content="so")]
    chunks = list(policy.ask(stream=True, stream_options={"include_usage": True}, logprobs=True))
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(one.delta.content or "" for one in deltas) == "it is"
    assert [one.finish_reason for one in deltas] == [None, "stop"]
    assert deltas[0].token_ids == [3, 4]
    assert len(deltas[0].logprobs.content) == 2
    assert chunks[-1].usage.total_tokens == 4
    first, last = policy.ask(stream=True, tools=[LOOK])
    (found,) = first.choices[0].delta.tool_calls
    assert (found.index, found.function.name) == (0, "look")
    assert last.choices[0].finish_reason == "tool_calls"


def test_requests_at_once_get_replies_as_they_are_given(policy):
    texts = [f"{i}" for i in range(8)]
    policy.replies = [reply(text) for text in texts]
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(policy.ask().choices[0].message.content))
        for _ in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LATEST)
    assert sorted(found) == texts


def test_models_are_listed(policy):
    (model,) = policy.client().models.list().data
    assert model.id == "policy"
    assert policy.client().models.retrieve("policy").id == "policy"


def test_images_of_data_urls_are_shown_and_continued(policy):
    parts = [{"type": "text", "text": "Which"}, shown_at(PIXEL), {"type": "text", "text": "?"}]
    asked = [user(parts)]
    policy.ask(*asked)
    asked += [said("fine"), user([shown_at(PIXEL)])]
    policy.ask(*asked)
    (first,), (second,) = (turn.messages for turn in policy.turns)
    assert first.content == "Which\ufffc?"
    assert first.images[0].pixels().tolist() == np.full((2, 3, 3), 9).tolist()
    assert (policy.turns[1].after, second.content, second.images) == (0, "\ufffc", first.images)


def test_an_outcome_is_kept(policy):
    body = json.dumps({"rewards": {"won": 1}, "metrics": {"moves": 3.5}})
    assert policy.send("outcome", body) == (200, json.loads(body))
    assert policy.inbox.posted.rewards == {"won": 1.0}
    assert policy.inbox.posted.metrics == {"moves": 3.5}


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"n": 0}, "n must be an integer from 1 to 128, not 0"),
        ({"n": 129}, "n must be an integer from 1 to 128, not 129"),
        ({"n": True}, "n must be an integer"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\] must be an object with a role"),
        ({"messages": [user(None)]}, r"messages\[0\].content must be a text"),
        ({"messages": [user([{"type": "image_url"}])]}, "as a data URL"),
        ({"messages": [user([shown_at("https://example.com/a.png")])]}, "nothing is fetched"),
        ({"messages": [user([shown_at("/etc/hostname")])]}, "nothing is fetched"),
        ({"messages": [user([shown_at("data:image/png;base64,AAAA")])]}, r"content\[0\]: .*image"),
        ({"messages": [said([shown_at(PIXEL)])]}, "write no images"),
        ({"tools": [{"type": "x"}]}, r"tools\[0\] must be the JSON schema"),
        ({"tools": 5}, "tools must be a list, not 5"),
        (
            {"messages": [{**said("x"), "tool_calls": 5}]},
            r"messages\[0\].tool_calls must be a list",
        ),
        ({"functions": [{}]}, "use 'tools'"),
        ({"stop": 3}, "stop must be"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"stream": "yes"}, "stream must be true or false"),
    ],
)
def test_requests_that_are_wrong_are_refused_with_the_reason(policy, fields, rule):
    body = {"messages": [user("hi")], **fields}
    status, found = policy.send("chat/completions", json.dumps(body))
    assert status == 400
    assert found["error"]["type"] == "invalid_request_error"
    with pytest.raises(AssertionError, match=rule):
        raise AssertionError(found["error"]["message"])
    assert policy.turns == []


def test_calls_whose_arguments_are_no_json_are_refused(policy):
    import openai

    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    with pytest.raises(openai.BadRequestError, match="must be an object of JSON"):
        policy.ask(user("hi"), message)


def nested(levels):
    return '{"a": ' * levels + "1" + "}" * levels


def test_json_of_too_many_levels_is_refused(policy):
    """Later steps need more of Python's stack for each level than the reader of JSON."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": nested(100)}}
    asked = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert policy.send("chat/completions", json.dumps(asked))[0] == 200
    call["function"]["arguments"] = nested(101)
    assert policy.send("chat/completions", json.dumps(asked))[0] == 400
    body = '{"messages": [{"role": "user", "content": "hi"}], "x": %s}'
    assert policy.send("chat/completions", body % nested(99))[0] == 200
    status, found = policy.send("chat/completions", body % nested(100))
    assert status == 400
    assert "it has more than 100 levels" in found["error"]["message"]


@pytest.mark.parametrize(
    "body", [b"{", b"[1]", b'{"messages": "\\ud800"}', b"[" * 200_000, b"5", b""]
)
def test_a_body_that_is_no_json_object_is_refused(policy, body):
    status, found = policy.send("chat/completions", body)
    assert status == 400
    assert "JSON" in found["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        '{"rewards": {}}',
        '{"rewards": {"won": NaN}}',
        '{"rewards": {"won": 1e999}}',
        '{"rewards": {"won": "1"}}',
        '{"rewards": {"": 1}}',
        '{"rewards": {"won": 1' + "0" * 400 + "}}",
        '{"rewards": {"won": 1}, "metrics": [1]}',
        '{"reward": 1}',
    ],
)
def test_outcomes_that_are_wrong_are_refused(policy, body):
    status, _ = policy.send("outcome", body)
    assert status == 400
    assert policy.inbox.posted is None


def test_what_the_policy_cannot_be_asked_is_refused(policy):
    import openai

    policy.replies = [Reply("", refusal="no place for tools")]
    with pytest.raises(openai.BadRequestError, match="no place for tools"):
        policy.ask()


def test_an_unknown_key_is_not_found_and_one_that_has_ended_is_gone(policy, endpoint):
    import openai

    client = openai.OpenAI(base_url=endpoint.base_url("x" * 32), api_key="x", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="No episode has this key"):
        client.models.list()
    policy.halted.set()
    policy.thread.join()
    endpoint.shut(policy.key)
    for ask in (policy.ask, policy.client().models.list):
        with pytest.raises(openai.APIStatusError, match="has ended") as caught:
            ask()
        assert caught.value.status_code == 410
    assert policy.send("outcome", '{"rewards": {"won": 1}}')[0] == 410


def test_requests_that_wait_are_gone_when_their_episode_ends(endpoint):
    import openai

    policy = Policy(endpoint)  # Nobody replies.
    caught = []

    def ask():
        with pytest.raises(openai.APIStatusError) as error:
            policy.ask()
        caught.append(error.value.status_code)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + LATEST
    while len(policy.inbox._waiting) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert policy.inbox.take() is not None
    endpoint.shut(policy.key)
    for thread in threads:
        thread.join(LATEST)
    assert caught == [410, 410]


def test_a_request_whose_client_has_gone_is_no_turn(endpoint):
    import openai

    policy = Policy(endpoint)
    with pytest.raises(openai.APITimeoutError):
        policy.client(timeout=0.3).chat.completions.create(model="x", messages=[user("late")])
    time.sleep(0.2)
    policy.thread.start()
    policy.ask(user("again"))
    policy.halted.set()
    assert [turn.messages[0].content for turn in policy.turns] == ["again"]


def test_other_paths_and_bodies_that_are_too_large_are_refused(policy):
    assert policy.send("embeddings", "{}")[0] == 404
    assert policy.send("chat/completions", None, method="GET")[0] == 404
    assert policy.send("chat/completions", "{}", method="DELETE")[0] == 404
    status, found = policy.send(
        "chat/completions", None, headers={"Content-Length": str(MOST_BYTES + 1)}
    )
    assert (status, found["error"]["message"]) == (
        413,
        "A request may have 16 MiB; this one has 16,777,217 bytes or more.",
    )


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS begins so.
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5x\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    ],
)
def test_bytes_that_are_no_http_get_an_error_in_json(policy, sent):
    parts = urllib.parse.urlsplit(policy.url)
    with socket.create_connection((parts.hostname, parts.port), LATEST) as connection:
        connection.sendall(sent)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.headers["Content-Type"]) == (400, "application/json")
        assert json.loads(answer.read())["error"]["message"].startswith("The request is not HTTP/1")
        assert connection.recv(1) == b""
    assert policy.ask().choices[0].message.content == "fine"


def test_a_body_of_unknown_length_is_read_up_to_the_most(policy):
    parts = [b'{"rewards"', b': {"won": 1}}']  # In chunks, as they are not one body.
    assert policy.send("outcome", iter(parts))[0] == 200
    assert policy.inbox.posted.rewards == {"won": 1.0}
    with contextlib.suppress(ConnectionError):  # The connection is closed behind the answer.
        assert policy.send("outcome", iter([b" " * MOST_BYTES, parts[0]]))[0] == 413


def test_connections_beyond_the_most_wait_until_others_have_their_replies():
    with contextlib.closing(AgentEndpoint(Access(connections=2))) as endpoint:
        policy = Policy(endpoint)
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(policy.ask().choices[0].message.content))
            for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + LATEST
        while len(policy.inbox._waiting) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)
        assert len(policy.inbox._waiting) == 2
        policy.thread.start()
        for thread in threads:
            thread.join(LATEST)
        policy.halted.set()
    assert found == ["fine"] * 12


def test_silent_connections_lock_nobody_out():
    with contextlib.closing(AgentEndpoint(Access(connections=200))) as endpoint:
        policy = Policy(endpoint)
        policy.thread.start()
        parts = urllib.parse.urlsplit(policy.url)
        with contextlib.ExitStack() as stack:
            for number in range(300):
                held = socket.create_connection((parts.hostname, parts.port), LATEST)
                stack.enter_context(held)
                with contextlib.suppress(ConnectionError):  # It may be closed for later ones.
                    held.sendall(b"POST /rollout/x HTTP/1.1\r\nContent-Le"[: number % 40])
            started = time.monotonic()
            for _ in range(5):
                assert policy.ask().choices[0].message.content == "fine"
            assert time.monotonic() - started < 20
        policy.halted.set()


@pytest.mark.nightly
def test_silent_connections_lock_nobody_out_where_few_files_may_be_open(tmp_path):
    """As many as the system lets a process open; the default limit is often 1,024."""
    script = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from rl_sync.addons.agents.endpoint.http_server import AgentEndpoint
print(AgentEndpoint().base_url("unknown"), flush=True)
sys.stdin.read()
"""
    with (
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as served,
        contextlib.ExitStack() as stack,
    ):
        parts = urllib.parse.urlsplit(served.stdout.readline().strip())
        for _ in range(200):
            held = socket.create_connection((parts.hostname, parts.port), LATEST)
            stack.enter_context(held)
        for _ in range(2):
            asked = http.client.HTTPConnection(parts.hostname, parts.port, timeout=15.0)
            stack.callback(asked.close)
            asked.request("GET", f"{parts.path}/models")
            assert asked.getresponse().status == 404
        served.stdin.close()


def test_requests_of_an_episode_are_answered_side_by_side(policy):
    policy.halted.set()
    policy.thread.join()
    found = {}

    def ask(text):
        found[text] = policy.ask(user(text)).choices[0].message.content

    threads = [threading.Thread(target=ask, args=[text]) for text in "abcde"]
    for thread in threads:
        thread.start()
    turns, until = [], time.monotonic() + LATEST
    while len(turns) < 5 and time.monotonic() < until:
        if (turn := policy.inbox.take()) is not None:
            turns.append(turn)
    assert policy.inbox.under_way == 5  # And nobody has a reply.
    for turn in reversed(turns):
        said_last = reply(turn.messages[0].content.upper(), request=turn.request)
        policy.inbox.answer(said_last)
    for thread in threads:
        thread.join(LATEST)
    assert found == {text: text.upper() for text in "abcde"}


def test_several_choices_are_turns_and_any_of_them_may_go_on(policy):
    policy.replies = [reply("one"), reply("two", is_cut=True), reply("three", drawn=drawn(5))]
    found = policy.ask(n=3, logprobs=True)
    texts = [(one.index, one.message.content, one.finish_reason) for one in found.choices]
    assert texts == [(0, "one", "stop"), (1, "two", "length"), (2, "three", "stop")]
    assert [one.token_ids for one in found.choices] == [[3, 4], [3, 4], [5]]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (2, 5)
    assert [turn.after for turn in policy.turns] == [ANEW] * 3
    policy.ask(user("hi"), said("two"), user("on"), n=2)
    assert [(turn.after, len(turn.messages)) for turn in policy.turns[3:]] == [(1, 1), (1, 1)]


def test_several_choices_are_streamed_side_by_side(policy):
    policy.replies = [reply("one"), reply("two"), reply("three")]
    chunks = list(policy.ask(n=3, stream=True, stream_options={"include_usage": True}))
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["one", "two", "three"]
    ends = [one.finish_reason for chunk in chunks for one in chunk.choices if one.finish_reason]
    assert ends == ["stop"] * 3
    assert chunks[-1].usage.completion_tokens == 6


def test_an_endpoint_that_others_reach_wants_the_key_of_the_run():
    import openai

    with contextlib.closing(AgentEndpoint(Access(host="0.0.0.0", key="a key"))) as endpoint:
        policy = Policy(endpoint)
        policy.thread.start()
        assert endpoint.api_key(policy.key) == "a key"
        right = policy.client().with_options(api_key=endpoint.api_key(policy.key))
        chat = {"model": "any", "messages": [user("hi")]}
        assert right.chat.completions.create(**chat).choices[0].message.content == "fine"
        with pytest.raises(openai.AuthenticationError, match="lacks the run's key for agents"):
            policy.ask()  # With the episode's key alone.
        status, answer = policy.send("outcome", '{"rewards": {"won": 1}}')
        assert (status, policy.inbox.posted) == (401, None)
        assert "Authorization: Bearer KEY" in answer["error"]["message"]
        policy.halted.set()
