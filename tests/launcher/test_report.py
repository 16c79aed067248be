from launcher.report import _accuracy

from rl_sync.algorithms.algorithm import Algorithm
from rl_sync.processes.results import Result


def test_the_report_gives_both_accuracies_where_held_out_prompts_are_trained_on_too():
    before = {"accuracy": 0.4, "problems": 50}
    parts = {"accuracy_seen": 0.9, "problems_seen": 20}
    parts |= {"accuracy_unseen": 0.1, "problems_unseen": 30}
    result = Result(evaluations={"before RL": before, "after RL": {**before, **parts}})
    assert _accuracy(result, Algorithm()) == [
        "Held-out accuracy before RL: 40.0% of 50 problems",
        "Held-out accuracy after RL: 40.0% of 50 problems (90.0% of 20 whose prompts are trained on"
        " too, 10.0% of 30 others)",
    ]
