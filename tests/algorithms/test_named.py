import dataclasses
import re
from pathlib import Path

import pytest

from rl_sync.algorithms import pieces
from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.algorithms.named import ALGORITHMS, named


def test_the_defaults_make_grpo():
    assert ALGORITHMS["grpo"] == Algorithm()


def test_the_page_of_algorithms_names_the_pieces_of_each_and_every_piece_there_is():
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    of = {row[0].strip("`"): row for row in rows if len(row) == 8}
    for name, one in ALGORITHMS.items():
        _, advantage, loss, proximal, correction, aggregation, kl, _ = of[name]
        assert re.split(r"[ ,]", advantage)[0] == one.advantage
        assert loss.split()[0] == one.loss
        assert proximal in (one.proximal, "reference" if one.loss == "dpo" else "")
        assert [part.split()[0] for part in correction.split(", ") if part] == [*one.corrections]
        assert aggregation == one.aggregation
        assert kl == (f"{one.kl_estimator} in the {one.kl_place}" if one.kl_coefficient else "")
    described = {row[0].strip("`").removeprefix("aggregation=") for row in rows if row}
    tables = (pieces.ADVANTAGES, pieces.LOSSES, pieces.PROXIMAL, pieces.CORRECTIONS)
    assert described >= {name for table in (*tables, pieces.AGGREGATIONS) for name in table}


def test_what_is_used_without_a_name_bears_the_staleness():
    assert named(None, 0).name == "grpo"
    assert named(None, 1).name == "decoupled_ppo"
    assert named(None, 1).danger() is None


def test_only_algorithms_that_take_no_notice_of_the_old_policy_are_dangerous():
    assert {name for name, one in ALGORITHMS.items() if one.danger()} == {"rloo", "opo", "remax"}


@pytest.mark.parametrize(
    ("name", "change", "part"),
    [
        ("decoupled_ppo", {"correction": ""}, "takes no notice of the policy that drew"),
        ("grpo", {"clip_high": 11.0}, "as good as unclipped"),
        ("grpo", {"loss": "reinforce"}, "without end"),
    ],
)
def test_what_is_dangerous_says_why(name, change, part):
    made = dataclasses.replace(ALGORITHMS[name], **change)
    assert part in str(made.danger())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"advantage": "gea"}, r"advantage='gea' is not one of grpo, dr_grpo"),
        ({"loss": "ppo"}, r"loss='ppo' is not one of .*; did you mean"),
        ({"correction": "token_mask,tokens"}, r"correction='tokens' is not one of"),
        ({"kl_estimator": "k9"}, r"kl_estimator='k9' is not one of k1, k2, k3"),
        ({"clip_low": 0.0}, r"clip_low=0 must be above 0 and at most 1"),
        ({"clip_high": -1.0}, r"clip_high=-1 must be above 0"),
        ({"dual_clip": 0.5}, r"dual_clip=0.5 must be above 1"),
        ({"kl_coefficient": -0.1}, r"kl_coefficient=-0.1 must be at least 0"),
        ({"discount": 0.0}, r"discount=0 must be above 0 and at most 1"),
        ({"gae_lambda": 1.1}, r"gae_lambda=1.1 must be at least 0 and at most 1"),
        ({"n_steps": 0}, r"n_steps=0 must be at least 1"),
        ({"kl_target": -1.0}, r"kl_target=-1 must be at least 0"),
        ({"kl_horizon_steps": 0.0}, r"kl_horizon_steps=0 must be above 0"),
        ({"kl_target": 0.1, "kl_coefficient": 0.0}, r"no weight to adapt: .*kl_coefficient"),
        ({"advantage": "gae", "loss": "topr"}, r"advantage=gae makes one a token"),
        ({"token_low": 1.5}, r"token_low=1.5 must be above 0 and at most 1"),
        ({"token_high": 0.5}, r"token_high=0.5 must be at least 1"),
        ({"max_attempts": 0}, r"max_attempts=0 must be at least 1"),
        ({"max_attempts": 3}, r"max_attempts=3 .* no setting says which"),
        ({"over_sampling": 0.9}, r"over_sampling=0.9 must be at least 1"),
        ({"keep": "last"}, r"keep='last' is not one of first, best"),
        ({"loss": "dpo"}, r"loss=dpo with algorithm.advantage=grpo"),
        ({"advantage": "pair"}, r"loss=ppo_clip with algorithm.advantage=pair"),
        ({"preference_temperature": 0.0}, r"preference_temperature=0 must be above 0"),
        ({"demonstration_rows": 4}, r"demonstration_coefficient=0 is the weight .* set both"),
        (
            {"demonstration_rows": 4, "demonstration_coefficient": 1.5},
            r"demonstration_coefficient=1.5 must be at least 0 and at most 1",
        ),
        ({"advantage": "demonstration"}, r"loss='ppo_clip' .* takes algorithm.loss='reinforce'"),
        (
            {"advantage": "demonstration", "loss": "reinforce", "filter_zero_variance": True},
            r"filter_zero_variance=True does not fit",
        ),
        ({"extremes": 3}, r"extremes=3 must be even"),
        ({"group_mean_low": 0.5, "group_mean_high": 0.4}, r"no group would be left"),
        ({"correction": "icepops"}, r"did you mean 'icepop'\?"),
        ({"correction": "token_truncation"}, r"has in it already: .*proximal=start"),
        (
            {"correction": "token_truncation,sequence_truncation", "proximal": "start"},
            r"weighs by the ratio twice",
        ),
        ({"correction": "second_moment"}, r"needs algorithm.proximal=start, not behavior"),
        ({"advantage": "reinforce_pp", "loss": "gmpo"}, r"reinforce_pp_baseline"),
    ],
)
def test_an_algorithm_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ALGORITHMS["grpo"], **change)
