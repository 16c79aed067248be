"""The command that starts a role on another machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from rl_sync.addons.clusters.hosts.machines import remote_command

TELL = "import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)]))"
SHELL = "sh -c 'exec sh -c \"$1\"' {host}"


def test_a_command_arrives_as_it_is_with_what_it_needs(tmp_path, monkeypatch):
    place = tmp_path / "a place"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("JAX_SOMETHING", 'it\'s; $HOME "quoted"')
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    words = ["--config.a=b c", "it's", "$HOME", "*"]
    command = remote_command(SHELL, "there", [sys.executable, "-c", TELL, *words])
    assert "there" in command
    assert "secret" not in " ".join(command)  # Others could read it there.
    bare = {"PATH": os.environ["PATH"]}
    told = subprocess.run(command, env=bare, capture_output=True, text=True, check=True).stdout
    where, arguments, environment = json.loads(told)
    assert where == str(place)
    assert arguments == words
    assert environment["JAX_SOMETHING"] == 'it\'s; $HOME "quoted"'
    assert "glibc.malloc" in environment["GLIBC_TUNABLES"]


def test_the_host_goes_where_it_is_asked_for():
    command = remote_command("kubectl exec -i pod-{host} -- sh -c", "7", ["true"])
    assert command[:6] == ["kubectl", "exec", "-i", "pod-7", "--", "sh"]
