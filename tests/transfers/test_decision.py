"""Point-to-point transfer between the roles: one decision for all, and an end without an error."""

from __future__ import annotations

import contextlib
import logging

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import transfer

from rl_sync.cluster.process_resources import Resources
from rl_sync.cluster.session import RunStoppedError
from rl_sync.messages.master_calls import AskStatus, Report
from rl_sync.messages.run_status import RunStatus
from rl_sync.messages.weight_calls import AskHolders, AskNewest, AskTransfer, DecideTransfer
from rl_sync.records.spans import sync_kind
from rl_sync.transfers.decision import decide_transfer, decided_transfer
from rl_sync.transfers.ends import EndSite
from rl_sync.transfers.server import puller_of
from rl_sync.transfers.server_publisher import ServerPublisher
from rl_sync.weights.digest import digest
from rl_sync.weights.ends_interface import WeightsTransferError
from tests.cluster.memory_session import MemorySession
from tests.models.meshes import layout

MASTER, SECRET = "127.0.0.1:1", "only ours"
LIKE = {"w": jax.ShapeDtypeStruct((4, 8), jnp.float32)}


class Session(MemorySession):
    """The session of a role, with a master that only records."""

    secret = SECRET

    def __init__(self, transfer="server", phase="rl"):
        super().__init__(
            self.answered, "explorer1", sync__transfer=transfer, launch__call_secs=10.0
        )
        self.phase, self.decided, self.result, self.addresses = phase, [None], None, []

    def answered(self, call):
        match call:
            case DecideTransfer(transfer):
                self.decided.append(transfer)
            case Report(result):
                self.result = result
            case AskTransfer():
                return self.decided.pop(0)
            case AskNewest():
                return 0
            case AskHolders():
                return self.addresses
            case AskStatus():
                return RunStatus(self.phase, 0, 1)


def site_of(session):
    resources = Resources(layout(), session.team, [0])
    return EndSite(session, sync_kind("server"), resources, MASTER, lambda layout: LIKE)


@contextlib.contextmanager
def trainer(version: int):
    publisher = ServerPublisher(LIKE, host="127.0.0.1", secret=SECRET)
    publisher.publish(version, {"w": jnp.full((4, 8), version, jnp.float32)})
    yield publisher.address
    publisher.close()


@pytest.mark.parametrize("asked", ["collective", "checkpoint", "server"])
def test_what_the_settings_ask_for_is_decided_and_explorers_wait_for_it(asked):
    session = Session(asked)
    assert decide_transfer(session, MASTER) == asked
    assert decided_transfer(session) == asked
    assert session.result is None


def test_where_no_server_can_be_had_everybody_uses_checkpoints_and_is_told_why(monkeypatch, caplog):
    def refuse(*_):
        raise RuntimeError("not on this device")

    monkeypatch.setattr(transfer, "start_transfer_server", refuse)
    session = Session("server")
    with caplog.at_level(logging.WARNING):
        assert decide_transfer(session, MASTER) == "checkpoint"
    assert decided_transfer(session) == "checkpoint"
    said = "by checkpoint instead of sync.transfer=server: jax"
    assert said in session.result.transfer
    assert said in caplog.text


def test_an_explorer_finds_the_trainer_through_the_master_and_again_when_it_has_moved():
    session = Session()
    puller = puller_of(site_of(session))
    with trainer(3) as address:
        session.addresses = [address]
        version, params = puller.pull(at_least=0, timeout_secs=10)
        assert (version, float(params["w"][0, 0])) == (3, 3.0)
    with pytest.raises(WeightsTransferError, match="the trainer does not answer"):
        puller.pull(at_least=0, timeout_secs=10)
    with trainer(5) as address:
        session.addresses = [address]
        version, params = puller.pull(at_least=0, timeout_secs=10)
        assert digest(params) == digest({"w": jnp.full((4, 8), 5.0)})
    puller.close()  # Although nobody is there.


def test_a_trainer_that_has_finished_is_no_failure():
    session = Session(phase="end")
    with trainer(0) as address:
        session.addresses = [address]
    with pytest.raises(RunStoppedError, match="the trainer has finished"):
        puller_of(site_of(session)).pull(at_least=0, timeout_secs=10)
