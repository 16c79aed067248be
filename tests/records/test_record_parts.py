"""Records in parts: their bound, what goes beyond it, readers beside it, and deaths in between."""

import os

import pytest

from rl_sync.records.json_lines import JsonLinesReader, read_json_lines
from rl_sync.records.rollouts import record_parts
from rl_sync.records.rollouts.record_parts import RecordParts, RemovedPart, parts_in, removed_parts

LINE = b'{"n":1}'  # 8 bytes with its line break.


def _line(number):
    return b'{"n":%d}' % number


@pytest.fixture
def made(tmp_path):
    def make(most_bytes=0, part_bytes=16, begin=True, **more):
        writer = RecordParts(
            tmp_path / "some", tmp_path / "removed" / "some.jsonl", "part", most_bytes, part_bytes
        )
        if begin:
            writer.begin(**more)
        return writer

    return make


@pytest.fixture
def there(tmp_path):
    """Returns the numbers that can be read, and checks that they are read part by part, whole."""

    def read():
        lines = [one for part in parts_in(tmp_path / "some") for one in read_json_lines(part.path)]
        return [line["n"] for line in lines]

    return read


@pytest.fixture
def gone(tmp_path):
    return lambda: removed_parts(tmp_path / "removed" / "some.jsonl")


def _bytes_in(folder):
    return sum(part.path.stat().st_size for part in parts_in(folder))


def test_without_a_bound_nothing_goes(made, there, gone):
    writer = made()
    for number in range(9):
        writer.write([_line(number)])
    assert there() == [*range(9)]
    assert gone() == []


def test_beyond_the_bound_the_oldest_parts_go_whole_and_are_noted(made, there, gone, tmp_path):
    writer = made(most_bytes=128)  # Eight parts of 16 bytes, of two lines each.
    sizes = []
    for number in range(1, 10):
        writer.write([_line(number)])
        sizes.append(_bytes_in(tmp_path / "some"))
    assert writer.size_bytes == sizes[-1] == 72
    for number in range(1, 8):
        writer.write([_line(number)])
    assert _bytes_in(tmp_path / "some") == 128, "what fits exactly stays"
    assert gone() == []
    writer.write([_line(8)])
    assert there() == [3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8]
    assert gone() == [RemovedPart("part-00000001.jsonl", 1, 1, 16)]
    assert writer.size_bytes == _bytes_in(tmp_path / "some") == 120


def test_a_record_of_the_bound_is_kept_and_a_larger_one_is_left_out(made, there, gone, caplog):
    writer = made(most_bytes=16)
    writer.write([_line(1)])
    writer.write([b'{"n":%s}' % (b"2" * 10)])  # 17 bytes with its line break.
    assert there() == [1]
    assert "17 bytes at once are more" in caplog.text
    writer.write([_line(3), _line(4)])
    assert there() == [3, 4], "16 bytes take the place of all before"
    assert [one.first for one in gone()] == [1]
    writer.write([_line(5), _line(6)], number=9)
    assert there() == [5, 6]
    assert [one.first for one in gone()] == [1, 2, 3], "those that are together go together"
    writer.write([_line(7)])
    assert there() == [7]


def test_a_reader_in_the_middle_of_a_part_that_goes_ends_there(made, there, tmp_path):
    writer = made(most_bytes=32, part_bytes=32)
    writer.write([LINE])
    reader = JsonLinesReader(parts_in(tmp_path / "some")[0].path)
    assert len(reader.read().lines) == 1
    with open(parts_in(tmp_path / "some")[0].path, "rb") as file:
        for number in range(2, 7):
            writer.write([_line(number)])
        assert file.read() == LINE + b"\n", "whoever has opened it reads it whole"
    news = reader.read()
    assert (news.lines, news.is_anew) == ([], True)
    assert there() == [3, 4, 5, 6]


def test_a_death_between_the_note_and_the_removal_is_made_good(made, there, gone, monkeypatch):
    writer = made(most_bytes=32)

    def die(path, missing_ok):
        raise KeyboardInterrupt

    for number in range(1, 5):
        writer.write([_line(number)])
    monkeypatch.setattr(record_parts.Path, "unlink", die)
    with pytest.raises(KeyboardInterrupt):
        writer.write([_line(5)])
    monkeypatch.undo()
    assert there() == [1, 2, 3, 4]
    assert [one.first for one in gone()] == [1]
    writer = made(most_bytes=32)
    assert there() == [2, 3, 4]
    writer.write([_line(5)])
    assert there() == [2, 3, 4, 5]
    assert [one.first for one in gone()] == [1], "it is noted once"


def test_a_writer_that_was_killed_in_a_line_is_followed_by_one_that_goes_on(made, there, tmp_path):
    writer = made(most_bytes=64, part_bytes=64)
    writer.write([_line(1)])
    with open(parts_in(tmp_path / "some")[0].path, "ab") as file:
        file.write(b'{"n":')
    writer = made(most_bytes=64, part_bytes=64)
    writer.write([_line(2)])
    assert there() == [1, 2]
    assert writer.size_bytes == _bytes_in(tmp_path / "some") == 16


def test_numbers_go_on_after_all_parts_have_gone(made, there, gone, tmp_path):
    writer = made(most_bytes=8)
    writer.write([_line(1)])
    writer.write([_line(2)])
    os.unlink(parts_in(tmp_path / "some")[0].path)
    writer = made(most_bytes=8)
    writer.write([_line(3)])
    assert there() == [3]
    assert parts_in(tmp_path / "some")[0].number > gone()[-1].first


def test_a_smaller_bound_of_a_later_writer_holds_at_its_first_record(made, there, gone):
    writer = made()
    for number in range(1, 10):
        writer.write([_line(number)])
    writer.close()
    writer = made(most_bytes=24)
    writer.write([_line(10)])
    assert there() == [9, 10]
    assert [one.first for one in gone()] == [1, 2, 3, 4]


def test_steps_that_are_written_again_have_not_gone(made, there, gone):
    writer = made(most_bytes=16)
    for step in range(2, 8):
        writer.write([_line(step)], step)
    assert there() == [6, 7]
    assert (gone()[0].first, gone()[-1].last) == (2, 5)
    writer.close()
    writer = made(most_bytes=16, resumed_at=3)
    assert (gone()[0].first, gone()[-1].last) == (2, 3)
    assert there() == [6, 7], "whoever resumes removes later steps before"


def test_parts_stay_when_it_cannot_be_noted_that_they_go(made, there, tmp_path, caplog):
    (tmp_path / "removed").write_text("in the way")
    writer = made(most_bytes=16)
    for number in range(1, 5):
        writer.write([_line(number)])
    assert there() == [1, 2]
    assert len(caplog.records) == 1
    (tmp_path / "removed").unlink()
    writer.write([_line(5)])
    assert there() == [2, 5]
