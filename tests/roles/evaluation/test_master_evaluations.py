"""The master's evaluations: their order, and the best snapshot."""

import contextlib
import dataclasses
import threading
import types

from rl_sync.checkpoints.snapshots import snapshot_path
from rl_sync.messages.master_calls import HandInEvaluation, HandInMeasured
from rl_sync.messages.run_result import Best
from rl_sync.messages.scoring_calls import CompletionToScore
from rl_sync.rewards.judgement import Judgement
from rl_sync.roles.evaluation.evaluator import EvaluationSet
from rl_sync.roles.evaluation.master_evaluations import Evaluations
from rl_sync.rollout.sampling import Sampling
from rl_sync.types import Prompt
from rl_sync.workdir import Workdir

TASK = types.SimpleNamespace(
    held_out=[Prompt(0, "1+1=", "2"), Prompt(1, "2+2=", "4")], is_seen=lambda prompt: False
)


class Judging:
    """Solves the problems whose completion says so, when it is let."""

    judged = 0

    def __init__(self):
        self.may = threading.Event()

    def judgements(self, items):
        assert self.may.wait(20)
        return [Judgement(float(item.text)) for item in items]

    def first_score(self, one):
        return one.score


@contextlib.contextmanager
def evaluations(workdir, metric="accuracy"):
    measured, judging = [], Judging()
    made = Evaluations(
        EvaluationSet(TASK, Sampling(4, (0,)), problems=8),
        judging,
        category="category",
        metric=metric,
        workdir=Workdir(workdir),
        publish=measured.append,
    )
    with contextlib.closing(made):
        yield made, judging, measured


def handed_in(step, *texts):
    items = [
        CompletionToScore(
            prompt_id=i, held_out=True, lease_id=-1, text=text, tokens=[], truncated=False
        )
        for i, text in enumerate(texts)
    ]
    return HandInEvaluation(f"after step {step}", step, items)


def all_measured(made):
    made.wait()


def test_who_hands_in_does_not_wait_and_results_come_in_the_order_of_the_evaluations(tmp_path):
    with evaluations(tmp_path) as (made, judging, measured):
        for step in (2, 4, 6):
            made.hand_in(handed_in(step, "1", "0"))
        waiting = threading.Thread(target=made.wait)
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        assert made.kept == [2, 4, 6], "each may become the best"
        judging.may.set()
        all_measured(made)
        assert [one.step for one in measured] == [2, 4, 6]


def test_the_first_of_the_greatest_is_the_best_and_stays_so_in_the_next_run(tmp_path):
    with evaluations(tmp_path) as (made, judging, measured):
        judging.may.set()
        for step, texts in {0: "11", 2: "00", 4: "10", 6: "01", 8: "00"}.items():
            made.hand_in(handed_in(step, *texts))
        all_measured(made)
        assert [one.best and one.best.step for one in measured] == [None, 2, 4, 4, 4]
        assert made.kept == [4]
    snapshot_path(Workdir(tmp_path).snapshots, 4).mkdir()
    with evaluations(tmp_path) as (made, judging, measured):
        judging.may.set()
        made.resume(8)
        made.hand_in(handed_in(10, "1", "0"))
        all_measured(made)
        assert measured[-1].best == Best(4, "accuracy", 0.5)
        made.resume(3)
        assert made.kept == [], "the run has not come to step 4 any more"


def test_the_time_that_rollouts_lost_is_a_metric_where_an_explorer_evaluates(tmp_path):
    with evaluations(tmp_path) as (made, judging, measured):
        judging.may.set()
        made.hand_in(handed_in(2, "1", "1"))
        made.hand_in(dataclasses.replace(handed_in(4, "1", "1"), lost_secs=1.23456))
        all_measured(made)
        lost = [one.values.get("rollouts_lost_secs") for one in measured]
        assert lost == [None, 1.235]


def test_without_a_metric_no_snapshot_is_the_best(tmp_path):
    with evaluations(tmp_path, metric=None) as (made, judging, measured):
        judging.may.set()
        made.hand_in(handed_in(2, "1", "1"))
        all_measured(made)
        assert (made.kept, measured[0].best) == ([], None)
        assert not Workdir(tmp_path).best.exists()


def test_what_was_judged_is_measured_by_problem(tmp_path):
    with evaluations(tmp_path) as (made, judging, measured):
        judging.may.set()
        made.hand_in(handed_in(2, "1"))
        made.hand_in(handed_in(2, "0", "1"))
        made.hand_in(handed_in(2, "0", "0"))
        all_measured(made)
        (one,) = measured
        assert one.values["accuracy"] == 1.0
        assert one.values["problems"] == 2


def test_an_evaluation_that_is_measured_already_is_published_and_may_be_the_best(tmp_path):
    with evaluations(tmp_path) as (made, _, measured):
        made.publish(HandInMeasured("after step 2", 2, {"accuracy": 0.75}))
        made.publish(HandInMeasured("after step 4", 4, {"accuracy": 0.5}))
    assert [one.values["accuracy"] for one in measured] == [0.75, 0.5]
    assert [one.best for one in measured] == [Best(2, "accuracy", 0.75)] * 2
