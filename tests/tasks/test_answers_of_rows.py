"""Answers that are no texts reach rewards in the form that the row has."""

import json
import re
from pathlib import Path

import pyarrow.parquet
import pytest

from rl_sync.rewards.exact import ExactMatch
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.k12 import SchoolAnswer
from tests.tasks.loading import dataset, write_lines

PAGE = (Path(__file__).parents[2] / "docs" / "rewards-k12.md").read_text()
EXAMPLES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
REWARD = SchoolAnswer()


def _loaded(path):
    return dataset(path, held_out_path=str(path)).train


def _written(path, rows):
    """Writes rows as the name of the file says."""
    if path.suffix == ".jsonl":
        return write_lines(path, rows)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def _of_one_type(answer):
    """Writes an answer as a column of a table can hold it: all its entries lists, or none."""
    mixed = any(isinstance(one, list) for one in answer)
    return [one if isinstance(one, list) or not mixed else [one] for one in answer]


@pytest.mark.samples("jsonl")
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_every_example_of_the_page_of_school_questions_is_marked_alike_from_a_file(
    tmp_path, kind, subtests
):
    for number, example in enumerate(EXAMPLES):
        row = {"prompt": "Which?", **example["row"]}
        if kind == "parquet" and isinstance(row["answer"], list):
            row["answer"] = _of_one_type(row["answer"])
        with subtests.test(str(row)):
            (prompt,) = _loaded(_written(tmp_path / f"{number}.{kind}", [row]))
            REWARD.check(prompt.fields)
            for text, score in example["completions"].items():
                judged = REWARD(prompt.fields, Completion(text))
                assert judged.score == pytest.approx(score), (text, judged.why)


def test_all_examples_of_the_page_stand_in_one_file_of_lines(tmp_path):
    rows = [{"prompt": f"p{i}", **example["row"]} for i, example in enumerate(EXAMPLES)]
    prompts = _loaded(write_lines(tmp_path / "rows.jsonl", rows))
    numbers = [i for i, row in enumerate(rows) if row["answer"] == 42]
    for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        assert prompt.fields["answer"] == ("42" if i in numbers else row["answer"])


def test_answers_that_differ_in_type_stand_in_one_table_as_json(tmp_path):
    some = [one for one in EXAMPLES if one["row"].get("kind") in ("order", "match", "blanks")]
    rows = [
        {"prompt": f"p{i}", "kind": one["row"]["kind"], "answer": json.dumps(one["row"]["answer"])}
        for i, one in enumerate(some)
    ]
    for prompt, one in zip(_loaded(_written(tmp_path / "a.parquet", rows)), some, strict=True):
        for text, score in one["completions"].items():
            assert REWARD(prompt.fields, Completion(text)).score == int(score)


def test_nulls_with_which_a_table_pads_its_rows_are_no_part_of_questions(tmp_path):
    rows = [
        {"answer": {"1": "B", "2": "A"}, "partial": True, "kind": None},
        {"answer": {"France": "Paris", "Italy": "Rome"}, "partial": None, "kind": "match"},
    ]
    rows = [{"prompt": f"p{i}", **row} for i, row in enumerate(rows)]
    first, second = _loaded(_written(tmp_path / "pairs.parquet", rows))
    assert (first.answer, second.fields["answer"]) == ('{"1": "B", "2": "A"}', rows[1]["answer"])
    assert REWARD(first.fields, Completion("1-B, 2-C")).score == 0.5
    assert REWARD(second.fields, Completion("Italy: Rome\nFrance: Paris")).score == 1
    none = {"unit": None, "choices": None, "partial": None, "kind": None}
    rows = [
        {**none, "answer": "2 km", "tolerance": 0.1, "unit_required": True},
        {**none, "answer": "3", "unit": "kg", "tolerance": 0.5, "unit_required": None},
    ]
    rows = [{"prompt": f"p{i}", **row} for i, row in enumerate(rows)]
    first, second = _loaded(_written(tmp_path / "numbers.parquet", rows))
    for prompt, reply in ((first, "2.1 km"), (second, "4 kg")):
        REWARD.check(prompt.fields)
        assert REWARD(prompt.fields, Completion(reply)).score == 1


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (["egg", "larva", "pupa"], "egg\nlarva\npupa"),
        (True, "true"),
        (False, "false"),
        ({"1": "B"}, '{"1": "B"}'),
        ([["colour", "color"], "light"], '[["colour", "color"], "light"]'),
        ([1, 2], "[1, 2]"),
        (7, "7"),
        ("7", "7"),
    ],
)
def test_an_answer_has_a_text_beside_its_form(tmp_path, answer, text):
    row = {"prompt": "p", "truth": answer, "answer": "another"}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    (prompt,) = dataset(path, held_out_path=str(path), answer="truth").train
    assert prompt.answer == text
    assert prompt.fields["answer"] == ("7" if answer == 7 else answer)


