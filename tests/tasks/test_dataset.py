"""Rows of popular data sets become problems, by a few settings and without code."""

import json
import re

import pyarrow.parquet
import pytest

from rl_sync.configs import gsm8k
from rl_sync.settings.records import build
from rl_sync.tasks.task_catalog import TaskConfig, load_task
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from tests.tasks.loading import dataset, load, write_lines

GSM8K = [
    {"question": f"What is {i} times 1000?", "answer": f"{i} * 1000 is that.\n#### {i},000"}
    for i in range(1, 11)
]


def _pairs(task):
    return sorted((p.text, p.answer) for p in [*task.train, *task.held_out])


def _rows(count=10, **fields):
    return [{"prompt": f"p{i}", "answer": f"a{i}", **fields} for i in range(count)]


def _one(tmp_path, row, **fields):
    """Loads the task of a single row."""
    path = write_lines(tmp_path / "rows.jsonl", [row])
    return dataset(path, held_out_path=str(path), **fields)


def test_gsm8k_asks_the_question_wants_what_follows_the_hashes_and_imitates_the_whole(tmp_path):
    task = dataset(write_lines(tmp_path / "train.jsonl", GSM8K), format="gsm8k")
    assert ("What is 3 times 1000?", "3,000") in _pairs(task)
    first = task.train[0]
    assert task.demonstrations[0].text == first.text
    assert task.demonstrations[0].answer.endswith(f"#### {first.answer}")
    assert task.max_completion_tokens == len("10 * 1000 is that.\n#### 10,000") + 1


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"So $x = \boxed{\frac{1}{\sqrt{2}}}$.", r"\frac{1}{\sqrt{2}}"),
        (r"First \boxed{1}, then \boxed{2}.", "2"),
        (r"It is $\fbox{7}$.", "7"),
        (r"It is $\boxed 8$.", "8"),
        (r"\boxed{\text{a {b {c}}}}", r"\text{a {b {c}}}"),
    ],
)
def test_math_wants_what_is_boxed_last(tmp_path, solution, answer):
    rows = [{"problem": f"Problem {i}", "solution": solution} for i in range(10)]
    task = dataset(write_lines(tmp_path / "math.jsonl", rows), format="math")
    assert {p.answer for p in task.train} == {answer}
    assert {p.answer for p in task.demonstrations} == {solution}


@pytest.mark.parametrize(
    ("row", "text", "answer", "demonstration"),
    [
        (
            {"prompt": "def f():", "test": "assert f()", "canonical_solution": "  return 1"},
            "def f():",
            "assert f()",
            "  return 1",
        ),
        (
            {"text": "Write f.", "test_list": ["assert f(1)", "assert f(2)"], "code": "f = id"},
            "Write f.",
            "assert f(1)\nassert f(2)",
            "f = id",
        ),
    ],
)
def test_code_wants_the_tests_and_imitates_the_solution(tmp_path, row, text, answer, demonstration):
    task = _one(tmp_path, row, format="code")
    assert task.train[0][1:3] == (text, answer)
    assert task.demonstrations[0].answer == demonstration


@pytest.mark.parametrize(
    ("choices", "answer", "letter"),
    [
        (["one", "two", "three"], 2, "C"),
        (["one", "two", "three"], "B", "B"),
        (["one", "two", "three"], "three", "C"),
        (["one", "two", "three"], "0", "A"),
        (["3", "2", "1"], 2, "C"),
        ({"text": ["one", "two", "three"], "label": ["1", "2", "3"]}, "3", "C"),
        ({"text": ["one", "two", "three"], "label": ["A", "B", "C"]}, "C", "C"),
    ],
)
def test_multiple_choice_shows_letters_and_wants_one(tmp_path, choices, answer, letter):
    row = {"question": "Which?", "choices": choices, "answer": answer}
    task = _one(tmp_path, row, format="multiple_choice")
    texts = choices["text"] if isinstance(choices, dict) else choices
    assert task.train[0].text == f"Which?\nA. {texts[0]}\nB. {texts[1]}\nC. {texts[2]}"
    assert task.train[0].answer == letter
    assert task.demonstrations[0].answer == letter


def test_a_template_says_the_prompt_from_any_fields_choices_as_lines(tmp_path):
    row = {"meta": {"of": ["x", "sums"]}, "q": 7, "options": ["one", "two"], "answerKey": "B"}
    task = _one(
        tmp_path,
        row,
        format="multiple_choice",
        template="{{On {meta.of.1}}} {q}?\n{options}\nAnswer:",
    )
    assert task.train[0][1:3] == ("{On sums} 7?\nA. one\nB. two\nAnswer:", "B")


