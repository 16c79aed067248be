"""Batches of demonstrations."""

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.cluster.session import RunStoppedError
from rl_sync.roles.assembly import wiring
from rl_sync.roles.trainer.data_reader import DataReader, drawing
from rl_sync.types import NO_LEASE
from tests.settings.changed import settings_with
from tests.tasks.loading import load

SFT, REWARD_MODEL = ALGORITHMS["sft"], ALGORITHMS["reward_model"]


@functools.cache
def task():
    return load(arithmetic__held_out_problems=9)


def reader(seed=0, check=lambda: None, algorithm=SFT):
    trainer = SimpleNamespace(groups_per_step=3, group_size=2)
    settings = SimpleNamespace(seed=seed, trainer=trainer)
    return DataReader(SimpleNamespace(settings=settings, check=check), drawing(algorithm, task()))


def test_a_step_s_groups_are_demonstrations_as_fresh_as_can_be():
    groups, left_out, kept, *_ = reader().next(5)
    assert not left_out
    assert not kept
    assert [group.ordinal for group in groups] == [12, 13, 14]
    demonstrated = {(one.text, one.answer) for one in task().demonstrations}
    for group in groups:
        assert group.lease_id == NO_LEASE
        assert group.tokens.shape == (2, task().row_tokens)
        assert group.oldest_version == 4
        for tokens, mask in zip(group.tokens, group.completion_mask, strict=True):
            asked = task().tokenizer.decode(tokens[: mask.argmax()].tolist())
            answered = task().tokenizer.decode(tokens[mask].tolist())
            assert (asked, answered) in demonstrated


def test_the_seed_and_the_step_decide_and_no_two_steps_are_alike():
    def tokens(reader, step):
        return np.concatenate([group.tokens for group in reader.next(step).groups])

    first = tokens(reader(), 1)
    np.testing.assert_array_equal(first, tokens(reader(), 1))
    assert (first != tokens(reader(), 2)).any()
    assert (first != tokens(reader(seed=1), 1)).any()


def test_a_run_that_is_stopped_reads_no_more():
    def check():
        raise RunStoppedError("interrupted")

    with pytest.raises(RunStoppedError):
        reader(check=check).next(1)


def test_a_step_s_pairs_are_the_chosen_and_then_the_rejected_completion_of_a_problem():
    pairs = {(pair.prompt.text, pair.chosen, pair.rejected) for pair in task().preferences}
    for group in reader(algorithm=REWARD_MODEL).next(2).groups:
        asked, answered = [], []
        for tokens, mask in zip(group.tokens, group.completion_mask, strict=True):
            asked.append(task().tokenizer.decode(tokens[: mask.argmax()].tolist()))
            answered.append(task().tokenizer.decode(tokens[mask].tolist()))
        assert asked[0] == asked[1]
        assert (asked[0], *answered) in pairs
        assert group.rewards.tolist() == [0.0, 0.0]


def test_a_pair_s_margin_is_the_reward_of_the_chosen_completion():
    wide = dataclasses.replace(
        task(), preferences=[pair._replace(margin=0.5) for pair in task().preferences]
    )
    _, _, rewards = drawing(REWARD_MODEL, wide)(4, [0])
    assert rewards.tolist() == [0.5, 0.0, 0.5, 0.0]


@pytest.mark.gate
def test_demonstrations_are_laid_out_where_rollouts_would_have_stop_strings():
    settings = settings_with(
        algorithm__name="sft", rollout__stop_strings="\\n", task__arithmetic__held_out_problems=9
    )
    of_run = wiring.load_task(settings)
    rollouts = SimpleNamespace(settings=settings, check=lambda: None)
    groups = DataReader(rollouts, drawing(settings.algorithm, of_run)).next(1).groups
    batch = wiring.batching_of(settings, of_run).batch(groups)
    assert batch.truncated is None
    assert len(batch.rewards) == settings.trainer.groups_per_step * settings.trainer.group_size
