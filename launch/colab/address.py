"""Writes the repository's address into the notebooks: into their first cells, and as a badge.

    python launch/colab/address.py

The address is `Repository` of `[project.urls]` in pyproject.toml. If it is declared, the first cell
of each notebook installs the project from it; if it is on GitHub, a badge below each title opens
the notebook in Colab. If none is declared, the first cell installs the clone that contains the
notebook. Run this when the address changes; the notebooks need not be executed again.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nbformat
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent
PROJECT = FOLDER.parents[1] / "pyproject.toml"
CLONE = "../.."
"""What a notebook installs without an address: the clone, as seen from its folder."""

_GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?")
_BADGE = re.compile(r"\n\n\[!\[Open in Colab\].*")
_SOURCE = re.compile(r'^SOURCE = ".*"$', re.M)


def declared(project: Path = PROJECT) -> str | None:
    """Returns the address of the repository that a pyproject.toml declares, or None."""
    urls = tomllib.loads(project.read_text())["project"].get("urls", {})
    return next((url for name, url in urls.items() if name.lower() == "repository"), None)


def source(address: str | None) -> str:
    """Returns what pip installs: the repository at an address, or the clone."""
    return f"git+{address.rstrip('/')}" if address else CLONE


def badge(address: str | None, name: str) -> str | None:
    """Returns the Markdown badge that opens a notebook in Colab, or None without a GitHub address.

    Colab opens notebooks only by their address on GitHub.
    """
    if not (found := address and _GITHUB.fullmatch(address)):
        return None
    host = "https://colab.research.google.com"
    where = f"{host}/github/{found[1]}/blob/main/launch/colab/{name}.ipynb"
    return f"[![Open in Colab]({host}/assets/colab-badge.svg)]({where})"


def addressed(book: NotebookNode, name: str, address: str | None) -> NotebookNode:
    """Writes an address into a notebook, in place of its earlier address."""
    title = book.cells[0]
    title.source = _BADGE.sub("", title.source)
    if shown := badge(address, name):
        first, _, rest = title.source.partition("\n")
        title.source = f"{first}\n\n{shown}\n{rest}"
    install = next(cell for cell in book.cells if cell.cell_type == "code")
    install.source = _SOURCE.sub(f'SOURCE = "{source(address)}"', install.source)
    return book


def main() -> None:
    """Writes the declared address into all notebooks."""
    address = declared()
    for path in sorted(FOLDER.glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        nbformat.write(addressed(book, path.stem, address), path)
        print(f"{path.name}: installs {source(address)}")


if __name__ == "__main__":
    main()
