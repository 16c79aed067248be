from rl_sync.environments.interface import Message, Reply, ToolCall


def test_a_message_for_a_template_has_only_the_fields_that_are_set():
    assert Message("user", "Hi?").for_template() == {"role": "user", "content": "Hi?"}


def test_a_message_for_a_template_has_calls_as_transformers_writes_them():
    message = Message("assistant", "", (ToolCall("look", {"place": "north"}, "call00000"),))
    function = {"name": "look", "arguments": {"place": "north"}}
    assert message.for_template() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": "call00000", "function": function}],
    }


def test_a_tools_message_names_the_tool_and_the_call():
    message = Message("tool", "a door", name="look", tool_call_id="call00000")
    assert message.for_template() == {
        "role": "tool",
        "content": "a door",
        "name": "look",
        "tool_call_id": "call00000",
    }


def test_a_reply_becomes_an_assistants_message_whose_content_leaves_out_the_calls():
    calls = (ToolCall("look", {}),)
    assert Reply("text").message() == Message("assistant", "text")
    assert Reply("text", calls, content="").message() == Message("assistant", "", calls)
