"""Decisions about deaths: what is restarted, in which order, how often, and when the run ends."""

import pytest

from rl_sync.launcher.processes.restart_policy import (
    EndRun,
    RestartExplorer,
    RestartMaster,
    RestartReplay,
    RestartTrainer,
    RunFacts,
    decide,
)


def facts(**changed):
    return RunFacts(
        **{
            "is_elastic": True,
            "phase": "rl",
            "restarts": 2,
            "earlier": {},
            "now_secs": 10_000.0,
            **changed,
        }
    )


def test_roles_that_others_need_are_restarted_first():
    dead = ["explorer10", "explorer2", "master", "replay", "explorer2/1"]
    assert decide(facts(), dead) == (
        RestartReplay(),
        RestartMaster(),
        RestartExplorer(2, "explorer2"),
        RestartExplorer(10, "explorer10"),
    )


@pytest.mark.parametrize("phase", ["start", "sft", "rl", "end"])
def test_servers_are_restarted_in_every_phase_and_explorers_in_rl(phase):
    assert decide(facts(phase=phase), ["master"]) == (RestartMaster(),)
    assert decide(facts(phase=phase), ["replay"]) == (RestartReplay(),)
    assert isinstance(decide(facts(phase=phase), ["explorer1"]), EndRun) == (phase != "rl")


@pytest.mark.parametrize(
    ("changed", "dead", "why"),
    [
        ({}, ["trainer"], "ends with its trainer"),
        ({}, ["master", "trainer/1"], "ends with its trainer"),
        ({}, ["trainer+explorers"], "one process"),
        ({"is_elastic": False}, ["explorer1"], "one cluster"),
        ({"phase": None}, ["master"], "had not begun: master would die again"),
        ({"restarts": 0}, ["master"], "launch.restarts=0 allows no more"),
        ({"earlier": {"master": [9_000.0, 9_999.0]}}, ["master"], "2 times within an hour"),
    ],
)
def test_the_run_ends_if_a_role_cannot_be_restarted(changed, dead, why):
    decision = decide(facts(**changed), dead)
    assert isinstance(decision, EndRun)
    assert why in decision.why


def test_restarts_count_for_their_role_and_for_an_hour():
    earlier = {"explorer1": [9_998.0, 9_999.0], "master": [100.0, 9_999.0]}
    assert decide(facts(earlier=earlier), ["master", "explorer2"]) == (
        RestartMaster(),
        RestartExplorer(2, "explorer2"),
    )


def test_the_trainer_is_restarted_before_explorers_where_that_is_possible():
    assert decide(facts(in_place=True), ["explorer1", "trainer"]) == (
        RestartTrainer(),
        RestartExplorer(1, "explorer1"),
    )
