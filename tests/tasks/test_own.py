"""Tasks of the user's own file."""

import pytest

from rl_sync.tasks import own
from tests.tasks.loading import load

SOURCE = """
from rl_sync.tasks.problems import Problems
from rl_sync.types import Prompt

def sums(seed, count=20):
    return ({"prompt": f"{i}+{seed}=", "answer": str(i + seed), "size": i} for i in range(count))

def parts():
    train, held_out = ({"question": text, "answer": text} for text in "ab")
    return {"train": [train], "held_out": [held_out]}

def problems():
    return Problems([Prompt(0, "a", "b")], [Prompt(0, "c", "d")], [], reward="final_answer")

class Level:
    def __init__(self, level=1):
        self.level = level

    def load(self, seed):
        return list(sums(seed, 10 * self.level))

def nothing():
    return []

def number():
    return 3

def texts():
    return ["a"]

def halves():
    return {"train": []}

def fails():
    raise RuntimeError("no data today")
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_rows_of_a_function_are_mapped_and_some_are_held_out(file):
    task = load(seed=5, name=f"{file}:sums(count=30)")
    assert (len(task.train), len(task.held_out)) == (27, 3)
    prompt = task.train[0]
    assert prompt.answer == str(prompt.row["size"] + 5)
    assert prompt.fields["size"] == prompt.row["size"]
    again = load(seed=5, name=f"{file}:sums(count=30)")
    assert again.train == task.train


def test_a_class_a_mapping_and_problems_are_tasks_too(file):
    assert len(load(name=f"{file}:Level(level=2)").train) == 18
    task = load(name=f"{file}:parts", dataset__prompt="question")
    assert [one.text for one in (*task.train, *task.held_out)] == ["a", "b"]
    assert load(name=f"{file}:problems").reward == "final_answer"
    assert load(name=f"{file}:problems", reward="exact").reward == "exact"


def test_names_are_told_from_references():
    assert own.is_own("a.py:f(x='b:c')")
    assert not own.is_own("arithmetic")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("sums(cont=3)", "has no option 'cont': it has seed, count; did you mean 'count'"),
        ("nothing", "has no rows"),
        ("number", "returned a int; it must return rows"),
        ("texts", "row 1 is 'a', not a mapping of fields"),
        ("halves", "returned a mapping of train; it must have train and held_out"),
        ("fails", "failed: RuntimeError: no data today"),
        ("missing", "has no 'missing'"),
    ],
)
def test_what_is_no_task_is_refused(file, call, message):
    with pytest.raises(ValueError, match=message):
        load(name=f"{file}:{call}")


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'arithmetic'"):
        load(name="aritmetic")
