"""Decisions about deaths: what is restarted, in which order, how often, and when the run ends."""

import pytest

from rl_sync.roles.restart_policy import (
    EndRun,
    RestartExplorer,
    RestartMaster,
    RestartPrograms,
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
def test_servers_are_restarted_in_every_phase(phase):
    assert decide(facts(phase=phase), ["master"]) == (RestartMaster(),)
    assert decide(facts(phase=phase), ["replay"]) == (RestartReplay(),)


@pytest.mark.parametrize("role", ["trainer", "explorer1"])
def test_before_rl_programs_are_restarted_if_they_were_killed(role):
    for phase in (None, "start", "sft"):
        assert isinstance(decide(facts(phase=phase), [role]), EndRun)
        assert not isinstance(decide(facts(phase=phase), [role], killed=[role]), EndRun)
    assert not isinstance(decide(facts(phase="rl"), [role]), EndRun)
    assert isinstance(decide(facts(phase="end"), [role]), EndRun) == (role == "explorer1")
    assert not isinstance(decide(facts(phase="end"), [role], killed=[role]), EndRun)


@pytest.mark.parametrize(
    ("is_elastic", "dead", "killed", "decision"),
    [
        (True, ["trainer"], ["trainer"], (RestartTrainer(),)),
        (True, ["explorer2"], ["explorer2"], (RestartExplorer(2, "explorer2"),)),
        (
            True,
            ["explorer1", "trainer/1"],
            ["explorer1", "trainer/1"],
            (RestartTrainer(), RestartExplorer(1, "explorer1")),
        ),
        (True, ["trainer/1", "trainer"], ["trainer/1"], (RestartTrainer(),)),
        (True, ["trainer", "explorer1"], ["trainer"], "explorer1 would die again"),
        (True, ["trainer"], [], "trainer would die again"),
        (True, ["trainer", "master"], ["trainer", "master"], "master would die again"),
        (False, ["trainer"], ["trainer"], (RestartPrograms("trainer"),)),
        (False, ["explorer1", "trainer"], ["explorer1"], (RestartPrograms("explorer1"),)),
        (False, ["explorer1", "trainer"], [], "explorer1 would die again"),
        (False, ["explorer1", "replay"], ["explorer1"], "replay would die again"),
    ],
)
def test_before_the_master_is_heard_programs_are_restarted_if_they_were_killed(
    is_elastic, dead, killed, decision
):
    """In one cluster the others end with errors because one was killed."""
    found = decide(facts(is_elastic=is_elastic, phase=None), dead, killed=killed)
    if isinstance(decision, str):
        assert isinstance(found, EndRun)
        assert decision in found.why
    else:
        assert found == decision


def test_restarts_before_the_master_is_heard_count():
    given = facts(phase=None, earlier={"trainer": [9_998.0, 9_999.0]})
    decision = decide(given, ["trainer"], killed=["trainer"])
    assert isinstance(decision, EndRun)
    assert "trainer was started again 2 times within an hour" in decision.why


@pytest.mark.parametrize(
    ("changed", "dead", "why"),
    [
        ({"phase": None}, ["master"], "had not begun: master would die again"),
        ({"restarts": 0}, ["trainer"], "launch.restarts=0 allows no more"),
        ({"earlier": {"master": [9_000.0, 9_999.0]}}, ["master"], "2 times within an hour"),
        ({"earlier": {"trainer": [9_998.0, 9_999.0]}}, ["master", "trainer/1"], "trainer was"),
    ],
)
def test_the_run_ends_if_a_role_cannot_be_restarted(changed, dead, why):
    decision = decide(facts(**changed), dead)
    assert isinstance(decision, EndRun)
    assert why in decision.why


def test_the_run_ends_with_a_role_that_ended_for_a_reason_of_its_own():
    decision = decide(facts(), ["explorer1", "trainer"], ended=["trainer"])
    assert isinstance(decision, EndRun)
    assert "trainer ended for a reason that a restart does not change" in decision.why


def test_restarts_count_for_their_role_and_for_an_hour():
    earlier = {"explorer1": [9_998.0, 9_999.0], "master": [100.0, 9_999.0]}
    assert decide(facts(earlier=earlier), ["master", "explorer2"]) == (
        RestartMaster(),
        RestartExplorer(2, "explorer2"),
    )


@pytest.mark.parametrize("changed", [{"restarts": 0}, {"earlier": {"explorer1": [9_999.0] * 2}}])
def test_an_explorer_that_handed_over_its_work_is_started_again_however_often(changed):
    dead = ["explorer1"]
    assert isinstance(decide(facts(**changed), dead), EndRun)
    assert decide(facts(**changed), dead, handed_over=dead) == (RestartExplorer(1, "explorer1"),)
    assert isinstance(decide(facts(**changed), [*dead, "master"], handed_over=["master"]), EndRun)


def test_the_trainer_is_restarted_before_explorers():
    assert decide(facts(), ["explorer1", "trainer/1"]) == (
        RestartTrainer(),
        RestartExplorer(1, "explorer1"),
    )


@pytest.mark.parametrize("dead", ["explorer2", "trainer", "trainer+explorers"])
def test_a_cluster_is_formed_anew_though_its_trainer_has_given_up(dead):
    decision = decide(facts(is_elastic=False, phase="end"), [dead], killed=[dead])
    assert decision == (RestartPrograms(dead),)


@pytest.mark.parametrize("dead", ["explorer2", "trainer", "trainer+explorers"])
def test_programs_of_one_cluster_or_process_are_restarted_together(dead):
    decision = decide(facts(is_elastic=False), [dead, "master"])
    assert decision == (RestartMaster(), RestartPrograms(dead))


def test_the_likeliest_cause_counts_for_its_role():
    decision = decide(facts(is_elastic=False), ["trainer/1", "explorer1"], killed=["trainer/1"])
    assert decision == (RestartPrograms("trainer"),)
