"""The sums of configs/smollm2.py: their questions, their few-shot form and their reward."""

from rl_sync.configs import smollm2
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from tests.models.huggingface.golden import ROOT

SUMS = 2000


def loaded(seed):
    config = smollm2.get_config()
    config.workdir, config.seed = "nowhere", seed
    config.model.path = str(ROOT / "qwen2")
    settings = read_settings(config.to_dict())
    return settings, wiring.load_task(settings)


def test_each_sum_is_asked_once_after_three_solved_ones():
    _, task = loaded(0)
    prompts = [*task.train, *task.held_out]
    assert len({prompt.text for prompt in prompts}) == len(prompts) == SUMS - 3
    for prompt in prompts[::100]:
        *solved, asked = prompt.text.split("\n")
        assert len(solved) == 3
        for line in (*solved, f"{asked} {prompt.answer}"):
            question, _, answer = line.partition(" = ")
            assert sum(map(int, question.split(" + "))) == int(answer)
            assert len(question) == 7


def test_right_answers_score_1_and_others_nothing():
    settings, task = loaded(1)
    rubric = Rubric(settings.task.reward)
    rows = task.held_out[:20]
    for shift, score in ((0, 1.0), (1, 0.0)):
        judged = rubric.judge(
            [
                ScoringRequest(one.fields, Completion(f" {int(one.answer) + shift}\n"))
                for one in rows
            ]
        )
        assert {one.score for one in judged} == {score}


def test_the_seed_draws_them():
    texts = [{prompt.text for prompt in loaded(seed)[1].held_out} for seed in (0, 0, 1)]
    assert texts[0] == texts[1]
    assert not texts[0] & texts[2]
