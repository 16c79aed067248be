import pytest

from rl_sync.addons.games.calculator import Calculator, worked_out
from rl_sync.environments.interface import Outcome, Reply

TASK = {"prompt": "12*34=", "answer": "408"}


@pytest.mark.parametrize(
    ("asked", "result"),
    [
        ("12*34", "408"),
        ("7-12", "-5"),
        (" 1 + 2 ", "3"),
        ("9**9", "error"),
        ("2**99999999", "error"),
        ("1" * 19 + "+1", "error"),
        ("__import__('os')", "error"),
        ("", "error"),
        ("1/2", "error"),
    ],
)
def test_sums_differences_and_products_are_worked_out_and_nothing_else(asked, result):
    assert worked_out(asked) == result


def test_a_call_is_answered_and_the_reply_after_it_is_judged():
    calculator = Calculator()
    first = calculator.reset(TASK, seed=0)
    assert [message.content for message in first.messages] == ["12*34="]
    assert first.stop_strings == (">",)
    (answer,) = calculator.step(Reply("let me see <12*34>")).messages
    assert (answer.role, answer.content) == ("tool", "408=")
    assert calculator.step(Reply("408")) == Outcome({"answer": 1.0}, {"calls": 1})


def test_an_answer_without_a_call_is_judged_too():
    calculator = Calculator()
    calculator.reset(TASK, seed=0)
    assert calculator.step(Reply("400")) == Outcome({"answer": 0.0}, {"calls": 0})


def test_calls_are_counted_anew_in_each_episode():
    calculator = Calculator()
    for _ in range(2):
        calculator.reset(TASK, seed=0)
        calculator.step(Reply("<1+1>"))
        assert calculator.step(Reply("408")).metrics == {"calls": 1}
