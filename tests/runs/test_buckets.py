"""Transfer of weights through a bucket of an object store, and through a directory of their own."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

import pytest

from rl_sync.roles.version_follower import follow
from rl_sync.weights.deltas.version_files import VersionFiles
from tests.runs.conftest import EMBEDDED, assert_same_bits, flags, launch
from tests.weights import bucket

pytestmark = pytest.mark.nightly

WITH_S3 = importlib.util.find_spec("moto") is not None
S3 = pytest.mark.skipif(not WITH_S3, reason="pip install -e '.[test_s3]' for a server of S3")
BY_CHECKPOINT = (*flags("synchronous", transfer="checkpoint", steps=4), EMBEDDED)


@pytest.fixture(autouse=True, scope="module")
def _served():
    """One bucket for all, since forked processes keep the address that the first one had."""
    with (
        bucket.serving() as variables,
        bucket.serving_s3() if WITH_S3 else contextlib.nullcontext({}) as of_s3,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        for name, value in (variables | of_s3).items():
            monkeypatch.setenv(name, value)
        yield


def test_weights_go_where_they_are_told_to_and_with_the_same_bits(runs, tmp_path):
    directories = (f"{bucket.URL}/weights", str(tmp_path / "weights"))
    one, other = (
        runs.get(*BY_CHECKPOINT, f"--config.sync.directory={path}") for path in directories
    )
    assert_same_bits(one, other)
    for path, run in zip(directories, (one, other), strict=True):
        assert not run.workdir.weights.exists()
        assert run.settings.weights_directory(run.workdir) == f"{path}/{Path(run.workdir).name}"
        files = VersionFiles(f"{path}/{Path(run.workdir).name}")
        last = run.settings.trainer.steps - 1  # Nobody uses those of the last step.
        assert files.stored()[-1].version == last
        assert files.held(600) == {}, "an explorer went and left a mark"


@pytest.mark.parametrize(
    ("url", "delta"),
    [
        pytest.param(bucket.URL, "on", id="gs"),
        pytest.param(bucket.URL, "off", id="gs, whole"),
        pytest.param(bucket.S3_URL, "on", id="s3", marks=S3),
        pytest.param(bucket.S3_URL, "off", id="s3, whole", marks=S3),
    ],
)
def test_versions_go_through_a_bucket_with_the_same_bits_and_others_follow_them(
    url, delta, runs, tmp_path
):
    changes = (*BY_CHECKPOINT, f"--config.sync.delta={delta}")
    one = runs.get(*BY_CHECKPOINT, f"--config.sync.directory={tmp_path / 'weights'}")
    other = runs.get(*changes, f"--config.sync.directory={url}/changes")
    assert_same_bits(one, other)
    source = other.settings.weights_directory(other.workdir)
    assert source.startswith(url)
    told = []
    follow(source, tmp_path / "served", told.append, once=True)
    assert told[0].version == other.settings.trainer.steps - 1
    assert (tmp_path / "served" / "model.safetensors").exists()


@pytest.mark.parametrize("scheme", ["gs", pytest.param("s3", marks=S3)])
def test_a_bucket_that_is_not_there_is_named_before_anything_starts(scheme, tmp_path):
    place = f"{scheme}://nowhere/weights"
    process = launch(
        *BY_CHECKPOINT, f"--config.sync.directory={place}", workdir=tmp_path / "a" / "b"
    )
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert f"Weights cannot be written to {place}/b" in output
    assert "Traceback" not in output
