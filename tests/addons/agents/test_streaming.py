"""Streams of the endpoint: parts of a reply arrive while the rest is still being drawn."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
import time
import urllib.parse

import numpy as np
import pytest

from rl_sync.addons.agents.endpoint import limited_server
from rl_sync.addons.agents.endpoint.http_server import AgentEndpoint
from rl_sync.addons.agents.endpoint.inbox import Inbox
from rl_sync.environments.hosts.episode_limits import Access
from rl_sync.environments.interface import DrawnReply, PartialReply, Reply, StreamedTurn, ToolCall
from tests.addons.agents.agents import LOOK, said, user

pytestmark = pytest.mark.gate

LATEST = 30.0


def drawn(*tokens):
    numbers = np.array(tokens, np.int32)
    return DrawnReply(np.array([7, 8], np.int32), numbers, -numbers / 8, numbers + 1)


def taken(inbox):
    """Waits for a request, and takes it."""
    until = time.monotonic() + LATEST
    while (turn := inbox.take()) is None:
        assert time.monotonic() < until, "no request"
        time.sleep(0.002)
    return turn


class Episode:
    """An episode at an endpoint, whose replies the test gives in parts, as an engine would."""

    def __init__(self, endpoint):
        self.inbox = Inbox(threading.Event())
        self.key = endpoint.open(self.inbox)
        self.url = endpoint.base_url(self.key)
        self.chunks = queue.SimpleQueue()

    def ask(self, *messages, **options):
        """Asks in a thread, whose chunks, and then None or an error, come in `chunks`."""
        threading.Thread(target=self._ask, args=[messages, options], daemon=True).start()
        return taken(self.inbox)

    def _ask(self, messages, options):
        import openai

        client = openai.OpenAI(base_url=self.url, api_key=self.key, max_retries=0)
        chat = {"model": "any", "messages": messages or [user("hi")], "stream": True, **options}
        try:
            with client.chat.completions.create(**chat) as stream:
                for chunk in stream:
                    self.chunks.put(chunk)
            self.chunks.put(None)
        except openai.OpenAIError as error:
            self.chunks.put(error)

    def next(self):
        return self.chunks.get(timeout=LATEST)

    def rest(self):
        """Returns all chunks that are still to come, up to the end."""
        return list(iter(self.next, None))


@pytest.fixture(name="endpoint", scope="module")
def _endpoint():
    endpoint = AgentEndpoint(Access(connections=20))
    yield endpoint
    endpoint.close()


@pytest.fixture(name="episode")
def _episode(endpoint):
    return Episode(endpoint)


def test_parts_arrive_before_the_reply_is_over(episode):
    turn = episode.ask(logprobs=True, temperature=2.0, stream_options={"include_usage": True})
    chunks = []
    for content, tokens in ("The", [3]), ("The answer", [4, 5]), ("The answer", [6]):
        turn.hear(PartialReply(content, drawn(*tokens)))
        chunks.append(episode.next())  # It has arrived, and there is no reply yet.
    assert [one.choices[0].delta.content for one in chunks] == ["The", " answer", ""]
    assert [one.choices[0].token_ids for one in chunks] == [[3], [4, 5], [6]]
    assert [one.choices[0].finish_reason for one in chunks] == [None] * 3
    assert [one.policy_version for one in chunks] == [4, 6, 7]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (chunks[0].prompt_token_ids, chunks[0].ignored) == ([7, 8], ["temperature"])
    episode.inbox.answer(Reply("The answer is 12.", drawn=drawn(3, 4, 5, 6, 9)))
    more, end, usage = episode.rest()
    assert (more.choices[0].delta.content, more.choices[0].token_ids) == (" is 12.", [9])
    assert [one.logprob for one in more.choices[0].logprobs.content] == [-9 / 8]
    assert more.choices[0].policy_versions == [10]
    assert (end.choices[0].finish_reason, end.choices[0].delta.content) == ("stop", None)
    assert (usage.choices, usage.usage.total_tokens) == ([], 7)
    assert len({one.id for one in [*chunks, more, end, usage]}) == 1


def test_all_chunks_together_are_the_reply_that_a_request_without_stream_gets(episode):
    """Tool calls come at the end, and the conversation goes on from the streamed reply."""
    call = ToolCall("look", {"place": "north"}, "call00000")
    reply = Reply("See. <look> So", tool_calls=(call,), content="See. So", drawn=drawn(3, 4, 5, 6))
    turn = episode.ask(tools=[LOOK], logprobs=True)
    turn.hear(PartialReply("See.", drawn(3, 4)))
    turn.hear(PartialReply("See. ", drawn(5)))
    episode.inbox.answer(reply)
    choices = [chunk.choices[0] for chunk in episode.rest()]
    assert not any(choice.delta.tool_calls for choice in choices[:2])
    (found,) = [one for choice in choices for one in choice.delta.tool_calls or ()]
    assert (found.index, found.id, found.function.name) == (0, "call00000", "look")
    text = "".join(choice.delta.content or "" for choice in choices)
    whole = _unstreamed(episode, reply, tools=[LOOK], logprobs=True).choices[0]
    assert text == whole.message.content == "See. So"
    assert found.function.arguments == whole.message.tool_calls[0].function.arguments
    assert choices[-1].finish_reason == whole.finish_reason == "tool_calls"
    for field in "token_ids", "policy_versions":
        parts = [one for choice in choices for one in getattr(choice, field, [])]
        assert parts == getattr(whole, field)
    logprobs = [one for choice in choices if choice.logprobs for one in choice.logprobs.content]
    assert logprobs == whole.logprobs.content
    calls = [one.model_dump(include={"id", "type", "function"}) for one in whole.message.tool_calls]
    answer = {"role": "tool", "tool_call_id": found.id, "content": "a door"}
    said_before = {"role": "assistant", "content": text, "tool_calls": calls}
    turn = episode.ask(user("hi"), said_before, answer, tools=[LOOK])
    assert (turn.after, len(turn.messages)) == (1, 1)
    episode.inbox.close()


def _unstreamed(episode, reply, **options):
    """Returns what a request without stream gets."""

    import openai

    found = queue.SimpleQueue()

    def ask():
        client = openai.OpenAI(base_url=episode.url, api_key=episode.key, max_retries=0)
        chat = {"model": "any", "messages": [user("hi")], **options}
        found.put(client.chat.completions.create(**chat))

    threading.Thread(target=ask, daemon=True).start()
    turn = taken(episode.inbox)
    assert not isinstance(turn, StreamedTurn), "nobody hears parts"
    episode.inbox.answer(reply)
    return found.get(timeout=LATEST)


def test_the_beginning_of_a_stop_text_is_held_back_until_it_is_known_to_be_none(episode):
    turn = episode.ask(stop=["Seen:", "\n\n"])
    contents = []
    for content in "a S", "a See", "a Seem", "a Seems\n", "a Seems\nSeen: x":
        turn.hear(PartialReply(content, drawn(3)))
        contents.append(episode.next().choices[0].delta.content)
    assert contents == ["a ", "", "Seem", "s", "\n"]
    episode.inbox.answer(Reply("a Seems\nSeen: x\n\n", drawn=drawn(*[3] * 6)))
    more, end = episode.rest()
    assert (more.choices[0].delta.content, end.choices[0].finish_reason) == ("", "stop")
    turn = episode.ask(user("hi"), said("a Seems\n"), user("on"))
    assert turn.after == 0
    episode.inbox.close()


def test_a_client_that_hangs_up_costs_no_other_stream_and_can_ask_again(endpoint, episode):
    other = Episode(endpoint)
    parts = urllib.parse.urlsplit(episode.url)
    with contextlib.closing(socket.create_connection((parts.hostname, parts.port), LATEST)) as held:
        body = json.dumps({"messages": [user("hi")], "stream": True}).encode()
        head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: x\r\n"
        held.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        turn = taken(episode.inbox)
        others = other.ask()
        turn.hear(PartialReply("one", drawn(3)))
        assert held.recv(12) == b"HTTP/1.1 200"
    for number in range(1, 4):  # The client of the first one has gone.
        turn.hear(PartialReply("one" * number, drawn(3)))
        others.hear(PartialReply("two" * number, drawn(3)))
        assert other.next().choices[0].delta.content == "two"
    episode.inbox.answer(Reply("one" * 4, drawn=drawn(*[3] * 5)))
    other.inbox.answer(Reply("two" * 4, drawn=drawn(*[3] * 4)))
    more, _ = other.rest()
    assert more.choices[0].delta.content == "two"
    turn = episode.ask(user("hi"), said("one" * 4), user("on"))
    assert turn.after == 0, "the reply was given, though nobody heard its end"
    episode.inbox.answer(Reply("yes", drawn=drawn(3)))
    assert episode.next().choices[0].delta.content == "yes"


def test_a_client_that_reads_nothing_holds_its_connection_for_a_limited_time(monkeypatch):
    monkeypatch.setattr(limited_server, "_SILENT_SECS", 1)
    with contextlib.closing(AgentEndpoint()) as endpoint:
        episode = Episode(endpoint)
        parts = urllib.parse.urlsplit(episode.url)
        address = (parts.hostname, parts.port)
        with contextlib.closing(socket.create_connection(address, LATEST)) as held:
            body = json.dumps({"messages": [user("hi")], "stream": True}).encode()
            head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: x\r\n"
            held.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            waiting = taken(episode.inbox)
            waiting.hear(PartialReply("x" * (32 << 20), drawn(3)))
            time.sleep(2)
            found = 0
            with contextlib.suppress(ConnectionError):
                while part := held.recv(1 << 20):
                    found += len(part)
        assert found < 32 << 20, "nobody has answered, but the connection is closed"


def test_an_episode_that_ends_breaks_its_stream_with_the_reason(endpoint, episode):
    import openai

    turn = episode.ask()
    turn.hear(PartialReply("one", drawn(3)))
    assert episode.next().choices[0].delta.content == "one"
    endpoint.shut(episode.key)
    error = episode.next()
    assert isinstance(error, openai.APIError)
    assert "has ended" in error.message


def test_a_refusal_before_the_first_part_has_its_status(episode):
    import openai

    episode.ask()
    episode.inbox.answer(Reply("", refusal="no place for tools"))
    error = episode.next()
    assert (type(error), error.status_code) == (openai.BadRequestError, 400)


def test_text_that_bytes_behind_it_change_is_not_sent_and_at_the_end_an_error(episode):
    import openai

    turn = episode.ask()
    for content in "ab", "a", "abc":
        turn.hear(PartialReply(content, drawn(3)))
    assert [episode.next().choices[0].delta.content for _ in range(3)] == ["ab", "", "c"]
    episode.inbox.answer(Reply("axe", drawn=drawn(*[3] * 4)))
    error = episode.next()
    assert isinstance(error, openai.APIError)
    assert "bytes that are no text" in error.message


def test_a_connection_serves_requests_after_a_stream(episode):
    parts = urllib.parse.urlsplit(episode.url)
    body = json.dumps({"messages": [user("hi")], "stream": True})
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=LATEST)
    with contextlib.closing(connection):
        connection.connect()
        sock = connection.sock
        for _ in range(3):
            connection.request("POST", f"{parts.path}/chat/completions", body)
            turn = taken(episode.inbox)
            turn.hear(PartialReply("o", drawn(3)))
            episode.inbox.answer(Reply("one", drawn=drawn(3, 4)))
            answer = connection.getresponse()
            assert answer.getheader("Content-Type") == "text/event-stream"
            events = answer.read().split(b"\n\n")
            assert (len(events), events[-2:]) == (5, [b"data: [DONE]", b""])
            assert connection.sock is sock, "the connection was closed"


def test_clients_of_http_1_0_get_the_stream_until_its_end(episode):
    parts = urllib.parse.urlsplit(episode.url)
    with contextlib.closing(socket.create_connection((parts.hostname, parts.port), LATEST)) as held:
        body = json.dumps({"messages": [user("hi")], "stream": True}).encode()
        head = f"POST {parts.path}/chat/completions HTTP/1.0\r\n"
        held.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        taken(episode.inbox)
        episode.inbox.answer(Reply("one", drawn=drawn(3)))
        found = b"".join(iter(lambda: held.recv(4096), b""))
    headers, _, events = found.partition(b"\r\n\r\n")
    assert b"chunked" not in headers
    assert events.startswith(b"data: {")
    assert events.endswith(b"}\n\ndata: [DONE]\n\n")
