"""Completion and judgement of held-out problems."""

import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest

from rl_sync.cluster.pending import Await
from rl_sync.configs import gsm8k
from rl_sync.ending import Ending
from rl_sync.messages.scoring_calls import CompletionToScore, ScoredCompletion, Scores
from rl_sync.rewards.judgement import Completion, Judgement
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.roles.assembly import wiring
from rl_sync.roles.evaluation import evaluator as evaluation
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion
from rl_sync.rollout.sampling import Sampling
from rl_sync.scoring.judging import first_score, to_judge
from rl_sync.settings.config_reading import read_settings
from tests.cluster.memory_session import MemorySession
from tests.environments.families import FAMILIES, load_model, model
from tests.settings.changed import config_with
from tests.tasks import loading


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    answer = "It is 3 x 4 = 12.\n#### 12"
    rows = [{"question": f"3 x 4? Say it {i} times.", "answer": answer} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)))
    fields = {
        "task__dataset__path": str(path),
        "tokenizer__path": "tests/data/tokenizer",  # Which ends with 2 or 7.
        "rollout__stop_ids": "9, 11",
        "rollout__stop_strings": ".|!",
        "rollout__temperature": 0.7,
    }
    return read_settings(config_with(gsm8k.get_config(), **fields))


@pytest.fixture(scope="module")
def task(settings):
    return wiring.load_task(settings)


def test_every_end_of_the_tokenizer_and_every_one_of_the_users_ends_a_completion(settings, task):
    for sampling in (wiring.sampling(settings, task), wiring.greedy_sampling(settings, task)):
        assert set(sampling.stop_ids) == {2, 7, 9, 11}
        assert sampling.stop_strings == (".", "!")
        assert sampling.max_new_tokens == task.max_completion_tokens
    assert not wiring.sampling(settings, task).greedy
    assert wiring.greedy_sampling(settings, task).greedy


class Session(MemorySession):
    """Gives verdicts."""

    def __init__(self, *given):
        super().__init__(lambda call: Scores([*given], []) if isinstance(call, Await) else None)


@pytest.fixture
def engine(task):
    """Makes engines that complete every prompt with 12, ended in each of the two ways."""

    class Scripted:
        asked: ClassVar[list[CompletionRequest]] = []

        def load(self, params, version):
            assert params == "params"
            self.version = version

        def generate(self, requests):
            self.asked.extend(requests)
            ends = [(2, 7)[i % 2] for i in range(len(requests))]
            tokens = [np.array([*task.tokenizer.encode("12"), end], np.int32) for end in ends]
            return [
                [
                    FinishedCompletion(i, j, x, x, np.full_like(x, self.version), "stop")
                    for j in range(request.completions)
                ]
                for i, (x, request) in enumerate(zip(tokens, requests, strict=True))
            ]

    return Scripted


def evaluator(settings, task, session, engine):
    examination = wiring.examination(settings, task)
    greedy = wiring.greedy_sampling(settings, task)
    return evaluation.Evaluator(session, examination, greedy, engine)


def test_an_evaluation_ends_completions_as_rollouts_do_and_has_their_text_judged(
    settings, task, engine
):
    session = Session()
    evaluator(settings, task, session, engine).hand_in("params", "after step 3", 3)
    assert [one.sampling for one in engine.asked] == [wiring.greedy_sampling(settings, task)] * 2
    assert engine.asked[0].prompt.tolist() == task.tokenizer.encode_prompt(task.held_out[0].text)
    (call,) = session.calls
    assert (call.moment, call.step) == ("after step 3", 3)
    asked_for = [(one.prompt_id, one.held_out, one.text, one.truncated) for one in call.items]
    assert asked_for == [(p.prompt_id, True, "12", False) for p in task.held_out]


def test_thoughts_that_a_template_begins_are_no_part_of_the_answer(task):
    template, special, bos, plain = FAMILIES["thinking"]
    begins = template.replace("<|im_start|>assistant\n{%", "<|im_start|>assistant\n<think>\n{%")
    assert begins != template
    tokenizer = load_model(model(special, plain), begins, special[0], bos=bos)
    thinker = dataclasses.replace(task, tokenizer=tokenizer, max_prompt_tokens=200)
    assert "which begins the thoughts of replies with <think>:" in thinker.describe_prompt()
    assert "begins the thoughts" not in task.describe_prompt()
    examination = evaluation.EvaluationSet(thinker, Sampling(4, (0,)), problems=2)

    def completed(text):
        tokens = np.array([*tokenizer.encode(text), tokenizer.eos_id], np.int32)
        return [FinishedCompletion(0, 0, tokens, tokens, tokens, "stop")]

    items = examination.written([completed("3 x 4\n</think>\n\n12"), completed("#### 12")])
    assert [one.begun for one in items] == ["<think>\n"] * 2
    judged = [to_judge(thinker, one).completion for one in items]
    assert [one.text for one in judged] == ["12", ""]
    assert [one.whole for one in judged] == ["3 x 4\n</think>\n\n12", "#### 12"]


def test_several_completions_of_a_problem_are_drawn_and_each_has_its_number(settings, task, engine):
    several = dataclasses.replace(
        settings, evaluation=dataclasses.replace(settings.evaluation, samples=3, temperature=0.5)
    )
    session = Session()
    evaluator(several, task, session, engine).hand_in("params", "after step 3", 3)
    assert {(one.sampling.greedy, one.sampling.temperature) for one in engine.asked} == {
        (False, 0.5)
    }
    assert len({one.seed for one in engine.asked}) == len(engine.asked) == 2
    (call,) = session.calls
    assert [(one.prompt_id, one.sample) for one in call.items] == [
        (problem, sample) for problem in (0, 1) for sample in range(3)
    ]


