"""A run whose trainer computes each prompt once for all of its completions."""

import numpy as np
import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.records.spans import SpanKind
from tests.runs.conftest import EMBEDDED, flags

pytestmark = pytest.mark.nightly

FLAGS = (
    *flags("synchronous", steps=3),
    EMBEDDED,
    "--config.sft.steps=0",
    "--config.trainer.mesh.fsdp=2",
    "--config.trainer.processes=2",
)
OF_THE_CLOCK = ("secs", "tokens_per_sec", "time/")


def test_a_run_with_shared_prompts_learns_what_others_learn(runs):
    """The trainer's second process gets its rows from the first one."""
    of_kinds = [
        runs.get(*FLAGS, f"--config.trainer.batching={kind}") for kind in ("padded", "shared")
    ]
    padded_rows, shared_rows = (
        [span.attributes for span in run.spans(SpanKind.COMPILE, role="trainer")]
        for run in of_kinds
    )
    # Nothing is compiled for a batch that will not come.
    assert {one["row_tokens"] for one in shared_rows} == {256}
    assert shared_rows[-1]["row_tokens"] > padded_rows[-1]["row_tokens"]
    padded, shared = (read_metrics(run.workdir, "rl") for run in of_kinds)
    assert [line["step"] for line in shared] == [1, 2, 3]
    computed = {name for name in padded[0] if not any(of in name for of in OF_THE_CLOCK)}
    assert {"loss", "entropy", "gradient_norm", "logprob_gap"} <= computed
    for name in computed:
        if isinstance(padded[0][name], float):
            np.testing.assert_allclose(
                shared[0][name], padded[0][name], rtol=1e-3, atol=1e-4, err_msg=name
            )
