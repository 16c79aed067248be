"""Rewards that were written for TRL and verl, as their documents show them."""

import re

import numpy as np
import pytest

from rl_sync.algorithms.advantages import grpo
from rl_sync.rewards.judgement import MESSAGES, ONE_MESSAGE, Completion, Judgement
from rl_sync.rewards.reward_catalog import reads_answer
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.roles.master.group_admission import filled
from rl_sync.scoring.judging import first_score, solves

HERE = "tests.rewards.test_other_trainers"
ASKED = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "p"}]


def boxed(completions, ground_truth, **kwargs):
    found = [re.search(r"\\boxed\{(.*?)\}", one) for one in completions]
    return [
        float(one is not None and one[1] == truth)
        for one, truth in zip(found, ground_truth, strict=True)
    ]


def tagged(completions, **kwargs):
    return [float(one[0]["content"].startswith("<think>")) for one in completions]


def many_tokens(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def of_math(prompts, completions, task, weight=1.0):
    return [
        weight * (prompt in completion) if kind == "math" else None
        for prompt, completion, kind in zip(prompts, completions, task, strict=True)
    ]


def of_code(prompts, completions, task, **kwargs):
    return [2.0 if kind == "code" else None for kind in task]


async def patient(prompts, completions, **kwargs):
    return [0.5 for _ in prompts]


def echoes(prompts, completions, **kwargs):
    assert "prompt" not in kwargs
    return [Judgement(1.0, repr((prompts[0], completions[0], sorted(kwargs))))]


def of_state(prompts, completions, trainer_state, **kwargs):
    return [0.0 for _ in prompts]


def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0):
    return float(solution_str == ground_truth) + 10 * extra_info.get("index", 0) + bonus


def detailed(data_source, solution_str, ground_truth, **kwargs):
    return {"score": 0.25, "acc": solution_str == ground_truth, "pred": solution_str, "note": "n"}


async def first_of_list(solution_str, ground_truth):
    return [1.0, "more"]


def scoreless(solution_str, ground_truth):
    return {"acc": 1.0}


def compute_batch(data_sources, solution_strs, ground_truths, extra_infos):
    return [0.0 for _ in solution_strs]


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, prompts, completions, **kwargs):
        return [self.factor for _ in completions]


def judged(reward, text, **fields):
    row = {"prompt": "p", "answer": "", **fields}
    return Rubric(reward).judge([ScoringRequest(row, Completion(text, tokens=[5, 6]))])[0]


CASES = (
    (boxed, r"\boxed{2}", {"ground_truth": "2"}, 1.0),
    (boxed, "2", {"ground_truth": "2"}, 0.0),
    (tagged, "<think>", {MESSAGES: ASKED}, 1.0),
    (tagged, "<think>", {ONE_MESSAGE: True}, 1.0),
    (many_tokens, "a", {}, 2.0),
    (patient, "a", {}, 0.5),
    (f"{HERE}:of_math(weight=3)", "pp", {"task": "math"}, 3.0),
    (f"2 * {HERE}:Scaled(factor=0.5)", "a", {}, 1.0),
    (f"exact + {HERE}:boxed", "5", {"answer": "5", "ground_truth": "5"}, 1.0),
    (compute_score, "5", {"answer": "5"}, 1.0),
    (compute_score, "5", {"answer": "6", "ground_truth": "5"}, 1.0),
    (
        f"{HERE}:compute_score(bonus=2)",
        "5",
        {"reward_model": {"style": "rule", "ground_truth": "5"}, "extra_info": {"index": 4}},
        43.0,
    ),
    (first_of_list, "5", {"answer": "5"}, 1.0),
)


def test_rewards_of_other_trainers_are_called_as_these_call_them(subtests):
    for reward, text, fields, score in CASES:
        with subtests.test(reward=str(reward), fields=fields):
            assert judged(reward, text, **fields).score == score


