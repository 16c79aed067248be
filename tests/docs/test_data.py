"""The example of docs/data.md."""

import re
from pathlib import Path

import pytest

from rl_sync.roles.trainer.experience_pipeline import pipeline_of
from tests.roles.trainer.test_experience_pipeline import group, learned, task

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/data.md").read_text()


def test_the_example_of_a_pipeline_does_what_it_says(tmp_path):
    (text,) = re.findall(r"file `cleaning\.py`:\n\n```python\n(.*?)```", PAGE, re.S)
    (tmp_path / "cleaning.py").write_text(text)
    names = "without_duplicates", "shorter_is_better(price=0.5)"
    pipeline = pipeline_of(", ".join(f"{tmp_path}/cleaning.py:{name}" for name in names), task())
    groups = [
        group(0, "12", "12", "3", rewards=[1.0, 1.0, 0.0]),
        group(1, "7", "7", "7", rewards=[1.0, 1.0, 1.0]),
    ]
    made, metrics = pipeline(1, groups)
    assert learned(made) == [[True, False, True], [False] * 3]
    assert made[0].rewards.tolist() == [-0.5, -0.75, -1.0]
    assert metrics["pipeline/duplicates"] == pytest.approx(3 / 6)
