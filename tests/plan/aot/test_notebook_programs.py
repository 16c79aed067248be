"""Settings of the notebooks for free accelerators, with a real model's sizes: they fit."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from rl_sync.configs import instruct
from rl_sync.plan.compile_text import describe_compiled
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings

pytestmark = pytest.mark.aot

ROOT = Path(__file__).resolve().parents[3]
SHAPES = ROOT / "benchmarks" / "shapes"
TASK = {
    "name": f"{SHAPES / 'run.py'}:problems",  # Its prompts are longer than any row.
    "too_long": "truncate",
}


def _book(name):
    return nbformat.read(ROOT / "launch" / "colab" / f"{name}.ipynb", as_version=4)


def _dictionaries(book, dtype):
    """Returns the settings that a notebook's cells write as dicts, with a given dtype."""
    found = {}
    for cell in book.cells:
        if cell.cell_type != "code" or "%pip" in cell.source:
            continue
        for one in ast.parse(cell.source).body:
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) in (
                "ROWS", "DEVICE", "MESHES",
            ):  # fmt: skip
                found |= eval(ast.unparse(one.value), {"DTYPE": dtype, "HAS_CHIPS": True})
    return found


def _figures(book, column):
    """Returns the GB of a notebook's table by the first word of its rows."""
    (table,) = (
        cell.source
        for cell in book.cells
        if "| both at their" in cell.source or "v5e:2x2` with" in cell.source
    )
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {row[0]: row[column] for row in rows[1:]}


@pytest.mark.timeout(1800)  # A TPU's compiler takes minutes for the step.
@pytest.mark.parametrize(
    ("name", "target", "dtype"),
    [
        ("gpu_16gb", "t4:1", "float16"),
    ],
)
def test_a_notebook_fits_its_accelerator_as_it_says(name, target, dtype, devices):
    devices(target)
    book = _book(name)
    config = instruct.get_config()
    config.update_from_flattened_dict(_dictionaries(book, dtype))
    assert config.model.dtype == dtype
    config.task.update(TASK)
    config.tokenizer.update({"path": str(ROOT / "tests" / "data" / "tokenizer"), "chat": "no"})
    config.model.path = str(SHAPES / "qwen2.5-0.5b")
    settings = read_settings({**config.to_dict(), "workdir": "none"})
    text = "\n".join(describe_compiled(settings, wiring.load_task(settings), target))
    assert "WARNING" not in text
    assert "NOT fit" not in text
    assert "does not compile" not in text
    said = _figures(book, 1)
    for row, pattern in (
        ("trainer's step", r"step \[.*\n +([\d.]+) GB"),
        ("explorer's decode", r"decode \[.*\n +([\d.]+) GB"),
        ("explorer with", r"from shapes: ([\d.]+) GB a device"),
    ):
        (gb,) = (float(value) for label, value in said.items() if label.startswith(row))
        assert float(re.search(pattern, text)[1]) == pytest.approx(gb, rel=0.1), row
