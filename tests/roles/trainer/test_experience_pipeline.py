"""The user's functions between judging and training, on groups without a run."""

import dataclasses
import functools
import types

import numpy as np
import pytest

from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.roles.trainer.experience_pipeline import pipeline_of
from rl_sync.settings.records import ConfigError
from rl_sync.types import Group
from tests.tasks.loading import load

FILE = """
def nothing(experiences):
    pass

def first(experiences, count=1):
    return experiences[:count]

def unique(experiences):
    for one in experiences:
        seen = set()
        for sample in [*one.samples]:
            sample.notes["copy"] = float(sample.text in seen)
            if sample.text in seen:
                one.samples.remove(sample)
            seen.add(sample.text)

def shaped(experiences, factor=2.0):
    for one in experiences:
        for sample in one.samples:
            sample.reward *= factor
    return tuple(experiences)

def broken(experiences):
    return experiences[0].nowhere

def infinite(experiences):
    experiences[0].samples[0].reward = float("inf")

def noted(experiences):
    experiences[0].samples[0].notes["x"] = "much"

def strange(experiences):
    return ["not one of them"]

def adds(experiences):
    import copy
    experiences[0].samples.append(copy.copy(experiences[0].samples[0]))

def again(experiences):
    return experiences * 2

def same_sample(experiences):
    experiences[0].samples.append(experiences[0].samples[0])

def moves(experiences):
    experiences[0].samples.append(experiences[1].samples.pop())

def beyond(experiences, reward=1e300):
    experiences[0].samples[0].reward = reward

def endless(experiences):
    experiences[0].samples[0].reward = 10**5000

def noted_and_left_out(experiences):
    experiences[0].samples.pop(0).notes["x"] = "much"

def rewarded_and_left_out(experiences):
    experiences[1].samples.pop(0).reward = "good"
    return experiences[:1]

def exits(experiences):
    raise SystemExit(3)

def needs(experiences, price):
    pass

class Needs:
    def __init__(self, price):
        pass

def open_to_all(experiences, **options):
    for one in experiences:
        for sample in one.samples:
            sample.notes.update(options)

def takes_nothing():
    pass

class Remembers:
    def __init__(self, most=1):
        self.most, self.seen = most, {}

    def __call__(self, experiences):
        for one in experiences:
            self.seen[one.prompt_id] = self.seen.get(one.prompt_id, 0) + 1
        return [one for one in experiences if self.seen[one.prompt_id] <= self.most]
"""


@pytest.fixture(name="make")
def _make(tmp_path):
    (tmp_path / "own.py").write_text(FILE)

    def make(*calls):
        made = pipeline_of(", ".join(f"{tmp_path}/own.py:{call}" for call in calls), task())
        assert made is not None
        return made

    return make


@functools.cache
def task():
    return load(arithmetic__held_out_problems=8)


def group(prompt, *texts, rewards=None, **fields):
    """A group of completions; an empty one could not be judged."""
    asked = task().tokenizer.encode_prompt(task().train[prompt].text)
    rows = len(texts)
    tokens = np.zeros((rows, 24), np.int32)
    mask, versions = np.zeros((rows, 24), bool), np.full((rows, 24), -1, np.int32)
    for row, text in enumerate(texts):
        ids = [*task().tokenizer.encode(text.strip("?")), task().tokenizer.eos_id]
        here = slice(len(asked), len(asked) + len(ids))
        tokens[row, : len(asked)], tokens[row, here] = asked, ids
        mask[row, here], versions[row, here] = "?" not in text, 4 + row
    return Group(
        lease_id=prompt,
        ordinal=prompt,
        prompt_id=prompt,
        explorer=1,
        tokens=tokens,
        completion_mask=mask,
        behavior_logprobs=np.zeros((rows, 24), np.float32),
        policy_versions=versions,
        rewards=np.array(rewards or [float(i) for i in range(rows)], np.float32),
        **fields,
    )


def learned(made):
    return [one.completion_mask.any(axis=1).tolist() for one in made]


def test_functions_get_texts_rows_rewards_and_versions(make, monkeypatch):
    pipeline, heard = make("nothing"), []
    hearing = {"f": lambda experiences: heard.extend(experiences)}
    pipeline = dataclasses.replace(pipeline, functions=hearing)
    groups = [
        group(3, "12", "7", "9?"),
        group(1, "5", "5", "6", truncated=np.array([0, 1, 0], bool)),
    ]
    made, metrics = pipeline(9, groups)
    assert [one.prompt_id for one in heard] == [3, 1]
    assert heard[0].step == 9
    assert heard[0].row == task().train[3].fields
    assert [sample.text for sample in heard[0].samples] == ["12", "7", "9"]
    assert [sample.tokens for sample in heard[0].samples] == [3, 2, 0]
    assert [sample.is_judged for sample in heard[0].samples] == [True, True, False]
    assert [sample.version for sample in heard[0].samples] == [4, 5, 6]
    assert [sample.truncated for sample in heard[1].samples] == [False, True, False]
    assert learned(made) == [[True, True, False], [True] * 3]
    assert metrics == {"pipeline/left_out": 0.0}


def test_a_pipeline_that_does_nothing_changes_no_bit(make):
    groups = [group(0, "1", "2"), group(2, "3", "4")]
    made, _ = make("nothing", "shaped(factor=1.0)")(1, groups)
    for one, other in zip(made, groups, strict=True):
        for name, column in one.to_columns().items():
            np.testing.assert_array_equal(column, other.to_columns()[name], err_msg=name)


