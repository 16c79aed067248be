import os

from rl_sync.records.json_lines import JsonLinesFolder, JsonLinesReader, read_object


def steps(news):
    return [line.record["step"] for line in news.lines]


def test_a_reader_reads_each_line_once_and_waits_for_the_end_of_the_last_one(tmp_path):
    path = tmp_path / "a.jsonl"
    reader = JsonLinesReader(path, tmp_path)
    assert reader.read().lines == []
    path.write_bytes(b'{"step":1}\n{"step":2')
    assert steps(reader.read()) == [1]
    with open(path, "ab") as file:
        file.write(b'}\nnot json\n[1]\n{"step":3}\n')
    news = reader.read()
    assert steps(news) == [2, 3]
    assert [number for number, _ in news.broken] == [3, 4]
    assert news.lines[-1].number == 5
    assert reader.read().lines == []


def test_the_place_of_a_line_leads_to_it(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":"\xc3\xa4"}\n')
    reader = JsonLinesReader(path, tmp_path)
    lines = reader.read(most_bytes=12).lines + reader.read().lines
    whole = path.read_bytes()
    assert [whole[line.offset : line.offset + line.size] for line in lines] == whole.splitlines()


def test_a_line_longer_than_a_reading_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":1,"text":"' + b"x" * 1000 + b'"}\n')
    assert steps(JsonLinesReader(path, tmp_path).read(most_bytes=100)) == [1]


def test_a_reader_begins_anew_where_a_file_was_cut_and_has_grown_again(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2}\n')
    reader = JsonLinesReader(path, tmp_path)
    assert not reader.read().is_anew
    os.truncate(path, 11)
    with open(path, "ab") as file:
        file.write(b'{"step":8}\n{"step":9}\n')
    news = reader.read()
    assert news.is_anew
    assert steps(news) == [1, 8, 9]


def test_links_out_of_the_directory_are_not_followed(tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(b'{"step":1}\n')
    (tmp_path / "run").mkdir()
    link = tmp_path / "run" / "metrics.jsonl"
    link.symlink_to(secret)
    assert JsonLinesReader(link, tmp_path / "run").read().lines == []
    assert steps(JsonLinesReader(link, tmp_path).read()) == [1]


def test_a_folder_is_followed_file_by_file_and_tells_of_deleted_ones(tmp_path):
    folder = JsonLinesFolder(tmp_path / "some")
    assert list(folder.read()) == []
    (tmp_path / "some").mkdir()
    for name in ("b", "a"):
        (tmp_path / "some" / f"{name}.jsonl").write_bytes(b'{"step":1}\n')
    assert [(path.stem, steps(news)) for path, news in folder.read()] == [("a", [1]), ("b", [1])]
    (tmp_path / "some" / "a.jsonl").unlink()
    assert [(path.stem, news.is_anew) for path, news in folder.read()] == [
        ("a", True),
        ("b", False),
    ]


def test_an_object_that_cannot_be_read_is_empty(tmp_path):
    path = tmp_path / "a.json"
    assert read_object(path) == {}
    for text, found in (('{"a":', {}), ("[1]", {}), ('{"a": 1}', {"a": 1})):
        path.write_text(text)
        assert read_object(path) == found
    assert read_object(path, tmp_path / "other") == {}
