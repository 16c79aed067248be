"""Teachers that are served: the same loss as beside the trainer, and servers that fail."""

import concurrent.futures
import contextlib
import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.cluster.pending import PendingCalls
from rl_sync.cluster.ports import free_ports
from rl_sync.cluster.rpc import CallHandlers, RpcServer
from rl_sync.cluster.team import Follower, Leader
from rl_sync.learning.rows.batching import Batching
from rl_sync.models.placement import abstract_params, move
from rl_sync.models.sharding import Layout
from rl_sync.records.spans import SpanKind
from rl_sync.roles.assembly import wiring
from rl_sync.roles.teaching.served_teacher import (
    TeacherClient,
    TeacherServerError,
    check_teacher_server,
    with_answer,
)
from rl_sync.roles.teaching.teacher_calls import (
    AskTeacher,
    AskTeacherDescription,
    TaughtRows,
    TeacherAnswer,
    TeacherDescription,
)
from rl_sync.roles.teaching.teacher_server import TeacherModel, TeacherServer
from rl_sync.settings.records import ConfigError
from rl_sync.tasks.tokenizers.vocabularies import digest_of
from rl_sync.types import Consumed
from tests.cluster.memory_session import MemorySession
from tests.models import tiny
from tests.models.meshes import layout
from tests.roles.trainer.training import MODEL, PARAMS, assert_close, group_of, state_of, trainer_of
from tests.settings.changed import settings_with

HOST, SECRET = "127.0.0.1", "s" * 64
TEACHER = dataclasses.replace(MODEL, embed_dim=4, head_dim=2, mlp_dim=4)
OF_TEACHER = jax.tree.map(lambda x: 3 * x, tiny.params(TEACHER))
ALONE = {"advantage": "none", "distillation_coefficient": 0.5, "distillation_top_k": 3}


def _settings(tmp_path, address="127.0.0.1:1", **fields):
    (tmp_path / "secret").write_text(SECRET)
    return {
        "algorithm__name": "on_policy_distillation",
        "algorithm__distillation": "topk",
        "algorithm__distillation_top_k": 3,
        "rollout__temperature": 0.8,
        "teacher__address": address,
        "teacher__secret_path": str(tmp_path / "secret"),
        **fields,
    }


@pytest.fixture(scope="module")
def task():
    return wiring.load_task(settings_with())


def _described(task, **fields):
    known = {
        "name": "there",
        "vocabulary": digest_of(task.tokenizer),
        "vocab_size": task.tokenizer.vocab_size,
        "row_tokens": 64,
    }
    return TeacherDescription(**known | fields)


def _teacher(task, rows=0, **fields):
    return TeacherModel(
        algorithm=trainer_of().loss.algorithm,
        model=TEACHER,
        params=OF_TEACHER,
        layout=Layout.single(),
        rows=rows,
        logits_bytes=1 << 20,
        description=_described(task, **fields),
    )


@contextlib.contextmanager
def _serving(teacher, secret=SECRET):
    with contextlib.closing(TeacherServer(teacher, host=HOST, port=0, secret=secret)) as made:
        yield made.address


@contextlib.contextmanager
def _client(tmp_path, task, address, **fields):
    session = MemorySession(**_settings(tmp_path, address, **fields))
    with contextlib.closing(TeacherClient(session, task, retry_secs=0.05)) as made:
        yield made, session


def _rows(group):
    return TaughtRows(group.tokens, group.completion_mask, None, None)


def _groups():
    """Makes two groups of different widths."""
    return [group_of((3, 4, 6, 2)), group_of((1, 2, 1, 1), row_tokens=5)]


