"""Programs that one process compiled are read by the next one, of any role."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_sync.cluster import compilation_cache
from rl_sync.settings.records import ConfigError

# Compiles one program that takes longer than what is kept at least takes.
PROCESS = """
import logging, os, sys
logging.basicConfig()
import jax, jax.numpy as jnp, numpy as np
from jax._src import distributed
from rl_sync.cluster import compilation_cache

distributed.global_state.process_id = int(sys.argv[2])
programs = compilation_cache.use(sys.argv[1], os.environ)

@jax.jit
def program(x):
    for i in range(40):
        x = jnp.sort(jnp.tanh(x @ x), axis=i % 2)
    return x

jax.block_until_ready(program(np.ones((8, 8), np.float32)))
print(programs.needed, programs.read)
"""


def start(configured: Path | str, process: int = 0, **variables: str) -> subprocess.Popen[str]:
    ours = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(configured), str(process)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ours | variables,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Returns whether the cache had the program, and the log."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    needed, read = map(int, output.split())
    assert needed in (0, 1)
    return read, errors


def entries(directory: Path) -> set[str]:
    return {entry.name for entry in directory.glob("*-cache")}


@pytest.mark.nightly
@pytest.mark.parametrize("process", [0, 1])
def test_every_process_of_a_cluster_keeps_its_programs(tmp_path, process):
    directory = tmp_path / "made" / "programs"
    assert finish(start(directory, process)) == (0, "")
    assert any(name.startswith("jit_program-") for name in entries(directory))
    assert directory.stat().st_mode & 0o777 == 0o700, "who writes here can run code"
    read, errors = finish(start(directory, process))
    assert (read, errors) == (1, "")


@pytest.mark.nightly
def test_processes_that_compile_the_same_at_once_do_not_disturb_each_other(tmp_path):
    for process in [start(tmp_path) for _ in range(2)]:
        assert finish(process)[1] == ""
    assert finish(start(tmp_path)) == (1, "")
    assert list(tmp_path.glob("*-atime")), "JAX locks a cache only if it has a bound"


@pytest.mark.nightly
def test_what_a_killed_process_left_unfinished_is_written_again(tmp_path):
    finish(start(tmp_path))
    before = entries(tmp_path)
    (torn,) = tmp_path.glob("jit_program-*-cache")
    torn.write_bytes(torn.read_bytes()[:100])
    torn.with_name(torn.name.removesuffix("-cache") + "-atime").unlink()
    assert finish(start(tmp_path)) == (0, "")
    assert finish(start(tmp_path)) == (1, "")
    assert entries(tmp_path) == before


@pytest.mark.nightly
def test_a_cache_that_jax_was_given_goes_before_ours_with_its_own_limits(tmp_path):
    ours, given = tmp_path / "ours", tmp_path / "given"
    limits = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    finish(start(ours, JAX_COMPILATION_CACHE_DIR=str(given), **limits))
    assert entries(given)
    assert not list(given.glob("*-atime")), "ours has a bound"
    assert not ours.exists()


@pytest.mark.gate
def test_a_directory_that_cannot_be_used_is_warned_of_and_done_without(tmp_path):
    taken = tmp_path / "file"
    taken.write_text("mine")
    read, errors = finish(start(taken))
    assert read == 0
    assert f"cannot be kept in {taken}" in errors
    assert "launch.compilation_cache" in errors
    assert taken.read_text() == "mine"


@pytest.mark.nightly
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused_with_the_way_out(tmp_path, mode):
    """Anybody who can write a program there can run code as another user."""
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode is {mode:o}.* chmod go-w {tmp_path}\. Or set"):
        compilation_cache.check(str(tmp_path), {})
    read, errors = finish(start(tmp_path))
    assert read == 0
    assert "others may write there" in errors
    assert not entries(tmp_path)
    tmp_path.chmod(0o755)
    compilation_cache.check(str(tmp_path), {})


def test_a_directory_of_another_user_is_refused_but_not_what_jax_was_given(tmp_path, monkeypatch):
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        os.chown(tmp_path, owner + 2, -1)
    with pytest.raises(ConfigError, match="owns it"):
        compilation_cache.check(str(tmp_path), {})
    compilation_cache.check(str(tmp_path), {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)})
    compilation_cache.check(str(tmp_path / "to be made"), {})
    compilation_cache.check("", {})


def test_where_programs_are_kept():
    home, xdg = {"HOME": "/home/me"}, {"XDG_CACHE_HOME": "/caches"}
    given = {"JAX_COMPILATION_CACHE_DIR": "gs://bucket/programs"}
    where = compilation_cache.directory
    assert where(None, home) == os.path.expanduser("~/.cache/rl_sync/programs")
    assert where(None, xdg) == "/caches/rl_sync/programs"
    assert where("some/where", xdg) == os.path.abspath("some/where")
    assert where("", xdg) is None
    assert where("/mine", given) == "gs://bucket/programs"
    assert where("/mine", {"JAX_COMPILATION_CACHE_DIR": ""}) is None
