"""Rows whose prompt is a list of messages become tasks that ask the whole conversation."""

import base64
import json
from pathlib import Path

import pytest

from rl_sync.images import images_of
from rl_sync.rewards.judgement import MESSAGES, ONE_MESSAGE
from rl_sync.tasks.data_rows import DataRow
from rl_sync.tasks.dialogues import Demonstrated
from rl_sync.tasks.mapping import example
from rl_sync.tasks.pictures.places import PLACE
from rl_sync.tasks.pictures.prompt_encoder import PromptEncoder
from rl_sync.tasks.row_formats import FORMATS
from tests.environments.families import family
from tests.odd_images import drawn, encoded
from tests.tasks.loading import TOKENIZER, load, write_lines

CASES = Path(__file__).resolve().parents[1] / "data" / "conversational_prompts.jsonl"
ROWS = [json.loads(line) for line in CASES.read_text().splitlines()]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "1+1?"}
SAID = {"role": "assistant", "content": "2"}


@pytest.fixture(scope="module")
def chatml(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    family("thinking").backend.save_pretrained(directory)
    return directory


def task_of(path, tokenizer, **fields):
    named = {f"dataset__{name}": value for name, value in fields.items()}
    return load(
        tokenizer=tokenizer,
        name="dataset",
        dataset__path=str(path),
        max_completion_tokens=16,
        **named,
    )


def of_transformers(tokenizer, prompt):
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    way = {"add_generation_prompt": True}
    if messages[-1]["role"] == "assistant":
        way = {"continue_final_message": True}
    return tokenizer.backend.apply_chat_template(messages, return_dict=False, **way)


def row_of(fields, **named):
    return example(DataRow("rows.jsonl:1", fields), FORMATS["plain"].override(**named))


def test_every_prompt_has_the_ids_of_apply_chat_template(chatml, tmp_path, subtests):
    import pyarrow
    import pyarrow.parquet

    lists = [row for row in ROWS if isinstance(row["prompt"], list)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(lists), tmp_path / "rows.parquet")
    for path, rows in ((CASES, ROWS), (tmp_path / "rows.parquet", lists)):
        task = task_of(path, chatml, held_out_path=str(path))
        assert len(task.train) == len(task.held_out) == len(rows)
        for row, prompt, asked in zip(rows, task.train, task.asked(task.train), strict=True):
            with subtests.test(path=path.suffix, prompt=row["prompt"]):
                wanted = of_transformers(task.tokenizer, row["prompt"])
                assert asked.ids.tolist() == wanted
                leased = prompt._replace(row=None)
                assert task.asked([leased])[0].ids.tolist() == wanted
                tokens, lengths = task.encode_prompts([prompt])
                assert tokens[0, : lengths[0]].tolist() == wanted
        assert all(map(task.is_seen, task.held_out))


def test_rewards_get_the_text_and_the_messages(chatml):
    task = task_of(CASES, chatml, held_out_path=str(CASES))
    text = "user: FIRSTQUESTION 1+1?\n\nassistant: 2\n\nuser: LASTQUESTION and times 9?"
    fields = task.train[1].fields
    assert (fields["prompt"], fields["answer"]) == (text, "18")
    assert fields[MESSAGES] == ROWS[1]["prompt"]
    assert task.train[1].row["prompt"] == ROWS[1]["prompt"]
    assert task.train[3].text == "Solve 5*3"
    assert MESSAGES not in task.train[3].fields
    alone = [prompt.fields.get(ONE_MESSAGE, False) for prompt in task.train]
    assert alone == [
        isinstance(row["prompt"], list) and MESSAGES not in prompt.fields
        for row, prompt in zip(ROWS, task.train, strict=True)
    ]
    assert any(alone)


def test_the_plan_shows_the_first_prompt_as_the_policy_reads_it(chatml):
    said = task_of(CASES, chatml, held_out_path=str(CASES)).describe_prompt()
    assert f"in the chat template of {chatml} with the row's system message" in said
    assert "  | <|im_start|>system\n  | SYSTEMTEXT answer with a number.<|im_end|>\n" in said
    assert said.endswith("  | <|im_start|>assistant\n  | ")


def test_a_conversation_without_a_template_is_refused(tmp_path):
    message = (
        r"6 prompts are conversations \(the first one: 'system: SYSTEMTEXT.*tokenizer\.chat=no"
    )
    lines = write_lines(tmp_path / "rows.jsonl", [ROWS[0], ROWS[2]])
    for way in ({"tokenizer": None}, {"tokenizer": TOKENIZER, "chat": "no"}):
        with pytest.raises(ValueError, match=message):
            load(
                name="dataset",
                dataset__path=str(CASES),
                dataset__held_out_path=str(CASES),
                max_completion_tokens=8,
                **way,
            )
    with pytest.raises(ValueError, match=r"task\.shots"):
        load(
            name="dataset",
            dataset__path=str(lines),
            dataset__held_out_path=str(lines),
            shots=1,
            tokenizer=TOKENIZER,
        )


def test_rows_of_equal_conversations_are_held_out_together(chatml, tmp_path):
    rows = [
        {"prompt": [{"role": "system", "content": f"{i // 2}"}, USER], "answer": str(i)}
        for i in range(12)
    ]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    task = task_of(path, chatml, held_out_fraction=0.5)
    held_out, train = ({one.text for one in of} for of in (task.held_out, task.train))
    assert len(held_out) == len(train) == 3
    assert not held_out & train
    assert "The 12 rows have 6 different prompts" in task.describe()


def test_a_long_conversation_loses_its_oldest_turns_or_is_dropped(chatml, tmp_path):
    why = {"role": "user", "content": "why " * 50}
    long, old = [SYSTEM, why], [SYSTEM, why, SAID, USER]
    rows = [{"prompt": asked, "answer": "1"} for asked in (long, old)]
    path = write_lines(tmp_path / "rows.jsonl", [*ROWS[3:], *rows])
    task = load(
        tokenizer=chatml,
        name="dataset",
        dataset__path=str(path),
        dataset__held_out_path=str(CASES),
        max_completion_tokens=16,
        max_prompt_tokens=60,
        too_long="truncate",
    )
    assert len(task.train) == len(task.demonstrations) == 4
    assert "2 of 5 training problems are cut from the left" in task.describe()
    assert "1 of them are dropped: the last question" in task.describe()
    for one in (task.train[-1], task.demonstrations[-1]):
        assert one.row[MESSAGES] == [SYSTEM, USER]
        assert task.asked([one])[0].ids.tolist() == of_transformers(task.tokenizer, [SYSTEM, USER])


def test_a_demonstration_follows_its_conversation(chatml, tmp_path, subtests):
    asked = [SYSTEM, USER]
    last = {"role": "user", "content": "And 2+2?"}
    for kind, row in {
        "text": {"prompt": asked, "completion": "It is 2."},
        "messages": {"prompt": asked, "completion": [{"role": "assistant", "content": "It is 2."}]},
    }.items():
        with subtests.test(kind=kind):
            path = write_lines(tmp_path / f"{kind}.jsonl", [row])
            more = {"held_out_path": str(path), "answer": "", "demonstration": "completion"}
            task = task_of(path, chatml, **more)
            tokens, mask = task.encode_demonstrations(task.demonstrations)
            ids = of_transformers(task.tokenizer, asked)
            said = [*asked, {"role": "assistant", "content": "It is 2."}]
            whole = task.tokenizer.backend.apply_chat_template(said, return_dict=False)
            (start,) = mask.argmax(1)
            end = start + mask.sum()
            assert tokens[0, :start].tolist() == ids
            assert tokens[0, :end].tolist() == whole[:end]
            assert mask[0, start:end].all()
            assert tokens[0, end - 1] == task.tokenizer.eos_id
    with subtests.test(kind="turns"):
        turns = [SAID, last, {"role": "assistant", "content": "4"}]
        row = {"prompt": [SYSTEM, USER, SAID, last], "completion": turns}
        made = row_of(row, demonstration="completion", answer="").dialogue
        assert [one.is_learned for one in made.lines if one.role == "assistant"] == [
            False,
            True,
            True,
        ]


def test_chats_ask_all_that_stands_before_their_last_reply(chatml, tmp_path):
    last = {"role": "user", "content": "And 2+2?"}
    row = {"messages": [SYSTEM, USER, SAID, last, {"role": "assistant", "content": "4"}]}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    task = load(
        tokenizer=chatml,
        name="dataset",
        dataset__path=str(path),
        dataset__held_out_path=str(path),
        dataset__format="messages",
        dataset__demonstration="",
    )
    [asked] = task.asked(task.train)
    assert asked.ids.tolist() == of_transformers(task.tokenizer, row["messages"][:-1])
    assert task.train[0].answer == "4"
    asks = {"messages": row["messages"][:-1], "answer": "4"}
    made = row_of(asks, prompt="messages", demonstration="messages")
    assert made.fields[MESSAGES] == asks["messages"]


def test_pairs_have_prompts_of_messages_and_whole_conversations(subtests):
    asked, other = [SYSTEM, USER], {"role": "assistant", "content": "3"}
    named = {"chosen": "chosen", "rejected": "rejected", "answer": ""}
    for kind, row in {
        "texts": {"prompt": asked, "chosen": "2", "rejected": "3"},
        "replies": {"prompt": asked, "chosen": [SAID], "rejected": [other]},
        "whole": {"prompt": asked, "chosen": [*asked, SAID], "rejected": [*asked, other]},
        "implied": {"chosen": [*asked, SAID], "rejected": [*asked, other]},
        "named": {"prompt": "1+1?", "chosen": [*asked, SAID], "rejected": [*asked, other]},
    }.items():
        with subtests.test(kind=kind):
            made = row_of(row, **named)
            assert made.pair == ("2", "3", 0.0)
            assert made.fields[MESSAGES] == asked
            assert made.prompt == "system: Be brief.\n\nuser: 1+1?"
    for complaint, row in {
        "differs from 'chosen' before": {"chosen": [USER, SAID], "rejected": [SYSTEM, USER, other]},
        "has 3 messages": {"prompt": asked, "chosen": [SAID, USER, SAID], "rejected": [other]},
        "must end with an assistant's text": {"prompt": asked, "chosen": [USER], "rejected": "3"},
    }.items():
        with subtests.test(complaint=complaint), pytest.raises(ValueError, match=complaint):
            row_of(row, **named)


def test_choices_and_tools_belong_to_the_last_question():
    row = {
        "prompt": [SYSTEM, USER],
        "choices": ["1", "2"],
        "answer": 1,
        "tools": [{"name": "look"}],
    }
    made = row_of(row, choices="choices")
    assert made.answer == "B"
    assert made.fields[MESSAGES][-1]["content"] == "1+1?\nA. 1\nB. 2"
    assert made.fields["prompt_tools"] == [{"type": "function", "function": {"name": "look"}}]
    assert row["prompt"][-1] == USER


def test_images_of_a_conversation_stand_where_its_messages_show_them():
    one, two = (encoded(drawn(6 + i, 5), "PNG") for i in range(2))
    url = "data:image/png;base64," + base64.b64encode(one).decode()
    shown = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "This?"}]
    prompt = [
        SYSTEM,
        {"role": "user", "content": shown},
        SAID,
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "image"}]},
    ]
    made = row_of({"prompt": prompt, "answer": "", "images": [two]})
    assert [message["content"] for message in made.fields[MESSAGES]] == [
        "Be brief.",
        f"{PLACE}This?",
        "2",
        f"And {PLACE}",
    ]
    assert [image.data for image in images_of(made.fields)] == [one, two]


