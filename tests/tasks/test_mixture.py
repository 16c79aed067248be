"""Mixtures of task sets: their problems, rewards and shares."""

import collections

import numpy as np
import pytest

from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.scoring.judging import first_score, solves
from rl_sync.tasks.curriculum import (
    Curriculum,
    CurriculumSettings,
    PromptPool,
    PromptSet,
    pool_of,
    shuffled_at,
)
from rl_sync.tasks.mixture import MixtureConfig
from rl_sync.tasks.prompt_history import PromptHistory
from rl_sync.types import Use
from tests.tasks.loading import load, write_lines

SETS = "3 * arithmetic(least_operand=80) + jsonl(path={path!r}, held_out_fraction=0.25, set='mine')"


def mixture(tmp_path, sets=SETS, **fields):
    rows = [{"prompt": f"word {i}", "answer": str(i), "kind": i} for i in range(20)]
    path = str(write_lines(tmp_path / "rows.jsonl", rows))
    return load(name="mixture", mixture__sets=sets.format(path=path), **fields)


def pool(*weights, sizes=(100, 100, 100), by_progress=False):
    bounds = np.cumsum([0, *sizes])
    sets = [
        PromptSet(f"s{i}", weight, np.arange(bounds[i], bounds[i + 1]))
        for i, weight in enumerate(weights)
    ]
    return PromptPool(int(bounds[len(weights)]), None, sets, by_progress)


def test_a_mixture_has_the_problems_of_its_sets_with_their_fields(tmp_path):
    task = mixture(tmp_path)
    assert [prompt.prompt_id for prompt in task.train] == [*range(len(task.train))]
    assert [prompt.prompt_id for prompt in task.held_out] == [*range(len(task.held_out))]
    early = collections.Counter(
        p.fields["task_set"] for p in task.held_out[: len(task.held_out) // 2]
    )
    late = collections.Counter(p.fields["task_set"] for p in task.held_out)
    assert all(abs(early[name] - late[name] / 2) <= 1 for name in late), (
        "evaluations take the first"
    )
    sets = collections.Counter(prompt.fields["task_set"] for prompt in task.train)
    assert set(sets) == {"arithmetic", "mine"}
    assert sets["mine"] == 15
    mine = [
        prompt for prompt in (*task.train, *task.held_out) if prompt.fields["task_set"] == "mine"
    ]
    assert all(prompt.fields["kind"] == int(prompt.answer) for prompt in mine)
    assert task.reward == "by_set(arithmetic='exact', mine='exact')"
    texts = {prompt.prompt_id: prompt.text for prompt in task.train}
    assert all(texts[shown.prompt_id] == shown.text for shown in task.demonstrations)
    assert any("mine: 15 problems to train on, 5 held out, weight 1" in note for note in task.notes)


def test_a_reward_can_be_given_for_each_set(tmp_path):
    task = mixture(tmp_path, reward="by_set(arithmetic='exact', mine='0.5 * exact + language')")
    rubric = Rubric(task.reward)
    rubric.check([prompt.fields for prompt in task.train])
    one = next(p for p in task.train if p.fields["task_set"] == "arithmetic")
    other = next(p for p in task.train if p.fields["task_set"] == "mine")
    right, wrong, words = rubric.judge(
        [
            ScoringRequest(one.fields, Completion(one.answer)),
            ScoringRequest(one.fields, Completion("no")),
            ScoringRequest(other.fields, Completion("words")),
        ]
    )
    assert (right.score, wrong.score, words.score) == (1.0, 0.0, 1.0)
    assert right.components["by_set/arithmetic/exact"] == 1.0
    assert words.components["by_set/mine/language"] == 1.0
    assert [solves(x, ["by_set"]) for x in (right, wrong, words)] == [True, False, False]
    assert first_score(right, ["by_set"]) == 1
    assert first_score(wrong, ["by_set"]) == 0
    with pytest.raises(ValueError, match="by_set has no reward for the set 'mine': it has sums"):
        Rubric("by_set(sums='exact')").check([other.fields])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("arithmetic", "is one set: a mixture has two or more"),
        ("arithmetic + arithmetic", "two sets called arithmetic"),
        ("arithmetic + 0 * jsonl", r"the weight 0 of jsonl is not > 0"),
        ("arithmetic - jsonl", r"the weight -1 of jsonl is not > 0"),
        ("arithmetic + jsonl(set='a b')", "must be letters, digits and _"),
        ("arithmetic + jsonl", r"The set jsonl of task.mixture.sets: task.jsonl.path is not set"),
        ("arithmetic + arithmetik(set='b')", "did you mean 'arithmetic'"),
        ("arithmetic + arithmetic(set='b', leest_operand=3)", "did you mean 'least_operand'"),
        ("arithmetic + mixture", "a mixture cannot be a set of a mixture"),
    ],
)
def test_mistakes_are_refused(tmp_path, sets, message):
    with pytest.raises(ValueError, match=message):
        mixture(tmp_path, sets)


