"""Configs that a Python program gives."""

import json

import pytest

from rl_sync.api.given import config_file, values_of
from rl_sync.configs import arithmetic, jsonl
from rl_sync.settings.records import ConfigError


def test_what_follows_from_a_change_is_as_the_change_makes_it_and_the_config_stays():
    config = arithmetic.get_config()
    assert values_of(config, {"model.path": "mine"})["sft"]["steps"] == 0
    assert (config.model.path, config.sft.steps) == (None, 400)
    assert values_of(config, {})["sft"]["steps"] == 400
    config = jsonl.get_config()
    rates = [
        values_of(config, {"trainer.groups_per_step": groups})["optimizer"]["learning_rate"]
        for groups in (16, 64)
    ]
    assert rates[1] == pytest.approx(2 * rates[0])
    assert config.trainer.groups_per_step == 32


def test_a_change_of_what_follows_takes_nothing_from_the_config():
    config = arithmetic.get_config()
    values_of(config, {"sft.steps": 7})  # The run is given it besides.
    assert values_of(config, {"model.path": "mine"})["sft"]["steps"] == 0


@pytest.mark.parametrize(
    "changes",
    [{"trainer.steps": "many"}, {"trainer.stepps": 3}, {"no.such": 1}, {"trainer": 3}, {"": 1}],
)
def test_a_change_that_cannot_be_is_passed_over(changes):
    config = arithmetic.get_config()
    assert values_of(config, changes) == arithmetic.get_config().to_dict()
    assert config.to_dict() == arithmetic.get_config().to_dict()


def test_the_file_has_what_follows(tmp_path):
    path = config_file(arithmetic.get_config(), {"model.path": "mine"}, tmp_path)
    assert json.loads((tmp_path / "given.json").read_text())["sft"]["steps"] == 0
    assert path == str(tmp_path / "given.py")
    assert config_file("configs/arithmetic.py", {}, tmp_path) == "configs/arithmetic.py"
    with pytest.raises(ConfigError, match="not a number, text, list or dict"):
        config_file({"seed": object()}, {}, tmp_path)
