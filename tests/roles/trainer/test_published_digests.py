"""Versions that are published again are compared with the former ones."""

import json
import logging

import jax.numpy as jnp
import pytest

from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.roles.trainer.published_digests import PublishedDigests
from rl_sync.weights.digest import digest


def params(value):
    return {"w": jnp.full((3, 5), value, jnp.float32)}


def publish(path, *versions, since=None, exact=True):
    digests = PublishedDigests(path, since=since, exact=exact)
    try:
        for version, value in versions:
            digests.note(version, params(value))
    finally:
        digests.close()


def test_the_same_version_may_be_published_again_but_no_other(tmp_path):
    path = tmp_path / "published.jsonl"
    publish(path, (0, 0.0), (1, 1.0), (2, 2.0))
    publish(path, (1, 1.0), (2, 2.0), (3, 3.0))
    text = rf"(?s)step 2 .*{digest(params(2.5))}, before {digest(params(2.0))}"
    with pytest.raises(RunEndedError, match=text):
        publish(path, (1, 1.0), (2, 2.5))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["version"] for line in lines] == [0, 1, 2, 3]


def test_a_run_that_resumes_from_a_snapshot_may_make_other_versions(tmp_path):
    path = tmp_path / "published.jsonl"
    publish(path, (0, 0.0), (1, 1.0), (2, 2.0))
    publish(path, (1, 1.0), (2, 2.5), since=1)
    publish(path, (2, 2.5))
    with pytest.raises(RunEndedError, match="Trainer step 2"):
        publish(path, (2, 2.0))


def test_where_no_mode_promises_it_a_difference_is_only_told(tmp_path, caplog):
    path = tmp_path / "published.jsonl"
    publish(path, (1, 1.0))
    with caplog.at_level(logging.WARNING):
        publish(path, (1, 1.5), exact=False)
    assert "made other weights" in caplog.text


def test_a_process_that_does_not_record_compares_nothing():
    publish(None, (1, 1.0), (1, 2.0))
