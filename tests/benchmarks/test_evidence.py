"""EVIDENCE.md and the documents that it names say what the artifacts say."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def evidence(benchmarks):
    return benchmarks("evidence")


@pytest.fixture
def copied(evidence, tmp_path):
    """A copy of what is compared, in which a test may change something."""
    documents = {"EVIDENCE.md", "README.md"}
    for claim in evidence.CLAIMS.values():
        documents |= {claim.artifact, *claim.quotes(lines_of(ROOT / claim.artifact))}
    for name in documents:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def changed(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_nothing_differs(evidence):
    assert [*evidence.differences()] == []


def test_each_claim_says_what_it_does_not_show(evidence):
    for name, claim in evidence.CLAIMS.items():
        assert all([claim.weak, claim.not_claimed, claim.runs, claim.commit]), name
        assert len(claim.table(lines_of(ROOT / claim.artifact))[0].splitlines()) >= 1


def test_another_artifact_is_told(evidence, copied):
    path = copied / evidence.CLAIMS["modes"].artifact
    lines = lines_of(path)
    lines[0]["accuracy"][-1] = 0.5
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [*evidence.differences(copied)]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert found[0].startswith(f"modes: {path.relative_to(copied)} has the hash {digest}, and ")
    mode = lines[0]["mode"]
    assert any(
        f"README.md lacks what {path.relative_to(copied)} says: | `{mode}`" in one for one in found
    )
    assert any(one.startswith("EVIDENCE.md has, and no artifact says it: ") for one in found)


@pytest.mark.parametrize("document", ["README.md", "docs/staleness.md", "docs/real_model.md"])
def test_a_number_that_was_typed_is_told(evidence, copied, document):
    quoted = next(
        texts[document][-1]
        for claim in evidence.CLAIMS.values()
        if document in (texts := claim.quotes(lines_of(ROOT / claim.artifact)))
    )
    last = quoted.splitlines()[-1]
    changed(copied / document, last, last.replace(" ", " 1", 1))
    (found,) = evidence.differences(copied)
    assert f"{document} lacks what " in found


def test_a_missing_artifact_is_told(evidence, copied):
    name, claim = next(iter(evidence.CLAIMS.items()))
    (copied / claim.artifact).unlink()
    assert [*evidence.differences(copied)] == [f"{name}: {claim.artifact} is missing."]


def test_a_claim_by_hand_on_the_page_is_told(evidence, copied):
    with (copied / "EVIDENCE.md").open("a") as page:
        page.write("\nIt is also faster.\n")
    (found,) = evidence.differences(copied)
    assert found == "EVIDENCE.md has, and no artifact says it: It is also faster."
