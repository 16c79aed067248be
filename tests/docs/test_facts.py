"""Facts that stand on several pages are the same on each; this is the place to change them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", ROOT / "BUILD.md", *(ROOT / "docs").rglob("*.md"))
}
FACTS = {
    # What is said, the pages that say it, and what was true before.
    "where it has run": (
        r"has run on one GPU|On one GPU the main command ran",
        ("README.md", "BUILD.md", "docs/comparison.md", "docs/how-to/gpus.md"),
        r"has run on CPUs only|not been (?:run|tested) on (?:such|these) devices"
        r"|names \| two CPU cores",
    ),
    "policies that see": (
        r"Gemma 3, (?:and )?SmolVLM(?: and|,| with) Idefics 3|from a random start of up to about a"
        r" million parameters",
        ("README.md", "docs/comparison.md"),
        r"\| vision \| no policies",
    ),
}


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_is_the_same_on_every_page(fact):
    said, pages, before = FACTS[fact]
    assert [page for page in pages if not re.search(said, PAGES[page])] == []
    assert [page for page, text in PAGES.items() if re.search(before, text)] == []
