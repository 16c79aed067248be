"""The Messages API of the endpoint as clients of Anthropic see it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time

import pytest

from rl_sync.addons.agents.endpoint.http_server import AgentEndpoint
from rl_sync.addons.agents.endpoint.inbox import Inbox
from rl_sync.environments.hosts.episode_limits import Access
from rl_sync.environments.interface import ANEW, Message, PartialReply, Reply, ToolCall
from tests.addons.agents.agents import LOOK, said, user
from tests.addons.agents.test_endpoint import LATEST, PIXEL, Policy, drawn, reply

pytestmark = pytest.mark.gate

TOOL = {
    "name": "look",
    "description": LOOK["function"]["description"],
    "input_schema": LOOK["function"]["parameters"],
}
CALL = ToolCall("look", {"place": "north"}, "call00000")
THOUGHT = "<think>\nnorth or south?\n</think>\n\nnorth"
THINKS = {"type": "enabled", "budget_tokens": 1024}


def counted(turn):
    """Counts characters, and refuses what is said of faults, as a chat template may."""
    text = "".join(one.content for one in turn.messages)
    if "fault" in text:
        raise ValueError("the template refuses it")
    return len(text) + 100 * len(turn.tools)


@pytest.fixture(name="endpoint", scope="module")
def _endpoint():
    with contextlib.closing(AgentEndpoint(count=counted)) as endpoint:
        yield endpoint


def client_of(policy, **options):
    import anthropic

    url = policy.url.removesuffix("/v1")
    return anthropic.Anthropic(
        **{"base_url": url, "api_key": policy.key, "max_retries": 0} | options
    )


def ask(policy, *messages, **fields):
    asked = {"model": "any", "max_tokens": 99, "messages": messages or [user("hi")], **fields}
    return client_of(policy).messages.create(**asked)


def answer(call_id, content, **fields):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def places(policy):
    return [(turn.after, len(turn.messages)) for turn in policy.turns]


def test_a_message_has_the_reply_its_ids_and_usage(policy):
    found = ask(policy, system="be brief", tool_choice={"type": "auto"}, max_tokens=9)
    assert (found.type, found.role, found.model) == ("message", "assistant", "policy")
    assert [(one.type, one.text) for one in found.content] == [("text", "fine")]
    assert (found.stop_reason, found.stop_sequence) == ("end_turn", None)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (2, 2)
    assert (found.prompt_token_ids, found.token_ids) == ([7, 8], [3, 4])
    assert (found.policy_versions, found.policy_version) == ([4, 5], 5)
    assert found.ignored == ["tool_choice"]
    (turn,) = policy.turns
    assert turn.messages == (Message("system", "be brief"), Message("user", "hi"))
    assert (turn.most_tokens, turn.after) == (9, ANEW)


def test_an_agent_with_tools_that_sends_all_blocks_back_goes_on_in_its_conversation(policy):
    policy.replies = [
        reply("so <look>", tool_calls=(CALL,), content="so"),
        reply("<look><look>", tool_calls=(CALL, ToolCall("look", {}, "call00001")), content=""),
        reply("a door"),
    ]
    asked = [user([{"type": "text", "text": "what is"}, {"type": "text", "text": " there?"}])]
    while (found := ask(policy, *asked, tools=[TOOL], system="look")).stop_reason == "tool_use":
        asked.append({"role": "assistant", "content": found.content})
        calls = [one for one in found.content if one.type == "tool_use"]
        answers = [answer(one.id, one.input.get("place", "nowhere")) for one in calls]
        asked.append(user([*answers, {"type": "text", "text": "and?"}]))
    assert (found.content[0].text, found.stop_reason) == ("a door", "end_turn")
    assert places(policy) == [(ANEW, 2), (0, 2), (1, 3)]
    assert policy.turns[0].messages[1].content == "what is there?"
    assert [(one.role, one.content, one.tool_call_id) for one in policy.turns[2].messages] == [
        ("tool", "north", "call00000"),
        ("tool", "nowhere", "call00001"),
        ("user", "and?", None),
    ]
    assert policy.turns[0].tools == (LOOK,)


def test_messages_of_the_assistant_that_follow_each_other_are_one_reply(policy):
    """Some agents keep each block as a message of its own."""
    policy.replies = [reply("so <look>", tool_calls=(CALL,), content="so")]
    found = ask(policy, tools=[TOOL])
    parts = [{"role": "assistant", "content": [one]} for one in found.content]
    ask(policy, user("hi"), *parts, user([answer("call00000", "a door")]), tools=[TOOL])
    assert places(policy) == [(ANEW, 1), (0, 1)]


def test_messages_and_chat_of_one_episode_share_their_conversations(policy):
    policy.replies = [reply("one"), reply("two", tool_calls=(CALL,), content="two")]
    ask(policy)
    message = policy.ask(user("hi"), said("one"), user("on"), tools=[LOOK]).choices[0].message
    assert message.tool_calls[0].id == "call00000"
    called = {"type": "tool_use", "id": "call00000", "name": "look", "input": {"place": "north"}}
    again = said([{"type": "text", "text": "two"}, called])
    ask(policy, user("hi"), said("one"), user("on"), again, user([answer("call00000", "n")]))
    assert places(policy) == [(ANEW, 1), (0, 1), (1, 1)]


def test_the_line_for_billing_which_differs_in_each_request_is_no_part_of_the_instructions(policy):
    head = "x-anthropic-billing-header: cc_version=2.1.{}; cch={};"
    for number in range(2):
        billed = {"type": "text", "text": head.format(number, 7 * number)}
        rest = {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}
        more = [said("fine"), user("on")] if number else []
        ask(policy, user("hi"), *more, system=[billed, rest])
    ask(policy, system=head.format(3, 3) + "\nx-anthropic-billing-header: mine")
    assert places(policy) == [(ANEW, 2), (0, 1), (ANEW, 2)]
    assert policy.turns[0].messages[0].content == "be brief"
    assert policy.turns[2].messages[0].content == "x-anthropic-billing-header: mine"


def test_images_in_messages_and_in_answers_of_tools_are_shown(policy):
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]}
    picture, text = {"type": "image", "source": source}, {"type": "text", "text": "Which?"}
    policy.replies = [reply("<look>", tool_calls=(CALL,), content="")]
    found = ask(policy, user([picture, text]), tools=[TOOL])
    shown = user([answer("call00000", [text, picture], is_error=False)])
    again = {"role": "assistant", "content": found.content}
    ask(policy, user([picture, text]), again, shown, tools=[TOOL])
    (first,), (second,) = (turn.messages for turn in policy.turns)
    assert (first.content, second.content, policy.turns[1].after) == ("￼Which?", "Which?￼", 0)
    assert first.images == second.images
    assert first.images[0].size() == (2, 3)[::-1]


@pytest.mark.parametrize(
    ("said_last", "reason", "stop"),
    [
        (reply("look. Seen: "), "stop_sequence", "Seen:"),
        (reply("cut", is_cut=True), "max_tokens", None),
        (Reply("", is_cut=True), "model_context_window_exceeded", None),
        (reply("<look>", tool_calls=(CALL,), content=""), "tool_use", None),
    ],
)
def test_the_reason_of_the_end_is_told_with_and_without_a_stream(policy, said_last, reason, stop):
    policy.replies = [said_last, said_last]
    asked = {"stop_sequences": ["Seen:", "x"], "tools": [TOOL]}
    found = ask(policy, **asked)
    with client_of(policy).messages.stream(
        model="any", max_tokens=9, messages=[user("hi")], **asked
    ) as stream:
        streamed = stream.get_final_message()
    for one in (found, streamed):
        assert (one.stop_reason, one.stop_sequence) == (reason, stop)
        (block,) = one.content
        assert (block.type == "tool_use") == (reason == "tool_use")
        shown = said_last.content if reason == "tool_use" else said_last.text.partition("Seen:")[0]
        assert getattr(block, "text", "") == shown
    assert policy.turns[0].stop_strings == ("Seen:", "x")


def test_a_stream_has_the_events_of_the_same_message(policy):
    policy.replies = [reply("so <look>", tool_calls=(CALL,), content="so")]
    with client_of(policy).messages.stream(
        model="any", max_tokens=9, messages=[user("hi")], tools=[TOOL]
    ) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert [event.type for event in events if event.type not in ("text", "input_json")] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [one.type for one in final.content] == ["text", "tool_use"]
    assert (final.content[0].text, final.content[1].input) == ("so", {"place": "north"})
    assert (final.usage.input_tokens, final.usage.output_tokens) == (2, 2)
    (end,) = [event for event in events if event.type == "message_delta"]
    assert (end.token_ids, end.prompt_token_ids, end.policy_version) == ([3, 4], [7, 8], 5)
    again = {"role": "assistant", "content": final.content}
    ask(policy, user("hi"), again, user([answer("call00000", "a door")]), tools=[TOOL])
    assert places(policy)[1] == (0, 1)


def streamed(policy, **fields):
    """Asks in a thread; returns the turn, the thread, and the events or the error to come."""
    heard = []

    def listen():
        import anthropic

        try:
            heard.extend(ask(policy, stream=True, **fields))
        except anthropic.APIError as error:
            heard.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    until = time.monotonic() + LATEST
    while (turn := policy.inbox.take()) is None and time.monotonic() < until:
        time.sleep(0.01)
    return turn, thread, heard


def test_a_stream_sends_thoughts_and_text_as_they_are_drawn(endpoint):
    policy = Policy(endpoint)
    turn, thread, heard = streamed(policy, thinking=THINKS)
    turn.hear(PartialReply("<think>\nnorth or", drawn(3)))
    turn.hear(PartialReply(THOUGHT, drawn(4)))
    policy.inbox.answer(reply(THOUGHT + "!", drawn=drawn(3, 4, 5)))
    thread.join(LATEST)
    deltas = [one.delta for one in heard if one.type == "content_block_delta"]
    kinds = [one.type for one in deltas]
    assert kinds[:2] == ["thinking_delta"] * 2
    assert kinds[2:] == ["signature_delta", "text_delta", "text_delta"]
    assert "".join(one.thinking for one in deltas[:2]) == "north or south?"
    assert [one.text for one in deltas[3:]] == ["north", "!"]
    blocks = [(one.index, one.content_block.type) for one in heard if hasattr(one, "content_block")]
    assert blocks == [(0, "thinking"), (1, "text")]
    assert [one.index for one in heard if one.type == "content_block_stop"] == [0, 1]
    assert heard[-2].token_ids == [3, 4, 5]


def test_a_stream_that_breaks_off_raises(endpoint):
    import anthropic

    policy = Policy(endpoint)
    turn, thread, heard = streamed(policy)
    turn.hear(PartialReply("it", drawn(3)))
    time.sleep(0.2)
    endpoint.shut(policy.key)
    thread.join(LATEST)
    assert isinstance(heard[-1], anthropic.APIStatusError)
    assert heard[-1].body["error"]["type"] == "not_found_error"
    assert "has ended" in heard[-1].body["error"]["message"]


def test_thoughts_are_blocks_if_the_request_or_the_agent_wants_them(policy, endpoint):
    policy.replies = [reply(THOUGHT)] * 3
    found = ask(policy, thinking=THINKS)
    assert [one.type for one in found.content] == ["thinking", "text"]
    assert (found.content[0].thinking, found.content[1].text) == ("north or south?", "north")
    assert found.content[0].signature
    again = {"role": "assistant", "content": found.content}
    ask(policy, user("hi"), again, user("on"), thinking=THINKS)  # With its thoughts,
    ask(policy, user("hi"), said("north"), user("on"), thinking=THINKS)  # and without.
    ask(policy, user("hi"), said("south"), user("on"), thinking=THINKS)
    assert places(policy) == [(ANEW, 1), (0, 1), (0, 1), (ANEW, 3)]


def test_thoughts_stay_in_the_text_if_nobody_wants_them_apart(policy):
    policy.replies = [reply(THOUGHT)]
    found = ask(policy, thinking={"type": "disabled"})
    assert [one.text for one in found.content] == [THOUGHT]
    hidden = {"type": "redacted_thinking", "data": "abc"}
    ask(policy, user("hi"), said([hidden, {"type": "text", "text": THOUGHT}]), user("on"))
    assert places(policy) == [(ANEW, 1), (0, 1)]


def test_tokens_are_counted_without_a_turn(policy):
    import anthropic

    counts = client_of(policy).messages.count_tokens
    assert counts(model="any", messages=[user("four")]).input_tokens == 4
    asked = {"model": "any", "messages": [user("four")], "system": "be", "tools": [TOOL]}
    assert counts(**asked).input_tokens == 106
    with pytest.raises(anthropic.BadRequestError, match="the template refuses it"):
        counts(model="any", messages=[user("fault")])
    assert policy.turns == []


def test_an_endpoint_that_cannot_count_says_so():
    import anthropic

    with contextlib.closing(AgentEndpoint()) as endpoint:
        policy = Policy(endpoint)
        with pytest.raises(anthropic.NotFoundError, match="'messages/count_tokens' is not served"):
            client_of(policy).messages.count_tokens(model="any", messages=[user("hi")])


def test_clients_that_are_async_and_models_are_served(policy):
    import anthropic

    async def several():
        url = policy.url.removesuffix("/v1")
        client = anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0)
        asked = {"model": "claude-of-any-name", "max_tokens": 9}
        return await asyncio.gather(
            *(client.beta.messages.create(messages=[user(f"{i}")], **asked) for i in range(4))
        )

    assert [one.content[0].text for one in asyncio.run(several())] == ["fine"] * 4
    (model,) = client_of(policy).models.list().data
    assert (model.id, model.type, model.display_name) == ("policy", "model", "policy")


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages[0] must have the role user"),
        ({"messages": [user(5)]}, "messages[0].content must be a text or a list of blocks"),
        ({"messages": [user(["x"])]}, "a text or a list of blocks"),
        ({"messages": [user([{"type": "document"}])]}, "blocks of text, image and tool_result"),
        ({"messages": [user([{"type": "text"}])]}, "parts of text alone"),
        (
            {"messages": [user([{"type": "image", "source": {"type": "url", "url": "http://a"}}])]},
            "nothing is fetched",
        ),
        ({"messages": [user([{"type": "tool_result"}])]}, "the tool_use_id of a call"),
        ({"messages": [user("hi"), said("The answer is (")]}, "must not end with the assistant's"),
        (
            {"messages": [said([{"type": "tool_use", "id": "1", "name": "a"}]), user("x")]},
            "messages[0] must call a tool by its name",
        ),
        ({"messages": [said([{"type": "image"}]), user("x")]}, "write no images"),
        ({"system": 5}, "system.content must be a text or a list of blocks"),
        ({"tools": [{"type": "web_search_20260209", "name": "x"}]}, "a tool that the agent runs"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema must be a JSON schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0] must be the JSON schema of a function"),
        ({"tools": ["x"]}, "a tool with a name and an input_schema"),
        ({"stop_sequences": 3}, "stop_sequences must be"),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1"),
        ({"stream": "yes"}, "stream must be true or false"),
        ({"stop": ["x"]}, "use 'stop_sequences'"),
        ({"mcp_servers": [{"name": "x"}]}, "give the policy tools that the agent runs"),
    ],
)
def test_requests_that_are_wrong_are_refused_in_the_form_of_the_protocol(policy, fields, rule):
    body = {"messages": [user("hi")], "max_tokens": 9, **fields}
    status, found = policy.send("messages", json.dumps(body))
    assert (status, found["type"]) == (400, "error")
    assert found["error"]["type"] == "invalid_request_error"
    assert rule in found["error"]["message"]
    assert policy.turns == []


def test_errors_of_any_kind_raise_what_clients_of_anthropic_know(policy, endpoint):
    import anthropic

    status, found = policy.send("messages", b"{")
    assert (status, found["error"]["type"]) == (400, "invalid_request_error")
    assert "cannot be read as JSON" in found["error"]["message"]
    policy.replies = [Reply("", refusal="no place for tools")]
    with pytest.raises(anthropic.BadRequestError, match="no place for tools"):
        ask(policy, tools=[TOOL])
    unknown = client_of(policy, base_url=endpoint.base_url("x" * 32).removesuffix("/v1"))
    with pytest.raises(anthropic.NotFoundError, match="No episode has this key") as caught:
        unknown.models.list()
    assert caught.value.type == "not_found_error"
    policy.halted.set()
    policy.thread.join()
    endpoint.shut(policy.key)
    with pytest.raises(anthropic.APIStatusError, match="has ended") as caught:
        ask(policy)
    assert (caught.value.status_code, caught.value.type) == (410, "not_found_error")


def test_an_endpoint_that_others_reach_wants_the_key_of_the_run_in_either_header():
    import anthropic

    with contextlib.closing(AgentEndpoint(Access(host="0.0.0.0", key="a key"))) as endpoint:
        policy = Policy(endpoint)
        policy.thread.start()
        asked = {"model": "any", "max_tokens": 9, "messages": [user("hi")]}
        right = client_of(policy, api_key="a key")
        assert right.messages.create(**asked).content[0].text == "fine"
        headers = {"X-Api-Key": "a key"}  # Older clients send this one.
        assert policy.send("messages", json.dumps(asked), headers=headers)[0] == 200
        with pytest.raises(anthropic.AuthenticationError, match="X-Api-Key: KEY") as caught:
            ask(policy)  # With the episode's key alone.
        assert caught.value.type == "authentication_error"
        policy.halted.set()


def test_an_agent_that_wants_reasoning_apart_gets_it_in_messages_without_asking(endpoint):
    from rl_sync.addons.agents.endpoint.reasoning import Reasoning

    policy = Policy(endpoint)
    policy.inbox = Inbox(policy.arrived, Reasoning(is_separate=True))
    policy.key = endpoint.open(policy.inbox)
    policy.url = endpoint.base_url(policy.key)
    policy.thread.start()
    policy.replies = [reply(THOUGHT)]
    assert [one.type for one in ask(policy).content] == ["thinking", "text"]
    policy.halted.set()
