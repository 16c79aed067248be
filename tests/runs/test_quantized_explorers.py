"""Runs whose explorers hold kernels of 8 bits, over each transfer and between unlike meshes."""

from __future__ import annotations

import itertools

import pytest

from rl_sync.records.metrics import read_metrics
from tests.runs.conftest import EMBEDDED

UNLIKE = (
    "--config.trainer.mesh.fsdp=2",
    "--config.trainer.mesh.context=2",
    "--config.explorer.mesh.tensor=2",
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(
            ("--config.sync.mode=synchronous", "--config.explorer.quantization=int8"),
            marks=pytest.mark.gate,
        ),
        pytest.param(
            (
                "--config.sync.mode=one_step_off_policy",
                "--config.sync.transfer=collective",
                "--config.explorer.quantization=float8_e4m3fn",
                *UNLIKE,
            ),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            (
                "--config.sync.mode=asynchronous",
                "--config.sync.transfer=server",
                "--config.sync.delta=on",
                "--config.explorer.quantization=int8",
                "--config.explorer.dtype=bfloat16",
                *UNLIKE,
            ),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            (
                "--config.sync.mode=asynchronous",
                "--config.sync.transfer=checkpoint",
                "--config.sync.delta=off",
                "--config.explorer.quantization=float8_e4m3fn",
                *UNLIKE,
            ),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            (
                "--config.sync.mode=asynchronous",
                "--config.sync.transfer=checkpoint",
                "--config.sync.delta=on",
                "--config.explorer.quantization=int8",
                "--config.model.experts.count=4",
            ),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            (
                "--config.sync.mode=asynchronous",
                "--config.explorer.quantization=int8",
                "--config.model.lora.rank=2",
            ),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["one process", "collective", "server", "checkpoint", "files", "adapters"],
)
def test_quantized_kernels_arrive_and_are_corrected_for(runs, flags):
    run = runs.get(*flags, EMBEDDED, "--config.trainer.steps=4")
    assert [step["step"] for step in run.consumed] == [1, 2, 3, 4]
    used = set(itertools.chain.from_iterable(run.versions(step) for step in run.consumed))
    assert max(used) > 0
    gaps = [line["logprob_gap"] for line in read_metrics(run.workdir, "rl")]
    assert 1e-4 < min(gaps) < max(gaps) < 0.3
    assert run.settings.algorithm.correction == "token_truncation"
