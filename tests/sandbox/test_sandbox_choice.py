"""The choice of a layer, and the trial that it rests on."""

import logging

import pytest

from rl_sync.sandbox import probe, sandbox_choice
from rl_sync.sandbox.layer import SandboxError
from rl_sync.sandbox.unconfined import Unconfined


def forget():
    """Makes this process forget its choice, as a new process does not know it."""
    sandbox_choice._choose.cache_clear()
    sandbox_choice._unconfined.cache_clear()


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """No choice is remembered."""
    monkeypatch.setattr(sandbox_choice, "cache_folder", lambda: tmp_path)
    forget()
    yield
    forget()


class Named(Unconfined):
    """A layer that only has a name."""

    def __init__(self, name):
        object.__setattr__(self, "_name", name)

    @property
    def name(self):
        return self._name


def use(monkeypatch, **faults):
    """Makes layers with these faults the only ones, and returns the names that were tried."""
    tried = []
    monkeypatch.setattr(
        sandbox_choice, "LAYERS", {name: lambda name=name: iter([Named(name)]) for name in faults}
    )
    monkeypatch.setattr(
        sandbox_choice, "fault", lambda layer: tried.append(layer.name) or faults[layer.name]
    )
    return tried


def test_a_program_without_a_sandbox_is_found_out():
    assert "change files outside" in probe.fault(Unconfined())


def test_the_chosen_layer_withstands_the_canary():
    assert probe.fault(sandbox_choice.choose()) is None


def test_the_first_layer_that_withstands_is_chosen_and_logged_once(monkeypatch, caplog):
    tried = use(monkeypatch, a="broken", b=None, c=None)
    with caplog.at_level(logging.INFO, "rl_sync"):
        assert sandbox_choice.choose().name == "b"
        assert sandbox_choice.choose().name == "b"
    assert tried == ["a", "b"]
    assert [record.message for record in caplog.records] == [
        "Programs of completions run in the sandbox b."
    ]


def test_other_processes_do_not_try_again(monkeypatch):
    tried = use(monkeypatch, a="broken", b=None)
    sandbox_choice.choose()
    forget()
    assert sandbox_choice.choose().name == "b"
    assert tried == ["a", "b"]


def test_a_remembered_layer_that_is_gone_is_chosen_anew(monkeypatch):
    use(monkeypatch, a=None)
    sandbox_choice.choose()
    forget()
    use(monkeypatch, b=None)
    assert sandbox_choice.choose().name == "b"


def test_without_any_layer_programs_are_refused_with_the_way_out(monkeypatch):
    use(monkeypatch, a="no namespaces")
    with pytest.raises(SandboxError, match=r"a: no namespaces.*apt-get install bubblewrap.*wasm"):
        sandbox_choice.choose()


def test_only_a_loud_option_runs_programs_without_a_sandbox(monkeypatch, caplog):
    use(monkeypatch, a="no namespaces")
    assert isinstance(sandbox_choice.choose(unsandboxed=True), Unconfined)
    assert "WITHOUT A SANDBOX" in caplog.text
    forget()
    with pytest.raises(SandboxError):
        sandbox_choice.choose()


def test_a_layer_that_works_is_used_whatever_the_option_says(monkeypatch):
    use(monkeypatch, a=None)
    assert sandbox_choice.choose(unsandboxed=True).name == "a"


def test_an_unknown_layer_is_refused():
    with pytest.raises(ValueError, match="bubblewrap"):
        sandbox_choice.choose("bublewrap")