def test_an_index_of_choices_stays_one(tmp_path):
    row = {"prompt": "p", "choices": ["3", "2", "1"], "answer": 2}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    (prompt,) = dataset(path, held_out_path=str(path)).train
    assert REWARD(prompt.fields, Completion("C")).score == 1
    (prompt,) = dataset(path, held_out_path=str(path), choices="choices").train
    assert prompt.fields["answer"] == "C"


def test_lists_of_accepted_spellings_are_not_imitated_and_other_answers_are(tmp_path):
    answers = [["egg", "pupa"], [["a", "b"], "c"], {"x": ["y", "z"]}, True]
    rows = [{"prompt": f"p{i}", "answer": answer} for i, answer in enumerate(answers)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    task = dataset(path, held_out_path=str(path))
    assert [one.answer for one in task.demonstrations] == ["egg\npupa", "true"]


def test_a_reward_that_compares_texts_refuses_an_answer_that_is_none():
    exact = ExactMatch()
    assert exact({"answer": ["a", "b"]}, Completion("a\nb")).score == 1
    assert exact({"answer": True}, Completion("true")).score == 1
    for answer in ({"1": "B"}, [["a", "b"]], [1, 2]):
        with pytest.raises(ValueError, match=r"row\['answer'\]=.* is no text .*task\.reward=k12"):
            exact.check({"answer": answer})


@pytest.mark.parametrize("answer", [[], {}, "", " ", None, ["", " "]])
def test_an_empty_answer_is_named(tmp_path, answer):
    path = write_lines(tmp_path / "rows.jsonl", [{"prompt": "p", "answer": answer}])
    with pytest.raises(ValueError, match=r"line 1: 'answer' is .*; it must be text that is not"):
        dataset(path, held_out_path=str(path))


@pytest.mark.parametrize(("labels", "answer"), [("ABC", "C"), ("123", "3"), ("123", "2")])
@pytest.mark.parametrize("format", ["plain", "multiple_choice"])
def test_choices_with_labels_are_marked_by_what_the_question_shows(
    tmp_path, labels, answer, format
):
    choices = {"text": ["x", "y", "z"], "label": list(labels)}
    row = {"prompt": "Which?", "question": "Which?", "choices": choices, "answer": answer}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    (prompt,) = dataset(path, held_out_path=str(path), format=format).train
    at = labels.index(answer)
    reply = "ABC"[at] if format == "multiple_choice" else labels[at]
    assert REWARD(prompt.fields, Completion(reply)).score == 1
    assert REWARD(prompt.fields, Completion("xyz"[at])).score == 1
    assert REWARD(prompt.fields, Completion("xyz"[at - 1])).score == 0


@pytest.mark.parametrize(
    ("choices", "lines"),
    [
        (["yes", "no", None, None], "A. yes\nB. no"),
        ({"text": ["yes", "no", None], "label": ["1", "2", None]}, "A. yes\nB. no"),
        ({"text": ["yes", "no"], "label": None}, "A. yes\nB. no"),
        (["None", "no"], "A. None\nB. no"),
    ],
)
def test_nulls_behind_choices_are_no_choices(tmp_path, choices, lines):
    row = {"question": "Wet?", "choices": choices, "answer": "A"}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    (prompt,) = dataset(path, held_out_path=str(path), format="multiple_choice").train
    assert prompt.text == f"Wet?\n{lines}"
    if isinstance(choices, list):
        REWARD.check(prompt.fields)


def test_a_null_between_choices_is_refused(tmp_path):
    row = {"question": "Wet?", "choices": ["yes", None, "no"], "answer": "A"}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    with pytest.raises(ValueError, match=r"'choices' is .*None.*; it must be a list of 2 to 26"):
        dataset(path, held_out_path=str(path), format="multiple_choice")