def test_fields_may_lie_deep_and_override_the_format(tmp_path):
    row = {"messages": [{"content": "Ask"}], "reward": {"truth": 5}, "question": "no", "answer": ""}
    task = _one(
        tmp_path,
        row,
        format="gsm8k",
        prompt="messages.0.content",
        answer="reward.truth",
        answer_pattern="",
        demonstration="",
    )
    assert task.train[0][1:3] == ("Ask", "5")
    assert task.demonstrations[0].answer == "5"


def test_a_choice_may_be_named_within_a_text(tmp_path):
    row = {"prompt": "Which?", "options": ["one", "two"], "answer": "It is (two)."}
    task = _one(tmp_path, row, choices="options", answer_pattern=r"\((.+)\)")
    assert task.train[0].answer == "B"


def test_a_null_gives_way_to_another_name(tmp_path):
    task = _one(tmp_path, {"text": None, "other": "x", "answer": "a"}, prompt="text|other")
    assert task.train[0].text == "x"


def test_the_files_of_a_data_set_say_the_same_in_every_kind(tmp_path):
    import datasets

    lines = write_lines(tmp_path / "rows.jsonl", GSM8K)
    (tmp_path / "list.json").write_text(json.dumps(GSM8K))
    write_lines(tmp_path / "lines.json", GSM8K)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(GSM8K), tmp_path / "rows.parquet")
    saved = datasets.Dataset.from_list(GSM8K)
    saved.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": saved}).save_to_disk(tmp_path / "splits")
    expected = dataset(lines, format="gsm8k")
    for name in ("list.json", "lines.json", "rows.parquet", "saved", "splits"):
        task = dataset(tmp_path / name, format="gsm8k")
        assert (task.train, task.held_out) == (expected.train, expected.held_out), name


