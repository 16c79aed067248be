"""The choice of prompts by their history, and the history itself."""

import json

import numpy as np
import pytest

from rl_sync.tasks.curriculum import (
    IN_BAND,
    OUTSIDE,
    UNSEEN,
    Curriculum,
    CurriculumSettings,
    PromptPool,
    pool_of,
)
from rl_sync.tasks.prompt_history import PromptHistory
from rl_sync.types import Prompt, PromptPast, Use

BAND = CurriculumSettings(selection="difficulty_band", explore=0.0)


def history(*rates, uses=1, steps=None):
    steps = steps or [1] * len(rates)
    made = [
        Use(step, i, 0, i, rate)
        for i, (rate, step) in enumerate(zip(rates, steps, strict=True))
        if rate is not None
    ]
    return PromptHistory().after(made * uses, 0.5)


def pick(settings, past, picks, count=None, ordinal=0, seed=0, busy=(), difficulty=None):
    count = count or len(past.uses)
    pool = PromptPool(count, None if difficulty is None else np.array(difficulty, float))
    ordinals = range(ordinal, ordinal + picks)
    chosen = Curriculum(settings, pool, seed).choose(past, ordinals, busy)
    return [one.prompt for one in chosen], [one.why for one in chosen]


def test_a_history_counts_uses_and_weighs_the_newest_success():
    past = PromptHistory().after(
        [Use(3, 0, 0, 2, 1.0), Use(5, 9, 0, 2, 0.0), Use(4, 1, 0, 0, 0.25)], 0.25
    )
    assert past.seen() == [PromptPast(0, 1, 0.25, 4), PromptPast(2, 2, 0.75, 5)]
    assert past.of(2).seen() == [PromptPast(0, 1, 0.25, 4)]
    assert past.of(7).seen() == past.seen()


def test_a_history_comes_back_from_json_to_the_bit():
    draws = np.random.default_rng(1)
    uses = [Use(i, i, 0, int(draws.integers(40)), draws.random()) for i in range(300)]
    past = PromptHistory().after(uses, 0.3)
    again = PromptHistory.of_seen([PromptPast(*one) for one in json.loads(json.dumps(past.seen()))])
    assert again.seen() == past.seen()
    more = [Use(301, 301, 0, 7, 1 / 3)]
    assert again.after(more, 0.3).seen() == past.after(more, 0.3).seen()


def test_the_band_is_trained_on_the_longest_unused_first():
    past = history(0.0, 0.5, 1.0, 0.4, 0.6, steps=[1, 5, 2, 3, 4])
    assert pick(BAND, past, 3) == ([3, 4, 1], [IN_BAND] * 3)


def test_new_prompts_follow_the_band_and_then_those_nearest_to_it():
    past = history(0.1, None, 0.5, 1.0, 0.0, None)
    chosen, whys = pick(BAND, past, 6, count=6)
    assert chosen[0] == 2
    assert sorted(chosen[1:3]) == [1, 5]
    assert chosen[3] == 0, "0.1 is nearest to 0.2"
    assert sorted(chosen[4:]) == [3, 4]
    assert whys == [IN_BAND, UNSEEN, UNSEEN, OUTSIDE, OUTSIDE, OUTSIDE]


def test_an_empty_band_gives_the_nearest_prompts():
    chosen, whys = pick(BAND, history(0.0, 0.9, 1.0), 1)
    assert (chosen, whys) == ([1], [OUTSIDE])


@pytest.mark.parametrize("seed", range(5))
def test_a_share_of_prompts_explores(seed):
    past = history(*[0.5] * 200, *[1.0] * 200, *[None] * 200)
    some = CurriculumSettings(selection="difficulty_band", explore=0.25)
    chosen, whys = pick(some, past, 120, count=600, seed=seed)
    assert len(set(chosen)) == 120
    assert 15 <= whys.count(UNSEEN) <= 46
    assert whys.count(UNSEEN) + whys.count(IN_BAND) == 120
    past = history(*[0.5] * 200, *[1.0] * 200, steps=[*range(200), *range(200)])
    chosen, whys = pick(some, past, 120, seed=seed)
    assert 15 <= whys.count(OUTSIDE) <= 46, "nothing is new, so those outside are tried again"
    outside = [one for one, why in zip(chosen, whys, strict=True) if why == OUTSIDE]
    assert outside == sorted(outside), "those of the oldest use come first"


def test_prompts_in_flight_come_last():
    past = history(0.5, 0.5, 0.5, 0.0)
    chosen, _ = pick(BAND, past, 3, busy=[0, 1])
    assert chosen[:2] == [2, 3]
    assert chosen[2] in (0, 1)
    least = CurriculumSettings(selection="least_seen")
    assert pick(least, past, 2, busy=[0, 1, 999])[0] in ([2, 3], [3, 2])


def test_more_picks_than_prompts_go_round():
    for selection in ("difficulty_band", "least_seen", "easy_to_hard"):
        settings = CurriculumSettings(selection=selection)
        chosen, _ = pick(settings, history(0.5, 0.0, 1.0), 8)
        assert len(chosen) == 8
        assert set(chosen[:3]) == {0, 1, 2}


def test_easy_to_hard_goes_by_the_rows_difficulty_once_through_all():
    settings = CurriculumSettings(selection="easy_to_hard", difficulty="level")
    levels = [3, 1, 2, 5, 4]
    assert pick(settings, PromptHistory(), 5, count=5, difficulty=levels)[0] == [1, 2, 0, 4, 3]
    past = history(None, 1.0, 0.0, None, None)
    assert pick(settings, past, 5, count=5, difficulty=levels)[0] == [0, 4, 3, 1, 2]


def test_easy_to_hard_goes_by_success_without_such_a_field():
    settings = CurriculumSettings(selection="easy_to_hard")
    assert pick(settings, history(0.1, 0.9, 0.5, None), 4, count=4)[0] == [3, 1, 2, 0]


def test_least_seen_takes_the_fewest_uses_and_of_these_the_oldest():
    uses = [Use(s, s, 0, p, 0.5) for s, p in enumerate([0, 0, 2, 1, 3], start=1)]
    past = PromptHistory().after(uses, 0.5)
    least = CurriculumSettings(selection="least_seen")
    assert pick(least, past, 4)[0] == [2, 1, 3, 0]


@pytest.mark.parametrize("selection", ["difficulty_band", "easy_to_hard", "least_seen"])
def test_a_choice_depends_on_seed_place_and_history_alone(selection):
    settings = CurriculumSettings(selection=selection)
    past = history(*[None] * 30, 0.5)
    first = pick(settings, past, 6, ordinal=4)
    assert pick(settings, past, 6, ordinal=4) == first
    assert pick(settings, past, 6, ordinal=4, seed=1) != first


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"level": 1}, {}], r"training problem 1 \('b'\) has only 'prompt', 'answer'"),
        ([{"level": 1}, {"level": "2"}], r"problem 1 \('b'\) has '2' there"),
        ([{"level": float("nan")}, {"level": 1}], r"problem 0 \('a'\) has nan there"),
        ([{"level": True}, {"level": 1}], r"problem 0 \('a'\) has True there"),
    ],
)
def test_rows_without_the_difficulty_are_refused(rows, message):
    settings = CurriculumSettings(selection="easy_to_hard", difficulty="level")
    prompts = [Prompt(i, "ab"[i], "", row) for i, row in enumerate(rows)]
    with pytest.raises(ValueError, match=rf"curriculum\.difficulty='level' must be .*{message}"):
        pool_of(settings, prompts)
