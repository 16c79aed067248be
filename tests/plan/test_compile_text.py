"""`plan --compile` says what it compiles before it does, which may take minutes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from rl_sync.plan import compile_text
from rl_sync.plan.compiled_text import CompiledProgramText, MemoryUse
from rl_sync.plan.lowered_programs import LowerableProgram
from rl_sync.plan.targets import Target
from rl_sync.roles import wiring
from tests.plan.test_memory_text import settings_with


def test_a_program_is_named_before_it_is_compiled(capsys):
    said_before = []

    def lower():
        said_before.append(capsys.readouterr().err)
        return jax.jit(lambda x: x * 2).lower(jnp.zeros(3))

    found = compile_text._compiled(LowerableProgram("explorer", "decode", (8, 1024), lower))
    assert said_before == ["  compiling explorer decode [8 × 1,024] …\n"]
    assert found.reading is not None
    assert capsys.readouterr() == ("", "")


def test_a_program_that_does_not_compile_was_named_too(capsys):
    def lower():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    found = compile_text._compiled(LowerableProgram("trainer", "train_step", (4,), lower))
    assert "compiling trainer train_step [4] …" in capsys.readouterr().err
    assert (found.reading, "RESOURCE_EXHAUSTED" in found.why) == (None, True)


class Slow(Target):
    """A target on which computing takes nearly all the time."""

    @property
    def chip(self):
        return super().chip._replace(flops=1.0)


@pytest.mark.parametrize(
    ("kl", "says"), [(0.1, ": MFU at most 75%"), (0.0, " of the model's FLOPs")]
)
def test_a_bound_of_mfu_is_named_where_it_says_something(monkeypatch, kl, says):
    read = CompiledProgramText("", MemoryUse(0, 0, 0, 0, 0))
    monkeypatch.setattr(
        compile_text, "_compiled", lambda one: compile_text._Compiled(one, read, 1.0)
    )
    settings = settings_with(algorithm__name="grpo", algorithm__kl_coefficient=kl)
    task, where = wiring.load_task(settings), Slow("v5e", (1, 1))
    _, lines = compile_text._step(settings, task, where, settings.trainer_layout)
    assert f"limited by computing{says}" in lines[-1]
    assert "100%" not in lines[-1]
