"""The page on a run's records names every field that they have."""

import json
import re

import pytest

from tests.runs.conftest import EMBEDDED, ROOT, flags

OTHERS = {"attributes", "score", "components"}  # Their fields differ from task to task.


def _names(record):
    """Yields the names of all fields, and of those within."""
    for name, value in record.items():
        yield name
        within = value if isinstance(value, list) else [value]
        for one in within if name not in OTHERS else ():
            if isinstance(one, dict) and name != "dropped":
                yield from _names(one)


@pytest.mark.nightly
def test_the_page_names_every_field_of_the_records(runs):
    run = runs.get(*flags("asynchronous"), EMBEDDED)
    page = (ROOT / "docs" / "records.md").read_text()
    described = set(re.findall(r"`([a-z_]+)`", page))
    files = [run.workdir.ledger, run.workdir.consumed]
    folders = run.workdir.judgements, run.workdir.spans
    for path in [*files, *(path for folder in folders for path in folder.iterdir())]:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines, path
        left_out = {name for line in lines for name in _names(line)} - described
        assert not left_out, path
    events = {json.loads(line)["event"] for line in run.workdir.ledger.read_text().splitlines()}
    assert events <= set(re.findall(r"`([a-z ]+)`", page))
