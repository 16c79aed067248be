"""The secret of a run: the same for all of its processes, and known to nobody else."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from rl_sync.cluster import secret
from rl_sync.cluster.secret import forget, is_open, secret_of
from rl_sync.workdir import Workdir


def test_all_processes_of_a_run_read_the_one_that_the_first_made(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(secret_of, [tmp_path] * 8))
    (made,) = found
    assert re.fullmatch("[0-9a-f]{64}", made)


def test_its_owner_alone_can_read_it(tmp_path):
    secret_of(tmp_path)
    assert Workdir(tmp_path).secret.stat().st_mode & 0o777 == 0o600
    assert not is_open(tmp_path)
    Workdir(tmp_path).secret.chmod(0o644)
    assert is_open(tmp_path)


def test_each_run_has_its_own(tmp_path):
    first = secret_of(tmp_path)
    forget(tmp_path)
    forget(tmp_path)
    assert not Workdir(tmp_path).secret.exists()
    assert secret_of(tmp_path) != first


def test_one_that_was_begun_and_not_finished_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(secret, "_WRITTEN_SECS", 0.1)
    Workdir(tmp_path).secret.write_text("abc")
    with pytest.raises(OSError, match=rf"{Workdir(tmp_path).secret} does not contain a secret"):
        secret_of(tmp_path)