def test_a_directory_of_files_and_its_splits_go_through_the_library(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    directory = tmp_path / "data"
    directory.mkdir()
    write_lines(directory / "train.jsonl", _rows(5))
    write_lines(directory / "test.jsonl", [{"prompt": "held", "answer": "out"}])
    task = dataset(directory, held_out_split="test")
    assert len(task.train) == 5
    assert [p.text for p in task.held_out] == ["held"]
    with pytest.raises(
        ValueError, match=r"'validation' \(task\.dataset\.split\); it has .*'train'"
    ):
        dataset(directory, split="validation")
    (directory / "train.jsonl").write_text("[" * 9)
    with pytest.raises(ValueError, match=r"split 'train' cannot be loaded: .*dataset: \w+"):
        dataset(directory)


def test_a_saved_data_set_names_the_splits_that_it_has(tmp_path):
    import datasets

    one = datasets.Dataset.from_list(_rows())
    datasets.DatasetDict({"easy": one, "hard": one}).save_to_disk(tmp_path / "splits")
    with pytest.raises(
        ValueError, match=r"'train' \(task\.dataset\.split\); it has 'easy', 'hard'\."
    ):
        dataset(tmp_path / "splits")
    with pytest.raises(
        ValueError, match=r"'hrd' \(task\.dataset\.split\).*; did you mean 'hard'\?"
    ):
        dataset(tmp_path / "splits", split="hrd")
    with pytest.raises(ValueError, match=r"'esy' \(task\.dataset\.held_out_split\).*mean 'easy'\?"):
        dataset(tmp_path / "splits", split="hard", held_out_split="esy")
    with pytest.raises(ValueError, match=r"splits, split 'easy', row 1: 'q' is missing"):
        dataset(tmp_path / "splits", split="easy", prompt="q")


def test_the_first_rows_are_taken_and_another_file_may_be_held_out(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", _rows(10))
    other = write_lines(tmp_path / "other.jsonl", _rows(2))
    task = dataset(path, limit=3, held_out_path=str(other))
    assert [p.text for p in task.train] == ["p0", "p1", "p2"]
    assert len(task.held_out) == 2


def test_rows_without_a_demonstration_are_counted(tmp_path):
    rows = [*_rows(2, solution="s"), *_rows(1), *_rows(1, solution=None)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    held_out = write_lines(tmp_path / "held.jsonl", _rows(1))
    task = dataset(path, demonstration="solution", held_out_path=str(held_out))
    assert [p.answer for p in task.demonstrations] == ["s", "s"]
    assert [*task.notes] == [
        "2 of 4 training problems have nothing to imitate: there is no 'solution' in their rows."
    ]


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        ({"question": "q", "answer": "a"}, {}, "'prompt' is missing.* has 'question', 'answer'"),
        (
            {"prompt": "p", "answer": "no hashes"},
            {"answer_pattern": "#### (.+)"},
            "which has no #### ",
        ),
        ({"prompt": {"a": 1}, "answer": "a"}, {}, r"'prompt' is \{'a': 1\}; it must be text"),
        ({"prompt": "p", "answer": "a"}, {"template": "{prompt} {of}"}, "'of' is missing"),
        (
            {"prompt": "p", "options": ["a", "b"], "answer": 2},
            {"choices": "options"},
            "'answer' is 2, .* index from 0 to 1, a letter from A to B",
        ),
        (
            {"prompt": "p", "options": ["a", "b"], "answer": -1},
            {"choices": "options"},
            "'answer' is -1, which is not one",
        ),
        (
            {"prompt": "p", "options": "ab", "answer": 2},
            {"choices": "options"},
            "'options' is 'ab'; it must be a list",
        ),
        (
            {"prompt": "p", "options": {"text": ["a", "b"], "label": ["1"]}, "answer": 2},
            {"choices": "options"},
            "as many of both",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_named_by_file_and_line(tmp_path, row, settings, message):
    path = write_lines(tmp_path / "rows.jsonl", ["", row])
    with pytest.raises(ValueError, match=rf"rows\.jsonl, line 2: .*{message}"):
        dataset(path, **settings)


def test_a_row_of_a_list_or_a_table_is_named_by_its_number(tmp_path):
    rows = [{"prompt": f"p{i}", "answer": " " if i == 1 else "a"} for i in range(10)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for name in ("rows.json", "rows.parquet"):
        with pytest.raises(ValueError, match=rf"{name}, row 2: 'answer' is ' '"):
            dataset(tmp_path / name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"answer_pattern": "("}, r"task.dataset.answer_pattern='\(' is not a regular expression"),
        ({"template": "{question"}, "task.dataset.template='{question' is not a format string"),
        ({"template": "no field"}, "template='no field' must name fields in braces"),
        ({"template": "{a} {b:.2f}"}, "must name fields in braces"),
        ({"template": "{}", "prompt": ""}, "must name fields in braces"),
        ({"template": "{:>4}"}, "must name fields in braces"),
        (
            {"format": "alpaca", "prompt": "text"},
            r"task\.dataset\.prompt='text' would not be asked, .*template=.* has no {}",
        ),
        ({"prompt": "{question}"}, "prompt='{question}' must be the name of a field"),
        ({"prompt": ""}, "a field for the prompt, or a template"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        dataset("rows.jsonl", **settings)


def test_a_path_that_is_not_there_says_what_may_be_given(tmp_path):
    for path in (tmp_path / "nowhere", "rows.parquet"):
        with pytest.raises(ValueError, match=rf"task\.dataset\.path={path}: no such file"):
            dataset(path)
    path = write_lines(tmp_path / "rows.jsonl", _rows())
    with pytest.raises(ValueError, match=r"task\.dataset\.held_out_path=no\.jsonl: no such file"):
        dataset(path, held_out_path="no.jsonl")
    with pytest.raises(ValueError, match=r"task.dataset.path is not set. Give .*\.parquet"):
        dataset("")


def test_a_table_that_is_none_and_a_split_of_a_file_are_refused(tmp_path):
    (tmp_path / "rows.parquet").write_text("text")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        dataset(tmp_path / "rows.parquet")
    (tmp_path / "rows.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=r"rows\.parquet is a Git LFS pointer, not a Parquet"):
        dataset(tmp_path / "rows.parquet")
    path = write_lines(tmp_path / "rows.jsonl", _rows())
    with pytest.raises(ValueError, match="held_out_split='test' names a split, but the file"):
        dataset(path, held_out_split="test")


def test_a_template_decides_which_rows_ask_the_same(tmp_path):
    rows = [{"prompt": f"p{i % 4}", "other": f"o{i}", "answer": "a"} for i in range(16)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    task = dataset(path, held_out_fraction=0.25, template="Say {prompt}")
    assert (len(task.train), len(task.held_out)) == (12, 4)
    assert not {p.text for p in task.train} & {p.text for p in task.held_out}
    task = dataset(path, held_out_fraction=0.25, template="{prompt} {other}")
    assert not task.notes


def test_held_out_prompts_that_are_trained_on_too_once_they_are_cut_are_said(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", _rows(10))
    held_out = write_lines(tmp_path / "other.jsonl", [{"prompt": "xp3", "answer": "a"}])
    task = load(
        name="dataset", max_prompt_tokens=2, too_long="truncate",
        dataset__path=str(path), dataset__held_out_path=str(held_out),
    )  # fmt: skip
    assert "1 of 1 held-out problems have a prompt that is trained on too" in task.describe()


def test_preferences_are_pairs_of_texts_or_of_the_last_messages_with_a_margin(tmp_path):
    messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    row = {"prompt": "Why?", "chosen": messages, "rejected": "No.", "by": 0.5}
    task = _one(tmp_path, row, format="preference", margin="by")
    for pairs in (task.preferences, task.held_out_preferences):
        assert [(pair.prompt.text, *pair[1:]) for pair in pairs] == [("Why?", "So.", "No.", 0.5)]
    tokens, mask = task.encode_preferences(task.preferences)
    shown = [task.tokenizer.decode(row[of].tolist()) for row, of in zip(tokens, mask, strict=True)]
    assert shown == ["So.", "No."]
    assert task.max_completion_tokens == 4
    assert not task.demonstrations


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": "a"}, "'rejected' is missing"),
        ({"chosen": "", "rejected": "b"}, "'chosen' is ''"),
        ({"chosen": "a", "rejected": "b", "margin": -1}, "'margin' is -1; it must be 0 or more"),
    ],
)
def test_a_pair_that_is_none_is_named(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        _one(
            tmp_path,
            {"prompt": "p", **row},
            format="preference",
            margin="margin" * ("margin" in row),
        )


def test_a_pair_with_a_long_completion_is_left_out_and_counted(tmp_path):
    rows = [
        {"prompt": f"p{i}", "chosen": "x" * (3 + 5 * (i == 1)), "rejected": "y"} for i in range(9)
    ]
    path = write_lines(tmp_path / "pairs.jsonl", rows)
    fields = {"dataset__format": "preference", "dataset__held_out_fraction": 0.2}
    task = load(name="dataset", dataset__path=str(path), max_completion_tokens=5, **fields)
    assert len(task.preferences) + len(task.held_out_preferences) == 8
    assert any("1 of 9 preference pairs are left out" in note for note in task.notes)


def test_what_the_config_of_gsm8k_says_about_other_data_sets_works_to_the_letter(tmp_path):
    first, second = re.findall(r"\n    (--config\.task\.dataset\..*(?:\n  .*--.*)*)", gsm8k.__doc__)
    rows = {
        first: {"problem": "2+2?", "solution": r"So it is $\\boxed{4}$."},
        second: {"problem": "2+2?", "solution": {"final": 4}},
    }
    for number, (command, row) in enumerate(rows.items()):
        path = write_lines(tmp_path / f"{number}.jsonl", [row])
        config = gsm8k.get_config().task
        with config.unlocked():
            config.dataset.update(
                dict(re.findall(r"--config\.task\.dataset\.(\w+)=(\S*)", command))
            )
        config.dataset.path = config.dataset.held_out_path = str(path)
        made = build(TaskConfig, config.to_dict(), "config.task")
        (prompt,) = load_task(made, TokenizerConfig(None, "auto", None), 0).train
        assert (prompt.text, prompt.answer) == ("2+2?\n\nAnswer with the number alone.", "4")


def test_the_question_in_a_template_has_its_choices_unless_the_template_names_them(tmp_path):
    row = {"question": "Which?", "choices": ["one", "two"], "answer": 0}
    for template, text in {
        "{}\nAnswer:": "Which?\nA. one\nB. two\nAnswer:",
        "{choices}\n{}": "A. one\nB. two\nWhich?",
        "Q: {question}": "Q: Which?",
    }.items():
        task = _one(tmp_path, row, format="multiple_choice", template=template)
        assert task.train[0].text == text


@pytest.mark.parametrize(
    ("row", "settings", "setting"),
    [
        ({"question": "q", "answer": "a"}, {}, "prompt"),
        ({"prompt": "q", "solution": "a"}, {}, "answer"),
        ({"prompt": "q", "answer": ""}, {}, "answer"),
        ({"text": "q", "answer": "# 1"}, {"template": "{question}?"}, "template"),
        ({"text": "q", "answer": "# 1"}, {"template": "{}?"}, "prompt"),
        ({"question": "q", "answer": "1"}, {"format": "gsm8k"}, "answer_pattern"),
        ({"question": "q"}, {"format": "multiple_choice", "answer": "x"}, "choices"),
        (
            {"question": "q", "choices": ["a", "b"], "answer": 5},
            {"format": "multiple_choice"},
            "answer",
        ),
        ({"prompt": "q", "chosen": "a"}, {"format": "preference"}, "rejected"),
        (
            {"prompt": [{"role": "user", "content": "q"}], "answer": "a"},
            {"template": "{prompt}?"},
            "template",
        ),
    ],
)
def test_a_row_that_does_not_fit_names_the_setting_to_change(tmp_path, row, settings, setting):
    with pytest.raises(ValueError, match=rf"rows\.jsonl, line 1: .*task\.dataset\.{setting}\b"):
        _one(tmp_path, row, **settings)


def test_a_task_without_settings_for_fields_names_the_one_that_has_them(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a"}])
    with pytest.raises(
        ValueError, match=r"With task\.name=dataset, task\.dataset\.prompt can name"
    ):
        load(name="jsonl", jsonl__path=str(path))
