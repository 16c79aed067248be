"""Rows in the forms of ShareGPT and Alpaca, empty fields of templates, and nulls of tables."""

import json

import pytest

from rl_sync.tasks.data_rows import DataRow
from rl_sync.tasks.mapping import example
from rl_sync.tasks.row_formats import FORMATS, RowFormat
from rl_sync.tasks.tokenizers.prompt_messages import MESSAGES
from tests.tasks.loading import dataset, write_lines

MESSAGES_FORMAT = FORMATS["messages"]
ASKED = {"from": "human", "value": "2+2?"}
SAID = {"from": "gpt", "value": "4"}
AGAIN = {"from": "human", "value": "times 9?"}
LAST = {"from": "gpt", "value": "36"}


def _mapped(fields, row_format, is_padded=False):
    return example(DataRow("rows.jsonl, line 1", fields, is_padded=is_padded), row_format)


def _said(found):
    return [(line.role, line.content) for line in found.dialogue.lines]


def test_a_conversation_of_share_gpt_is_asked_answered_and_imitated_as_its_messages(subtests):
    for name in ("conversations", "messages"):
        with subtests.test(name):
            found = _mapped({name: [ASKED, SAID, AGAIN, LAST]}, MESSAGES_FORMAT)
            assert [(one["role"], one["content"]) for one in found.fields[MESSAGES]] == [
                ("user", "2+2?"),
                ("assistant", "4"),
                ("user", "times 9?"),
            ]
            assert found.answer == "36"
            assert _said(found)[-2:] == [("user", "times 9?"), ("assistant", "36")]
            assert found.fields[name][0] == ASKED


def test_one_turn_of_share_gpt_is_a_question_and_its_answer():
    found = _mapped({"conversations": [ASKED, SAID]}, MESSAGES_FORMAT)
    assert (found.prompt, found.answer, MESSAGES in found.fields) == ("2+2?", "4", False)


def test_thoughts_of_a_reply_are_imitated_and_no_part_of_the_answer_for_rewards():
    thought = {"from": "gpt", "value": "<think>\n2 and 2.\n</think>\n\n4"}
    for turns in ([ASKED, thought], [ASKED, SAID, AGAIN, thought]):
        found = _mapped({"conversations": turns}, MESSAGES_FORMAT)
        assert found.answer == "4"
        shown = found.demonstration if found.dialogue is None else _said(found)[-1][1]
        assert shown == thought["value"]
    cut = {"from": "gpt", "value": "<think>\n2 and"}
    assert _mapped({"conversations": [ASKED, cut]}, MESSAGES_FORMAT).answer == cut["value"]


@pytest.mark.parametrize(
    "fields",
    [
        {"conversations": [{"from": "system", "value": "Be brief."}, ASKED, SAID]},
        {"conversations": [ASKED, SAID], "system": "Be brief."},
    ],
)
def test_a_system_message_of_share_gpt_stands_in_the_list_or_in_its_own_field(fields):
    found = _mapped(fields, MESSAGES_FORMAT)
    assert _said(found)[0] == ("system", "Be brief.")
    assert found.fields[MESSAGES][0] == {"role": "system", "content": "Be brief."}


def test_calls_and_observations_of_share_gpt_are_those_of_tools():
    call = {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1, "b": null}}'}
    told = {"from": "observation", "value": "3"}
    fields = {"conversations": [ASKED, call, told, SAID], "tools": '[{"name": "add"}]'}
    found = _mapped(fields, MESSAGES_FORMAT)
    assert [line.role for line in found.dialogue.lines] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    (made,) = found.dialogue.lines[1].calls
    assert (made.name, made.arguments) == ("add", {"a": 1, "b": None})
    assert found.fields[MESSAGES][1]["tool_calls"][0]["function"]["name"] == "add"
    bad = {"conversations": [ASKED, {**call, "value": "add"}, told, SAID]}
    with pytest.raises(ValueError, match="message 2 has 'add', which is not JSON"):
        _mapped(bad, MESSAGES_FORMAT)


