"""A machine's GPUs are found by its files, and what keeps JAX from using them is told."""

import importlib.util

import jax
import pytest

from rl_sync.cluster.gpus import machine_gpus
from rl_sync.cluster.topology import role_environment
from rl_sync.launcher.processes import run_directory
from rl_sync.roles.assembly import gpu_flags
from rl_sync.settings.records import ConfigError
from tests.settings.changed import settings_with

VERSION = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu May  1 20:27:27 UTC 2025
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""
OPEN = VERSION.replace("UNIX x86_64 Kernel Module", "UNIX Open Kernel Module for x86_64")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Returns a function that makes the root directory of a machine, and installs JAX there."""
    found = importlib.util.find_spec

    def make(gpus=1, driver="580.65.06", cuda=13, text=VERSION, others=()):
        (tmp_path / "dev").mkdir()
        for name in (*(f"nvidia{number}" for number in range(gpus)), "nvidiactl", *others):
            (tmp_path / "dev" / name).touch()
        if driver:
            (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)
            (tmp_path / "proc" / "driver" / "nvidia" / "version").write_text(text.format(driver))

        def spec(name):
            plugin = name.startswith("jax_cuda")
            return name == f"jax_cuda{cuda}_plugin" if plugin else found(name)

        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec(name) or None)
        return tmp_path

    return make


def test_a_machine_without_gpus_has_none(machine):
    gpus = machine_gpus({}, machine(gpus=0, driver=""))
    assert (gpus.ids, gpus.usable, gpus.unused) == ((), (), "")
    gpus.check()


@pytest.mark.parametrize("text", [VERSION, OPEN])
def test_gpus_are_counted_and_the_driver_is_read(machine, text):
    gpus = machine_gpus({}, machine(gpus=3, text=text))
    assert (gpus.usable, gpus.driver, gpus.cuda) == (("0", "1", "2"), "580.65.06", 13)


@pytest.mark.parametrize(
    ("variables", "ids"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2, 0"}, ("2", "0")),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ("1",)),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, ("GPU-8932f937",)),
        ({"JAX_PLATFORMS": "cpu"}, ()),
        ({"JAX_PLATFORMS": "cuda,cpu"}, ("0", "1", "2")),
        ({"JAX_PLATFORMS": ""}, ("0", "1", "2")),
    ],
)
def test_variables_choose_among_them(machine, variables, ids):
    assert machine_gpus(variables, machine(gpus=3)).usable == ids


def test_windows_shows_one(machine):
    assert machine_gpus({}, machine(gpus=0, others=["dxg"])).usable == ("0",)


def test_windows_without_jax_for_gpus_may_have_none(machine):
    gpus = machine_gpus({}, machine(gpus=0, others=["dxg"], cuda=None))
    assert (gpus.ids, gpus.unused) == ((), "")


def test_gpus_that_jax_is_not_installed_for_are_told(machine):
    root = machine(cuda=None)
    gpus = machine_gpus({}, root)
    assert gpus.usable == ()
    assert "installed for CPUs alone" in gpus.unused
    assert 'pip install "rl_sync[cuda]"' in gpus.unused
    assert machine_gpus({"JAX_PLATFORMS": "cpu"}, root).unused == "", "a choice is no mistake"


@pytest.mark.parametrize(
    ("cuda", "driver", "way_out"),
    [
        (
            13,
            "575.57.08",
            r'580 .* has 575.57.08: .* and `pip install "rl_sync\[cuda12\]"`, install a',
        ),
        (12, "515.105.01", "525 or newer, and this machine has 515.105.01: install a newer driver"),
    ],
)
def test_a_driver_that_is_too_old_is_refused(machine, cuda, driver, way_out):
    with pytest.raises(ConfigError, match=way_out):
        machine_gpus({}, machine(cuda=cuda, driver=driver)).check()


@pytest.mark.parametrize(("cuda", "driver"), [(13, "580.65.06"), (12, "525.60.13"), (13, "")])
def test_other_drivers_are_not(machine, cuda, driver):
    machine_gpus({}, machine(cuda=cuda, driver=driver)).check()


def test_processes_on_one_gpu_reserve_equal_parts_of_its_memory(machine):
    settings = settings_with(sync__mode="multi_explorer", explorer__count=2)
    root = machine()
    given = role_environment(settings, {}, root)
    assert [*given] == ["trainer", "explorer1", "explorer2"]
    assert all(own == {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.30"} for own in given.values())
    for choice in ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        assert set(map(len, role_environment(settings, {choice: "any"}, root).values())) == {0}
    assert set(map(len, role_environment(settings, {"JAX_PLATFORMS": "cpu"}, root).values())) == {0}


@pytest.mark.parametrize("variables", [{}, {"CUDA_VISIBLE_DEVICES": "1"}])
def test_one_process_reserves_most_of_its_only_gpu(machine, variables):
    settings = settings_with(launch__colocate=True)
    root = machine(gpus=2 if variables else 1)
    assert role_environment(settings, variables, root) == {
        "trainer+explorers": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.90"}
    }
    for others in ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, {"JAX_PLATFORMS": "cpu"}):
        assert role_environment(settings, others, root) == {"trainer+explorers": {}}


def test_one_process_that_has_several_gpus_leaves_them_to_jax(machine):
    found = role_environment(settings_with(launch__colocate=True), {}, machine(gpus=2))
    assert found == {"trainer+explorers": {}}


def test_several_gpus_are_given_to_processes_without_being_named(machine):
    settings = settings_with(trainer__mesh__fsdp=2)
    given = role_environment(settings, {}, machine(gpus=4))
    assert {name: own["CUDA_VISIBLE_DEVICES"] for name, own in given.items()} == {
        "trainer": "0,1",
        "explorer1": "2",
    }


def test_too_few_are_refused_with_the_way_to_share_one(machine):
    settings = settings_with(sync__mode="multi_explorer", explorer__count=2)
    with pytest.raises(ConfigError, match=r"but this machine has 2: .*CUDA_VISIBLE_DEVICES=0\."):
        role_environment(settings, {}, machine(gpus=2))


@pytest.mark.parametrize(
    ("gpus", "fields", "together"),
    [
        (0, {}, False),
        (1, {}, True),
        (2, {}, False),
        (1, {"launch__colocate": False}, False),
        (0, {"launch__colocate": True}, True),
        (1, {"sync__transfer": "server"}, False),
        (1, {"trainer__processes": 2, "trainer__mesh__data": 2}, False),
        (1, {"launch__host": "10.0.0.1", "launch__hosts": "explorer1=10.0.0.2"}, False),
    ],
)
def test_on_one_gpu_roles_take_turns(machine, monkeypatch, tmp_path, gpus, fields, together):
    root = machine(gpus=gpus)
    monkeypatch.setattr(
        run_directory, "machine_gpus", lambda environment: machine_gpus(environment, root)
    )
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    config = settings_with(workdir=str(tmp_path), **fields).resolved()
    if "launch__colocate" not in fields:
        assert config["launch"]["colocate"] is None
    assert run_directory.settings_of(config).launch.colocate is together


@pytest.mark.parametrize(
    ("environment", "chosen"), [({}, "cuda,cpu"), ({"JAX_PLATFORMS": "cuda"}, None)]
)
def test_jax_must_use_the_gpus_that_there_are(machine, monkeypatch, environment, chosen):
    root, updates = machine(), {}
    monkeypatch.setattr(gpu_flags, "machine_gpus", lambda variables: machine_gpus(variables, root))
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    gpu_flags.choose("float32", False, dict(environment))
    assert updates.get("jax_platforms") == chosen
