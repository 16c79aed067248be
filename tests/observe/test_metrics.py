"""The metrics file and its TensorBoard twin."""

import json

import numpy as np
import pytest

from rl_sync.observe.metrics import METRICS_FILE, read_metrics
from rl_sync.observe.metrics_writer import MetricsWriter
from tests.observe.full_disk import files_of_at_most


def _strict(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_metrics_read_back_as_written_by_phase(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("warm_up", 1, {"loss": np.float32(2.5)})
        writer.write("rl", 1, {"reward": 0.25, "groups": np.int64(8), "note": "first"})
        writer.write("rl", 2, {"reward": 0.5})
    rl = read_metrics(tmp_path, "rl")
    assert [(line["step"], line["reward"]) for line in rl] == [(1, 0.25), (2, 0.5)]
    assert (rl[0]["groups"], rl[0]["note"], rl[0]["phase"]) == (8, "first", "rl")
    assert len(read_metrics(tmp_path)) == 3


def test_what_is_not_finite_becomes_null(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write("rl", 1, {"kl": float("nan"), "loss": np.float32("inf"), "parts": [1, np.nan]})
    (line,) = (tmp_path / METRICS_FILE).read_text().splitlines()
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
    """TensorBoard's own thread would die of it, and its queue be full after ten numbers."""
    with MetricsWriter(tmp_path) as writer:
        writer.write("rl", 1, {"reward": 0.25})
        with files_of_at_most(100):
            for step in range(2, 40):
                writer.write("rl", step, {f"value{i}": 0.5 for i in range(20)})
    said = [record.getMessage() for record in caplog.records]
    assert [line.split(" cannot be written: ")[0] for line in said] == [
        str(tmp_path / METRICS_FILE),
        str(tmp_path / "tensorboard"),
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
