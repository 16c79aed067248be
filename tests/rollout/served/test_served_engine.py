"""A served engine's tokens have the versions that drew them, whatever happens to the server."""

import dataclasses
import functools
import threading
import time

import jax
import numpy as np
import pytest

from rl_sync.models.huggingface.writing import write_checkpoint
from rl_sync.models.logprobs import token_logprobs
from rl_sync.models.transformer import init_params
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.served import weights_desk
from rl_sync.rollout.served.engine_transfers import CheckpointTransfer, DeltaTransfer
from rl_sync.rollout.served.installation import Installation
from rl_sync.rollout.served.served_engine import ServedEngine
from rl_sync.rollout.served.vllm_calls import EngineAwayError, EngineRefusedError, VllmCalls
from rl_sync.sampling_masks import no_entries
from rl_sync.types import CompletionProgress
from tests.models import tiny
from tests.rollout.served.vllm_double import Faults, VllmDouble

pytestmark = pytest.mark.gate

CONFIG = dataclasses.replace(tiny.CONFIG, max_length=64)
_init = jax.jit(functools.partial(init_params, CONFIG))
PARAMS = {version: _init(jax.random.key(version)) for version in range(4)}
TOKENS = 12
BOTH_TRANSFERS = [False, pytest.param(True, marks=pytest.mark.gate)]


@functools.partial(jax.jit, static_argnums=2)
def _score(params, tokens, temperature):
    return token_logprobs(CONFIG, params, tokens, temperature)[0]


def _scored(params, tokens, temperature=1.0):
    return np.asarray(_score(params, tokens, temperature))


@pytest.fixture
def started(tmp_path):
    """Returns a function that starts a server, and makes an engine of it."""
    begun = []

    def start(
        faults=None, *, slots=4, wait_secs=5.0, recompute=False, is_delta=False, max_length=64
    ):
        server = VllmDouble(CONFIG, faults)
        told = []
        calls = VllmCalls(server.url, 30.0)
        installation = Installation(
            calls=calls,
            transfer=DeltaTransfer(calls, wait_secs) if is_delta else CheckpointTransfer(calls),
            directory=tmp_path / "engine",
            write=lambda path, params: write_checkpoint(path, CONFIG, params),
            score=_scored,
            dtype="float32",
            vocab_size=CONFIG.vocab_size,
            max_length=max_length,
            recompute=recompute,
        )
        engine = ServedEngine(
            CONFIG, installation, slots=slots, wait_secs=wait_secs, tell=told.append
        )
        begun.extend([engine, server])
        return server, engine, told

    yield start
    for one in begun:
        one.close()


def _requests(count=6, stop_ids=(), **fields):
    sampling = Sampling(max_new_tokens=TOKENS, stop_ids=stop_ids, temperature=0.7)
    rng = np.random.default_rng(0)
    return [
        CompletionRequest(
            rng.integers(1, CONFIG.vocab_size, 5).astype(np.int32), sampling, 2, (3, i), **fields
        )
        for i in range(count)
    ]


def _assert_drawn_by_their_versions(requests, groups):
    """Computes each token's log-probability with the weights of the version that it names."""
    for request, group in zip(requests, groups, strict=True):
        for one in group:
            row = np.concatenate([request.prompt, one.tokens])[None]
            scores = {v: _scored(PARAMS[v], row, 0.7)[0, 5:] for v in {*one.versions.tolist()}}
            named = [scores[v][t] for t, v in enumerate(one.versions.tolist())]
            np.testing.assert_allclose(one.logprobs, named, atol=1e-3)


def test_completions_have_the_tokens_and_log_probabilities_that_the_server_drew(started):
    server, engine, _ = started()
    engine.load(PARAMS[1], 1)
    requests = _requests()
    groups = engine.generate(requests)
    assert [[(one.index, len(one.tokens)) for one in group] for group in groups] == [
        [(0, TOKENS), (1, TOKENS)]
    ] * len(requests)
    assert {one.finish for group in groups for one in group} == {"length"}
    assert {int(v) for group in groups for one in group for v in one.versions} == {1}
    _assert_drawn_by_their_versions(requests, groups)
    sent = sorted(one["token_ids"] for one in server.sent if one.get("stream"))
    assert sent == sorted(r.prompt.tolist() for r in requests for _ in range(2))
    stats = engine.stats
    assert (stats.completions, stats.decode_tokens) == (12, 12 * TOKENS)
    assert stats.prefill_tokens == sum(len(r.prompt) for r in requests)
    assert (engine.unfinished, engine.tokens_in_flight) == (0, 0)


