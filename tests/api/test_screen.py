"""The display of a run below a notebook's cell, but for the kernel (tests/notebooks)."""

import sys
import types

import pytest

from rl_sync.api.screen import Notebook
from rl_sync.api.started_run import RunError, Stopped
from rl_sync.settings.records import ConfigError

STATUS = "[0:0{}] rl {}/9 | trainer: train t{} | buffer: 4 of 8 groups"


@pytest.fixture(name="outputs")
def _outputs(monkeypatch):
    """All that was shown: one list an output, of what it showed one after the other."""
    outputs = []

    def display(content, *, raw, display_id):
        assert raw
        assert display_id
        outputs.append([content])
        return types.SimpleNamespace(update=lambda new, raw: outputs[-1].append(new))

    module = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return outputs


def test_a_run_is_one_output_that_is_replaced(outputs):
    screen = Notebook()
    for line in ("Mode x", *(STATUS.format(n, n, n) for n in range(1, 4))):
        screen.show(line)
    (shown,) = outputs
    assert len(shown) == 4
    assert shown[0]["text/html"] == "<pre>Mode x</pre>"
    assert shown[-1]["text/plain"].splitlines() == [
        "[0:03] rl 3/9",
        "trainer: train t3",
        "buffer: 4 of 8 groups",
    ]
    assert "<summary>The plan of the run</summary><pre>Mode x</pre>" in shown[-1]["text/html"]


def test_alarms_stay_and_at_the_end_the_report_takes_the_place_of_the_states(outputs):
    screen = Notebook()
    lines = (STATUS.format(1, 1, 1), "ALARM: no reward", STATUS.format(2, 2, 2), "", "accuracy <1%")
    for line in lines:
        screen.show(line)
    assert "ALARM: no reward" in outputs[0][-1]["text/html"]
    assert "train t2" in outputs[0][-1]["text/html"]
    screen.close()
    assert outputs[0][-1]["text/plain"] == "ALARM: no reward\n\naccuracy <1%"
    assert "accuracy &lt;1%" in outputs[0][-1]["text/html"]


def test_directories_are_written_as_seen_from_here(outputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    screen = Notebook()
    screen.show(f"Work directory: {tmp_path}/runs/a")
    screen.show("Compiled programs: /home/someone/.cache/rl_sync")
    assert outputs[0][-1]["text/plain"].splitlines() == [
        "Work directory: runs/a",
        "Compiled programs: ~/.cache/rl_sync",
    ]


@pytest.mark.parametrize("error", [ConfigError, RunError, Stopped])
def test_a_notebook_shows_the_message_of_an_error_and_no_traceback(error):
    (line,) = error("seeds=3 is no setting.")._render_traceback_()
    assert line.endswith("seeds=3 is no setting.")
    assert "Traceback" not in line
