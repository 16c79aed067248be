"""Rows of files: tables of texts, and JSON over several lines."""

import csv
import json

import pytest

from rl_sync.tasks.data_rows import RowSource, read_rows
from tests.tasks.loading import dataset

ROWS = [
    {"prompt": "p1", "answer": "1"},
    {"prompt": "two\nlines, a comma", "answer": 'a "quoted" word'},
    {"prompt": "ä 漢\ttab", "answer": "  spaces "},
]


def _read(path, text=None):
    if text is not None:
        path.write_bytes(text.encode())
    return read_rows(RowSource(str(path)))


@pytest.mark.parametrize(("name", "dialect"), [("a.csv", "excel"), ("a.tsv", "excel-tab")])
def test_a_table_of_texts_has_the_rows_that_were_written(tmp_path, name, dialect):
    with (tmp_path / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "answer"], dialect=dialect)
        writer.writeheader()
        writer.writerows(ROWS)
    rows = _read(tmp_path / name)
    assert [row.fields for row in rows] == ROWS
    assert [row.where.rpartition(" ")[2] for row in rows] == ["2", "3", "5"]
    assert rows[0].folder == tmp_path


def test_a_table_may_have_empty_lines_and_fields_a_mark_and_long_texts(tmp_path):
    rows = _read(tmp_path / "a.csv", f"\ufeff,prompt,answer\r\n\r\n0,p,\r\n1,{'x' * 200_000},2\r\n")
    assert [row.fields["answer"] for row in rows] == ["", "2"]
    assert len(rows[1].fields["prompt"]) == 200_000


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "prompt,answer\np,1\nq,1,2\n", r"line 3 has 3 fields, .* names 2 .*prompt, answ"),
        ("a.csv", 'prompt,answer\n"a\nb",1\nq\n', "line 4 has 1 fields"),
        ("a.csv", 'prompt,answer\np,"1\nq,2\n', "line 2 is no row .* unexpected end of data"),
        ("a.csv", 'prompt,answer\n"p" q,1\n', "line 2 is no row .* expected after"),
        ("a.csv", "prompt;answer\np;1\n", r"which ';' seems to separate.*\.csv for ','"),
        ("a.csv", "prompt\tanswer\np\t1\n", r"seems to separate.*\.tsv for"),
        ("a.tsv", "prompt,answer\np,1\n", r"which ',' seems to separate"),
        ("a.csv", "prompt,answer,prompt\np,1,2\n", "names the field 'prompt' twice"),
        ("a.csv", "prompt,answer\n\"[{'role': 'user'\",1\n", "line 2: 'prompt' begins as messages"),
        ("a.csv", "prompt,answer\n", "has no rows"),
        ("a.csv", "", "has no rows"),
        ("a.json", '{"data": [{"a": 1}], "more": [{"b": 2}]}', "several lists .*'data', 'more'"),
        ("a.json", '[\n  {"a": 1},\n  {"a": 2\n]', r"a\.json is not JSON: .* line 4 column 1"),
        ("a.json", "[1]", "row 1 is not an object .* but 1"),
        ("a.json", '{"a": 1', r"a\.json is not JSON"),
        ("a.jsonl", '{"a": 1\n{"a": 2}\n', "line 1 is not JSON"),
        ("a.jsonl", '{"a": 1}\n{"a": \n{"a": 3}', "line 2 is not JSON"),
        ("a.jsonl", '{"a": 1} {"a": 2}', "line 1 is not JSON: Extra data"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        _read(tmp_path / name, text)


ONE = {"prompt": "p", "messages": [{"role": "user", "content": "x"}], "answer": "1"}
TURNS = {"conversations": [{"from": "human", "value": "x"}]}


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("a.json", json.dumps(ROWS, indent=2), ROWS),
        ("a.json", json.dumps(ROWS), ROWS),
        ("a.jsonl", json.dumps(ROWS), ROWS),
        ("a.jsonl", json.dumps(ROWS, indent=1), ROWS),
        ("a.json", json.dumps([ONE], indent=None).replace("[{", "[\n{", 1), [ONE]),
        ("a.json", "\n\n".join(json.dumps(row, indent=4) for row in ROWS), ROWS),
        ("a.json", json.dumps(ONE, indent=2), [ONE]),
        ("a.json", json.dumps(TURNS, indent=2), [TURNS]),
        ("a.json", json.dumps({"version": "1", "data": ROWS, "tags": ["x"]}), ROWS),
        ("a.json", json.dumps({"version": "1", "data": ROWS}, indent=2), ROWS),
        ("a.jsonl", json.dumps({"tests": [{"input": "1"}]}), [{"tests": [{"input": "1"}]}]),
        ("a.json", f"{json.dumps(ONE)}\n{json.dumps(TURNS)}\n", [ONE, TURNS]),
        ("a.json", f"\n  {json.dumps(ONE)}\r\n\r\n{json.dumps(TURNS)}", [ONE, TURNS]),
        ("a.txt", f"{json.dumps(ONE)}\n", [ONE]),
    ],
)
def test_json_may_be_lines_a_list_objects_or_an_object_with_one_list(tmp_path, name, text, rows):
    assert [dict(row.fields) for row in _read(tmp_path / name, text)] == rows


def test_a_table_may_have_messages_as_json_or_as_python_writes_them(tmp_path):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": 'It\'s "1+1", or?'},
    ]
    turns = TURNS["conversations"]
    no_messages = '[{"value": 1}]'
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["prompt", "answer"])
        for value in (json.dumps(messages, indent=1), str(messages), json.dumps(turns)):
            writer.writerow([value, "2"])
        writer.writerow([no_messages, "2"])
    rows = _read(path)
    assert [row.fields["prompt"] for row in rows] == [messages, messages, turns, no_messages]


def test_a_table_of_texts_gives_a_task_with_choices_as_json(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        'question,choices,answer\nWet?,"[""yes"", ""no""]",B\nDry?,"[""a"", ""b""]",0\n'
    )
    task = dataset(path, held_out_path=str(path), format="multiple_choice")
    assert [(one.text, one.answer) for one in task.train] == [
        ("Wet?\nA. yes\nB. no", "B"),
        ("Dry?\nA. a\nB. b", "A"),
    ]