@pytest.mark.samples(gate=("packed-topk", "padded-sampled"))
@pytest.mark.parametrize("kind", ["topk", "sampled"])
@pytest.mark.parametrize("rows", ["padded", "bucketed", "packed", "shared"])
def test_a_served_teacher_gives_the_loss_of_one_beside_the_trainer(tmp_path, task, rows, kind):
    beside = trainer_of(ALONE | {"distillation": kind}, teachers=(TEACHER,))
    apart = trainer_of(ALONE | {"distillation": kind}, has_served_teacher=True)
    batching = Batching(rows, 8, 8, 1, 0)
    asking = dataclasses.replace(batching, served_best=3 if kind == "topk" else 0)
    with (
        _serving(_teacher(task, rows=3)) as address,
        _client(tmp_path, task, address, algorithm__distillation=kind) as (client, session),
    ):
        taught = client.taught(Consumed(_groups(), [5]))
    assert taught.left_out == [5]
    assert [one["for_whom"] for one in session.spans.of(SpanKind.WAIT)] == [
        f"the teacher server at {address}"
    ]
    start = beside.taught(state_of(beside), (OF_TEACHER,))
    after, expected = beside.step(start, batching.batch(_groups()))
    other, found = apart.step(state_of(apart), asking.batch(taught.groups))
    for name in ("loss", "kl_teacher", "gradient_norm"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-7)
    assert float(expected["gradient_norm"]) > 1e-3
    assert_close(other.params, after.params, atol=1e-5)


def test_expected_shapes_have_the_answers(task):
    for best, names in ((3, {"served_logprobs", "served_ids"}), (0, {"served_logprobs"})):
        rows = Batching("packed", 8, 8, 1, 0, served_best=best).largest().rows
        there = {
            name for name, x in rows._asdict().items() if name[:6] == "served" and x is not None
        }
        assert there == names
        assert rows.served_logprobs.shape == (*rows.tokens.shape, max(1, best))


@pytest.mark.gate
def test_answers_have_the_sets_and_the_penalty_of_the_rollouts(task):
    """Of tokens 2 and 3 alone, with a penalty, the two probabilities sum to 1."""
    group = group_of((3, 4, 6, 2))
    entries = [one for t in range(2, 8) for one in ((t, 0, 1), (t, 1, 0b1100))]
    masks = np.array([entries] * 4, np.uint32)
    rows = TaughtRows(group.tokens, group.completion_mask, None, masks)
    call = AskTeacher(digest_of(task.tokenizer), [rows], 2, 0.8, 1.3)
    (answer,) = _teacher(task).answers(call)
    assert answer.ids.shape == (15, 2)
    assert {*answer.ids.ravel().tolist()} == {2, 3}
    np.testing.assert_allclose(np.exp(answer.logprobs).sum(axis=-1), 1, rtol=1e-5)
    (plain,) = _teacher(task).answers(dataclasses.replace(call, repetition_penalty=1.0))
    assert np.abs(plain.logprobs - answer.logprobs).max() > 1e-3


def test_a_call_that_does_not_fit_the_teacher_is_an_error(task):
    group = group_of((3, 4, 6, 2))
    call = AskTeacher(digest_of(task.tokenizer), [_rows(group)], 2, 0.8, 1.0)
    with pytest.raises(ValueError, match="has another vocabulary"):
        _teacher(task).answers(dataclasses.replace(call, vocabulary="other"))
    with pytest.raises(ValueError, match="has 8 tokens, and this server was started for at most 7"):
        _teacher(task, row_tokens=7).answers(call)


def test_a_server_that_is_gone_is_one_clear_error(tmp_path, task):
    (port,) = free_ports(HOST, 1)
    with (
        _client(tmp_path, task, f"{HOST}:{port}", launch__wait_secs=1.0) as (client, _),
        pytest.raises(TeacherServerError) as raised,
    ):
        client.taught(Consumed(_groups(), []))
    told = str(raised.value)
    assert told.startswith(
        "trainer has waited for the teacher's log-probabilities from the teacher server at"
        f" {HOST}:{port} for 1 s"
    )
    assert "launch.wait_secs=1" in told
    assert "Start it again with `rl-sync teacher`" in told
    assert "\n" not in told