def test_nulls_of_a_table_are_no_fields():
    prompt = [SYSTEM | {"tool_calls": None, "name": None}, USER | {"tool_calls": None}]
    assert row_of({"prompt": prompt, "answer": "2"}).fields[MESSAGES] == [SYSTEM, USER]


def test_rows_of_other_trainers_are_read_with_their_fields_named(subtests):
    asked = [SYSTEM, USER]
    developer = {"role": "developer", "content": "Be brief."}
    parts = USER | {"content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]}
    thought = SAID | {"content": "2", "reasoning_content": "One and one."}
    truth = {"style": "rule", "ground_truth": "2"}
    rows = {
        "verl": (
            {"data_source": "x", "prompt": asked, "reward_model": truth},
            {"answer": "reward_model.ground_truth"},
            asked,
        ),
        "TRL with tools": (
            {"prompt": asked, "answer": "2", "tools": '[{"type": "function", "function": {}}]'},
            {},
            asked,
        ),
        "OpenRLHF": (
            {"context_messages": asked, "answer": "2"},
            {"prompt": "context_messages"},
            asked,
        ),
        "Tulu 3 with verifiable answers": (
            {"messages": asked, "ground_truth": "2", "dataset": "x"},
            {"prompt": "messages", "answer": "ground_truth"},
            asked,
        ),
        "NeMo Gym": (
            {"responses_create_params": {"input": asked}, "expected_answer": 2},
            {"prompt": "responses_create_params.input", "answer": "expected_answer"},
            asked,
        ),
        "OpenAI": (
            {"prompt": [developer, parts], "answer": "2"},
            {},
            [developer, USER],
        ),
        "thoughts of earlier turns": (
            {"prompt": [USER, thought, USER], "answer": "2"},
            {},
            [USER, thought, USER],
        ),
    }
    for kind, (row, named, messages) in rows.items():
        with subtests.test(kind=kind):
            made = row_of(row, **named)
            assert made.fields[MESSAGES] == messages
            assert made.answer == "2"
            assert ("prompt_tools" in made.fields) == ("tools" in row)


def test_a_demonstrated_conversation_needs_no_template(tmp_path):
    row = {"messages": [SYSTEM, USER, SAID]}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    from rl_sync.environments.dialogue.episode_demonstrations import demonstrated
    from rl_sync.tasks.dataset import DatasetConfig
    from rl_sync.tasks.dataset import load as load_problems
    from rl_sync.tasks.lengths import LengthLimits, fit
    from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer

    config = DatasetConfig(path=str(path), held_out_path=str(path), format="messages")
    problems = load_problems(config, 0)
    characters = CharacterTokenizer.of_texts([json.dumps(row), "\n"])
    task = fit(problems, PromptEncoder(characters), LengthLimits(), rendering=demonstrated)
    assert task.tokenizer.decode(task.asked(task.train)[0].ids) == "Be brief.1+1?"
    [shown] = task.demonstrations
    assert isinstance(shown, Demonstrated)
