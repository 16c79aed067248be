"""The list of all settings, for a terminal and as a page."""

import re

import pytest

from rl_sync.configs import base
from rl_sync.launcher.commands import lists
from rl_sync.settings.records import ConfigError
from tests.launcher.command import ROOT


def _names(text: str) -> list[str]:
    return re.findall(r"^([a-z0-9_.]+): ", text, re.M)


def _leaves(config, within=""):
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{within}{name}.")
        else:
            yield f"{within}{name}"


def test_every_setting_is_listed_once_in_lines_that_a_terminal_has():
    text = lists.text()
    assert sorted(_names(text)) == sorted(_leaves(base.get_config().to_dict()))
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("trainer.mesh.fsdp", ["trainer.mesh.fsdp"]),
        ("Warmup Updates", ["sft.learning_rate", "optimizer.warmup_updates"]),
        ("adafactor moment", ["optimizer.b1", "optimizer.momentum_dtype"]),
        ("multi_explorer", ["sync.mode"]),
        ("rounds of the host", []),
        ("lr", []),
    ],
)
def test_a_pattern_is_looked_for_in_names_meanings_and_choices_from_the_start_of_words(
    pattern, names
):
    try:
        assert _names(lists.text(pattern)) == names
    except ConfigError:
        assert not names


def test_a_pattern_that_is_another_programs_name_for_a_setting_leads_to_it():
    with pytest.raises(ConfigError, match=r"has 'lr' in .*; did you mean optimizer.learning_rate"):
        lists.text("lr")


def test_values_and_defaults_are_in_words():
    text = lists.text()
    for line in (
        "sync.verify: true or false; default true",
        'sharding.layers: text; default ""',
        "explorer.count: whole number, at least 0; default: the fewest that the mode takes",
        "launch.wait_secs: number, above 0 and at most 1e+08 seconds; default 600.0",
        "algorithm.discount: number",
    ):
        assert re.search(rf"^{re.escape(line)}", text, re.M), line


def test_the_page_of_the_settings_is_the_one_that_the_source_makes():
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == lists.page() + "\n", "python -m launcher.commands.lists > docs/settings.md"
    assert page.count("\n| `") == len(list(_leaves(base.get_config().to_dict())))
