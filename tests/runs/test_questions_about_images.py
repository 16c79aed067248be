"""Runs of configs/vqa.py with tiny checkpoints that see."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from rl_sync.records.metrics import read_metrics
from rl_sync.workdir import Workdir
from tests.odd_images import drawn
from tests.runs.conftest import EMBEDDED, ROOT, RunRecord, assert_within_the_staleness_bound
from tests.tasks.pictures.seeing import seeing_gemma3, seeing_smolvlm

PROMPTS, STEPS = 12, 2
SMALL = (
    "--config=configs/vqa.py",
    f"--config.trainer.steps={STEPS}",
    "--config.trainer.groups_per_step=4",
    "--config.trainer.group_size=2",
    "--config.task.max_prompt_tokens=58",
    "--config.task.max_completion_tokens=6",
    "--config.algorithm.entropy_coefficient=0.1",  # No completion earns a reward.
    "--config.reward.workers=0",
)


def _png(number):
    made = io.BytesIO()
    drawn(20 + number, 16, seed=number).save(made, "PNG")
    return made.getvalue()


def _rows():
    return [
        {"prompt": f"no {number}?", "answer": str(number % 4), "kind": "count"}
        for number in range(PROMPTS)
    ]


def _jsonl(directory):
    """Writes rows with paths and data URLs."""
    rows = _rows()
    for number, row in enumerate(rows):
        (directory / f"{number}.png").write_bytes(_png(number))
        url = "data:image/png;base64," + base64.b64encode(_png(number)).decode()
        row["images"] = [url if number % 2 else f"{number}.png"]
    (directory / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(directory / "rows.jsonl")


def _parquet(directory):
    """Writes rows with the bytes of files."""
    rows = [row | {"images": {"bytes": _png(number)}} for number, row in enumerate(_rows())]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), directory / "rows.parquet")
    return str(directory / "rows.parquet")


@pytest.mark.parametrize(
    ("checkpoint", "data", "flags"),
    [
        pytest.param(seeing_gemma3, _jsonl, (), marks=pytest.mark.nightly, id="gemma3"),
        pytest.param(
            seeing_smolvlm,
            _parquet,
            (),
            marks=pytest.mark.nightly,
            id="smolvlm",
        ),
        pytest.param(
            seeing_gemma3,
            _parquet,
            ("--config.model.lora.rank=0", "--config.model.vision.trains_tower=true"),
            marks=pytest.mark.nightly,
            id="with-its-tower",
        ),
    ],
)
def test_a_checkpoint_that_sees_trains_on_questions_about_images(
    runs, checkpoint, data, flags, tmp_path
):
    words = [
        *(sys.executable, "-m", "launcher", *SMALL, EMBEDDED, *flags),
        f"--config.model.path={checkpoint(tmp_path / 'model')}",
        f"--config.task.dataset.path={data(tmp_path)}",
        f"--config.workdir={tmp_path / 'run'}",
    ]
    variables = {**os.environ, **runs.variables}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunRecord(Workdir(tmp_path / "run"), done.stdout)
    assert_within_the_staleness_bound(run)
    lines = read_metrics(run.workdir, "rl")
    assert len(lines) == STEPS
    assert all(line["gradient_norm"] > 0 for line in lines)
    # Rounding to bfloat16 is all that explorer and trainer differ by.
    assert np.isfinite([line["logprob_gap"] for line in lines]).all()
    assert max(line["logprob_gap"] for line in lines) < 0.05
