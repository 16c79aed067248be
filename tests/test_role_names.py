"""The names of roles and of their processes."""

import pytest

from rl_sync import role_names
from rl_sync.role_names import role_order


@pytest.mark.parametrize("number", [1, 2, 30])
def test_an_explorer_is_found_again_by_its_name(number):
    name = role_names.explorer_name(number)
    assert role_names.is_explorer(name)
    assert role_names.number_of(name) == number


@pytest.mark.parametrize(
    "role", [role_names.MASTER, role_names.TRAINER, role_names.TOGETHER, "replay"]
)
def test_no_other_role_is_an_explorer(role):
    assert not role_names.is_explorer(role)
    assert role_names.split(role) == (role, 0)
    with pytest.raises(AssertionError, match="is no explorer"):
        role_names.number_of(role)


@pytest.mark.parametrize("process", [0, 1, 12])
def test_a_process_says_its_role(process):
    assert role_names.role_of(role_names.process_name("explorer2", process)) == "explorer2"
    assert role_names.process_name("trainer", 0) == "trainer"


def test_roles_are_ordered_by_their_number():
    role_names = ["master", "trainer", "explorer10", "explorer2", "reward1"]
    assert sorted(role_names, key=role_order) == [
        "explorer2",
        "explorer10",
        "trainer",
        "master",
        "reward1",
    ]
