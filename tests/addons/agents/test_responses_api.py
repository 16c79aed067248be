"""The Responses API of the endpoint as clients of OpenAI see it, and reasoning in both APIs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import threading
import time

import pytest

from rl_sync.addons.agents.endpoint.http_server import AgentEndpoint
from rl_sync.addons.agents.endpoint.inbox import Inbox
from rl_sync.addons.agents.endpoint.reasoning import Parted, Reasoning
from rl_sync.environments.interface import ANEW, Message, PartialReply, Reply, ToolCall
from rl_sync.thoughts import KNOWN, marks_of
from tests.addons.agents.agents import LOOK, said, user
from tests.addons.agents.test_endpoint import Policy, drawn, reply

pytestmark = pytest.mark.gate

FLAT = {"type": "function", **LOOK["function"], "strict": False}
CALL = ToolCall("look", {"place": "north"}, "call00000")
ANSWER = {"type": "function_call_output", "call_id": "call00000", "output": "a door"}


@pytest.fixture(name="endpoint", scope="module")
def _endpoint():
    with contextlib.closing(AgentEndpoint()) as endpoint:
        yield endpoint


@pytest.fixture(name="thinker")
def _thinker(endpoint):
    """A policy whose reasoning is a field of its own."""
    policy = Policy(endpoint)
    policy.inbox = Inbox(policy.arrived, Reasoning(is_separate=True))
    policy.key = endpoint.open(policy.inbox)
    policy.url = endpoint.base_url(policy.key)
    policy.thread.start()
    yield policy
    policy.halted.set()
    policy.thread.join()


def respond(policy, **fields):
    return policy.client().responses.create(**{"model": "any", "input": "hi", **fields})


def places(policy):
    return [(turn.after, len(turn.messages)) for turn in policy.turns]


def test_a_response_has_the_reply_its_ids_and_usage(policy):
    found = respond(
        policy,
        instructions="be brief",
        max_output_tokens=9,
        temperature=0.3,
        metadata={"of": "me"},
        include=["message.output_text.logprobs"],
    )
    assert (found.output_text, found.status, found.object) == ("fine", "completed", "response")
    (message,) = found.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert [one.logprob for one in message.content[0].logprobs] == [-3 / 8, -0.5]
    usage = found.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (2, 2, 4)
    assert (found.prompt_token_ids, found.token_ids) == ([7, 8], [3, 4])
    assert (found.policy_versions, found.policy_version) == ([4, 5], 5)
    assert (found.ignored, found.metadata) == (["temperature"], {"of": "me"})
    assert (found.instructions, found.max_output_tokens) == ("be brief", 9)
    (turn,) = policy.turns
    assert turn.messages == (Message("system", "be brief"), Message("user", "hi"))
    assert turn.most_tokens == 9


def test_a_reply_at_its_limit_is_an_incomplete_response(policy):
    policy.replies = [reply("cut", is_cut=True), Reply("", is_cut=True)]
    for text in ("cut", ""):
        found = respond(policy)
        assert (found.status, found.output_text) == ("incomplete", text)
        assert found.incomplete_details.reason == "max_output_tokens"
        assert found.output[-1].status == "incomplete"


def test_an_agent_with_tools_that_sends_all_items_back_goes_on_in_its_conversation(policy):
    policy.replies = [
        reply("so <look>", tool_calls=(CALL,), content="so"),
        reply("<look><look>", tool_calls=(CALL, ToolCall("look", {}, "call00001")), content=""),
        reply("a door"),
    ]
    asked = [{"role": "user", "content": [{"type": "input_text", "text": "what is there?"}]}]
    while True:
        found = respond(policy, input=asked, tools=[FLAT], instructions="look around")
        asked += found.output
        calls = [item for item in found.output if item.type == "function_call"]
        for call in calls:
            assert call.name == "look"
            place = json.loads(call.arguments).get("place", "nowhere")
            asked.append({"type": "function_call_output", "call_id": call.call_id, "output": place})
        if not calls:
            break
    assert found.output_text == "a door"
    assert places(policy) == [(ANEW, 2), (0, 1), (1, 2)]
    answers = [(one.role, one.content, one.tool_call_id) for one in policy.turns[2].messages]
    assert answers == [("tool", "north", "call00000"), ("tool", "nowhere", "call00001")]
    kept = {**LOOK["function"], "strict": False}
    assert policy.turns[0].tools == ({"type": "function", "function": kept},)


def test_a_stranger_with_tools_goes_on_until_there_is_no_call_in_chat_too(policy):
    calls = [ToolCall("look", {"place": place}, f"call0000{i}") for i, place in enumerate("ns")]
    policy.replies = [
        reply("<look>", tool_calls=(calls[0],), content=""),
        reply("then <look>", tool_calls=(calls[1],), content="then"),
        reply("nothing there"),
    ]
    messages = [{"role": "system", "content": "look around"}, user("what is there?")]
    while (message := policy.ask(*messages, tools=[LOOK]).choices[0].message).tool_calls:
        messages.append(message)  # As it came: clients encode it themselves.
        for call in message.tool_calls:
            found = f"no door in {json.loads(call.function.arguments)['place']}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    assert message.content == "nothing there"
    assert places(policy) == [(ANEW, 2), (0, 1), (1, 1)]
    assert policy.turns[2].messages[0].content == "no door in s"


def test_a_response_is_named_instead_of_sent_again(policy):
    policy.replies = [reply("one", tool_calls=(CALL,), content="one"), reply("two"), reply("three")]
    first = respond(policy, tools=[FLAT], instructions="be brief")
    second = respond(
        policy,
        previous_response_id=first.id,
        input=[ANSWER],
        tools=[FLAT],
        instructions="be brief",
    )
    assert second.previous_response_id == first.id
    respond(policy, previous_response_id=second.id, input="and?", instructions="be brief")
    respond(policy, previous_response_id=second.id, input="and?")  # Instructions are not kept.
    assert places(policy) == [(ANEW, 2), (0, 1), (1, 1), (ANEW, 5)]
    last = policy.turns[3].messages
    assert [one.role for one in last] == ["user", "assistant", "tool", "assistant", "user"]


def test_a_response_that_is_unknown_or_was_not_to_be_stored_cannot_be_named(policy):
    import openai

    found = respond(policy, store=False)
    for name in (found.id, "resp_other"):
        with pytest.raises(openai.BadRequestError, match="send all items as 'input'") as caught:
            respond(policy, previous_response_id=name)
        assert caught.value.param == "previous_response_id"


def test_chat_and_responses_of_one_episode_share_their_conversations(policy):
    policy.replies = [reply("one"), reply("two")]
    text = policy.ask(user("hi")).choices[0].message.content
    respond(policy, input=[user("hi"), said(text), user("on")])
    policy.ask(user("hi"), said("one"), user("on"), said("two"), user("more"))
    assert places(policy) == [(ANEW, 1), (0, 1), (1, 1)]


def test_a_stream_has_the_events_of_the_same_response(policy):
    policy.replies = [
        reply("so <look>", tool_calls=(CALL,), content="so"),
        reply("", is_cut=True),
    ]
    with policy.client().responses.stream(model="any", input="hi", tools=[FLAT]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(13))
    assert final.output_text == "so"
    assert json.loads(final.output[1].arguments) == {"place": "north"}
    assert (final.output[1].call_id, final.usage.total_tokens) == ("call00000", 4)
    assert (final.token_ids, final.policy_version) == ([3, 4], 5)
    on = respond(policy, previous_response_id=final.id, input=[ANSWER], tools=[FLAT], stream=True)
    *_, last = on
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")
    assert policy.turns[1].after == 0


def test_a_stream_sends_text_as_it_is_drawn(endpoint):
    policy = Policy(endpoint)
    heard = []
    ask = threading.Thread(target=lambda: heard.extend(respond(policy, stream=True)))
    ask.start()
    until = time.monotonic() + 30
    while (turn := policy.inbox.take()) is None and time.monotonic() < until:
        time.sleep(0.01)
    turn.hear(PartialReply("it", drawn(3)))
    turn.hear(PartialReply("it is", drawn(4)))
    policy.inbox.answer(reply("it is so", drawn=drawn(3, 4, 5)))
    ask.join(30)
    deltas = [event.delta for event in heard if event.type == "response.output_text.delta"]
    assert deltas == ["it", " is", " so"]
    assert heard[-1].response.output_text == "it is so"
    assert heard[-1].response.token_ids == [3, 4, 5]


def test_a_stream_that_breaks_off_raises(endpoint):
    import openai

    policy = Policy(endpoint)
    caught = []

    def ask():
        with pytest.raises(openai.APIError, match="has ended") as error:
            list(respond(policy, stream=True))
        caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until = time.monotonic() + 30
    while (turn := policy.inbox.take()) is None and time.monotonic() < until:
        time.sleep(0.01)
    turn.hear(PartialReply("it", drawn(3)))
    time.sleep(0.2)
    endpoint.shut(policy.key)
    thread.join(30)
    assert len(caught) == 1


def test_clients_that_are_async_are_served(policy):
    import openai

    async def ask():
        client = openai.AsyncOpenAI(base_url=policy.url, api_key="x", max_retries=0)
        found = await asyncio.gather(
            *(client.responses.create(model="any", input=f"{i}") for i in range(4))
        )
        stream = await client.responses.create(model="any", input="hi", stream=True)
        return [one.output_text for one in found], [event.type async for event in stream][-1]

    assert asyncio.run(ask()) == (["fine"] * 4, "response.completed")


@pytest.mark.parametrize(
    ("fields", "field", "rule"),
    [
        ({"input": None}, "input", "must be a text or a list of items, not null"),
        ({"input": []}, "input", "must be a text or a list of items"),
        ({"input": [3]}, "input[0]", "input[0] must be a message, reasoning"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "others are not served"),
        ({"input": [user([{"type": "input_image", "file_id": "x"}])]}, "input[0]", "data URL"),
        ({"input": [{**ANSWER, "output": None}]}, "input[0]", "output must be a text"),
        ({"input": [{**ANSWER, "call_id": None}]}, "input[0]", "call_id that it answers"),
        (
            {"input": [{"type": "function_call", "call_id": "1", "name": "a", "arguments": "["}]},
            "input[0]",
            "input[0].arguments must be an object of JSON",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "a function that the agent runs"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "JSON schema"),
        ({"tools": {"a": 1}}, "tools", "must be a list"),
        ({"include": "logprobs"}, "include", "must be a list"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input[0]", "must be a text, not 5"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"background": True}, "background", "wait for the response, or stream it"),
        ({"conversation": "conv_1"}, "conversation", "use 'previous_response_id'"),
        ({"prompt": {"id": "x"}}, "prompt", "'instructions'"),
        ({"messages": [user("hi")]}, "messages", "'input'"),
        ({"max_tokens": 3}, "max_tokens", "'max_output_tokens'"),
        ({"n": 2}, "n", "chat/completions"),
        ({"instructions": [1]}, "instructions", "must be a text"),
        ({"stream": 1}, "stream", "true or false"),
    ],
)
def test_requests_that_are_wrong_are_refused_with_field_and_way_out(policy, fields, field, rule):
    status, found = policy.send("responses", json.dumps({"input": "hi", **fields}))
    assert (status, found["error"]["param"]) == (400, field)
    assert rule in found["error"]["message"]
    assert policy.turns == []


THOUGHT = "<think>\nnorth or south?\n</think>\n\nnorth"


def test_reasoning_stays_in_the_content_unless_it_is_wanted_apart(policy):
    policy.replies = [reply(THOUGHT)]
    message = policy.ask().choices[0].message
    assert (message.content, hasattr(message, "reasoning_content")) == (THOUGHT, False)
    policy.ask(user("hi"), said(THOUGHT), user("on"))
    policy.ask(user("hi"), said("north"), user("on"))  # This is an edited history.
    assert places(policy) == [(ANEW, 1), (0, 1), (ANEW, 3)]


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (THOUGHT, "north or south?", "north"),
        ("which way?\n</think>\n\nsouth", "which way?", "south"),  # The template began it.
        ("<think>\n\n</think>\n\nnorth", None, "north"),
        ("<think>\nstill thinking", "still thinking", ""),
        ("north", None, "north"),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
        ("  <think> größer?\n\n因为</think>ja\n", " größer?\n\n因为", "ja\n"),
    ],
)
def test_a_history_with_or_without_reasoning_goes_on_behind_its_reply(
    thinker, text, reasoning, content
):
    thinker.replies = [reply(text), reply("second " + THOUGHT)]
    message = thinker.ask().choices[0].message
    assert getattr(message, "reasoning_content", None) == reasoning
    assert message.content == content
    thinker.ask(user("hi"), message, user("on"))
    thinker.ask(user("hi"), said(content), user("on"))
    again = thinker.client().chat.completions.create(
        model="any", messages=[user("hi"), {**said(content), "reasoning": reasoning}, user("on")]
    )
    assert places(thinker) == [(ANEW, 1), (0, 1), (0, 1), (0, 1)]
    thinker.ask(user("hi"), said(content), user("on"), again.choices[0].message, user("more"))
    assert places(thinker)[4] == (3, 1)


def test_other_reasoning_begins_another_conversation_with_its_span(thinker):
    thinker.replies = [reply(THOUGHT)]
    thinker.ask()
    thinker.ask(user("hi"), {**said("north"), "reasoning_content": "west?"}, user("on"))
    (turn,) = thinker.turns[1:]
    assert turn.after == ANEW
    assert turn.messages[1].content == "<think>\nwest?\n</think>\n\nnorth"


def test_the_reply_that_had_the_reasoning_goes_on_where_contents_are_equal(thinker):
    thinker.replies = [reply(f"<think>{thought}</think>north") for thought in "abc"]
    found = thinker.ask(n=3)
    for choice in found.choices:
        thinker.ask(user("hi"), choice.message, user("on"))
    assert [turn.after for turn in thinker.turns[3:]] == [0, 1, 2]


MARKS = marks_of("<why> </why>")


@pytest.mark.parametrize(
    ("marks", "text", "parts"),
    [
        (KNOWN, "[THINK]a[/THINK]b", ("a", "b")),
        (KNOWN, "◁think▷a◁/think▷\n\nb", ("a", "b")),
        (KNOWN, "<why>a</why>b", ("", "<why>a</why>b")),
        (MARKS, "<why>a</why>b", ("a", "b")),
        (MARKS, "<think>a</think>b", ("a", "b")),
        (MARKS, "a</why>b", ("a", "b")),
        ((), "<think>a</think>b", ("", "<think>a</think>b")),
    ],
)
def test_reasoning_has_the_marks_of_the_run(marks, text, parts):
    form = Reasoning(is_separate=True, marks=marks)
    assert form.parted(text) == parts
    heard = [form.certainly_parted(text[:end]) for end in range(len(text) + 1)]
    for one in heard:  # Nothing that was sent is taken back.
        assert all(whole.startswith(part) for whole, part in zip(parts, one, strict=True))
    is_marked = parts[0] or not marks
    assert heard[-1] == (parts if is_marked else ("", ""))


def test_reasoning_that_comes_back_is_written_in_the_marks_of_the_run(endpoint):
    policy = Policy(endpoint)
    policy.inbox = Inbox(policy.arrived, Reasoning(is_separate=True, marks=MARKS))
    policy.key = endpoint.open(policy.inbox)
    policy.url = endpoint.base_url(policy.key)
    policy.thread.start()
    policy.replies = [reply("<why>north?</why>north")]
    message = policy.ask().choices[0].message
    assert (message.reasoning_content, message.content) == ("north?", "north")
    policy.ask(user("hi"), message, user("on"))
    policy.ask(user("hi"), {**said("north"), "reasoning_content": "west?"}, user("on"))
    respond(
        policy,
        input=[
            user("hi"),
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "east?"}]},
            said("north"),
            user("on"),
        ],
    )
    policy.halted.set()
    policy.thread.join()
    assert places(policy) == [(ANEW, 1), (0, 1), (ANEW, 3), (ANEW, 3)]
    assert [turn.messages[1].content for turn in policy.turns[2:]] == [
        f"<why>\n{thought}\n</why>\n\nnorth" for thought in ("west?", "east?")
    ]
    assert Reasoning(marks=MARKS).joined(Parted("a", "<think>b</think>c")) == "<think>b</think>c"


@pytest.mark.parametrize("form", ["chat", "responses"])
def test_reasoning_is_streamed_before_the_content(endpoint, form):
    policy = Policy(endpoint)
    inbox = Inbox(policy.arrived, Reasoning(is_separate=True))
    policy.url = endpoint.base_url(endpoint.open(inbox))
    heard = []

    def ask():
        heard.extend(policy.ask(stream=True) if form == "chat" else respond(policy, stream=True))

    thread = threading.Thread(target=ask)
    thread.start()
    until = time.monotonic() + 30
    while (turn := inbox.take()) is None and time.monotonic() < until:
        time.sleep(0.01)
    text = "<think>\nno\nyes\n</think>\n\nleft <b>"
    for end in range(0, len(text), 3):
        turn.hear(PartialReply(text[:end], drawn(3)))
    ids = [3] * len(range(0, len(text), 3))
    inbox.answer(reply(text, drawn=drawn(*ids, 4)))
    thread.join(30)
    if form == "chat":
        deltas = [choice.delta for chunk in heard for choice in chunk.choices]
        thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
        texts = [delta.content or "" for delta in deltas]
    else:
        kinds = ("response.reasoning_text.delta", "response.output_text.delta")
        thoughts, texts = ([e.delta for e in heard if e.type == kind] for kind in kinds)
        added = [e.item.type for e in heard if e.type == "response.output_item.added"]
        assert added == ["reasoning", "message"]
        done = [e.item.to_dict() for e in heard if e.type == "response.output_item.done"]
        assert done == [item.to_dict() for item in heard[-1].response.output]
    assert ("".join(thoughts), "".join(texts)) == ("no\nyes", "left <b>")
    assert len([one for one in thoughts if one]) > 1
    assert len([one for one in texts if one]) > 1


def test_items_of_reasoning_come_and_go_back_or_are_dropped(thinker):
    thought = "<think>\nwhere?\n</think>\n\n"
    thinker.replies = [
        reply(thought + "<look>", tool_calls=(CALL,), content=thought),
        reply(THOUGHT),
    ]
    first = respond(thinker, tools=[FLAT])
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    assert first.output[0].content[0].text == "where?"
    second = respond(thinker, input=[user("hi"), *first.output, ANSWER], tools=[FLAT])
    assert [item.type for item in second.output] == ["reasoning", "message"]
    bare = [item for item in first.output if item.type != "reasoning"]
    asked = [user("hi"), *bare, ANSWER, *second.output, user("on")]
    respond(thinker, input=asked, tools=[FLAT])
    respond(thinker, input="on", previous_response_id=second.id, tools=[FLAT])
    assert places(thinker) == [(ANEW, 1), (0, 1), (1, 1), (1, 1)]


def _agents_sdk():
    """Returns the Agents SDK; a file of an example, imported by its name, may be `agents` too."""
    pytest.importorskip("agents.run", reason="needs: pip install openai-agents")
    return importlib.import_module("agents")


def test_an_agent_of_the_agents_sdk_uses_tools_as_it_does_by_default(policy):
    import openai

    agents = _agents_sdk()
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def look(place: str) -> str:
        """Looks somewhere."""
        return f"a door in the {place}"

    policy.replies = [
        reply("<look>", tool_calls=(CALL,), content=""),
        reply("a door"),
        reply("yes"),
    ]
    client = openai.AsyncOpenAI(base_url=policy.url, api_key="x", max_retries=0)
    model = agents.OpenAIResponsesModel("policy", client)
    agent = agents.Agent("guide", instructions="look around", tools=[look], model=model)

    async def play():
        found = await agents.Runner.run(agent, "what is there?")
        streamed = agents.Runner.run_streamed(
            agent, [*found.to_input_list(), {"role": "user", "content": "sure?"}]
        )
        async for _ in streamed.stream_events():
            pass
        return found.final_output, streamed.final_output

    assert asyncio.run(play()) == ("a door", "yes")
    assert places(policy) == [(ANEW, 2), (0, 1), (1, 1)]
    assert policy.turns[1].messages[0].content == "a door in the north"


@pytest.mark.parametrize("responses", [True, False])
def test_the_agents_sdk_raises_at_a_limit_in_responses_alone(policy, responses):
    import openai

    agents = _agents_sdk()
    policy.replies = [reply("cut", is_cut=True)]
    client = openai.AsyncOpenAI(base_url=policy.url, api_key="x", max_retries=0)
    provider = agents.OpenAIProvider(openai_client=client, use_responses=responses)
    config = agents.RunConfig(model_provider=provider, tracing_disabled=True)
    play = agents.Runner.run(agents.Agent("guide"), "hi", run_config=config)
    if responses:
        with pytest.raises(agents.exceptions.ModelBehaviorError, match="max_output_tokens"):
            asyncio.run(play)
    else:
        assert asyncio.run(play).final_output == "cut"
