import os

from rl_sync.page.tail import Tail


def steps(news):
    return [line.record["step"] for line in news.lines]


def test_a_tail_reads_each_line_once_and_waits_for_the_end_of_the_last_one(tmp_path):
    path = tmp_path / "a.jsonl"
    tail = Tail(path, tmp_path)
    assert tail.read().lines == []
    path.write_bytes(b'{"step":1}\n{"step":2')
    assert steps(tail.read()) == [1]
    with open(path, "ab") as file:
        file.write(b'}\nnot json\n[1]\n{"step":3}\n')
    assert steps(tail.read()) == [2, 3]
    assert tail.read().lines == []


def test_the_place_of_a_line_leads_to_it(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":"\xc3\xa4"}\n')
    tail = Tail(path, tmp_path)
    lines = tail.read(most_bytes=12).lines + tail.read().lines
    whole = path.read_bytes()
    assert [whole[line.offset : line.offset + line.size] for line in lines] == whole.splitlines()


def test_a_line_longer_than_a_reading_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":1,"text":"' + b"x" * 1000 + b'"}\n')
    assert steps(Tail(path, tmp_path).read(most_bytes=100)) == [1]


def test_a_tail_begins_anew_where_a_file_was_cut_and_has_grown_again(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2}\n')
    tail = Tail(path, tmp_path)
    assert not tail.read().is_anew
    os.truncate(path, 11)
    with open(path, "ab") as file:
        file.write(b'{"step":8}\n{"step":9}\n')
    news = tail.read()
    assert news.is_anew
    assert steps(news) == [1, 8, 9]


def test_links_out_of_the_directory_are_not_followed(tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(b'{"step":1}\n')
    (tmp_path / "run").mkdir()
    link = tmp_path / "run" / "metrics.jsonl"
    link.symlink_to(secret)
    assert Tail(link, tmp_path / "run").read().lines == []
    assert steps(Tail(link, tmp_path).read()) == [1]
