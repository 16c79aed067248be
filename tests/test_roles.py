"""The names of roles and of their processes."""

import pytest

from rl_sync import roles
from rl_sync.roles import role_order


@pytest.mark.parametrize("number", [1, 2, 30])
def test_an_explorer_is_found_again_by_its_name(number):
    name = roles.explorer_name(number)
    assert roles.is_explorer(name)
    assert roles.number_of(name) == number


@pytest.mark.parametrize("role", [roles.MASTER, roles.TRAINER, roles.TOGETHER, "replay"])
def test_no_other_role_is_an_explorer(role):
    assert not roles.is_explorer(role)
    assert roles.split(role) == (role, 0)
    with pytest.raises(AssertionError, match="is no explorer"):
        roles.number_of(role)


@pytest.mark.parametrize("process", [0, 1, 12])
def test_a_process_says_its_role(process):
    assert roles.role_of(roles.process_name("explorer2", process)) == "explorer2"
    assert roles.process_name("trainer", 0) == "trainer"


def test_roles_are_ordered_by_their_number():
    roles = ["master", "trainer", "explorer10", "explorer2", "reward1"]
    assert sorted(roles, key=role_order) == [
        "explorer2",
        "explorer10",
        "trainer",
        "master",
        "reward1",
    ]
