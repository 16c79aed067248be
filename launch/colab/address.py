"""Writes the repository's address into the notebooks: what their first cells install, and a badge.

    python launch/colab/address.py

The address is `Repository` of `[project.urls]` in pyproject.toml. Where it is declared, the first
cell of each notebook installs from it, and one on GitHub has its notebooks opened in Colab by a
badge below their titles. Where none is declared, the first cell installs the clone around it. Run
this when the address changes; nothing has to be executed again.
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
    """Returns the address of the repository that a pyproject.toml declares, None without one."""
    urls = tomllib.loads(project.read_text())["project"].get("urls", {})
    return next((url for name, url in urls.items() if name.lower() == "repository"), None)


def source(address: str | None) -> str:
    """Returns what pip installs: the repository at an address, or the clone."""
    return f"git+{address.rstrip('/')}" if address else CLONE


def badge(address: str | None, name: str) -> str | None:
    """Returns the Markdown of a badge that opens a notebook in Colab, None where that cannot be.

    Colab opens notebooks by their address on GitHub, and from nowhere else.
    """
    if not (found := address and _GITHUB.fullmatch(address)):
        return None
    host = "https://colab.research.google.com"
    where = f"{host}/github/{found[1]}/blob/main/launch/colab/{name}.ipynb"
    return f"[![Open in Colab]({host}/assets/colab-badge.svg)]({where})"


def addressed(book: NotebookNode, name: str, address: str | None) -> NotebookNode:
    """Writes an address into a notebook, in place of one that it had."""
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