def test_a_prompt_or_a_pair_may_be_in_the_form_of_share_gpt():
    plain = FORMATS["plain"].override(prompt="conversations")
    found = _mapped({"conversations": [ASKED, SAID, AGAIN], "answer": "36"}, plain)
    assert [one["role"] for one in found.fields[MESSAGES]] == ["user", "assistant", "user"]
    row = {"conversations": [ASKED], "chosen": SAID, "rejected": LAST}
    pairs = FORMATS["preference"].override(prompt="conversations")
    assert _mapped({**row, "chosen": [SAID], "rejected": [LAST]}, pairs).pair == ("4", "36", 0.0)


def test_a_speaker_that_is_no_role_is_refused():
    row = {"conversations": [ASKED, {"from": "narrator", "value": "x"}]}
    with pytest.raises(ValueError, match=r"message 2 is from 'narrator', which must be .*human"):
        _mapped(row, MESSAGES_FORMAT)
    assert _mapped({**row, "prompt": "p", "answer": "a"}, FORMATS["plain"]).prompt == "p"


def test_the_rows_of_alpaca_have_an_input_or_none(tmp_path):
    rows = [
        {"instruction": "Translate: cat", "input": "", "output": "chat"},
        {"instruction": "Translate", "input": "dog", "output": "chien"},
        {"instruction": "Say yes", "output": "yes"},
        {"instruction": "Say no", "input": None, "output": "no"},
    ]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    task = dataset(path, held_out_path=str(path), format="alpaca")
    assert [(one.text, one.answer) for one in task.train] == [
        ("Translate: cat", "chat"),
        ("Translate\n\ndog", "chien"),
        ("Say yes", "yes"),
        ("Say no", "no"),
    ]
    assert [one.answer for one in task.demonstrations] == ["chat", "chien", "yes", "no"]


@pytest.mark.parametrize(
    ("template", "row", "text"),
    [
        ("{a} {b} end", {"a": "x", "b": ""}, "x end"),
        ("{a}\n{b}\nAnswer:", {"a": "x", "b": None}, "x\nAnswer:"),
        ("{a|}: {b}", {"b": "y"}, ": y"),
        ("{a|c|}{b}", {"c": "x", "b": ""}, "x"),
        ("{a}{b|}", {"a": " x ", "b": "y"}, " x y"),
        ("{a} ({options})", {"a": "", "options": ["one", "two"]}, " (A. one\nB. two)"),
    ],
)
def test_an_empty_field_of_a_template_leaves_nothing_behind(template, row, text):
    choices = "options" if "options" in row else None
    assert _mapped(row, RowFormat(template=template, choices=choices)).prompt == text


@pytest.mark.parametrize(
    ("template", "row", "message"),
    [
        ("{a} {b}", {"a": "x"}, "'b' is missing"),
        ("{a} {b|}", {"a": "", "b": " "}, "'a' is ''; it must be text that is not empty"),
        ("Say {a|}", {}, r"'a' is missing"),
        ("{a}", {"a": {"b": 1}}, r"'a' is \{'b': 1\}"),
    ],
)
def test_a_template_without_a_question_is_refused(template, row, message):
    with pytest.raises(ValueError, match=message):
        _mapped(row, RowFormat(template=template))


def test_a_number_of_thousands_of_digits_is_kept_as_text(tmp_path):
    digits = "-1" + "0" * 5000
    lines = [f'{{"prompt": "p{i}", "answer": {i}, "unused": [{digits}]}}' for i in (1, 2)]
    lines += [f'{{"prompt": "p3", "answer": {digits}}}']
    path = write_lines(tmp_path / "rows.jsonl", lines)
    task = dataset(path, held_out_path=str(path))
    assert [one.answer for one in task.train] == ["1", "2", digits]
    assert task.train[0].fields["unused"] == [digits]
    (tmp_path / "rows.json").write_text(f"[{', '.join(lines)}]")
    assert dataset(tmp_path / "rows.json", held_out_path=str(path)).train == task.train


