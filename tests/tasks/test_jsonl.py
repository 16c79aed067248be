import gzip

import pytest

from tests.tasks.loading import load, write_lines


def _file(tmp_path, lines, name="rows.jsonl"):
    return str(write_lines(tmp_path / name, lines))


def _load(path, held_out_path=None, fraction=0.25, seed=0):
    return load(
        seed,
        name="jsonl",
        jsonl__path=path,
        jsonl__held_out_path=held_out_path,
        jsonl__held_out_fraction=fraction,
    )


def _rows(count):
    return [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(count)]


def test_a_fraction_is_held_out_by_the_seed(tmp_path):
    path = _file(tmp_path, _rows(20))
    task = _load(path)
    texts = [{p.text for p in part} for part in (task.train, task.held_out)]
    assert [len(part) for part in texts] == [15, 5]
    assert not texts[0] & texts[1]
    assert _load(path).held_out == task.held_out
    assert _load(path, seed=1).held_out != task.held_out
    assert {p.text for p in task.demonstrations} == texts[0]


def test_all_rows_of_a_prompt_are_trained_on_or_held_out(tmp_path):
    rows = [{"prompt": f"{i % 8}+1=", "answer": str(i)} for i in range(40)]
    task = _load(_file(tmp_path, rows))
    texts = [{p.text for p in part} for part in (task.train, task.held_out)]
    assert [len(part) for part in texts] == [6, 2]
    assert not texts[0] & texts[1]
    assert [len(task.train), len(task.held_out)] == [30, 10]
    assert {p.text for p in task.demonstrations} == texts[0]
    assert [*task.notes] == [
        "The 40 rows have 8 different prompts. All rows of a prompt are either trained on or held"
        " out."
    ]


def test_rows_of_a_single_prompt_cannot_be_split(tmp_path):
    path = _file(tmp_path, [{"prompt": "x", "answer": str(i)} for i in range(9)])
    with pytest.raises(ValueError, match=r"of the 1 different prompts in .* holds out 0:"):
        _load(path)


def test_a_held_out_file_that_shares_prompts_with_the_training_file_is_said(tmp_path):
    other = _file(tmp_path, [*_rows(3), {"prompt": "x", "answer": "1"}], "other.jsonl")
    task = _load(_file(tmp_path, _rows(9)), other)
    assert "- 3 of 4 held-out problems have a prompt that is trained on too" in task.describe()
    assert [task.is_seen(p) for p in task.held_out] == [True, True, True, False]
    assert "trained on too" not in _load(_file(tmp_path, _rows(9))).describe()


def test_a_file_of_its_own_may_be_held_out(tmp_path):
    other = _file(tmp_path, [{"prompt": "xyz", "answer": "w"}], "other.jsonl")
    task = _load(_file(tmp_path, _rows(3)), other)
    assert len(task.train) == 3
    assert [p.text for p in task.held_out] == ["xyz"]
    assert task.tokenizer.charset == "+0123=wxyz"


def test_lengths_and_characters_are_those_of_the_data(tmp_path):
    task = _load(
        _file(tmp_path, [{"prompt": "π?", "answer": "314"}, {"prompt": "é", "answer": 2}]),
        fraction=0.5,
    )
    assert task.tokenizer.charset == "1234?éπ"
    assert (task.max_prompt_tokens, task.max_completion_tokens) == (2, 4)


def test_numbers_are_answers_and_blank_lines_are_passed_over(tmp_path):
    path = _file(tmp_path, [{"prompt": "a", "answer": 2}, "", {"prompt": "b", "answer": 2.5}])
    task = _load(path, path)
    assert [p.answer for p in task.train] == ["2", "2.5"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "x", ', r"line 2 is not JSON"),
        ('["x", "y"]', r"line 2 is not an object"),
        ({"prompt": "x"}, r"line 2: 'answer' is missing"),
        ({"prompt": "x", "answer": "  "}, r"line 2: 'answer' is '  '"),
        ({"prompt": "", "answer": "1"}, r"line 2: 'prompt' is ''"),
        ({"prompt": ["x"], "answer": "1"}, r"line 2: 'prompt' is \['x'\]"),
        ({"prompt": "x", "answer": None}, r"line 2: 'answer' is None"),
        ({"prompt": True, "answer": "1"}, r"line 2: 'prompt' is True"),
        ('{"prompt": "x", "answer": NaN}', r"line 2: 'answer' is nan"),
        ('{"prompt": "x", "answer": 1e999}', r"line 2: 'answer' is inf"),
        ('{"prompt": "x", "more": ' + "[" * 100_000, r"line 2 is nested too deeply"),
        ("[" * 400 + "]" * 400, r"line 2 is not an object .* but \[\[\[\[\[\[\["),
        ('{"answer": "x", "prompt": ' + "[" * 400 + "]" * 400 + "}", r"line 2: 'prompt' is \[\["),
        (r'{"prompt": "\ud83d", "answer": "1"}', r"line 2: the prompt holds half a .* \\ud83d:"),
        (r'{"prompt": "x", "answer": "a\udc00"}', r"line 2: the answer holds half a .* \\udc00:"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, line, message):
    path = _file(tmp_path, [*_rows(1), line, *_rows(2)])
    with pytest.raises(ValueError, match=rf"rows\.jsonl, {message}"):
        _load(path)


def test_characters_that_other_readers_end_lines_at_stay_in_their_row(tmp_path):
    path = _file(tmp_path, ['{"prompt": "a\u2028b\x85", "answer": "1"}', *_rows(1)])
    assert _load(path, path).train[0].text == "a\u2028b\x85"


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes('\ufeff{"prompt": "a", "answer": "1"}\r\n'.encode())
    assert _load(str(path), str(path)).tokenizer.charset == "1a"


def test_characters_beyond_16_bits_may_be_written_as_pairs(tmp_path):
    path = _file(tmp_path, [r'{"prompt": "\ud83d\ude00", "answer": 1}', *_rows(1)])
    assert _load(path, path).train[0].text == "😀"


def test_numbers_of_many_digits_are_answers(tmp_path):
    path = _file(tmp_path, ['{"prompt": "x", "answer": 1' + "0" * 400 + "}", *_rows(1)])
    assert _load(path, path).train[0].answer == "1" + "0" * 400


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"prompt": "x", "answer": "1"}\n{"prompt": "\xff"}', r", line 2 is not UTF-8 .* 0xff"),
        ('{"prompt": "x"}'.encode("utf-16"), r" is in UTF-16, .*: save it as UTF-8"),
        (gzip.compress(b"{}"), r" is compressed with gzip, .*: unpack it"),
        (b"PAR1", r" is a Parquet file, .* ends in \.parquet"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            r" is a Git LFS pointer, .*: fetch the file itself",
        ),
    ],
    ids=["latin", "utf-16", "gzip", "parquet", "pointer"],
)
def test_a_file_that_is_not_text_is_named_with_the_way_out(tmp_path, data, message):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"rows\.jsonl{message}"):
        _load(str(path))