def test_a_completion_ends_at_its_stop_token_which_is_part_of_it(started):
    _, engine, _ = started()
    engine.load(PARAMS[1], 1)
    stops = tuple(range(0, CONFIG.vocab_size, 2))
    done = [one for group in engine.generate(_requests(stop_ids=stops)) for one in group]
    ended = [one for one in done if one.finish == "stop"]
    assert len(ended) > 8
    assert all(one.tokens[-1] in stops and {*one.tokens[:-1]}.isdisjoint(stops) for one in ended)


@pytest.mark.parametrize(("recompute", "is_delta"), [(False, False), (True, False), (False, True)])
def test_weights_that_arrive_in_flight_draw_the_tokens_that_name_them(started, recompute, is_delta):
    # The engine draws on while it fetches a difference.
    faults = Faults(token_secs=0.1 if is_delta else 0.01)
    server, engine, _ = started(faults, recompute=recompute, is_delta=is_delta)
    engine.load(PARAMS[1], 1)
    coming = iter((2, 3))

    def swap(_):
        if engine.tokens_in_flight > 4 and (version := next(coming, None)):
            engine.load(PARAMS[version], version)

    requests = _requests()
    groups = engine.generate(requests, swap)
    found = {tuple(sorted({*one.versions.tolist()})) for group in groups for one in group}
    assert any(len(versions) > 1 for versions in found), "a swap in flight mixes versions"
    _assert_drawn_by_their_versions(requests, groups)  # The double has no cache of older ones.
    assert engine.version == 3
    names = [label.split(":")[1] for label in server.labels[1:]]
    assert names == ["version-00000001", "version-00000002", "version-00000003"]
    salts = [one["cache_salt"] for one in server.sent if one.get("stream")]
    assert {*salts} <= {*server.labels[1:]}


def test_an_abort_is_no_end(started):
    server, engine, _ = started(Faults(aborts=5))
    engine.load(PARAMS[1], 1)
    requests = _requests()
    groups = engine.generate(requests)
    assert all(len(one.tokens) == TOKENS for group in groups for one in group)
    _assert_drawn_by_their_versions(requests, groups)
    assert len([one for one in server.sent if one.get("stream")]) == 12 + 5


