"""Predictions from the times of a run: its own pace comes out, and that of other modes."""

import re

import pytest

from rl_sync.plan.pace_text import describe_predicted
from rl_sync.settings.records import ConfigError
from rl_sync.simulation.speed.network_link import NetworkLink
from tests.records.simulated_runs import MODES
from tests.simulation.speed.recorded_runs import record, run_settings, true_work


def secs(text):
    number, unit = text.split()
    return float(number) * {"s": 1.0, "ms": 1e-3}[unit]


def paces(workdir, mode, measured):
    """Returns the run's own pace and the predicted one."""
    text = describe_predicted(run_settings(mode), str(workdir), run_settings(measured))
    return [secs(found) for found in re.findall(r"(?:took|every) ([\d.]+ m?s)", text)]


@pytest.mark.gate
@pytest.mark.parametrize("mode", MODES)
def test_a_run_s_own_pace_comes_out(tmp_path, mode):
    record(tmp_path, run_settings(mode), true_work())
    took, predicted = paces(tmp_path, mode, mode)
    assert predicted == pytest.approx(took, rel=0.12)


@pytest.mark.gate
def test_other_modes_are_faster_than_the_synchronous_one(tmp_path):
    record(tmp_path, run_settings("synchronous"), true_work())
    found = {mode: paces(tmp_path, mode, "synchronous")[1] for mode in MODES}
    assert found["one_step_off_policy"] < 0.8 * found["synchronous"]
    assert found["asynchronous"] < 0.8 * found["synchronous"]


def test_a_run_without_steps_is_refused(tmp_path):
    settings = run_settings("synchronous", steps=4)
    record(tmp_path, settings, true_work())
    with pytest.raises(ConfigError, match="has 3 trainer steps and 3 rollouts on record"):
        describe_predicted(settings, str(tmp_path), settings)


@pytest.mark.gate
@pytest.mark.parametrize("mode", MODES)
def test_a_network_makes_steps_longer(tmp_path, mode):
    record(tmp_path, run_settings(mode), true_work())
    settings = run_settings(mode)

    def pace(*link):
        given = NetworkLink(*link) if link else None
        text = describe_predicted(settings, str(tmp_path), settings, given)
        assert ("over 1 Gbit/s and 200 ms" in text) == (link == (1.25e8, 0.2))
        return secs(re.findall(r"every ([\d.]+ m?s)", text)[0])

    near, far = pace(1.25e9, 0.0), pace(1.25e8, 0.2)
    assert far > near + 0.3, "a round trip is in each step"
