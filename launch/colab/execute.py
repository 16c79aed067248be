"""Executes the notebooks beside this file and saves them with their outputs.

    pip install -e '.[test]'
    python launch/colab/execute.py [NAME …] [--set=STEPS=2 …] [--to=DIRECTORY]

Each notebook runs from top to bottom in a kernel of this Python, in a new directory. `--set`
changes a setting in the cell of settings. The outputs are then not those of the notebook as it
stands, so `--to` must give another directory for them.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import io
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).resolve().parent
SETTINGS = "parameters"
"""The tag of the cell of settings."""

PICTURE = "image/png"
_MOST_SECS = 3600
_KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path: Path, settings: Mapping[str, Any], folder: Path) -> NotebookNode:
    """Runs a notebook, and returns it with its outputs.

    Args:
      path: the notebook.
      settings: values that replace the notebook's own in its cell of settings, by name.
      folder: the directory in which it runs, which keeps the files that it writes.

    Raises:
      ValueError: the notebook has no such setting.
      nbclient.exceptions.CellExecutionError: a cell failed.
    """
    book = nbformat.read(path, as_version=4)
    own = with_settings(book, settings)
    client = NotebookClient(
        book,
        timeout=_MOST_SECS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    if own is not None:
        own[0].source = own[1]
    return tidied(book)


def with_settings(
    book: NotebookNode, settings: Mapping[str, Any]
) -> tuple[NotebookNode, str] | None:
    """Changes settings in their cell; returns the cell and its former text, or None for no change.

    Raises:
      ValueError: the notebook has no such setting.
    """
    if not settings:
        return None
    cell = next(cell for cell in book.cells if SETTINGS in cell.metadata.get("tags", []))
    names = {
        target.id
        for statement in ast.parse(cell.source).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    if unknown := set(settings) - names:
        raise ValueError(f"{min(unknown)} is not a setting; there are {', '.join(sorted(names))}.")
    before = cell.source
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in settings.items())
    return cell, before


def tidied(book: NotebookNode) -> NotebookNode:
    """Removes what differs between executions but means nothing; returns the same notebook."""
    book.metadata = nbformat.from_dict({**_KERNEL, "rl_sync": {"executed": digest(book)}})
    for number, cell in enumerate(book.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict(
            {name: cell.metadata[name] for name in ("tags",) if name in cell.metadata}
        )
        if cell.cell_type == "code":  # Warnings and progress bars depend on the machine.
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
        for output in cell.get("outputs", []):
            output.pop("transient", None)
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            if PICTURE in output.get("data", {}):
                output.data[PICTURE] = compact(output.data[PICTURE])
    return book


def compact(picture: str) -> str:
    """Reduces a base64 PNG to 256 colours, which halves a chart but does not visibly change it."""
    written = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        image.convert("RGB").quantize(256).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def digest(book: NotebookNode) -> str:
    """Returns a digest of the code; with it a test checks that this code made the outputs.

    The first cell, which installs the project if it is missing, is left out: no output depends
    on it.
    """
    text = "\0".join([cell.source for cell in book.cells if cell.cell_type == "code"][1:])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main() -> None:
    """Executes the notebooks that the command line names, or all."""
    arguments = _arguments()
    for name in arguments.names:
        path, started = FOLDER / f"{name}.ipynb", time.monotonic()
        with tempfile.TemporaryDirectory(prefix="rl_sync-") as folder:
            book = executed(path, arguments.settings, Path(folder))
        to = (arguments.to or FOLDER) / path.name
        to.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(book, to)
        print(f"{to}: {time.monotonic() - started:.0f} s", flush=True)


def _arguments() -> argparse.Namespace:
    known = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="given")
    parser.add_argument("--to", type=Path, metavar="DIRECTORY", help="default: beside this file")
    arguments = parser.parse_args()
    arguments.names = [name.removesuffix(".ipynb") for name in arguments.names] or known
    if unknown := sorted(set(arguments.names) - set(known)):
        sys.exit(f"error: {unknown[0]} is not a notebook here; there are {', '.join(known)}.")
    if arguments.given and arguments.to is None:
        sys.exit("error: with --set, say by --to=DIRECTORY where the notebooks are written.")
    arguments.settings = dict(_setting(text) for text in arguments.given)
    return arguments


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


if __name__ == "__main__":
    main()
