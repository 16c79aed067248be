"""Programs that threads compile before they are needed."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from rl_sync.roles.assembly import compile_ahead
from rl_sync.roles.assembly.compile_ahead import Ahead, ahead_of
from rl_sync.roles.assembly.program_list import Listed


class Programs:
    """Programs that are compiled when they are allowed to be, and remember that they were."""

    def __init__(self):
        self.begun, self.may, self.compiled = threading.Event(), threading.Event(), []

    def listed(self, key, fails=False):
        def compile():
            self.begun.set()
            assert self.may.wait(10)
            if fails:
                raise ValueError("too large")
            self.compiled.append(key)

        return Listed("rollout", key, key, lambda: SimpleNamespace(compile=compile))


def test_a_program_that_is_being_compiled_is_waited_for_and_others_are_taken_over():
    programs, compiling = Programs(), Ahead(threads=1)
    compiling.begin(lambda: map(programs.listed, "abc"))
    assert programs.begun.wait(10)
    compiling.settle("b")  # Not begun: the caller compiles it.
    waiting = threading.Thread(target=compiling.settle, args="a")
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    programs.may.set()
    waiting.join(10)
    assert not waiting.is_alive()
    assert programs.compiled[0] == "a"
    assert "b" not in programs.compiled
    compiling._compiled["c"].result(10)
    for key in "cd":
        compiling.settle(key)
    counts = compiling.counts
    assert (counts.listed, counts.ready, counts.awaited) == (3, 1, 1)
    assert (counts.at_need, counts.unlisted) == (1, 1)


def test_a_failure_is_logged_and_left_to_the_call_that_needs_the_program(caplog):
    programs, compiling = Programs(), Ahead(threads=1)
    programs.may.set()
    compiling.begin(lambda: [programs.listed("decode", fails=True)])
    compiling._compiled["decode"].result(10)
    compiling.settle("decode")
    assert "decode could not be compiled ahead" in caplog.text
    assert "too large" in caplog.text


def test_a_role_that_ends_leaves_what_is_not_begun():
    programs, compiling = Programs(), Ahead(threads=1)
    compiling.begin(lambda: map(programs.listed, "ab"))
    assert programs.begun.wait(10)
    compiling.close()  # Does not wait.
    programs.may.set()
    compiling._compiled["a"].result(10)
    assert programs.compiled == ["a"]
    assert compiling._compiled["b"].cancelled()


def test_without_threads_nothing_is_even_listed():
    compiling = Ahead(threads=0)
    compiling.begin(lambda: pytest.fail("listed"))
    compiling.settle("a")
    assert compiling.counts.unlisted == 1


@pytest.mark.parametrize(
    ("platform", "processes", "configured", "threads"),
    [
        ("cpu", 1, None, 0),
        ("cpu", 1, 3, 3),
        ("gpu", 1, None, 4),
        ("gpu", 2, None, 0),
        ("tpu", 2, None, 4),
        ("tpu", 1, 0, 0),
    ],
)
def test_accelerators_compile_ahead_unless_told_otherwise(
    platform, processes, configured, threads, monkeypatch
):
    monkeypatch.setattr(compile_ahead.jax, "default_backend", lambda: platform)
    monkeypatch.setattr(compile_ahead.os, "cpu_count", lambda: 8)
    launch = SimpleNamespace(compile_ahead=configured)
    settings = SimpleNamespace(launch=launch, processes_of=lambda role: processes)
    assert ahead_of(settings, "trainer").threads == threads
