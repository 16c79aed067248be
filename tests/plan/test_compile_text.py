"""`plan --compile` shows what it compiles, which may take minutes, and can be interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from rl_sync.launcher import command_line
from rl_sync.launcher.commands import plan
from rl_sync.plan import compile_progress, compile_text
from rl_sync.plan.compile_progress import CompileProgress, CompilingInterruptedError
from rl_sync.plan.compile_text import describe_compiled
from rl_sync.plan.compiled_text import CompiledProgramText, MemoryUse
from rl_sync.plan.lowered_programs import LowerableProgram
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.memory_text import format_bytes
from rl_sync.plan.targets import Target
from rl_sync.roles.assembly import wiring
from tests.plan.test_memory_text import settings_with

ROOT = Path(__file__).resolve().parents[2]


def test_a_program_is_named_before_it_is_compiled(capsys):
    said_before = []

    def lower():
        said_before.append(capsys.readouterr().err)
        return jax.jit(lambda x: x * 2).lower(jnp.zeros(3))

    found = compile_text._compiled(
        LowerableProgram("explorer", "decode", (8, 1024), lower), CompileProgress(4)
    )
    assert said_before == ["  compiling explorer decode [8 × 1,024] (1 of 4) …\n"]
    assert found.reading is not None
    assert capsys.readouterr() == ("", "")


def test_a_program_that_does_not_compile_was_named_too(capsys):
    def lower():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    program = LowerableProgram("trainer", "train_step", (4,), lower)
    found = compile_text._compiled(program, CompileProgress(1))
    assert "compiling trainer train_step [4] (1 of 1) …" in capsys.readouterr().err
    assert (found.reading, "RESOURCE_EXHAUSTED" in found.why) == (None, True)


def test_a_terminal_shows_the_seconds_so_far_in_one_line_that_vanishes(monkeypatch, capsys):
    monkeypatch.setattr(compile_progress, "_LOOK_SECS", 0.4)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = CompileProgress(2)
    assert progress.compiling("one", lambda: "first") == "first"
    capsys.readouterr()
    progress.compiling("two", lambda: time.sleep(1.3))
    shown = capsys.readouterr().err
    assert "\n" not in shown
    assert re.findall(r"compiling two \(2 of 2\), (\d) s", shown)[::3] == ["0", "1"]
    assert shown.endswith("\r\x1b[K")


def test_an_interrupt_does_not_wait_for_the_compiler():
    progress, over = CompileProgress(3), threading.Event()
    progress.compiling("one", lambda: None)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(CompilingInterruptedError, match="while two was compiled: 1 of 3 programs"):
        progress.compiling("two", lambda: over.wait(20))
    assert time.monotonic() - started < 10
    over.set()


_PLAN = """
import signal, sys, time, jax
from rl_sync.plan import compile_text
from rl_sync.plan.memory.explorer_memory import explorer_estimate
from rl_sync.plan.memory.memory_text import format_bytes
from rl_sync.plan.targets import Target
from rl_sync.launcher.__main__ import main

# Processes that a shell started in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
Target.devices = lambda self: jax.devices()
compile_text.rollout_programs = lambda *of, real=compile_text.rollout_programs: [
    one._replace(lower=lambda: time.sleep(60)) for one in real(*of)
]
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.nightly
def test_an_interrupted_plan_keeps_what_is_compiled_and_says_so_in_one_line():
    flags = ["plan", "--config=configs/arithmetic.py", "--compile=v5e:1x1"]
    with subprocess.Popen(
        [sys.executable, "-c", _PLAN, *flags],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr:
            if "(2 of 4)" in line:
                break
        interrupted = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    assert time.monotonic() - interrupted < 20
    assert process.returncode == 130
    assert re.search(r"\n  trainer    step \[[\d, ×]+\], compiled in \d+ s\n", out)
    assert " a step, limited by " in out.splitlines()[-1]
    assert re.fullmatch(
        r"Interrupted while explorer prefill \[.*\] was compiled: 1 of 4 programs are done.\n", err
    )


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
        compile_text, "_compiled", lambda one, _: compile_text._Compiled(one, read, 1.0)
    )
    settings = settings_with(algorithm__name="grpo", algorithm__kl_coefficient=kl)
    task, where = wiring.load_task(settings), Slow("v5e", (1, 1))
    _, _, lines = compile_text._step(
        settings, task, where, settings.trainer_layout, CompileProgress(1)
    )
    assert f"limited by computing{says}" in lines[-1]
    assert "100%" not in lines[-1]


@pytest.fixture(name="uncompiled")
def _uncompiled(monkeypatch):
    """Lays meshes on this machine's devices, and gives each program a peak of 1 GB."""
    peak = MemoryUse(0, 0, 0, 0, 10**9)
    monkeypatch.setattr(
        compile_text,
        "_compiled",
        lambda one, _: compile_text._Compiled(one, CompiledProgramText("", peak), 1.0),
    )
    monkeypatch.setattr(Target, "devices", lambda self: jax.devices()[: self.count])


@pytest.mark.gate
@pytest.mark.parametrize(
    ("target", "dtypes", "says"),
    [
        (
            "t4:1",
            {"model__dtype": "bfloat16"},
            "trainer.compute_dtype=bfloat16 and explorer.dtype=",
        ),
        ("t4:1", {"explorer__dtype": "bfloat16"}, "t4 has no units for explorer.dtype=bfloat16,"),
        ("t4:1", {"model__dtype": "float16"}, None),
        ("t4:1", {}, None),
        ("l4:1", {"model__dtype": "bfloat16"}, None),
    ],
)
def test_a_dtype_without_units_on_the_target_is_warned_of(uncompiled, target, dtypes, says):
    settings = settings_with(**dtypes)
    lines = [*describe_compiled(settings, wiring.load_task(settings), target)]
    found = [line for line in lines if "WARNING" in line]
    assert len(found) == (says is not None)
    if says:
        assert says in found[0]
        assert "use model.dtype=float16" in found[0]


@pytest.mark.parametrize(
    ("target", "colocate", "says"),
    [
        ("t4:1", None, "take turns on 1"),
        ("t4:1", False, "more than one such machine"),
        ("t4:2", None, "have 1 + 1 of its 2 devices"),
    ],
)
def test_the_target_decides_whether_roles_share_a_device(
    uncompiled, capsys, target, colocate, says
):
    words = ["plan", f"--config={ROOT}/configs/arithmetic.py", f"--compile={target}"]
    if colocate is not None:
        words.append(f"--config.launch.colocate={colocate}")
    assert plan.execute(command_line.parse(words)) == 0
    (division,) = [x for x in capsys.readouterr().out.splitlines() if "Compiled for" in x]
    assert says in division


@pytest.mark.parametrize(("share", "count"), [(True, 1), (False, 2)])
def test_roles_that_share_devices_have_the_sum_of_their_memory(uncompiled, share, count):
    mode = {"sync__mode": "one_step_off_policy"}
    settings = settings_with(launch__colocate=True, launch__share_devices=share, **mode)
    lines = [*describe_compiled(settings, wiring.load_task(settings), f"t4:{count}")]
    assert ("take turns on 1" in lines[0]) == share
    sums = [re.search(r"([\d.]+ [MG]B) a device", x)[1] for x in lines if "  together " in x]
    if not share:
        assert not sums
        return
    explorer = explorer_estimate(settings, wiring.load_task(settings), "gpu").peak
    assert sums == [format_bytes(explorer + 10**9)]
