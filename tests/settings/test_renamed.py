"""Earlier names of settings are refused with the names that they have now."""

import pytest

from rl_sync.configs import base
from rl_sync.setting import flat
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.records import ConfigError
from rl_sync.settings.renamed import RENAMED, new_name
from tests.launcher.command import said_here


def _names():
    config = base.get_config().to_dict()
    return {*config, *(name for name, _ in flat(config))}


def test_no_earlier_name_is_a_setting_and_each_new_one_is():
    assert not _names() & RENAMED.keys()
    assert set(RENAMED.values()) <= _names()


def test_settings_of_a_renamed_section_are_found_by_their_own_names():
    assert new_name("warm_up.steps") == "sft.steps"
    assert new_name("warm_upper.steps") is None


@pytest.mark.parametrize("old", RENAMED)
def test_a_config_with_an_earlier_name_is_refused_with_the_new_one(old):
    config = base.get_config().to_dict()
    config["workdir"] = "runs/one"
    *within, name = old.split(".")
    section = config[within[0]] if within else config
    section[name] = {"steps": 1} if old == "warm_up" else 1
    with pytest.raises(ConfigError, match=rf"config\.{old} is now config\.{RENAMED[old]}\."):
        read_settings(config)


def test_the_command_line_names_the_new_setting_with_the_value(capsys):
    done = said_here(capsys, "plan", "--config=arithmetic", "--config.warm_up.steps=5")
    assert done.status != 0
    assert "Unknown setting: --config.warm_up.steps; it is now --config.sft.steps=5." in done.err