def test_a_directory_and_an_empty_file_are_named(tmp_path):
    with pytest.raises(ValueError, match=rf"{tmp_path}: is a directory.*task.jsonl.path=FILE"):
        _load(str(tmp_path))
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"rows\.jsonl has no rows"):
        _load(str(path))


def test_a_missing_file_and_no_file_say_what_to_give(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.jsonl: no such file.*task.jsonl.path=FILE"):
        _load(str(tmp_path / "nowhere.jsonl"))
    rows = write_lines(tmp_path / "right.jsonl", [{"prompt": "1+1=", "answer": "2"}])
    with pytest.raises(ValueError, match=r"nowhere.jsonl: .*task.jsonl.held_out_path=FILE"):
        _load(str(rows), held_out_path=str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(ValueError, match=r"task.jsonl.path is not set"):
        _load(None)
    with pytest.raises(ValueError, match=r"rows.jsonl has no rows"):
        _load(_file(tmp_path, [""]))


@pytest.mark.parametrize(("fraction", "held_out"), [(0.0, 0), (1.0, 4), (0.01, 0)])
def test_a_split_with_an_empty_side_is_refused(tmp_path, fraction, held_out):
    with pytest.raises(ValueError, match=rf"of the 4 different prompts in .* out {held_out}:"):
        _load(_file(tmp_path, _rows(4)), fraction=fraction)


def test_the_reward_is_that_of_the_task_section(tmp_path):
    path = _file(tmp_path, _rows(8))
    assert _load(path).reward == "exact"
    task = load(name="jsonl", jsonl__path=path, reward="exact + 0.1*final_answer")
    assert task.reward == "exact + 0.1*final_answer"


BOARDS = [{"prompt": f"board {i}", "stones": i, **more} for i, more in enumerate(
    [{}, {"answer": None}, {"answer": ""}, {"answer": " "}, {"answer": "7"}, {}, {}, {}]
)]  # fmt: skip


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("reward", ["environment", "environment(name='won') + 0.1 * language"])
def test_a_row_needs_no_answer_where_no_reward_reads_it(tmp_path, reward, held_out):
    path = _file(tmp_path, BOARDS)
    other = _file(tmp_path, BOARDS[:2], "other.jsonl") if held_out else None
    task = load(
        name="jsonl",
        jsonl__path=path,
        jsonl__held_out_path=other,
        reward=reward,
        max_completion_tokens=4,
    )
    assert {one.answer for one in task.train} <= {"", "7"}
    assert all(one.fields["stones"] == int(one.text.split()[1]) for one in task.train)
    assert {one.text for one in task.demonstrations} <= {"board 4"}


@pytest.mark.parametrize(
    "reward", [None, "exact", "environment + 0.1 * math", "tests.rewards.own:tokens"]
)
def test_a_row_needs_an_answer_where_a_reward_may_read_it(tmp_path, reward):
    more = {} if reward is None else {"reward": reward}
    rows = [*_rows(8), {"prompt": "board"}]
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 9: 'answer' is missing"):
        load(name="jsonl", jsonl__path=_file(tmp_path, rows), max_completion_tokens=4, **more)
    held_out = _file(tmp_path, [{"prompt": "board", "answer": ""}], "other.jsonl")
    with pytest.raises(ValueError, match=r"other\.jsonl, line 1: 'answer' is ''; it must be text"):
        load(
            name="jsonl",
            jsonl__path=_file(tmp_path, _rows(8)),
            jsonl__held_out_path=held_out,
            **more,
        )


def test_an_answer_that_is_an_empty_object_is_refused_even_where_none_is_needed(tmp_path):
    path = _file(tmp_path, [*BOARDS, {"prompt": "x", "answer": {}}])
    with pytest.raises(ValueError, match=r"line 9: 'answer' is {}"):
        load(name="jsonl", jsonl__path=path, reward="environment", max_completion_tokens=4)


def test_without_any_answer_the_length_of_completions_has_to_be_said(tmp_path):
    path = _file(tmp_path, [{"prompt": f"board {i}"} for i in range(20)])
    with pytest.raises(ValueError, match=r"task\.max_completion_tokens is not set, and the task"):
        load(name="jsonl", jsonl__path=path, reward="environment")