@pytest.mark.parametrize("is_padded", [False, True])
def test_nulls_of_tables_are_no_arguments_and_json_keeps_its_own(is_padded):
    messages = [
        {"role": "user", "content": "the answer?"},
        {
            "role": "assistant",
            "content": None,
            "weight": None,
            "tool_calls": [
                {"function": {"name": "a", "arguments": {"x": 1, "y": None}}},
                {"function": {"name": "b", "arguments": '{"x": null}'}},
                {"name": "c", "arguments": None},
            ],
        },
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "So."},
    ]
    tool = {"name": "a", "parameters": {"x": {"type": "integer"}, "z": None}}
    found = _mapped({"messages": messages, "tools": [tool]}, MESSAGES_FORMAT, is_padded)
    first = {"x": 1} if is_padded else {"x": 1, "y": None}
    calls = found.dialogue.lines[1].calls
    assert [dict(call.arguments) for call in calls] == [first, {"x": None}, {}]
    asked = found.fields[MESSAGES][1]["tool_calls"]
    assert asked[0]["function"]["arguments"] == first
    kept = {"x": {"type": "integer"}} if is_padded else tool["parameters"]
    assert found.dialogue.tools[0]["function"]["parameters"] == kept
    as_json = {"messages": messages, "tools": json.dumps([tool])}
    found = _mapped(as_json, MESSAGES_FORMAT, is_padded)
    assert found.dialogue.tools[0]["function"] == tool


PUBLIC = {
    "Dolly": (
        {"instruction": "Who?", "context": "", "response": "Ada", "category": "open_qa"},
        {"template": "{instruction}\n\n{context}", "answer": "response"},
        ("Who?", "Ada"),
    ),
    "MMLU": (
        {"question": "2+2?", "subject": "x", "choices": ["3", "4", "5", "6"], "answer": 1},
        {"format": "multiple_choice"},
        ("2+2?\nA. 3\nB. 4\nC. 5\nD. 6", "B"),
    ),
    "ARC": (
        {
            "id": "Mercury_1",
            "question": "Wet?",
            "choices": {"text": ["air", "sea"], "label": ["1", "2"]},
            "answerKey": "2",
        },
        {"format": "multiple_choice"},
        ("Wet?\nA. air\nB. sea", "B"),
    ),
    "DAPO's mathematics for verl": (
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": "1+1?"}],
            "reward_model": {"ground_truth": "2", "style": "rule"},
            "extra_info": {"index": "9a"},
        },
        {"answer": "reward_model.ground_truth"},
        ("1+1?", "2"),
    ),
    "Countdown": (
        {"target": 98, "nums": [44, 19, 35]},
        {"template": "Reach {target}.", "answer": "target"},
        ("Reach 98.", "98"),
    ),
    "DeepScaleR": (
        {"problem": "1+1?", "answer": "2", "solution": "It is 2."},
        {"prompt": "problem", "demonstration": "solution"},
        ("1+1?", "2"),
    ),
    "APPS": (
        {
            "question": "Echo.",
            "input_output": '{"inputs": ["1\\n"], "outputs": ["1\\n"]}',
            "starter_code": "",
        },
        {"format": "code"},
        ("Echo.", '{"inputs": ["1\\n"], "outputs": ["1\\n"]}'),
    ),
    "SVAMP": (
        {"Body": "A has 2.", "Question": "How many?", "Answer": 2.0, "Type": "none"},
        {"template": "{Body} {Question}", "answer": "Answer"},
        ("A has 2. How many?", "2.0"),
    ),
}
"""Rows as public data sets have them, the settings, and the prompt with its answer."""


def test_rows_of_public_data_sets_become_problems_by_settings_alone(tmp_path, subtests):
    for number, (name, (row, settings, asked)) in enumerate(PUBLIC.items()):
        with subtests.test(name):
            path = write_lines(tmp_path / f"{number}.jsonl", [row])
            (prompt,) = dataset(path, held_out_path=str(path), **settings).train
            assert (prompt.text, prompt.answer) == asked


@pytest.mark.parametrize(
    ("fields", "way_out"),
    [
        ({"question": "2+2?", "answer": "4"}, "task.dataset.prompt, perhaps to 'question'."),
        ({"prompt": "2+2?", "ground_truth": "4"}, "answer, perhaps to 'ground_truth'."),
        (
            {"prompt": "2+2?", "reward_model": {"ground_truth": "4"}},
            "task.dataset.answer, perhaps to 'reward_model.ground_truth'.",
        ),
        ({"prompt": "2+2?", "key": "4"}, "change task.dataset.answer."),
    ],
)
def test_a_refusal_names_the_field_that_other_data_sets_have_there(fields, way_out):
    try:
        told = _mapped(fields, FORMATS["plain"]).unanswered
    except ValueError as error:
        told = str(error)
    assert told.endswith(way_out)