def test_prompts_and_completions_are_texts_or_messages_as_the_row_has_them(subtests):
    reply = [{"role": "assistant", "content": "r"}]
    user = [{"role": "user", "content": "p"}]
    fields = ["answer", "completion_ids", "kind"]
    for given, prompt, completion in (
        ({}, "p", "r"),
        ({ONE_MESSAGE: True}, user, reply),
        ({MESSAGES: ASKED}, ASKED, reply),
    ):
        with subtests.test(given=given):
            found = judged(echoes, "r", kind="k", **given)
            assert found.why == repr((prompt, completion, fields))


def test_a_term_that_does_not_apply_leaves_the_others(subtests):
    rubric = f"{HERE}:of_math + 0.5 * {HERE}:of_code"
    for task, score, parts in (
        ("math", 1.0, {"of_math": 1.0}),
        ("code", 1.0, {"of_code": 2.0}),
        ("other", None, {}),
    ):
        with subtests.test(task=task):
            found = judged(rubric, "p", task=task)
            assert (found.score, found.components) == (score, parts)


def test_terms_that_each_judge_some_of_the_rows_make_no_advantage_nan():
    """Groups of 4, of tasks that one term judges, the other, or none."""
    rubric = Rubric(f"{HERE}:of_math + {HERE}:of_code")
    for seed in range(20):
        random = np.random.default_rng(seed)
        tasks = np.repeat(random.choice(["math", "code", "other"], 6), 4)
        texts = random.choice(["p", "x"], tasks.size)
        items = [
            ScoringRequest({"prompt": "p", "task": task}, Completion(text))
            for task, text in zip(tasks.tolist(), texts.tolist(), strict=True)
        ]
        scores = np.array([one.score for one in rubric.judge(items)], np.float32)
        np.testing.assert_array_equal(np.isnan(scores), tasks == "other")
        found = [filled(group, with_baselines=False) for group in scores.reshape(-1, 4)]
        rewards, learned = map(np.concatenate, zip(*found, strict=True))
        np.testing.assert_array_equal(learned, tasks != "other")
        expected = np.where(tasks == "math", texts == "p", np.where(tasks == "code", 2.0, 0.0))
        np.testing.assert_array_equal(rewards, expected)
        advantages = np.asarray(grpo(rewards, 4, learned.astype(np.float32)))
        assert np.isfinite(advantages).all()
        assert not advantages[tasks != "math"].any()


def test_the_first_term_that_applies_says_whether_a_problem_is_solved(subtests):
    both = f"{HERE}:of_math + {HERE}:of_code"
    for reward, fields in ((both, {}), (f"by_set(mine='{both}')", {"task_set": "mine"})):
        for task, text, score in (("math", "p", 1), ("math", "x", 0), ("code", "x", 2)):
            with subtests.test(reward=reward, task=task, text=text):
                found = judged(reward, text, task=task, **fields)
                terms = Rubric(reward).labels
                assert (first_score(found, terms), solves(found, terms)) == (score, score > 0)
        assert first_score(judged(reward, "p", task="other", **fields), terms) == 0


def test_the_numbers_beside_a_score_are_components_and_pred_is_the_answer():
    found = judged(detailed, "5", answer="5")
    assert found == Judgement(0.25, "", {"detailed": 0.25, "detailed/acc": 1.0}, "5")
    assert "without 'score', with acc" in judged(scoreless, "5", answer="5").why


def test_a_reward_of_another_trainer_says_itself_which_fields_it_needs():
    assert not reads_answer(f"{HERE}:boxed + {HERE}:compute_score + format(tags='a')")
    assert reads_answer("tests.rewards.own:tokens")
    assert reads_answer(f"{HERE}:boxed + exact")


def test_what_a_reward_of_another_trainer_lacks_is_said_before_a_run(subtests):
    for reward, row, message in (
        (boxed, {}, r"boxed cannot judge problem 1 .*takes ground_truth, which the row lacks"),
        (compute_score, {"answer": ""}, "takes ground_truth, which the row lacks"),
        (of_state, {}, r"takes trainer_state, which only TRL's trainer has"),
        (compute_batch, {}, r"takes data_sources, .*write it for one completion"),
        (f"{HERE}:of_math(weigth=2)", {}, "no option 'weigth'.*did you mean 'weight'"),
    ):
        with subtests.test(reward=str(reward)), pytest.raises(ValueError, match=message):
            Rubric(reward).check([{"prompt": "p", **row}])
