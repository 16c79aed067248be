"""Hosts that do not exist, or are not this machine; test_teams.py has those that work."""

from __future__ import annotations

import pytest

from tests.runs.conftest import EMBEDDED, flags, launch


@pytest.mark.gate
def test_a_machine_that_cannot_be_reached_is_named(tmp_path):
    process = launch(
        *flags("asynchronous"),
        EMBEDDED,
        "--config.launch.host=127.0.0.1",
        "--config.launch.hosts=explorer1=nowhere",
        "--config.launch.remote_shell=sh -c 'echo no way to {host} >&2; exit 255'",
        workdir=tmp_path / "runs" / "run",
    )
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "explorer1 ended with exit status 255" in output
    assert "no way to nowhere" in output


@pytest.mark.nightly
def test_an_address_of_another_machine_is_not_this_ones(tmp_path):
    process = launch(EMBEDDED, "--config.launch.host=192.0.2.1", workdir=tmp_path / "runs" / "run")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert "error: launch.host=192.0.2.1 must be an address of this machine" in output
