"""Programs of the notebooks for free accelerators, with real models' sizes: they fit."""

import ast
import dataclasses
import re
from pathlib import Path

import jax
import nbformat
import numpy as np
import pytest

from rl_sync.configs import instruct
from rl_sync.models.huggingface.reading import load_config
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.placement import abstract_params, cast_abstract
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import Layout
from rl_sync.plan.compile_text import describe_compiled
from rl_sync.plan.compiled_text import CompiledProgramText
from rl_sync.plan.lowered_programs import layout_on, rollout_programs
from rl_sync.plan.targets import target
from rl_sync.reward_models.model_on_devices import ModelSite, program_of
from rl_sync.reward_models.self_judge import verdict_logprobs
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.mesh_settings import ShardingSettings

pytestmark = pytest.mark.aot

ROOT = Path(__file__).resolve().parents[3]
SHAPES = ROOT / "benchmarks" / "shapes"
TASK = {
    "name": f"{SHAPES / 'run.py'}:problems",  # Its prompts are longer than any row.
    "too_long": "truncate",
}
ON_TPU = {"HAS_CHIPS": True}
CASES = {
    "t4:1": ("gpu_16gb", 1, {"DTYPE": "float16"}),
    "v5e:2x2": ("tpu_8chips", 1, {**ON_TPU, "SIDE": 2}),
    "v5e:2x4": ("tpu_8chips", 2, {**ON_TPU, "SIDE": 4}),
}
"""Notebook of each target, the column of its table, and what its settings depend on."""
JUDGED_TOKENS = 1024


def _book(name):
    return nbformat.read(ROOT / "launch" / "colab" / f"{name}.ipynb", as_version=4)


def _dictionaries(book, given):
    """Returns the dicts of settings that a notebook's cells make, by name."""
    found = {}
    for cell in book.cells:
        if cell.cell_type == "code" and "%" not in cell.source:
            for line in ast.parse(cell.source).body:
                name = ast.unparse(line.targets[0]) if isinstance(line, ast.Assign) else ""
                if name in ("ROWS", "DEVICE", "SITE"):
                    found[name] = eval(ast.unparse(line.value), dict(given))
    return found


def _gigabytes(book, label, column):
    """Returns what the notebook's table of memory says in the row that begins with a label."""
    tables = [cell.source for cell in book.cells if cell.cell_type == "markdown"]
    rows = [line.strip("| ").split(" | ") for text in tables for line in text.splitlines()]
    (row,) = (row for row in rows if row[0].startswith(label) and len(row) > column)
    return float(row[column])


def _settings(chips):
    """Returns a notebook's settings on a target, and its task of the longest rows."""
    name, _, given = CASES[chips]
    book = _book(name)
    found = _dictionaries(book, given)
    config = instruct.get_config()
    config.update_from_flattened_dict(found["ROWS"])
    config.task.update(TASK)
    config.tokenizer.update({"path": str(ROOT / "tests" / "data" / "tokenizer"), "chat": "no"})
    config.model.path = str(SHAPES / "qwen2.5-0.5b")
    config.update_from_flattened_dict(found["DEVICE"])
    settings = read_settings({**config.to_dict(), "workdir": "none"})
    return settings, wiring.load_task(settings)


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # A TPU's compiler takes minutes for the step.
@pytest.mark.parametrize("chips", CASES)
def test_a_notebook_fits_its_accelerator_as_it_says(chips, devices):
    devices(chips)
    name, column, _ = CASES[chips]
    settings, task = _settings(chips)
    text = "\n".join(describe_compiled(settings, task, chips))
    assert "WARNING" not in text
    assert "NOT fit" not in text
    assert "does not compile" not in text
    book = _book(name)
    for label, pattern in (
        ("trainer's step", r"step \[.*\n +([\d.]+) GB"),
        ("explorer's decode", r"decode \[.*\n +([\d.]+) GB"),
        ("explorer with", r"from shapes: ([\d.]+) GB a device"),
    ):
        found = float(re.search(pattern, text)[1])
        assert found == pytest.approx(_gigabytes(book, label, column), rel=0.1), label


def test_the_explorer_decodes_on_four_chips_of_eight(devices):
    chips = "v5e:2x4"
    settings, task = _settings(chips)
    own = devices(chips)[settings.trainer.mesh.shape.devices :]
    layout = layout_on(settings, "explorer", own)
    assert layout.mesh.size == len(own) == 4
    programs = rollout_programs(settings, task, layout)
    (decode,) = (program for program in programs if program.name == "decode")
    peak = CompiledProgramText.of(decode.compile()).memory.peak
    name, column, _ = CASES[chips]
    said = _gigabytes(_book(name), "explorer's decode", column)
    assert peak / 1e9 == pytest.approx(said, rel=0.1)


def test_the_judge_fits_the_other_four_chips(devices):
    name, column, given = CASES["v5e:2x2"]
    book = _book(name)
    site = ModelSite(**_dictionaries(book, given)["SITE"])
    shape = MeshShape(site.data, site.fsdp, site.tensor)
    model = dataclasses.replace(load_config(SHAPES / "qwen2.5-7b"), dtype=site.dtype)
    layout = Layout(shape.mesh(devices("v5e:2x2")), ShardingSettings().rules)
    layout = layout.grouped(model.num_kv_heads)
    params = cast_abstract(abstract_params(model, layout), site.dtype)
    size = (site.rows, JUDGED_TOKENS)
    tokens = jax.ShapeDtypeStruct(size, np.int32, sharding=layout.sharding(("batch",), size))
    count = jax.ShapeDtypeStruct((site.rows,), np.int32, sharding=layout.repeated)
    with compiling_for(site.platform):
        lowered = program_of(verdict_logprobs, model, layout).lower(params, tokens, count, count)
    peak = CompiledProgramText.of(lowered.compile()).memory.peak
    assert peak < target("v5e:2x2").chip.memory
    assert peak / 1e9 == pytest.approx(_gigabytes(book, "judge's pass", column), rel=0.1)