@pytest.mark.parametrize("is_delta", BOTH_TRANSFERS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("after_tokens", [1, 20, 60])
def test_after_a_death_completions_go_on_with_weights_that_were_installed_again(
    started, after_tokens, packed, is_delta
):
    server, engine, told = started(Faults(token_secs=0.01, packed=packed), is_delta=is_delta)
    engine.load(PARAMS[2], 2)

    def fatal():
        while engine.stats.decode_tokens < after_tokens:
            time.sleep(0.005)
        server.die()
        time.sleep(0.3)
        server.restart()

    thread = threading.Thread(target=fatal)
    thread.start()
    requests = _requests()
    groups = engine.generate(requests)
    thread.join()
    assert all(len(one.tokens) == TOKENS for group in groups for one in group)
    assert {int(v) for group in groups for one in group for v in one.versions} == {2}
    _assert_drawn_by_their_versions(requests, groups)
    assert "is lost" in told[0]
    assert "is back" in told[-1]
    drawn, dropped = engine.stats.decode_tokens, engine.stats.surplus_tokens
    assert drawn - dropped == 12 * TOKENS


@pytest.mark.parametrize("is_delta", BOTH_TRANSFERS)
def test_a_death_just_before_new_weights_gives_no_token_another_version(started, is_delta):
    server, engine, _ = started(Faults(token_secs=0.02), is_delta=is_delta)
    engine.load(PARAMS[1], 1)
    requests = _requests()
    engine.submit(requests)
    while engine.tokens_in_flight < 6:
        engine.step()
    server.die()
    server.restart()
    time.sleep(0.2)
    engine.load(PARAMS[2], 2)
    done = engine.advance()
    groups = [[one for one in done if one.ticket == ticket] for ticket in range(len(requests))]
    _assert_drawn_by_their_versions(requests, groups)
    assert sum(len(one.tokens) for one in done) == 12 * TOKENS
    assert {int(v) for one in done for v in one.versions} == {1, 2}
    installed = [label.split(":")[1] for label in server.labels[1:]]
    assert installed == ["version-00000001", "version-00000002"], "the older one came first"


def test_tokens_of_a_restart_that_nobody_saw_are_thrown_away(started):
    server, engine, told = started()
    engine.load(PARAMS[1], 1)
    server.restart()
    requests = _requests()
    groups = engine.generate(requests)
    _assert_drawn_by_their_versions(requests, groups)
    assert "weights that this run has not installed" in told[0]
    assert engine.stats.decode_tokens - engine.stats.surplus_tokens == 12 * TOKENS


def test_begun_completions_go_on_after_their_tokens(started):
    server, engine, _ = started()
    engine.load(PARAMS[1], 1)
    given = CompletionProgress(
        np.array([3, 4], np.int32),
        np.array([-1, -2], np.float32),
        np.array([0, 1], np.int32),
        no_entries(),
    )
    (request,) = _requests(1, begun={1: given, 0: given._replace(finish="stop")})
    ((one,),) = engine.generate([request])
    assert one.index == 1
    assert one.tokens[:2].tolist() == [3, 4]
    assert one.versions.tolist() == [0] + [1] * (TOKENS - 1)
    assert server.sent[-1]["token_ids"] == [*request.prompt.tolist(), 3, 4]
    assert server.sent[-1]["sampling_params"]["max_tokens"] == TOKENS - 2


def test_held_completions_are_extended_and_released(started):
    server, engine, _ = started()
    engine.load(PARAMS[1], 1)
    (request, *_) = _requests(1, held=True)
    (group,) = engine.generate([request])
    sampling = Sampling(max_new_tokens=3, stop_ids=())
    ticket = engine.extend(group[0].handle, np.array([7, 8]), sampling)
    (more,) = engine.advance()
    assert (more.ticket, len(more.tokens)) == (ticket, 3)
    whole = [*request.prompt.tolist(), *group[0].tokens.tolist(), 7, 8]
    assert server.sent[-1]["token_ids"] == whole
    engine.release(group[1].handle)
    for gone in group:
        with pytest.raises(ValueError, match="No completion is held"):
            engine.release(gone.handle)


def test_progress_has_tokens_of_known_versions_alone(started):
    _, engine, _ = started(Faults(token_secs=0.1))
    engine.load(PARAMS[1], 1)
    requests = _requests(1)
    engine.submit(requests)
    while engine.tokens_in_flight < 6:
        engine.step()
    handles = [one.sequence.handle for one in engine._growing]
    before = engine.progress(handles)
    assert sum(len(one.tokens) for one in before.values()) == engine.tokens_in_flight
    engine.load(PARAMS[2], 2)
    known = engine.progress(handles)
    while engine.tokens_in_flight < sum(len(one.tokens) for one in known.values()) + 4:
        engine.step()
    now = engine.progress(handles)
    for handle, progress in now.items():
        np.testing.assert_array_equal(progress.tokens, known[handle].tokens)
        assert {*progress.versions.tolist()} == {1}


@pytest.mark.parametrize(
    ("faults", "part"),
    [
        (Faults(in_development=False), "VLLM_SERVER_DEV_MODE=1"),
        (Faults(scales_out=False), "--enable-scale-out"),
        (Faults(processed=False), "--logprobs-mode=processed_logprobs"),
        (Faults(most_tokens=8), "--max-model-len="),
        (Faults(ignores_weights=True, packed=True), "other values in"),
    ],
)
def test_a_server_that_was_started_otherwise_is_refused_with_what_it_lacks(started, faults, part):
    _, engine, _ = started(faults)
    with pytest.raises(EngineRefusedError, match=part):
        engine.load(PARAMS[1], 1)


def test_probes_are_no_longer_than_the_run_s_sequences(started):
    """A server whose sequences are as short as the run's refuses longer ones."""
    server, engine, _ = started(Faults(packed=True, most_tokens=10), max_length=10)
    engine.load(PARAMS[1], 1)
    assert max(len(one["token_ids"]) for one in server.sent) == 9


@pytest.mark.parametrize("packed", [False, True])
def test_weights_that_the_server_did_not_take_are_noticed(started, packed):
    server, engine, _ = started(Faults(packed=packed))
    engine.load(PARAMS[1], 1)
    server.faults.ignores_weights = True
    with pytest.raises(EngineRefusedError, match=r"other values in|nats from those of"):
        engine.load(PARAMS[2], 2)
    assert engine.version == 1
    assert not server.paused


def test_weights_that_moved_less_than_rounding_are_told_apart_by_nothing_but_digests(started):
    """A probe is for values that cannot be read; digests tell every bit."""
    server, engine, _ = started()
    engine.load(PARAMS[1], 1)
    server.faults.ignores_weights = True
    moved = jax.tree.map(lambda x: np.nextafter(x, x + 1), PARAMS[1])
    with pytest.raises(EngineRefusedError, match="other values in"):
        engine.load(moved, 2)


def test_queued_completions_begin_while_weights_are_on_their_way(started, monkeypatch):
    """The engine fetches for as long as 6 completions take, two at a time."""
    _, engine, _ = started(Faults(token_secs=0.01), slots=2, is_delta=True)
    engine.load(PARAMS[1], 1)
    requests = _requests(count=3)
    engine.submit(requests)
    honest = weights_desk.WeightsDesk._is_held

    def held(desk, timeout_secs):
        return engine.stats.completions >= 4 and honest(desk, timeout_secs)

    monkeypatch.setattr(weights_desk.WeightsDesk, "_is_held", held)
    engine.load(PARAMS[2], 2)
    assert engine.stats.completions >= 4
    done = engine.advance()
    groups = [[one for one in done if one.ticket == ticket] for ticket in range(3)]
    assert [len(group) for group in groups] == [2, 2, 2]
    _assert_drawn_by_their_versions(requests, groups)
    assert {1} in [{*one.versions.tolist()} for one in done]
    assert 2 in {int(v) for one in done for v in one.versions}


def test_a_server_without_the_backend_is_refused_with_what_it_lacks(started):
    _, engine, _ = started(Faults(has_backend=False), is_delta=True)
    with pytest.raises(EngineRefusedError, match="engine_transfer=delta needs vLLM with the pack"):
        engine.load(PARAMS[1], 1)


def test_an_order_that_the_server_has_forgotten_is_given_again(started, monkeypatch):
    monkeypatch.setattr(weights_desk, "SILENT_SECS", 0.2)
    server, engine, told = started(Faults(forgets_orders=2), is_delta=True)
    engine.load(PARAMS[1], 1)
    assert server.calls.count("/init_weight_transfer_engine") == 3
    assert not told


def test_a_server_that_never_fetches_is_named_with_the_address_that_it_must_reach(started):
    _, engine, told = started(Faults(forgets_orders=99), wait_secs=1.0, is_delta=True)
    with pytest.raises(
        EngineAwayError, match=r"no weights from 127\.0\.0\.1:\d+ for 1 s: its mach"
    ):
        engine.load(PARAMS[1], 1)
    assert len(told) == 1


def test_a_server_that_stays_away_is_named_with_the_time_that_was_waited(started):
    server, engine, told = started(wait_secs=1.5)
    server.die()
    with pytest.raises(EngineAwayError, match=r"explorer.engine_secs=1.5\): http://127.0.0.1"):
        engine.load(PARAMS[1], 1)
    assert len(told) == 1


def test_only_the_newest_two_checkpoints_are_kept(started, tmp_path):
    _, engine, _ = started()
    for version in range(4):
        engine.load(PARAMS[version], version)
    kept = sorted(path.name for path in (tmp_path / "engine").iterdir())
    assert kept == ["version-00000002", "version-00000003"]


def test_requests_that_can_never_be_served_are_refused_before_any_is_sent(started):
    server, engine, _ = started()
    engine.load(PARAMS[1], 1)
    long = CompletionRequest(
        np.ones(CONFIG.max_length, np.int32), Sampling(max_new_tokens=1, stop_ids=())
    )
    with pytest.raises(ValueError, match="need rows of"):
        engine.submit([*_requests(1), long])
    assert engine.unfinished == 0
    assert not any(one.get("stream") for one in server.sent)
