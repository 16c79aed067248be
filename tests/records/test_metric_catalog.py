"""The catalog of metrics."""

from pathlib import Path

import pytest

from rl_sync.launcher.commands import metric_list
from rl_sync.records.metric_catalog import METRICS, find, knows
from rl_sync.records.metrics import PHASES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("phase", "name", "described"),
    [
        ("rl", "reward_mean", "reward_mean"),
        ("rl", "reward/format", "reward/NAME"),
        ("rl", "reward/unjudged", "reward/unjudged"),
        ("rl", "ratio_p95_staleness_0", "ratio_pPERCENT_staleness_STEPS"),
        ("rl", "episode/ended/time-out", "episode/ended/REASON"),
        ("rl", "time/explorer/rollout", "time/ROLE/PHASE"),
        ("evaluation", "pass@4_low", "pass@K"),
        ("evaluation", "accuracy_high/counting", "accuracy/CATEGORY"),
        ("evaluation", "accuracy/algebra_high", "accuracy/CATEGORY"),
        ("rl", "reward_median", None),
        ("sft", "reward_mean", None),
    ],
)
def test_a_name_is_found_whole_or_by_its_parts(phase, name, described):
    found = find(phase, name)
    assert (found.name if found else None) == described


def test_fields_of_the_line_are_known_in_every_phase():
    assert set(METRICS) == set(PHASES)
    assert all(knows(phase, "step") for phase in PHASES)


def test_the_page_of_the_metrics_is_the_one_that_the_source_makes():
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == metric_list.page() + "\n", (
        "python -m launcher.commands.metric_list > docs/metrics.md"
    )
