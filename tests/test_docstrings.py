"""Docstrings open with a verb or a noun, as readers search and read them."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

ROOT = Path(__file__).resolve().parents[1]
QUESTION = re.compile(r"(What|How|Which|Whether|Where|Who|When)\b")
FILES = [
    path
    for folder in ("rl_sync", "launch/launcher", "configs")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def questions(source: str) -> list[str]:
    """Returns the first lines of docstrings that open like a question."""
    owners = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, owners)]
    found = [text for node in nodes if (text := ast.get_docstring(node)) is not None]
    return [text.splitlines()[0] for text in found if QUESTION.match(text)]


def test_docstrings_open_with_a_verb_or_a_noun():
    assert len(FILES) > 100
    found = {str(path.relative_to(ROOT)): questions(path.read_text()) for path in FILES}
    assert not {path: lines for path, lines in found.items() if lines}


def test_a_question_is_found_wherever_it_stands():
    source = '"""What it is."""\nclass A:\n    """How."""\n    def f(self):\n        """Whether."""'
    assert questions(source) == ["What it is.", "How.", "Whether."]
    assert questions('"""Whatever."""\ndef f(): """Says which."""') == []
