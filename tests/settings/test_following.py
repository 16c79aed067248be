"""Defaults that follow from other settings, and the SFT steps of the shipped configs."""

from __future__ import annotations

import json

import pytest

from rl_sync.configs import base
from rl_sync.launcher import command_line, config_file
from rl_sync.launcher.processes import run_directory
from rl_sync.plan.schedule_text import describe
from tests.launcher.command import ROOT
from tests.settings.changed import settings_with

CHECKPOINT = str(ROOT / "tests/data/models/qwen2")
FROM_SCRATCH = {
    "arithmetic": 400,
    "digits": 100,
    "game": 300,
    "jsonl": 100,
    "lake": 500,
    "long_tail": 300,
    "pictures": 40,
    "selfplay": 200,
    "shapes": 150,
    "tools": 500,
}


def _config(name, *words):
    path = str(ROOT / "configs" / f"{name}.py")
    return command_line.parse(["plan", f"--config={path}", *words]).config


def test_a_default_follows_the_settings_it_is_of_until_it_is_set_itself():
    config = base.get_config()
    config.trainer.steps = base.following(config, lambda one: 2 * one.trainer.groups_per_step)
    assert config.trainer.steps == config.to_dict()["trainer"]["steps"] == 128
    config.trainer.groups_per_step = 5
    assert config.trainer.steps == config.to_dict()["trainer"]["steps"] == 10
    config.trainer.steps = 7
    config.trainer.groups_per_step = 9
    assert config.trainer.steps == 7
    with pytest.raises(TypeError):
        config.trainer.steps = "many"


def test_nothing_is_imitated_by_default():
    assert base.get_config().sft.steps == 0


@pytest.mark.gate
@pytest.mark.parametrize("name", config_file.names())
def test_a_checkpoint_is_not_trained_on_demonstrations_unless_that_is_asked_for(name):
    steps = FROM_SCRATCH.get(name, 0)
    assert _config(name).sft.steps == steps
    given = f"--config.model.path={CHECKPOINT}"
    assert _config(name, given).sft.steps == 0
    for words in ([given, "--config.sft.steps=3"], ["--config.sft.steps=3", given]):
        assert _config(name, *words).sft.steps == 3


def test_the_learning_rate_of_own_data_is_scaled_with_the_batch():
    rates = [
        _config("jsonl", f"--config.trainer.groups_per_step={groups}").optimizer.learning_rate
        for groups in (16, 64, 256)
    ]
    assert rates == pytest.approx([rates[0], 2 * rates[0], 4 * rates[0]])
    given = f"--config.model.path={CHECKPOINT}"
    assert _config("jsonl", given).algorithm.demonstration_rows == 0
    assert _config("jsonl").algorithm.demonstration_rows == 128
    updates = "--config.optimizer.updates_per_batch=3"
    assert _config("jsonl", updates).algorithm.demonstration_rows == 96
    assert _config("jsonl", "--config.sft.steps=0").algorithm.demonstration_rows == 0
    asked = _config("jsonl", "--config.optimizer.learning_rate=0.5", given)
    assert asked.optimizer.learning_rate == 0.5


@pytest.mark.gate
def test_one_rule_gives_the_learning_rate_of_a_checkpoint_in_all_configs(subtests):
    for name in config_file.names():
        for rank, rate in ((0, 1e-6), (8, 2e-4)):
            with subtests.test(config=name, rank=rank):
                config = config_file.load(name)
                config.model.path = CHECKPOINT
                config.model.lora.rank = rank
                optimizer = run_directory.settings_of(config.to_dict()).optimizer
                assert optimizer.learning_rate == rate
                config.optimizer.learning_rate = 0.5
                assert run_directory.settings_of(config.to_dict()).optimizer.learning_rate == 0.5


def test_adapters_at_the_rate_of_a_whole_model_get_a_warning():
    given = {"model__path": CHECKPOINT, "model__lora__rank": 8}
    for rate, is_low in ((1e-6, True), (1e-5, False), (2e-4, False), (0.0, False)):
        text = describe(settings_with(**given, optimizer__learning_rate=rate))
        assert ("learn next to nothing: 0.0002 is usual" in text) == is_low
    whole = settings_with(model__path=CHECKPOINT, optimizer__learning_rate=1e-6)
    assert "WARNING" not in describe(whole)


def test_a_config_that_python_has_changed_is_read_with_what_follows(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from configs import jsonl\ndef get_config():\n    config = jsonl.get_config()\n"
        f"    config.model.path = {CHECKPOINT!r}\n    return config\n"
    )
    assert json.loads(json.dumps(config_file.load(str(path)).to_dict()))["sft"]["steps"] == 0
