"""The master's judging: records, metrics, and the limit of completions that cannot be judged."""

import concurrent.futures
import functools
import math
import threading
import time
import types

import numpy as np
import pytest

from rl_sync.isolation.codec import decode, encode
from rl_sync.messages.scoring_calls import CompletionToScore, ScoredCompletion
from rl_sync.records.rollouts.record_parts import parts_in, removed_parts
from rl_sync.records.span_reader import read_spans
from rl_sync.records.spans import SpanRecorder
from rl_sync.rewards.judgement import Judgement
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.role_names import MASTER
from rl_sync.scoring.judging import MasterScoring, is_above, to_judge
from rl_sync.tasks.tokenizers.tokenizer import CharacterTokenizer
from rl_sync.thoughts import marks_of
from rl_sync.types import NO_LEASE, Prompt
from rl_sync.workdir import Workdir
from tests.records.judgement_lines import read_judgements

TASK = types.SimpleNamespace(
    train=[Prompt(0, "1+1=", "2", {"size": 3}), Prompt(1, "2+2=", "4")],
    held_out=[Prompt(0, "3+3=", "6")],
    reward="main + extra",
    tokenizer=CharacterTokenizer("0123456789+=?"),
)


class Scripted:
    """Gives the score that the completion says; `?` cannot be judged."""

    worker_secs = 0.25

    def __init__(self):
        self.judged, self.rows = 0, []
        self.tokens = []

    def judge(self, items, timeout_secs=None):
        self.rows += [item.row for item in items]
        self.tokens += [item.completion.tokens for item in items]
        self.judged += len(items)
        return [self.one(item.completion.text) for item in items]

    def one(self, text):
        if text == "?":
            return Judgement.unknown("too hard")
        score = float(text.rstrip("\x00"))
        return Judgement(score, "as told", {"main": score, "extra": 0.5})

    def close(self):
        pass


class Desk:
    def __init__(self, workdir, terms=("main",), parts=(), most_bytes=0, **settings):
        self.judge, self.failures = Scripted(), []
        self.judging = MasterScoring(
            task=TASK,
            judge=self.judge,
            terms=terms,
            settings=RewardSettings(**settings),
            workdir=Workdir(workdir),
            spans=SpanRecorder(Workdir(workdir).spans_of(MASTER), MASTER),
            fail=self.failures.append,
            parts=parts,
            most_bytes=most_bytes,
        )

    def __call__(self, *texts, lease=7, held_out=False, problem=0):
        items = [CompletionToScore(problem, held_out, lease, text, [1], False) for text in texts]
        return self.judging.verdicts(items)


def test_each_batch_of_completions_is_a_span_of_the_master(tmp_path):
    desk = Desk(tmp_path)
    desk("1", "0.5", "?")
    desk("1")
    desk.judging.close()
    first, second = read_spans(tmp_path)

    def of(completions):
        return {"completions": completions, "worker_secs": 0.25}

    assert (first.role, first.kind, first.attributes) == ("master", "score", of(3))
    assert second.attributes == of(1)


def test_verdicts_have_the_scores_by_parts_and_nan_by_parts_that_give_none(tmp_path):
    desk = Desk(tmp_path, parts=("extra", "main", "absent"))
    none = math.nan
    np.testing.assert_array_equal(
        [one.parts for one in desk("1", "0.25", "?")],
        [(0.5, 1.0, none), (0.5, 0.25, none), (none, none, none)],
    )


def test_verdicts_come_with_what_the_main_term_says(tmp_path):
    desk = Desk(tmp_path)
    assert desk("1", "0.5", "?") == [
        ScoredCompletion(1.0, True),
        ScoredCompletion(0.5, False),
        ScoredCompletion(None, False),
    ]
    assert desk.judge.rows[0] == {"prompt": "1+1=", "answer": "2", "size": 3}
    desk("1", held_out=True, lease=NO_LEASE)
    assert desk.judge.rows[-1]["prompt"] == "3+3="
    assert desk.judging.verdicts([]) == []


def test_the_answer_is_judged_apart_from_its_thoughts():
    def judged(text, begun="", thoughts=TASK.tokenizer.thoughts):
        task = types.SimpleNamespace(
            train=TASK.train, tokenizer=types.SimpleNamespace(thoughts=thoughts)
        )
        item = CompletionToScore(0, False, 7, text, [1], False, begun=begun)
        assert decode(encode(item)) == item
        request = decode(encode(to_judge(task, item)))
        assert request.row == TASK.train[0].fields
        assert (request.completion.whole, request.completion.begun) == (text, begun)
        return request.completion.text

    assert judged("<think>3?</think>\n2") == "2"
    assert judged("3?</think>2", "<think>") == "2"
    assert judged("3?", "<think>") == ""
    assert judged("2") == "2"
    assert judged("<a>3?</a>2", thoughts=marks_of("<a> </a>")) == "2"
    assert judged("<think>3?</think>2", thoughts=marks_of("none")) == "<think>3?</think>2"


