"""Every setting is described, and the config has the defaults that the descriptions say."""

import pytest

from rl_sync.configs import base
from rl_sync.setting import sections
from rl_sync.settings.run_settings import RunSettings

SECTIONS = list(sections(RunSettings))
ENTRIES = [entry for section in SECTIONS for entry in section.entries]
OF_ALGORITHM = [entry for entry in ENTRIES if entry.name.startswith("algorithm.")]


def _sentences(text):
    return text[0].isupper() and text.endswith(".") and "  " not in text


def test_every_section_and_setting_says_what_it_means_in_sentences():
    assert [s.name for s in SECTIONS if s.name and not _sentences(s.meaning)] == []
    assert [e.name for e in ENTRIES if not _sentences(e.setting.meaning)] == []


def test_every_default_is_a_value_that_the_setting_may_have():
    for entry in ENTRIES:
        rule = entry.setting
        if entry.default is None:
            assert rule.implied, entry.name
        else:
            assert type(entry.default) is entry.kind, entry.name
            assert not rule.implied, entry.name
            assert not rule.choices or entry.default in rule.choices, entry.name
            assert not rule.bounds or rule.holds(entry.default), entry.name


def test_the_config_has_each_setting_at_its_default_and_nothing_else():
    config = base.get_config()
    for entry in ENTRIES:
        *within, name = entry.name.split(".")
        section = config
        for part in within:
            section = section[part]
        assert section[name] == entry.default, entry.name
        assert section.get_type(name) is entry.kind, entry.name
    settings = [f"{s.name}.{n}".lstrip(".") for s in SECTIONS for n in _leaves(config, s.name)]
    assert sorted(settings) == sorted(entry.name for entry in ENTRIES)


def _leaves(config, section):
    for part in filter(None, section.split(".")):
        config = config[part]
    return [name for name, value in config.to_dict().items() if not isinstance(value, dict)]


def test_the_algorithm_is_the_one_that_is_implied_in_all_its_settings():
    assert len(OF_ALGORITHM) > 40
    assert {entry.default for entry in OF_ALGORITHM} == {None}


def test_a_setting_without_a_value_takes_those_of_its_type_alone():
    config = base.get_config()
    config.sync.interval = 2
    for value in ("two", 2.5):
        with pytest.raises(TypeError):
            config.sync.interval = value
