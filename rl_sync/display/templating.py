"""Loads templates of HTML, with their filters, and style sheets."""

from __future__ import annotations

from importlib import resources

import jinja2
from markupsafe import Markup

from rl_sync.display import text

_CUT = 1500


def environment(*packages: str) -> jinja2.Environment:
    """Returns the environment of templates, which escapes values.

    Args:
      packages: packages with templates, in addition to those here.
    """
    names = ("rl_sync.display", *packages)
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(name, "templates") for name in names])
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


def style(package: str, *names: str) -> Markup:
    """Returns style sheets of a package, for inclusion in a self-contained page."""
    folder = resources.files(package) / "static"
    return Markup("\n".join((folder / name).read_text() for name in names))


def _cut(written: str) -> str:
    """Cuts the middle out of a long text."""
    if len(written) <= _CUT:
        return written
    half = _CUT // 2
    left = len(written) - 2 * half
    return f"{written[:half]}\n[… {left:,} characters …]\n{written[-half:]}"