def test_metrics_are_of_the_groups_of_a_step(tmp_path):
    desk = Desk(tmp_path)
    desk("1", "0", lease=1)
    desk("1", "?", lease=2)
    desk("0", lease=3)
    desk("0", held_out=True, lease=NO_LEASE)
    assert desk.judging.metrics([1, 2], [1, 2], 2) == {
        "reward_mean": pytest.approx(2 / 3),
        "reward_std": pytest.approx(np.std([1, 0, 1])),
        "reward_min": 0.0,
        "reward_max": 1.0,
        "reward/main": pytest.approx(2 / 3),
        "reward/extra": 0.5,
        "reward/unjudged": 1.0,
        "unprintable_fraction": 0.0,
    }
    assert desk.judging.metrics([1], [], 2) == {"reward/unjudged": 0.0}
    assert desk.judging.metrics([3], [], 2) == desk.judging.metrics([3], [3], 2)
    desk("1", lease=4)
    desk.judging.forget([4, 5])
    assert desk.judging.metrics([4], [], 2) == {"reward/unjudged": 0.0}


def test_rewards_of_a_step_leave_out_greedy_baselines_and_are_empty_where_nothing_was_judged(
    tmp_path,
):
    desk = Desk(tmp_path)
    desk("0", "0", "1", lease=1)  # The last one is the greedy completion.
    desk("?", "?", lease=2)
    assert desk.judging.metrics([1], [], 2)["reward_mean"] == 0.0
    assert desk.judging.metrics([1], [], 2)["reward/main"] == 0.0
    nothing = desk.judging.metrics([2], [], 2)
    assert all(math.isnan(nothing[f"reward_{of}"]) for of in ("mean", "std", "min", "max"))
    assert nothing["reward/unjudged"] == 2.0


def test_groups_that_nobody_solved_are_counted_where_other_terms_shape_the_reward(tmp_path):
    """A completion says its score by `main` and by `extra`."""
    desk = Desk(tmp_path, terms=("main", "extra"))

    def one(text):
        if text == "?":
            return Judgement.unknown("too hard")
        main, extra = map(float, text.split())
        components = {"extra": extra} if np.isnan(main) else {"main": main, "extra": extra}
        return Judgement(sum(components.values()), "as told", components)

    desk.judge.one = one
    groups = [
        ("0 0.1", "0 0.2", "?"),  # Nobody solved it, and rewards differ.
        ("0 0.1", "0 0.1", "?"),
        ("-1 0.1", "0 0.1", "0 0.2"),  # The first term makes advantages, too.
        ("1 0.1", "0 0.1", "0 0.2"),
        ("0.1 0", "0.1 0.2", "?"),
        ("?", "?", "?"),
        ("nan 0.1", "nan 0.2", "?"),  # The first term does not apply; the second is above 0.
        ("nan 0", "nan 0", "nan 0"),
    ]
    for lease, texts in enumerate(groups):
        desk(*texts, lease=lease)
    of = [desk.judging.metrics([lease], [], 3) for lease in range(len(groups))]
    unsolved = [1, 1, 1, 0, 0, None, 0, 1]
    assert [one.get("groups_unsolved") for one in of] == unsolved
    assert [one.get("groups_shaped_only") for one in of] == [1, 0, 0, 0, 0, None, 0, 0]
    every = desk.judging.metrics([*range(len(groups))], [], 3)
    assert (every["groups_unsolved"], every["groups_shaped_only"]) == (4 / 7, 1 / 7)


def test_judgements_of_groups_can_be_had_until_they_are_forgotten(tmp_path):
    desk = Desk(tmp_path)
    desk("1", "?", lease=1)
    desk("0", lease=3)
    found = desk.judging.of_leases([3, 2, 1])
    assert found.counts == [1, 0, 2]
    assert found.scores == [0.0, 1.0, None]
    assert found.whys == ["as told", "as told", "too hard"]
    assert found.components == [{"main": 0.0, "extra": 0.5}, {"main": 1.0, "extra": 0.5}, {}]
    assert found.answers == found.endings == [None] * 3
    assert decode(encode(found)) == found
    desk.judging.metrics([1], [1], 2)
    assert desk.judging.of_leases([1, 3]).counts == [0, 1]


def test_the_last_completions_are_examples_and_what_cannot_be_printed_is_counted(tmp_path):
    desk = Desk(tmp_path)
    desk("1\x00", "0", lease=1)
    desk("5", held_out=True, lease=NO_LEASE)
    assert desk.judging.metrics([1], [1], 2)["unprintable_fraction"] == 0.5
    desk("2", "3", lease=2)
    assert desk.judging.examples() == (
        "'1+1=' → '0': as told",
        "'1+1=' → '2': as told",
        "'1+1=' → '3': as told",
    )


