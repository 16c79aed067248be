"""Sessions, and the room that they take; nothing is computed here."""

import http

import pytest

from rl_sync.addons.tinker import tinker_calls as calls
from rl_sync.addons.tinker import tinker_service
from rl_sync.addons.tinker.service_bounds import ServiceBounds
from rl_sync.addons.tinker.tinker_calls import CallPlace, CallRefusedError
from rl_sync.addons.tinker.tinker_service import TinkerService
from tests.addons.tinker.conftest import BASE, NAME

BOUNDS = ServiceBounds(models=2, silent_secs=600, snapshots=2)


@pytest.fixture(name="clock")
def _clock(monkeypatch):
    """The time of sessions, in seconds, which a test moves."""
    now = [1000.0]
    monkeypatch.setattr(tinker_service.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture(name="service")
def _service(policy, tmp_path, clock):
    service = TinkerService(policy, base=BASE, name=NAME, root=tmp_path, bounds=BOUNDS)
    yield service
    service.close()


def begun(service, version="0.38.0"):
    return service.begin_session(calls.SessionCall(version))


def made(service, session, number):
    return service.create_model(calls.CreateModelCall(session, number, NAME))


@pytest.mark.parametrize("version", ["0.38", "0.38.0", "0.38.12"])
def test_patch_releases_of_the_client_are_served(version):
    calls.require_client(version)


@pytest.mark.parametrize("version", ["0.3.8", "0.37.9", "0.380.0", "1.0.0", ""])
def test_other_versions_of_the_client_are_refused(version):
    with pytest.raises(CallRefusedError, match="install the client with"):
        calls.require_client(version)


def test_a_silent_session_ends_when_another_needs_its_room(service, clock):
    first, second = begun(service), begun(service)
    made(service, first, 0)
    made(service, first, 1)
    clock[0] += 599
    service.touch(second)
    with pytest.raises(CallRefusedError, match="2 models are in use"):
        made(service, second, 0)
    clock[0] += 2
    made(service, second, 0)
    with pytest.raises(CallRefusedError, match="There is no session") as raised:
        service.touch(first)
    assert raised.value.status == http.HTTPStatus.GONE
    assert service.model(f"{second}:train:0")


def test_a_session_that_gives_signs_keeps_its_models(service, clock):
    first, second = begun(service), begun(service)
    for number in range(2):
        made(service, first, number)
    clock[0] += 700
    service.touch(first)
    service.touch(second)
    with pytest.raises(CallRefusedError, match="2 models are in use"):
        made(service, second, 0)


def test_silent_sessions_without_models_are_forgotten(service, clock):
    first, second = begun(service), begun(service)
    made(service, second, 0)
    clock[0] += 601
    begun(service)
    service.touch(second)
    with pytest.raises(CallRefusedError, match="There is no session"):
        service.touch(first)


def test_a_model_that_is_asked_for_again_is_made_once(service):
    session = begun(service)
    assert made(service, session, 0) == made(service, session, 0)
    assert len(service._models) == 1


def test_the_oldest_snapshots_are_dropped(service):
    session = begun(service)
    made(service, session, 0)
    model = service.model(f"{session}:train:0")
    model.passes, model.state = service._passes(None), tinker_service.AdapterState({}, ())
    for number in range(3):
        save = calls.SaveForSamplerCall(model.model_id, number + 1, None, number)
        service.save_for_sampler(save)
    while (call := service.order.next(0.0)) is not None:
        if call.kind == "save_weights_for_sampler":
            service._do(call)
    for number in (1, 2):
        assert service.sources.find(f"{session}:sample:{number}")
    with pytest.raises(CallRefusedError, match="since 2 newer ones are in use"):
        service.sources.find(f"{session}:sample:0")


def test_calls_of_an_unknown_model_are_refused(service):
    with pytest.raises(CallRefusedError, match="There is no model m") as raised:
        service.refuse_in_turn(CallPlace("m", 1), "optim_step", "")
    assert raised.value.status == http.HTTPStatus.NOT_FOUND
