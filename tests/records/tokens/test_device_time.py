"""Time of devices: hand-computed hours, shares and costs."""

import pytest

from rl_sync.records.tokens.device_time import DeviceTime, device_secs
from rl_sync.records.tokens.token_lives import TokenLife


def life(role, began, last, *devices, is_over=True):
    return TokenLife(role, began, last, devices=devices, is_over=is_over)


def test_a_role_pays_for_all_its_devices_and_processes():
    lives = [
        life("trainer", 0, 100, "b:0"),
        life("explorer1", 0, 40, "a:0", "a:1"),
        life("explorer1", 50, 60, "a:0", "a:1"),
    ]
    assert device_secs(lives, {}) == {"explorer1": 2 * 40 + 2 * 10, "trainer": 100}
    assert [*device_secs(lives, {})] == ["explorer1", "trainer"]


def test_roles_share_the_time_of_devices_that_both_use():
    lives = [life("trainer", 0, 100, "a:0", "a:1"), life("explorer1", 0, 100, "a:0")]
    assert device_secs(lives, {}) == {"explorer1": 50, "trainer": 50 + 100}


def test_a_process_without_an_end_has_lived_until_its_last_activity():
    """Activities of the next process do not count for the first one."""
    lives = [
        life("explorer1", 0, 10, "a:0", is_over=False),
        life("explorer1", 50, 60, "b:0", is_over=False),
    ]
    ends = {"explorer1": [5, 20, 90, 55], "trainer": [200]}
    assert device_secs(lives, ends) == {"explorer1": 20 + 40}


def test_costs_are_those_of_hours():
    time = DeviceTime({"explorer1": 7200, "trainer": 3600}, price=2.0)
    assert time.costs == {"explorer1": 4.0, "trainer": 2.0}
    assert time.describe(trained_tokens=1_500_000) == (
        "Device hours: explorer1 2, trainer 1; at 2 an hour they cost 6.00 (explorer1 4.00,"
        " trainer 2.00), 4.00 for a million trained tokens"
    )
    assert time.describe(0).endswith("they cost 6.00 (explorer1 4.00, trainer 2.00)")


@pytest.mark.parametrize("trained", [0, 10])
def test_without_a_price_there_are_hours_alone(trained):
    assert DeviceTime({"trainer": 1800}).describe(trained) == "Device hours: trainer 0.5"
