"""Recording and reading of spans and JSON lines."""

import json
import threading
import time
import types

import numpy as np
import pytest

from rl_sync.records.json_lines import JsonLinesWriter, RecordsError, read_json_lines
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import Span, SpanKind, SpanRecorder
from rl_sync.workdir import Workdir
from tests.records.full_disk import files_of_at_most


def test_spans_of_all_roles_are_read_in_order_of_their_start(tmp_path):
    with SpanRecorder(Workdir(tmp_path).spans_of("trainer"), "trainer") as trainer:
        trainer.record(SpanKind.TRAIN, 20.0, 21.5, step=1, leases=[3, 4])
    with SpanRecorder(Workdir(tmp_path).spans_of("explorer1"), "explorer1") as explorer:
        explorer.record(SpanKind.ROLLOUT, 10.0, 19.0, step=1, version=0, leases=[3, 4])
    assert read_spans(tmp_path) == [
        Span(
            "explorer1", SpanKind.ROLLOUT, 10.0, 19.0, {"step": 1, "version": 0, "leases": [3, 4]}
        ),
        Span("trainer", SpanKind.TRAIN, 20.0, 21.5, {"step": 1, "leases": [3, 4]}),
    ]


def test_a_span_takes_what_its_body_adds_and_lasts_as_long(tmp_path):
    with SpanRecorder(Workdir(tmp_path).spans_of("trainer"), "trainer") as recorder:
        before = time.time()
        with recorder.span(SpanKind.ROLLOUT, step=np.int32(7)) as attributes:
            time.sleep(0.05)
            attributes["tokens"] = np.int64(123)
            attributes["share"] = np.float32("nan")
        after = time.time()
    (span,) = read_spans(tmp_path)
    assert 0 <= span.attributes.pop("cpu_secs") < 5
    assert span.attributes == {"step": 7, "tokens": 123, "share": None}
    assert 0.05 <= span.duration_secs <= after - before + 0.01
    assert recorder.spent == {"rollout": pytest.approx(span.duration_secs)}
    assert before - 0.01 <= span.start_secs <= span.end_secs <= after + 0.01


def test_a_span_is_on_disk_as_soon_as_it_ends(tmp_path):
    recorder = SpanRecorder(Workdir(tmp_path).spans_of("master"), "master")
    with recorder.span(SpanKind.EVALUATION):
        assert read_spans(tmp_path) == []
    assert len(read_spans(tmp_path)) == 1
    recorder.close()


def test_a_failing_body_is_recorded_with_its_error(tmp_path):
    recorder = SpanRecorder(Workdir(tmp_path).spans_of("trainer"), "trainer")
    with pytest.raises(TimeoutError), recorder.span(SpanKind.WAIT, reason="experiences"):
        raise TimeoutError
    (span,) = read_spans(tmp_path)
    assert span.attributes == {"reason": "experiences", "error": "TimeoutError"}
    assert recorder.current is None
    recorder.close()


def test_current_is_the_innermost_open_span_seen_from_any_thread(tmp_path):
    seen = []
    with SpanRecorder(Workdir(tmp_path).spans_of("explorer1"), "explorer1") as recorder:
        assert recorder.current is None
        with (
            recorder.span(SpanKind.ROLLOUT, step=3),
            recorder.span(SpanKind.WAIT, reason="prompts"),
        ):
            time.sleep(0.02)
            thread = threading.Thread(target=lambda: seen.append(recorder.current))
            thread.start()
            thread.join(timeout=5)
        assert recorder.current is None
    (current,) = seen
    assert (current.kind, current.reason) == (SpanKind.WAIT, "prompts")
    assert current.lasted_secs >= 0.02
    assert abs(current.start_secs + current.lasted_secs - time.time()) < 5


def test_a_role_works_while_one_of_its_threads_waits(tmp_path):
    entered, leave = threading.Event(), threading.Event()
    with SpanRecorder(Workdir(tmp_path).spans_of("trainer"), "trainer") as recorder:

        def train():
            with recorder.span(SpanKind.TRAIN, step=3):
                entered.set()
                assert leave.wait(10)

        thread = threading.Thread(target=train)
        thread.start()
        assert entered.wait(10)
        with recorder.span(SpanKind.WAIT, reason="experiences"):
            assert recorder.current.kind is SpanKind.TRAIN
            leave.set()
            thread.join(10)
            assert recorder.current.kind is SpanKind.WAIT


def test_recording_a_span_that_ends_before_it_starts_is_refused(tmp_path):
    with (
        SpanRecorder(Workdir(tmp_path).spans_of("trainer"), "trainer") as recorder,
        pytest.raises(ValueError, match=r"SpanRecorder\.now"),
    ):
        recorder.record(SpanKind.TRAIN, 2.0, 1.0)


