"""Configs of the package, named on the command line from any directory."""

from __future__ import annotations

import pytest

from rl_sync.launcher import config_file
from rl_sync.settings.records import ConfigError
from tests.launcher.command import ROOT


def test_a_config_of_the_package_is_loaded_by_its_name_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_name, by_path = (
        config_file.load("arithmetic"),
        config_file.load(str(ROOT / "configs/arithmetic.py")),
    )
    assert by_name.to_dict() == by_path.to_dict()


def test_a_file_of_ones_own_goes_before_a_config_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arithmetic").write_text(
        "from rl_sync.configs import base\ndef get_config():\n    config = base.get_config()\n"
        "    config.name = 'mine'\n    return config\n"
    )
    assert config_file.load("arithmetic").name == "mine"


def test_the_path_of_a_config_in_a_clone_leads_to_its_name_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="did you mean --config=arithmetic"):
        config_file.load("configs/arithmetic.py")


def test_all_files_in_configs_have_a_name_and_a_description():
    files = {path.stem for path in (ROOT / "configs").glob("*.py")} - {"__init__"}
    assert set(config_file.names()) == files
    assert all(config_file.description(name) for name in files)
    assert config_file.path_of("__init__") is None


@pytest.mark.parametrize("name", sorted({*config_file.names()} - {"base"}))
def test_a_config_of_the_package_evaluates_between_its_first_step_and_its_last(name):
    config = config_file.load(name)
    assert 0 < 2 * config.evaluation.every_steps <= config.trainer.steps
