"""Forecasts from the times of a run: its own pace comes out, and that of other modes."""

import re

import pytest

from rl_sync.plan.pace_text import describe_predicted
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from tests.records.simulated_runs import MODES, simulate, write_spans
from tests.runs import tiny


def settings_of(mode):
    config = tiny.get_config()
    config.sync.mode = mode
    config.explorer.count = 3 if mode == "multi_explorer" else 1
    return read_settings({**config.to_dict(), "workdir": "none"})


def secs(text):
    number, unit = text.split()
    return float(number) * {"s": 1.0, "ms": 1e-3}[unit]


def paces(workdir, mode):
    """Returns the run's own pace and the forecast one."""
    text = describe_predicted(settings_of(mode), str(workdir))
    return [secs(found) for found in re.findall(r"(?:took|every) ([\d.]+ m?s)", text)]


@pytest.mark.parametrize("mode", MODES)
def test_a_run_s_own_pace_comes_out(tmp_path, mode):
    write_spans(tmp_path, simulate(mode, steps=24))
    took, forecast = paces(tmp_path, mode)
    assert forecast == pytest.approx(took, rel=0.12)


def test_other_modes_are_faster_than_the_synchronous_one(tmp_path):
    write_spans(tmp_path, simulate("synchronous", steps=24))
    found = {mode: paces(tmp_path, mode)[1] for mode in MODES}
    assert found["one_step_off_policy"] < 0.8 * found["synchronous"]
    assert found["asynchronous"] < 0.8 * found["synchronous"]


def test_a_run_without_steps_is_refused(tmp_path):
    write_spans(tmp_path, simulate("synchronous", steps=2))
    with pytest.raises(ConfigError, match="has 2 trainer steps on record"):
        describe_predicted(settings_of("synchronous"), str(tmp_path))