def test_threads_do_not_tear_each_others_lines(tmp_path):
    with SpanRecorder(Workdir(tmp_path).spans_of("explorer1"), "explorer1") as recorder:

        def record(thread: int) -> None:
            for step in range(50):
                with recorder.span(SpanKind.SCORE, thread=thread, step=step, leases=[step] * 200):
                    pass

        threads = [threading.Thread(target=record, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
    seen = {(span.attributes["thread"], span.step) for span in read_spans(tmp_path)}
    assert seen == {(thread, step) for thread in range(4) for step in range(50)}


def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_writer(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a":1}\n{"a":2}\n{"a"' + ":" * 100_000)
    assert read_json_lines(path) == [{"a": 1}, {"a": 2}]
    writer = JsonLinesWriter(path)
    writer.write({"a": 3})
    writer.close()
    assert path.read_text() == '{"a":1}\n{"a":2}\n{"a":3}\n'


def test_many_lines_are_written_at_once_or_none_of_them(tmp_path, caplog):
    path = tmp_path / "lines.jsonl"
    writer = JsonLinesWriter(path, vital=False)
    writer.write_all({"a": number} for number in range(3))
    writer.write_all([])
    with files_of_at_most(30):
        writer.write_all([{"b": 1}, {"b": 2}])
    writer.write({"c": 1})
    assert read_json_lines(path) == [{"a": 0}, {"a": 1}, {"a": 2}, {"c": 1}]
    assert "lacks 2 lines" in caplog.text


def test_a_file_that_is_one_torn_line_starts_anew(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a"')
    JsonLinesWriter(path).close()
    assert path.read_text() == ""


def test_a_broken_line_in_the_middle_is_named(tmp_path, caplog):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a":1}\nnonsense\n{"a":2}\n3\n')
    with pytest.raises(ValueError, match=r"lines\.jsonl, line 2"):
        read_json_lines(path)
    assert read_json_lines(path, strict=False) == [{"a": 1}, {"a": 2}]
    (said,) = caplog.messages
    assert said.endswith("lines.jsonl: 2 lines are broken and left out, the first of them line 2.")


def test_a_line_that_found_no_room_is_an_error_and_leaves_no_part_of_itself(tmp_path):
    path = tmp_path / "lines.jsonl"
    writer = JsonLinesWriter(path)
    writer.write({"a": 1})
    with (
        files_of_at_most(12),
        pytest.raises(
            RecordsError, match=r"lines\.jsonl cannot be written: File too large\. .*room"
        ),
    ):
        writer.write({"a": 2})
    assert path.read_text() == '{"a":1}\n'
    writer.write({"a": 3})
    assert path.read_text() == '{"a":1}\n{"a":3}\n'


def test_lines_that_a_run_can_do_without_are_left_out_and_that_is_said_once(tmp_path, caplog):
    path = tmp_path / "lines.jsonl"
    writer = JsonLinesWriter(path, vital=False)
    writer.write({"a": 1})
    with files_of_at_most(12):
        for _ in range(3):
            writer.write({"a": 2})
    writer.write({"a": 3})
    assert path.read_text() == '{"a":1}\n{"a":3}\n'
    assert len(caplog.messages) == 2
    assert "lines.jsonl cannot be written: File too large. The run goes on" in caplog.messages[0]
    assert caplog.messages[1].endswith("lines.jsonl is written again; it lacks 3 lines.")


def test_a_part_that_could_not_be_taken_back_is_cut_off_before_the_next_line(tmp_path):
    path = tmp_path / "lines.jsonl"
    writer = JsonLinesWriter(path)
    file, truncates = writer._file, iter([False, True])

    def truncate(size):
        if not next(truncates):
            raise OSError("not now")
        file.truncate(size)

    broken = types.SimpleNamespace(write=file.write, seek=file.seek, truncate=truncate)
    writer._file = broken
    with files_of_at_most(3), pytest.raises(RecordsError):
        writer.write({"a": 1})
    assert path.read_text() == '{"a'
    writer.write({"a": 2})
    assert path.read_text() == '{"a":2}\n'


def test_spans_around_a_torn_line_are_read(tmp_path):
    path = Workdir(tmp_path).spans_of("trainer")
    with SpanRecorder(path, "trainer") as recorder:
        recorder.record(SpanKind.TRAIN, 1.0, 2.0)
    path.write_text('{"role":' + path.read_text() + path.read_text())
    assert [span.start_secs for span in read_spans(tmp_path)] == [1.0]


def test_a_line_that_is_no_span_is_named(tmp_path):
    path = Workdir(tmp_path).spans_of("trainer")
    path.parent.mkdir()
    path.write_text(json.dumps({"role": "trainer", "kind": "nap", "start": 1, "end": 2}) + "\n")
    with pytest.raises(ValueError, match=r"trainer\.jsonl, line 1 .*nap"):
        read_spans(tmp_path)


def test_a_folder_without_spans_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(FileNotFoundError, match="--workdir"):
        read_spans(tmp_path)


def _attempt(workdir, role, spans, resumed=None, began=0.0):
    """Records [kind, start, end, attributes] as one process of a role, and the trainer's mark."""
    with SpanRecorder(Workdir(workdir).spans_of(role), role) as recorder:
        recorder._began_secs = began
        if resumed is not None:
            recorder.resume(*resumed)
        for kind, start, end, attributes in spans:
            recorder.record(kind, start, end, **attributes)


def _steps(first, last, start, kind=SpanKind.TRAIN):
    """Makes steps of a second each."""
    return [
        (kind, start + i, start + i + 1.0, {"step": step})
        for i, step in enumerate(range(first, last + 1))
    ]


def test_a_run_that_went_on_after_a_crash_has_each_step_once_and_no_pause(tmp_path):
    _attempt(tmp_path, "trainer", _steps(1, 4, 100.0))
    _attempt(tmp_path, "explorer1", _steps(1, 5, 99.0, SpanKind.ROLLOUT))
    # A day later, from step 2; crashes again before it has saved; then from step 2 once more.
    _attempt(tmp_path, "explorer1", _steps(3, 3, 9001.0, SpanKind.ROLLOUT))
    _attempt(tmp_path, "trainer", _steps(3, 3, 9002.0), (2,), began=9000.5)
    _attempt(tmp_path, "trainer", _steps(3, 5, 20_002.0), (2,), began=20_000.0)
    _attempt(tmp_path, "explorer1", _steps(3, 5, 20_001.0, SpanKind.ROLLOUT))
    spans = read_spans(tmp_path)
    trains = [(s.step, s.start_secs) for s in spans if s.kind is SpanKind.TRAIN]
    assert trains == [(1, 100.0), (2, 101.0), (3, 105.5), (4, 106.5), (5, 107.5)]
    rollouts = [(s.step, s.start_secs) for s in spans if s.kind is SpanKind.ROLLOUT]
    # Those that began before the first step that was lost stay: their groups were not trained on.
    lost = [(3, 101.0), (3, 102.5)]
    assert rollouts == [(1, 99.0), (2, 100.0), *lost, (3, 104.5), (4, 105.5), (5, 106.5)]


def test_a_run_that_went_on_where_it_was_stopped_loses_nothing_but_the_pause(tmp_path):
    _attempt(tmp_path, "trainer", _steps(1, 2, 100.0))
    _attempt(tmp_path, "trainer", _steps(3, 4, 5001.0), (2,), began=5000.0)
    trains = [(s.step, s.start_secs) for s in read_spans(tmp_path)]
    assert trains == [(1, 100.0), (2, 101.0), (3, 103.0), (4, 104.0)]


def test_sft_that_went_on_from_its_snapshot_makes_void_what_came_after_it(tmp_path):
    sft_step = [(SpanKind.SFT, 100.0, 110.0, {"step": 1, "last_step": 7})]
    _attempt(tmp_path, "trainer", [*sft_step, *_steps(1, 2, 120.0)])
    again = [(SpanKind.SFT, 501.0, 505.0, {"step": 8, "last_step": 10})]
    _attempt(tmp_path, "trainer", [*again, *_steps(1, 2, 506.0)], (0, 7), began=500.0)
    found = [(str(s.kind), s.step, s.start_secs) for s in read_spans(tmp_path)]
    assert found == [
        ("sft", 1, 100.0),
        ("sft", 8, 111.0),
        ("train", 1, 116.0),
        ("train", 2, 117.0),
    ]


def test_older_records_call_sft_by_its_earlier_name():
    assert SpanKind("warm_up") is SpanKind.SFT
    with pytest.raises(ValueError, match="is not a valid SpanKind"):
        SpanKind("warm")


def test_a_step_that_a_dead_trainer_took_in_vain_is_trained_once(tmp_path):
    for start, step in [(1.0, 1), (2.0, 2), (8.0, 2), (9.0, 3)]:
        recorder = SpanRecorder(Workdir(tmp_path).spans_of("trainer"), "trainer")
        recorder.record(SpanKind.TRAIN, start, start + 0.5, step=step)
        recorder.close()
    found = [(span.kind, span.step) for span in read_spans(tmp_path)]
    assert found == [
        (SpanKind.TRAIN, 1),
        (SpanKind.TRAIN_AGAIN, 2),
        (SpanKind.TRAIN, 2),
        (SpanKind.TRAIN, 3),
    ]
