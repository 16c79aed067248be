"""Text on what travels: the estimate before a run, and the truth after it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl_sync.plan.schedule_text import describe
from rl_sync.plan.weights_text import describe_traffic, describe_travel
from tests.settings.changed import settings_with

ROOT = Path(__file__).parents[2]
POLICY = {
    "explorer__dtype": "bfloat16",
    "optimizer__learning_rate": 1e-6,
    "sync__transfer": "server",
}


def test_a_checkpoint_at_a_usual_rate_travels_as_what_changed_and_the_plan_says_how_much():
    settings = settings_with(**POLICY)
    assert settings.deltas
    (line,) = describe_travel(settings)
    assert "as what changed (sync.delta=auto)" in line
    assert "at a learning rate of 1e-06 about 4% of the bfloat16 values change a step" in line
    assert line in describe(settings)


@pytest.mark.parametrize(
    "change",
    [
        {"sync__delta": "off"},
        {"explorer__dtype": "float32"},
        {"optimizer__learning_rate": 1e-4},
        {"sync__transfer": "collective"},
        {"sync__verify": False},
        {"model__lora__rank": 4},
    ],
)
def test_weights_travel_whole_where_differences_do_not_pay_or_cannot_be(change):
    settings = settings_with(**{**POLICY, **change})
    assert not settings.deltas
    (line,) = describe_travel(settings)
    assert "whole" in line
    assert ("adapters alone" in line) == ("model__lora__rank" in change)


def test_asynchronous_explorers_go_on_meanwhile_and_relays_are_named():
    settings = settings_with(
        **POLICY, sync__mode="multi_explorer", explorer__count=6, sync__fanout=2
    )
    text = "\n".join(describe_travel(settings))
    assert "that time counts toward staleness" in text
    assert "sends them to 2 of 6 explorers" in text


def test_the_estimate_is_taken_from_the_checkpoints_own_weights(tmp_path):
    shares = []
    for name, factor in (("large", 100.0), ("small", 0.01)):
        target = shutil.copytree(ROOT / "tests" / "data" / "models" / "qwen2", tmp_path / name)
        for file in target.glob("*.safetensors"):
            save_file({key: x * np.float32(factor) for key, x in load_file(file).items()}, file)
        (line,) = describe_travel(settings_with(**POLICY, model__path=str(target)))
        shares.append(int(line.split("about ")[1].split("%")[0]))
    assert shares[0] < 10
    assert shares[1] > 20


def test_the_report_has_the_real_share_beside_the_plans_and_the_bytes():
    lines = [
        {
            "weights/changed_share": share,
            "weights/received_bytes": 5.0,
            "weights/received_if_dense": 100.0,
            "weights/refusals": 1.0,
        }
        for share in (0.01, 0.03)
    ]
    (line,) = describe_traffic(settings_with(**POLICY), [*lines, {}])
    assert line.startswith("Weights: 2.00% of the values changed a step (plan: 4.24%)")
    assert "explorers received 5.0% of the bytes of full copies" in line
    assert "2 versions were refused and replaced by full copies" in line
    assert describe_traffic(settings_with(**POLICY), [{}]) == []
