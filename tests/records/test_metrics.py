"""The metrics file, and the same numbers for TensorBoard."""

import json
import struct

import numpy as np
import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.records.metrics_writer import MetricsWriter
from rl_sync.workdir import Workdir
from tests.records.full_disk import files_of_at_most


def _strict(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_metrics_read_back_as_written_by_phase(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("sft", 1, {"loss": np.float32(2.5)})
        writer.write("rl", 1, {"reward": 0.25, "groups": np.int64(8), "note": "first"})
        writer.write("rl", 2, {"reward": 0.5})
    rl = read_metrics(tmp_path, "rl")
    assert [(line["step"], line["reward"]) for line in rl] == [(1, 0.25), (2, 0.5)]
    assert (rl[0]["groups"], rl[0]["note"], rl[0]["phase"]) == (8, "first", "rl")
    assert len(read_metrics(tmp_path)) == 3


def test_what_is_not_finite_becomes_null(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("rl", 1, {"kl": float("nan"), "loss": np.float32("inf"), "parts": [1, np.nan]})
    (line,) = Workdir(tmp_path).metrics.read_text().splitlines()
    values = json.loads(line, parse_constant=_strict)
    assert (values["kl"], values["loss"], values["parts"]) == (None, None, [1, None])


def test_a_second_writer_appends(tmp_path):
    for step in (1, 2):
        with MetricsWriter(tmp_path) as writer:
            writer.write("rl", step, {"reward": 0.0})
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]


def test_an_unknown_phase_and_a_reserved_name_are_refused(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match="'testing'"):
            writer.write("testing", 1, {})
        with pytest.raises(ValueError, match="time"):
            writer.write("rl", 1, {"time": 3.0})


def test_a_full_disk_is_said_once_and_blocks_nobody(tmp_path, caplog):
    """TensorBoard's own thread would die of it, and its queue would be full after ten numbers."""
    with files_of_at_most(100), MetricsWriter(tmp_path) as writer:
        writer.write("rl", 1, {"reward": 0.25})
        for step in range(2, 40):
            writer.write("rl", step, {f"value{i}": 0.5 for i in range(20)})
    said = [record.getMessage() for record in caplog.records]
    assert sorted(line.partition(": ")[0] for line in said) == [
        f"{Workdir(tmp_path).metrics} cannot be written",
        "tensorboard gets no more metrics",
    ]
    assert [line["step"] for line in read_metrics(tmp_path)] == [1]


def test_tensorboard_gets_the_finite_numbers(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("rl", 3, {"reward": 0.75, "kl": float("nan"), "note": "text"})
    (events,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    data = events.read_bytes()
    assert b"rl/reward" in data
    assert np.float32(0.75).tobytes() in data
    assert b"rl/kl" not in data
    assert b"rl/note" not in data


def test_of_steps_that_were_taken_again_after_a_crash_the_later_lines_count(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("sft", 100, {"loss": 1.0})
        writer.write("evaluation", 0, {"accuracy": 0.1})
        for step in (1, 2, 3):
            writer.write("rl", step, {"reward": 0.0})
        writer.write("evaluation", 3, {"accuracy": 0.2})
    with MetricsWriter(tmp_path) as writer:
        writer.resume(1)
        writer.write("rl", 2, {"reward": 0.5})
    lines = [(line["phase"], line["step"]) for line in read_metrics(tmp_path)]
    assert lines == [("sft", 100), ("evaluation", 0), ("rl", 1), ("rl", 2)]
    assert read_metrics(tmp_path, "rl")[-1]["reward"] == 0.5


def test_sft_that_went_on_makes_void_all_that_followed_its_snapshot(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for step in (100, 200):
            writer.write("sft", step, {"loss": 1.0})
        writer.write("evaluation", 0, {"accuracy": 0.1})
        writer.write("rl", 1, {"reward": 0.0})
        writer.resume(0, sft_step=150)
        writer.write("sft", 200, {"loss": 0.5})
    lines = [(line["step"], line["loss"]) for line in read_metrics(tmp_path)]
    assert lines == [(100, 1.0), (200, 0.5)]


def test_tensorboard_is_told_to_forget_later_steps_but_not_those_of_sft(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("sft", 100, {"loss": 1.5})
        writer.resume(7)
        writer.write("rl", 8, {"reward": 0.75})
    newest = max((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    events = list(_events(newest))
    assert [event.step for event in events if event.HasField("session_log")] == [8]
    points = [(value.tag, event.step) for event in events for value in event.summary.value]
    # TensorBoard drops the first one too, whose step is greater.
    assert points == [("sft/loss", 100), ("sft/loss", 100), ("rl/reward", 8)]


def _events(path):
    """Reads the events of a file: each has a length, its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def _events_of(workdir):
    (path,) = Workdir(workdir).tensorboard.iterdir()
    return list(_events(path))


def test_tensorboard_has_the_settings_as_hyperparameters(tmp_path):
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    config = {
        "seed": 3,
        "sync": {"mode": "asynchronous", "offset": None},
        "deep": {"er": {"x": 1.5}},
    }
    Workdir(tmp_path).config.write_text(json.dumps(config))
    with MetricsWriter(tmp_path):
        pass
    found = {}
    for event in _events_of(tmp_path):
        for value in event.summary.value:
            content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
            found |= content.session_start_info.hparams
    assert found["seed"].number_value == 3
    assert found["sync.mode"].string_value == "asynchronous"
    assert found["sync.offset"].string_value == "None"
    assert found["deep.er.x"].number_value == 1.5