def test_without_a_temperature_of_their_own_evaluations_draw_as_rollouts_do(settings, task):
    several = dataclasses.replace(
        settings, evaluation=dataclasses.replace(settings.evaluation, samples=3)
    )
    assert wiring.examination(several, task).sampling == wiring.sampling(settings, task)


def test_a_probe_waits_for_its_verdicts(settings, task, engine):
    session = Session(ScoredCompletion(1.0, True), ScoredCompletion(0.5, False))
    values = evaluator(settings, task, session, engine).accuracy("params", 8)
    assert (values["accuracy"], values["problems"]) == (0.5, 2)
    session = Session(ScoredCompletion(1.0, True))
    assert evaluator(settings, task, session, engine).accuracy("params", 1)["accuracy"] == 1.0


def judged(number, answer="", sample=0, score=1.0):
    item = CompletionToScore(number, True, -1, answer, [], False, sample)
    return item, Judgement(score, answer=answer or None)


def test_answers_about_images_are_measured_by_kind_of_question():
    task = loading.load(name="shapes", shapes__problems=50, shapes__held_out_problems=100)
    examination = evaluation.EvaluationSet(task, Sampling(4, (0,)), problems=100)
    sheet, rubric = evaluation.EvaluationResults(examination, "category"), Rubric(task.reward)
    for prompt in examination.prompts:
        kind, x1 = prompt.row["category"], 0
        if kind == "box":
            x1, *others = prompt.row["boxes"][0]
            x1 += (others[1] - x1) // 2
            answer = str([x1, *others])  # The right half of the box.
        else:
            answer = prompt.answer if kind in ("count", "side") else "nothing"
        request = ScoringRequest(prompt.fields, Completion(answer))
        judgement = rubric.judge([request])[0]
        sheet.add(judged(prompt.prompt_id)[0], judgement, first_score(judgement, ["vision"]))
    values = sheet.measure()
    kinds = ("count", "color", "side", "bigger", "box")
    assert [values[f"accuracy/{kind}"] for kind in kinds] == [1, 0, 1, 0, 0]
    assert [values[f"problems/{kind}"] for kind in kinds] == [20] * 5
    assert [values[f"score/{kind}"] for kind in kinds] == [1, 0, 1, 0, 0.5]
    assert (values["accuracy"], values["score"]) == (0.4, pytest.approx(0.5))


def test_a_completion_counts_once_however_often_it_comes(settings, task):
    examination = dataclasses.replace(wiring.examination(settings, task), samples=2)
    sheet = evaluation.EvaluationResults(examination, "category")
    items = [judged(0)[0], judged(1)[0], judged(0)[0], judged(0, sample=1)[0]]
    assert sheet.new(items) == [items[0], items[1], items[3]]
    assert sheet.new(items) == []
    for item, one in (judged(0), judged(1), judged(0, score=0.0), judged(0, sample=1)):
        sheet.add(item, one, one.score)
    assert not sheet.is_complete
    sheet.add(*judged(1, sample=1, score=None), 0.0)
    assert sheet.is_complete
    assert [[one.solved for one in problem.answers] for problem in sheet.problems] == [
        [True, True],
        [True, None],
    ]


def test_votes_are_the_answers_that_the_reward_has_read(settings, task):
    sheet = evaluation.EvaluationResults(wiring.examination(settings, task), "category")
    sheet.add(judged(0)[0]._replace(text=" The  Sum\nis 12"), Judgement(1.0), True)
    sheet.add(judged(1)[0]._replace(text="whatever"), Judgement(1.0, answer="12"), True)
    assert [problem.answers[0].vote for problem in sheet.problems] == [None, "12"]


def test_problems_have_the_category_of_their_row_and_are_seen_if_they_are_trained_on(
    settings, task
):
    seen = task.train[3]._replace(prompt_id=1, row={"level": 3})
    task = dataclasses.replace(task, held_out=[task.held_out[0], seen])
    sheet = evaluation.EvaluationResults(wiring.examination(settings, task), "level")
    assert [(one.category, one.is_seen) for one in sheet.problems] == [("", False), ("3", True)]


def test_games_of_several_players_are_won_drawn_or_lost(settings, task):
    examination = dataclasses.replace(wiring.examination(settings, task), samples=3)
    sheet = evaluation.EvaluationResults(examination, "category")
    results = ["won", "won", "lost", "drawn", "cut", "unjudged"]
    for number, result in enumerate(results):
        metrics = {name: float(name == result) for name in ("won", "drawn", "lost")}
        ending = Ending({}, {} if result == "cut" else metrics, "done", "", 3, seat=number % 2)
        score = None if result == "unjudged" else 0.0
        item, one = judged(number % 2, sample=number // 2, score=score)
        sheet.add(item._replace(ending=ending), one, float(result == "won"))
    values = sheet.measure()
    found = [values[f"games_{name}"] for name in ("won", "drawn", "lost")]
    assert found == pytest.approx([2 / 5, 1 / 5, 1 / 5])
    assert values["accuracy"] == pytest.approx((1 / 3 + 1 / 2) / 2), "of two problems"
    alone = evaluation.EvaluationResults(wiring.examination(settings, task), "category")
    alone.add(*judged(0), True)
    assert "games_won" not in alone.measure()
