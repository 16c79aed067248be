"""Environments of verifiers: what is refused, and how their episodes end.

tests/runs/test_verifiers.py plays them with the real package.
"""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest

from rl_sync.addons.agents import verifiers_environment
from rl_sync.environments.environment_catalog import reference_of
from rl_sync.environments.hosts.construction import Construction
from rl_sync.environments.interface import Outcome


def construct(name):
    return Construction.of(reference_of(name))


def installed(monkeypatch, version):
    def found(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", found)


@pytest.mark.parametrize(
    ("version", "rule"),
    [
        (None, r'needs the package verifiers. Install it: pip install "rl_sync\[verifiers\]"'),
        ("0.1.14", r"plays with verifiers 0.4.x, and 0.1.14 is installed: pip install"),
    ],
)
def test_a_package_that_is_not_there_or_another_version_is_refused(monkeypatch, version, rule):
    installed(monkeypatch, version)
    with pytest.raises(ValueError, match=rule):
        construct("verifiers(taskset='gsm8k')")
    with pytest.raises(ValueError, match=rule):
        next(verifiers_environment.rows("gsm8k"))


def test_wrong_options_are_refused_before_the_package_is_needed():
    for options, rule in {
        "": "missing a required argument: 'taskset'",
        "(taskset='x', game='y')": "has no option 'game'",
        "(taskset='x', deadline_secs=0)": r"verifiers\(deadline_secs=0\) must be a number",
        "(taskset='x', separate_reasoning=1)": "must be True or False",
    }.items():
        with pytest.raises(ValueError, match=rule):
            construct(f"verifiers{options}")


def trace(**fields):
    usual = {"rewards": {}, "metrics": {}, "errors": [], "is_timeout": False}
    return SimpleNamespace(**usual | {"stop_condition": "agent_completed"} | fields)


def episode(*traces, **fields):
    return SimpleNamespace(
        **{"traces": traces, "errors": [], "ok": True, "is_timeout": False} | fields
    )


def reward(value):
    return SimpleNamespace(value=value)


def error(kind, message):
    return SimpleNamespace(type=kind, message=message)


LOST = error("ProviderError", "upstream 502")


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (
            episode(trace(rewards={"a": reward(1.0), "b": None}, metrics={"m": 2, "n": None})),
            Outcome({"a": 1.0}, {"m": 2.0}),
        ),
        (episode(trace()), Outcome({}, why="the taskset gave no reward")),
        (
            episode(trace(rewards={"a": reward(0.0)}, errors=[LOST]), ok=False),
            Outcome({}, reason="environment failure", why="ProviderError: upstream 502"),
        ),
        (
            episode(ok=False, errors=[error("EnvError", "setup")]),
            Outcome({}, reason="environment failure", why="EnvError: setup"),
        ),
        (
            episode(trace(rewards={"a": reward(0.0)}, is_timeout=True, stop_condition="agent")),
            Outcome({}, reason="time-out", why="a limit of the environment: agent"),
        ),
        (
            episode(is_timeout=True, ok=False, errors=[LOST]),
            Outcome({}, reason="time-out", why="ProviderError: upstream 502"),
        ),
    ],
)
def test_an_episode_that_failed_has_no_reward_and_says_why(ended, outcome):
    assert verifiers_environment._outcome(ended) == outcome
