"""The reward expressions of the documentation: each is parsed, made, and judges an example."""

import html
import itertools
import re
from pathlib import Path

import pytest

from rl_sync.ending import Ending
from rl_sync.expression import parse_sum
from rl_sync.references import is_reference
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.math import MathAnswer
from rl_sync.rewards.reward_catalog import REWARDS
from rl_sync.rewards.rubric import Rubric, ScoringRequest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(
        page
        for page in (ROOT / "docs").rglob("*.md")
        if page.name not in {"settings.md", "metrics.md"}
    ),
]
ASKS_MODELS = {"llm_judge", "reward_model", "self_judge"}
IN_SETTINGS = re.compile(r"""task\.reward=(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"'`)]+))""")
IN_CONFIGS = re.compile(r"""(?:task\.reward\s*=\s*|[Rr]eward=)(?:"([^"\n]+)"|'([^'\n]+)')""")
IN_LINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
NAMED = re.compile(rf"(?:[\d.]+ ?\* ?)?(?:{'|'.join(REWARDS)})(?:\(|\s*\+|$)")
ROW = {
    "prompt": "1+1=", "answer": "2", "answers": ["2"], "boxes": [0, 0, 10, 10], "kind": "count",
    "tests": ["assert add(1, 1) == 2"], "task_set": "easy",
}  # fmt: skip


def _expressions():
    for page in PAGES:
        text = html.unescape(page.read_text())
        found = [part for match in IN_SETTINGS.findall(text) for part in match if part]
        found += [part for match in IN_CONFIGS.findall(text) for part in match if part]
        found += [
            one
            for one in IN_LINE.findall(text)
            if NAMED.match(one) and re.search(r"[(+*]", one) and ("(" in one or "+" in one)
        ]
        for one in dict.fromkeys(one.replace("\\", "") for one in found):
            if not re.search("[…<{]|NAME|EXPRESSION", one):
                yield page.stem, one


def test_the_pages_have_expressions():
    texts = {expression for _, expression in _expressions()}
    assert len(texts) >= 15
    assert "vision + 0.1 * length_band(greatest=50)" in texts
    assert {"exact", "math"} <= texts


def _check(expression):
    terms = parse_sum(expression)
    if any(is_reference(term.name) for term in terms):
        return  # A file of the user's.
    if ASKS_MODELS & {term.name for term in terms}:
        for term in terms:
            assert term.name in REWARDS
        return
    rubric = Rubric(expression)
    kinds = {term.name for term in terms}
    completion = Completion("2", [1], ending=Ending({}, {}, "done", "", turns=1))
    if "code" in kinds:
        rubric.check([ROW])  # Programs run in the tests of the sandbox.
        return
    (judged,) = rubric.judge([ScoringRequest(ROW, completion)])
    assert judged.is_known, judged.why


def test_an_expression_of_the_documentation_judges_an_example(subtests):
    for page, expression in _expressions():
        with subtests.test(f"{page}: {expression}"):
            _check(expression)


def _pairs():
    table = (ROOT / "docs/rewards-math.md").read_text().partition("## Equal and different")[2]
    for line in table.partition("\n\nThe rules")[0].split("\n"):
        if line.startswith("| ") and not line.startswith("| |"):
            topic, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            for are_equal, cell in zip((True, False), cells, strict=True):
                for group in re.findall(r"(?:`[^`]*`|[^`;])+", cell):
                    for pair in itertools.combinations(re.findall("`([^`]+)`", group), 2):
                        yield topic, *pair, are_equal


def test_the_page_has_pairs_of_answers():
    assert len([*_pairs()]) > 90


@pytest.mark.gate
def test_answers_are_equal_or_different_as_the_page_says(subtests):
    reward = MathAnswer(extract="whole")
    for topic, one, other, are_equal in _pairs():
        with subtests.test(f"{topic}: {one} {other}"):
            for gold, given in ((one, other), (other, one)):
                judged = reward({"answer": gold}, Completion(given))
                assert (judged.score == 1.0) is are_equal, judged
