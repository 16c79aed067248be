"""A policy learns by reward from pixels, and learns nothing where images are exchanged.

The first run takes minutes: the whole of configs/pictures.py, on a seed that nothing was tuned on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rl_sync.records.metrics import read_metrics
from tests.launcher.command import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

CHANCE = 0.15  # One of ten digits; the most frequent one is an eighth of the held-out problems.


def accuracies(workdir: Path, *flags: str) -> tuple[float, float]:
    """Returns the held-out accuracy after SFT and after the last step."""
    command = ["--config=configs/pictures.py", f"--config.workdir={workdir}", *flags]
    subprocess.run([sys.executable, "-m", "launcher", *command], cwd=ROOT, check=True)
    found = [line["accuracy"] for line in read_metrics(workdir, "evaluation")]
    return found[0], found[-1]


def test_a_policy_learns_to_read_digits_from_their_pixels(tmp_path):
    before, after = accuracies(tmp_path / "run", "--config.seed=811")
    assert after >= before + 0.15


def test_a_policy_that_gets_images_of_other_problems_stays_at_chance(tmp_path):
    blind = ("--config.seed=811", "--config.task.exchange_images=true", "--config.trainer.steps=30")
    before, after = accuracies(tmp_path / "run", *blind)
    assert before < CHANCE
    assert after < CHANCE