@pytest.mark.parametrize(("record", "count"), [("all", 3), ("unjudged", 1), ("none", 0)])
def test_judgements_are_recorded_with_their_reasons(tmp_path, record, count):
    desk = Desk(tmp_path, record=record)
    desk("1", "?", "0")
    desk.judging.close()
    records = read_judgements(tmp_path)
    assert len(records) == count
    if count == 3:
        first, lost, _ = records
        assert (first["why"], first["components"]) == ("as told", {"main": 1.0, "extra": 0.5})
        assert (lost["score"], lost["why"], lost["completion"]) == (None, "too hard", "?")


def test_the_oldest_judgements_go_and_a_later_master_goes_on(tmp_path):
    folder, scores = Workdir(tmp_path).judgements, [f"{number / 64}" for number in range(64)]
    for part in (scores[:32], scores[32:]):
        desk = Desk(tmp_path, most_bytes=2000)
        for score in part:
            desk(score)
        desk.judging.close()
    kept = [str(record["score"]) for record in read_judgements(tmp_path)]
    assert kept == scores[-len(kept) :], "the newest stay, each once, in order"
    size = sum(part.path.stat().st_size for part in parts_in(folder))
    assert 1500 < size <= 2000
    notes = removed_parts(Workdir(tmp_path).removed(folder))
    assert [one.first for one in notes] == [*range(1, parts_in(folder)[0].number)]


def test_too_many_that_cannot_be_judged_stop_the_run_with_examples(tmp_path):
    desk = Desk(tmp_path, unjudged_limit=0.1)
    desk(*["1"] * 17, *["?"] * 6)
    assert desk.failures == []
    desk("?")
    assert "7 of the last 24 completions could not be judged" in desk.failures[0]
    assert "reward.unjudged_limit=0.1 allows" in desk.failures[0]
    assert "'1+1=' → '?': too hard" in desk.failures[0]
    free = Desk(tmp_path, unjudged_limit=1.0)
    free(*["?"] * 50)
    assert free.failures == []


@pytest.mark.parametrize(
    ("lost", "count", "stops"),
    [
        (3, 23, False), (16, 16, True), (8, 8, True), (7, 7, False), (2, 20, False),
        (6, 24, False), (7, 24, True), (20, 200, False), (30, 200, False), (31, 200, True),
    ],
)  # fmt: skip
def test_a_share_above_the_limit_by_chance_stops_nothing(tmp_path, lost, count, stops):
    desk = Desk(tmp_path, unjudged_limit=0.1)
    desk(*["1"] * (count - lost))
    desk(*["?"] * lost)
    assert bool(desk.failures) is stops


def test_the_limit_holds_with_its_confidence():
    binomial = np.random.default_rng(0).binomial
    for limit in (0.02, 0.1, 0.5):
        for count in (16, 50, 200):
            alarms = [is_above(lost, count, limit) for lost in binomial(count, limit, 2000)]
            assert np.mean(alarms) < 0.02, "in one of a hundred, by chance"
    assert is_above(1, 200, 0.0)
    assert not is_above(0, 200, 0.0)


def test_one_problem_that_cannot_be_judged_stops_nothing_where_others_are(tmp_path):
    desk = Desk(tmp_path, unjudged_limit=0.1)
    desk(*["1"] * 16)
    desk(*["?"] * 16, problem=1)
    assert desk.failures == []
    desk("?", problem=0)
    assert "17 of the last 33 completions" in desk.failures[0]


def test_a_reward_that_judges_none_of_the_first_problems_stops_the_run_before_it_begins(tmp_path):
    for score, failed in (("?", True), ("0", False)):
        desk = Desk(tmp_path)
        desk.judge.one = functools.partial(lambda one, score, _: one(score), desk.judge.one, score)
        desk.judging.start()
        deadline = time.monotonic() + 10
        while desk.judge.judged < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert bool(desk.failures) is failed
        assert not failed or "judged none of the first problems" in desk.failures[0]
        # Rewards of the length read tokens; an answer ends like a completion.
        assert desk.judge.tokens == [[*TASK.tokenizer.encode(a), 1] for a in ("2", "4")]


def test_a_trial_of_the_reward_ends_quietly_with_a_run_that_ends_first(tmp_path, monkeypatch):
    faults, asked = [], threading.Event()
    monkeypatch.setattr(threading, "excepthook", faults.append)
    desk = Desk(tmp_path)

    def cancelled(*_):
        asked.set()
        raise concurrent.futures.CancelledError

    desk.judge.judge = cancelled
    desk.judging.start()
    assert asked.wait(10)
    for thread in threading.enumerate():
        if thread.name == "reward trial":
            thread.join(10)
    assert (faults, desk.failures) == ([], [])
