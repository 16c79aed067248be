"""`plan --compile` says what it compiles before it does, which may take minutes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rl_sync.aot.programs import Program
from rl_sync.launcher import compiling


def test_a_program_is_named_before_it_is_compiled(capsys):
    said_before = []

    def lower():
        said_before.append(capsys.readouterr().err)
        return jax.jit(lambda x: x * 2).lower(jnp.zeros(3))

    found = compiling._compiled(Program("explorer", "decode", (8, 1024), lower))
    assert said_before == ["  compiling explorer decode [8 × 1,024] …\n"]
    assert found.reading is not None
    assert capsys.readouterr() == ("", "")


def test_a_program_that_does_not_compile_was_named_too(capsys):
    def lower():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    found = compiling._compiled(Program("trainer", "train_step", (4,), lower))
    assert "compiling trainer train_step [4] …" in capsys.readouterr().err
    assert (found.reading, "RESOURCE_EXHAUSTED" in found.why) == (None, True)
