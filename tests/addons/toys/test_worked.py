import dataclasses
import re

import numpy as np
import pytest

from rl_sync.addons.toys.worked import WorkedConfig, answer, load, text, tired_working, working
from rl_sync.configs import long_tail
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.tasks.tokenizers.tokenizer import completion_tokens
from tests.tasks import loading

CONFIG = WorkedConfig(
    problems=600,
    held_out_problems=100,
    median_additions=5.0,
    spread=0.9,
    most_additions=34,
    tired_after=6,
    slip=0.2,
    tired_slip=0.7,
)
RANDOM = np.random.default_rng(0)


def test_a_working_counts_down_and_adds_up_units_first():
    assert text(7, 3, 58) == "7*03+58="
    assert working(7, 3, 58, done=3) == "20:56010:27000:970#970"
    assert answer(7, 3, 58) == "970"


def test_who_loses_count_leaves_out_the_last_addition():
    always = dataclasses.replace(CONFIG, slip=1.0, tired_slip=1.0)
    assert tired_working(7, 3, 58, always, RANDOM) == "20:56010:270#270"
    assert tired_working(7, 1, 58, always, RANDOM) == "#850"


def test_who_never_slips_is_right_everywhere():
    never = dataclasses.replace(CONFIG, slip=0.0, tired_slip=0.0)
    for term in range(2, 10):
        for count in range(1, 35):
            written = tired_working(term, count, 99, never, RANDOM)
            assert written.endswith(f"#{answer(term, count, 99)}")
            assert int(answer(term, count, 99)[::-1]) == 99 + term * count


@pytest.mark.parametrize(("tired", "share"), [(False, 0.2), (True, 0.7)])
def test_the_pupil_slips_as_often_as_configured_and_more_often_when_tired(tired, share):
    task = load(dataclasses.replace(CONFIG, problems=3000), seed=0)
    right = {p.text: p.answer for p in task.train}
    slips = [
        not p.answer.endswith(f"#{right[p.text]}")
        for p in task.demonstrations
        if (_count(p) > 6) == tired
    ]
    assert np.mean(slips) == pytest.approx(share, abs=0.04)


def test_each_problem_is_there_once_and_those_held_out_are_not_demonstrated():
    task = load(CONFIG, seed=0)
    held_out, trained = ([p.text for p in part] for part in (task.held_out, task.train))
    assert (len(held_out), len(trained)) == (100, 600)
    assert len({*held_out, *trained}) == 700
    assert {p.text for p in task.demonstrations} == set(trained)
    assert [p.prompt_id for p in task.train] == list(range(600))
    assert all(p.text == task.train[p.prompt_id].text for p in task.demonstrations)


def test_answers_of_problems_are_right():
    for prompt in [*load(CONFIG, seed=1).train, *load(CONFIG, seed=1).held_out]:
        term, count, start = map(int, re.findall(r"\d+", prompt.text))
        assert int(prompt.answer[::-1]) == term * count + start


@pytest.mark.gate
def test_completions_are_of_very_different_lengths_and_most_are_short():
    task = loading.load(name="worked")
    lengths = [completion_tokens(task.tokenizer, p.answer) for p in task.demonstrations]
    assert max(lengths) >= 10 * min(lengths)
    assert np.percentile(lengths, 99) > 3 * np.median(lengths)
    assert np.median(lengths) < np.mean(lengths)


def test_the_answer_alone_is_rewarded():
    prompt, *_ = load(CONFIG, seed=0).train
    texts = (f"00:000#{prompt.answer}", f"#{prompt.answer}", prompt.answer)
    judged = Rubric("final_answer").judge(
        [ScoringRequest(prompt.fields, Completion(text)) for text in texts]
    )
    assert [one.score for one in judged] == [1.0, 1.0, 0.0]


def test_the_seed_decides_which_problems_there_are():
    first, again, other = (load(CONFIG, seed).held_out for seed in (0, 0, 1))
    assert first == again != other


def test_more_problems_than_there_are_are_refused():
    with pytest.raises(ValueError, match=r"more than the 720 problems with at most most"):
        load(dataclasses.replace(CONFIG, most_additions=1, problems=700), seed=0)


def _count(prompt):
    return int(re.findall(r"\d+", prompt.text)[1])


@pytest.mark.gate
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "multi_explorer"])
def test_the_shipped_config_has_room_for_every_right_working(mode):
    config = long_tail.get_config()
    config.workdir, config.sync.mode = "none", mode
    settings = read_settings(config.to_dict())
    task, most = wiring.load_task(settings), settings.task.worked.most_additions
    longest = working(9, most, 99, done=most)
    assert completion_tokens(task.tokenizer, longest) <= task.max_completion_tokens
    assert task.reward == "final_answer"
    assert not task.notes