def test_the_first_process_of_a_trainer_asks_for_all(tmp_path, task):
    """Another process has no secret, and no groups."""
    (port,) = free_ports(HOST, 1)
    with contextlib.ExitStack() as closing, _scripted(1) as (address, script):
        leader = Leader("trainer", 1, f"{HOST}:{port}", SECRET)
        follower = Follower("trainer", 1, f"{HOST}:{port}", 20.0, 20.0, SECRET)
        closing.callback(leader.close)
        closing.callback(follower.close)
        sessions = [MemorySession(**_settings(tmp_path, address)) for _ in range(2)]
        sessions[1].settings = settings_with(
            **_settings(tmp_path, address, teacher__secret_path=str(tmp_path / "none"))
        )
        batches = Consumed(_groups(), []), Consumed([], [])

        def ask(one):
            sessions[one].team = (leader, follower)[one]
            client = TeacherClient(sessions[one], task, retry_secs=0.05)
            closing.callback(client.close)
            return client.taught(batches[one]).groups

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            first, other = pool.map(ask, range(2))
    assert [group.served_logprobs.shape for group in first] == [(4, 8, 1), (4, 5, 1)]
    assert (other, script.calls) == ([], 2)


@pytest.mark.gate
def test_tokens_of_a_segment_have_no_others_before_them(task):
    """A row of two segments has the answers of two rows."""
    one, other = group_of((3, 4, 6, 2)), group_of((1, 2, 1, 1), row_tokens=5)
    call = AskTeacher(digest_of(task.tokenizer), [_rows(one), _rows(other)], 3, 0.8, 1.0)
    expected = _teacher(task).answers(call)
    both = [
        np.concatenate(pair, axis=1) for pair in zip(_rows(one)[:2], _rows(other)[:2], strict=True)
    ]
    segments = np.repeat([[0] * 8 + [1] * 5], 4, axis=0)
    joined = TaughtRows(*both, segments, None)
    (found,) = _teacher(task).answers(dataclasses.replace(call, groups=[joined]))
    of_first = np.nonzero(both[1])[1] < 8
    for answer, here in zip(expected, (of_first, ~of_first), strict=True):
        np.testing.assert_allclose(found.logprobs[here], answer.logprobs, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found.ids[here], answer.ids)