def test_a_set_that_lacks_answers_is_named_unless_its_environment_judges(tmp_path):
    path = str(write_lines(tmp_path / "rows.jsonl", [{"prompt": f"b{i}"} for i in range(20)]))
    sets = f"arithmetic + jsonl(path={path!r}, set='games')"
    with pytest.raises(ValueError, match=r"The set games of task.mixture.sets: .*'answer' is miss"):
        load(name="mixture", mixture__sets=sets)


@pytest.mark.parametrize("seed", range(3))
def test_fixed_weights_are_kept_and_each_set_goes_through_its_epochs(seed):
    three = pool(5, 3, 2)
    places = [shuffled_at(three, seed, i, 0) for i in range(1000)]
    assert [sum(100 * s <= p < 100 * s + 100 for p in places) for s in range(3)] == [500, 300, 200]
    first = [p for p in places if p < 100][:100]
    assert sorted(first) == [*range(100)], "a set's prompts come once an epoch"
    assert shuffled_at(three, seed, 3, 1) // 100 == places[3] // 100, "another one of the same set"
    assert places != [shuffled_at(three, seed + 1, i, 0) for i in range(1000)]
    many = collections.Counter(shuffled_at(pool(1, 2, 4), seed, i, 0) // 100 for i in range(7000))
    assert [many[i] / 7000 for i in range(3)] == pytest.approx([1 / 7, 2 / 7, 4 / 7], abs=0.002)


@pytest.mark.parametrize("seed", range(3))
def test_by_progress_sets_that_teach_get_more(seed):
    two = pool(1, 1, 1, by_progress=True)
    assert two.shares(PromptHistory().of(300)) == pytest.approx([1 / 3] * 3)
    uses = [Use(1, i, 0, i, 1.0 if i < 100 else 0.5 if i < 200 else 0.0) for i in range(300)]
    past = PromptHistory().after(uses, 0.5)
    assert two.shares(past) == pytest.approx([0.1 / 1.3, 1.1 / 1.3, 0.1 / 1.3])
    chosen = Curriculum(CurriculumSettings(), two, seed).choose(past, range(64))
    counts = collections.Counter(one.prompt // 100 for one in chosen)
    assert counts[1] > 40
    assert len({one.prompt for one in chosen}) == 64


def test_selection_works_within_each_set():
    band = CurriculumSettings(selection="difficulty_band", explore=0.0)
    uses = [Use(1, i, 0, i, 0.5 if i % 10 == 0 else 1.0) for i in range(200)]
    past = PromptHistory().after(uses, 0.5)
    chosen = Curriculum(band, pool(1, 1), 0).choose(past, range(16), busy=[0, 100])
    assert all(one.prompt % 10 == 0 and one.prompt not in (0, 100) for one in chosen)
    assert len({one.prompt for one in chosen}) == 16


def test_the_pool_knows_the_sets(tmp_path):
    task = mixture(tmp_path)
    sets = SETS.format(path="x.jsonl")
    made = pool_of(CurriculumSettings(), task.train, MixtureConfig(sets, "progress"))
    assert [(one.name, one.weight) for one in made.sets] == [("arithmetic", 3.0), ("mine", 1.0)]
    assert made.by_progress
    assert sum(len(one.members) for one in made.sets) == made.count == len(task.train)