def test_what_is_left_out_is_masked_and_moves_no_baseline(make):
    groups = [group(0, "1", "2", "1", rewards=[1.0, 0.0, 5.0]), group(2, "3", "3", "4")]
    made, metrics = make("unique")(1, groups)
    assert learned(made) == [[True, True, False], [True, False, True]]
    assert made[0].rewards.tolist() == [1.0, 0.0, 0.5]
    assert made[1].rewards.tolist() == [0.0, 1.0, 2.0]
    assert metrics == {
        "pipeline/copy": pytest.approx(2 / 6),
        "pipeline/left_out": pytest.approx(1 / 3),
    }
    assert groups[0].completion_mask.any(axis=1).all(), "the buffer's group stays as it was"


def test_functions_work_one_after_the_other_with_their_options(make):
    groups = [group(i, "1", "2") for i in range(3)]
    made, metrics = make("first(count=2)", "shaped(factor=3)", "first")(1, groups)
    assert learned(made) == [[True, True], [False, False], [False, False]]
    assert [one.rewards.tolist() for one in made] == [[0.0, 3.0], [0.0, 0.0], [0.0, 0.0]]
    assert metrics["pipeline/left_out"] == pytest.approx(2 / 3)


def test_a_class_remembers_earlier_steps(make):
    pipeline = make("Remembers(most=1)")
    assert learned(pipeline(1, [group(0, "1"), group(1, "1")])[0]) == [[True], [True]]
    assert learned(pipeline(2, [group(0, "1"), group(2, "1")])[0]) == [[False], [True]]


def test_a_batch_has_its_groups_as_the_functions_leave_them(make):
    """The reader selects from what is left, where more is generated than a step needs."""
    from rl_sync.algorithms.screening import UNBOUNDED, Screening
    from rl_sync.roles.trainer.batch_reader import BatchReader
    from rl_sync.schedule import resolve

    groups = [group(0, "1", "1"), group(1, "1", "2"), group(2, "1", "2")]
    settings = types.SimpleNamespace(
        carries_over=False,
        groups_generated=3,
        replay=types.SimpleNamespace(times_sampled=1),
        trainer=types.SimpleNamespace(groups_per_step=1),
        algorithm=types.SimpleNamespace(
            screening=Screening(True, -UNBOUNDED, UNBOUNDED, 1), keep="first"
        ),
    )
    session = types.SimpleNamespace(settings=settings)
    arguments = (session, None, "groups", resolve("synchronous"), lambda: None)
    plain = BatchReader(*arguments)._consume(1, groups)
    assert [one.prompt_id for one in plain.groups] == [0]
    consumed = BatchReader(*arguments, pipeline=make("unique"))._consume(1, groups)
    assert [one.prompt_id for one in consumed.groups] == [1], "of the first, one sample is left"
    assert (consumed.left_out, consumed.notes["pipeline/copy"]) == ([0, 2], pytest.approx(1 / 6))
    parts = [[[1, 0], [1, 9]], [[0, 0], [1, 0]], [[0, 0], [0, 9]]]
    scored = [
        dataclasses.replace(one, parts=np.float32(of))
        for one, of in zip(groups, parts, strict=True)
    ]
    for keep in ("first", "best"):
        settings.algorithm.keep = keep
        filtered = BatchReader(*arguments, filter_weights=(1.0, 0.0))._consume(1, scored)
        assert [one.prompt_id for one in filtered.groups] == [1], "its first parts differ"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "broken",
            r"failed: AttributeError: 'GroupExperience' object has no attribute 'nowhere'"
            r" \(.*own\.py, line \d+\)",
        ),
        ("infinite", r"set reward=inf in a sample of problem 0: it must be a finite number"),
        ("noted", r"set x='much' in a sample of problem 0"),
        ("strange", "returned something that was not among its arguments"),
        ("adds", "added a sample to problem 0 that was not there"),
        ("again", "returned problem 0 2 times: experiences can be left out, not repeated"),
        ("same_sample", "added a sample to problem 0 that was not there, or was there already"),
        ("moves", "added a sample to problem 0 that was not there"),
        ("beyond", r"set reward=1e\+300 in a sample of problem 0: .* at most 3\.4e\+38"),
        ("endless", "set reward=a number of 16610 bits in a sample of problem 0"),
        ("noted_and_left_out", r"set x='much' in a sample of problem 0"),
        ("rewarded_and_left_out", r"set reward='good' in a sample of problem 1"),
        ("exits", "failed: SystemExit: 3"),
    ],
)
def test_a_function_s_mistake_ends_the_run_with_its_name(make, call, message):
    with pytest.raises(
        RunEndedError, match=rf"own\.py:{call} \(1\) of experience\.pipeline {message}"
    ):
        make(call)(1, [group(0, "1", "2"), group(1, "3", "4")])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("frist", "did you mean 'first'"),
        ("first(cuont=2)", "has no option 'cuont': it has count"),
        ("needs", "missing a required argument: 'price'; it has price"),
        ("Needs", "missing a required argument: 'price'; it has price"),
        ("takes_nothing", "takes no argument, but must take the list of experiences"),
    ],
)
def test_a_mistake_in_the_setting_is_refused_before_the_run(make, call, message):
    with pytest.raises(ConfigError, match=rf"experience\.pipeline=.*{message}"):
        make(call)


def test_a_function_may_take_any_options(make):
    _, metrics = make("open_to_all(size=2, share=0.5)")(1, [group(0, "1", "2")])
    assert metrics == {"pipeline/size": 2.0, "pipeline/share": 0.5, "pipeline/left_out": 0.0}


def test_no_reference_is_refused():
    with pytest.raises(ConfigError, match=r"unique is not module:function or path"):
        pipeline_of("unique", task())
    assert pipeline_of(None, task()) is None
