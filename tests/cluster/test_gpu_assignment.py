"""Several GPUs of a machine are distributed among the roles; a single one is shared."""

import pytest

from rl_sync.cluster.topology import role_environment
from rl_sync.settings.records import ConfigError
from tests.settings.test_run_settings import settings_with

MESHES = {"trainer__mesh__fsdp": 4, "explorer__mesh__tensor": 2}
MODE = {"sync__mode": "multi_explorer", "explorer__count": 2}


def given(visible, **fields):
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    of_roles = role_environment(settings_with(**MODE, **fields), variables)
    return {role: more.get("CUDA_VISIBLE_DEVICES") for role, more in of_roles.items()}


def test_each_role_gets_gpus_of_its_own():
    eight = "0,1,2,3,4,5,6,7"
    assert given(eight, **MESHES) == {"trainer": "0,1,2,3", "explorer1": "4,5", "explorer2": "6,7"}
    assert given("7, 3,5") == {"trainer": "7", "explorer1": "3", "explorer2": "5"}


def test_each_process_of_a_role_gets_its_part():
    processes = {"trainer__processes": 2, "explorer__processes": 2}
    given_to = given("0,1,2,3,4,5,6,7", **MESHES, **processes)
    assert given_to["trainer"] == "0,1"
    assert given_to["trainer/1"] == "2,3"
    assert [given_to[f"explorer{i}"] for i in ("1", "1/1", "2", "2/1")] == ["4", "5", "6", "7"]


def test_processes_on_other_machines_take_none_of_this_ones():
    elsewhere = {"launch__host": "10.0.0.1", "launch__hosts": "explorer1=10.0.0.2"}
    given_to = given("0,1,2,3,4,5", **MESHES, **elsewhere)
    assert given_to == {"trainer": "0,1,2,3", "explorer2": "4,5"}


@pytest.mark.parametrize("visible", [None, "", "0"])
def test_one_gpu_or_none_is_left_to_all(visible):
    assert set(given(visible).values()) == {None}


def test_meshes_without_gpus_are_on_whatever_there_is():
    assert set(given(None, **MESHES).values()) == {None}


@pytest.mark.parametrize(("visible", "fields"), [("0,1", {}), ("0", MESHES)])
def test_too_few_gpus_are_refused(visible, fields):
    with pytest.raises(ConfigError, match=r"need \d GPUs \(trainer") as refused:
        given(visible, **fields)
    assert f"CUDA_VISIBLE_DEVICES={visible} names" in str(refused.value)
