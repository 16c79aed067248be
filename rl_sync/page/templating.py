"""Loads the templates of pages, with their filters."""

from __future__ import annotations

from importlib import resources

import jinja2
from markupsafe import Markup

from rl_sync.page import text

_CUT = 1500


def environment() -> jinja2.Environment:
    """Returns the environment of all templates, which escapes values."""
    loader = jinja2.PackageLoader("rl_sync.page", "templates")
    made = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {
        "visible": text.visible,
        "number": text.number,
        "ago": text.ago,
        "lost": text.lost,
        "at": text.at,
        "duration": text.duration,
        "cut": _cut,
    }
    return made


def style(*names: str) -> Markup:
    """Returns our style sheets, for inclusion in a self-contained page."""
    folder = resources.files("rl_sync.page") / "static"
    return Markup("\n".join((folder / name).read_text() for name in names))


def _cut(written: str) -> str:
    """Cuts the middle out of a long text."""
    if len(written) <= _CUT:
        return written
    half = _CUT // 2
    left = len(written) - 2 * half
    return f"{written[:half]}\n[… {left:,} characters …]\n{written[-half:]}"