@pytest.mark.nightly
@pytest.mark.parametrize("axes", [{"fsdp": 2, "tensor": 2}, {"context": 2}])
def test_devices_share_a_served_teacher(task, axes):
    there = layout(**axes)
    call = AskTeacher(digest_of(task.tokenizer), [*map(_rows, _groups())], 3, 0.8, 1.0)
    expected = _teacher(task).answers(call)
    placed = move(OF_TEACHER, abstract_params(TEACHER, there))
    spread = dataclasses.replace(_teacher(task), layout=there, params=placed)
    for found, known in zip(spread.answers(call), expected, strict=True):
        np.testing.assert_allclose(found.logprobs, known.logprobs, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("axes", [{"fsdp": 2, "tensor": 2}, {"context": 2}])
def test_a_trainer_on_a_mesh_takes_the_same_answers(task, axes):
    call = AskTeacher(digest_of(task.tokenizer), [*map(_rows, _groups())], 3, 0.8, 1.0)
    groups = map(with_answer, _groups(), _teacher(task).answers(call))
    batch = Batching("padded", 8, 8, 1, 0, served_best=3).batch([*groups])
    plain = {"name": "sgd", "b1": 0.0, "learning_rate": 0.1}
    found = []
    for on in ({}, {"layout": layout(**axes)}):
        trainer = trainer_of(ALONE | {"distillation": "topk"}, plain, has_served_teacher=True, **on)
        start = move(jax.tree.map(jnp.copy, PARAMS), trainer.abstract().params)
        state = trainer.begin(trainer.start(start))
        after, metrics = trainer.compile_step(trainer.abstract(), batch)(state, batch)
        found.append((jax.tree.map(np.asarray, after.params), float(metrics["kl_teacher"])))
    assert_close(found[0][0], found[1][0], atol=5e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-3)


class _Scripted:
    """Answers in place of a teacher: fails some times first."""

    def __init__(self, failures):
        self.failures, self.calls = failures, 0

    def __call__(self, call):
        self.calls += 1
        if self.calls <= self.failures:
            raise RuntimeError("out of memory")
        counts = [int(group.mask.sum()) for group in call.groups]
        return [TeacherAnswer(np.full((n, 1), -0.5, np.float32), None) for n in counts]


@contextlib.contextmanager
def _scripted(failures, port=0):
    script = _Scripted(failures)
    pending = PendingCalls(AskTeacher.answered_by(script), threads=1, progress=lambda: 0, kept=4)
    server = RpcServer(CallHandlers(pending.handler()), port, HOST, secret=SECRET)
    yield f"{HOST}:{server.port}", script
    server.close(0)
    pending.close()


def test_a_failing_server_is_asked_again_and_then_ends_the_run(tmp_path, task):
    with _scripted(2) as (address, script), _client(tmp_path, task, address) as (client, _):
        taught = client.taught(Consumed(_groups(), []))
        mask = taught.groups[0].completion_mask
        assert np.all(taught.groups[0].served_logprobs[mask] == -0.5)
        assert script.calls == 3
    with (
        _scripted(9) as (address, script),
        _client(tmp_path, task, address) as (client, _),
        pytest.raises(TeacherServerError, match="failed 3 times: RuntimeError: out of memory"),
    ):
        client.taught(Consumed(_groups(), []))


def test_a_server_that_starts_late_is_waited_for_and_the_log_says_so_once(tmp_path, task, caplog):
    (port,) = free_ports(HOST, 1)
    with (
        _client(tmp_path, task, f"{HOST}:{port}") as (client, _),
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(client.taught, Consumed(_groups(), []))
        time.sleep(0.2)
        assert not asked.done()
        with _scripted(0, port) as (_, script):
            taught = asked.result(20)
    assert script.calls == 1
    assert [group.served_ids for group in taught.groups] == [None, None]
    [told] = [line for line in caplog.messages if "Asking again" in line]
    assert f"No answer from the teacher server at {HOST}:{port}" in told


def test_a_server_with_another_secret_is_an_error_at_once(tmp_path, task):
    with (
        _serving(_teacher(task), secret="t" * 64) as address,
        _client(tmp_path, task, address) as (client, _),
        pytest.raises(TeacherServerError, match=r"Give teacher.secret_path the file"),
    ):
        client.taught(Consumed(_groups(), []))


@contextlib.contextmanager
def _describing(task, secret=SECRET, **fields):
    described = _described(task, **fields)
    desk = CallHandlers(AskTeacherDescription.answered_by(lambda call: described))
    server = RpcServer(desk, 0, HOST, secret=secret)
    yield f"{HOST}:{server.port}"
    server.close(0)


REFUSED = {
    "vocabulary": ({"vocabulary": "other"}, "was started for another vocabulary"),
    "size": ({"vocab_size": 7}, "another vocabulary, of 7 tokens; the policy's has "),
    "length": ({"row_tokens": 3}, "at most 3 tokens, but the task's may have "),
    "secret": ({"secret": "t" * 64}, "Give teacher.secret_path the file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_server_that_cannot_teach_is_refused_before_the_run(tmp_path, task, name):
    fields, told = REFUSED[name]
    with (
        _describing(task, **fields) as address,
        pytest.raises(ConfigError, match=told) as refused,
    ):
        check_teacher_server(settings_with(**_settings(tmp_path, address)), task)
    assert "\n" not in str(refused.value)


def test_a_server_of_the_policys_vocabulary_is_accepted(tmp_path, task):
    with _describing(task) as address:
        check_teacher_server(settings_with(**_settings(tmp_path, address)), task)


def test_a_missing_server_and_a_missing_secret_are_refused_before_the_run(tmp_path, task):
    (port,) = free_ports(HOST, 1)
    there = settings_with(**_settings(tmp_path, f"{HOST}:{port}"))
    with pytest.raises(ConfigError, match=r"no teacher answers there .* `rl-sync teacher`"):
        check_teacher_server(there, task)
    missing = settings_with(**_settings(tmp_path, teacher__secret_path=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match=r"teacher.secret_path=.* cannot be read"):
        check_teacher_server(missing, task)
