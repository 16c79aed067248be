"""The trainer's side of a teacher server: the check before the run, and a question a batch."""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path

import numpy as np

from rl_sync.algorithms.algorithm import TOPK
from rl_sync.cluster.pending import Await, Pending, await_answer
from rl_sync.cluster.rpc import PeerLostError, RefusedError, RemoteError, RpcClient
from rl_sync.cluster.secret import read_secret
from rl_sync.cluster.session import Session
from rl_sync.cluster.user_errors import RunEndedError
from rl_sync.records.spans import SpanKind
from rl_sync.roles.assembly import wiring
from rl_sync.roles.teaching.teacher_calls import (
    AskTeacher,
    AskTeacherDescription,
    TaughtRows,
    TeacherAnswer,
)
from rl_sync.settings.records import ConfigError, require
from rl_sync.settings.run_settings import RunSettings
from rl_sync.settings.teacher_settings import TeacherSettings
from rl_sync.tasks.task import Task
from rl_sync.tasks.tokenizers.vocabularies import digest_of
from rl_sync.types import Consumed, Group

_ANSWER_SECS = 10.0
_log = logging.getLogger(__name__)
_RETRY_SECS = 1.0
_ATTEMPTS = 3
"""Number of failures of a server after which the run ends."""


class TeacherServerError(RunEndedError):
    """Raised when a teacher server is lost, or fails; the trainer's own state is intact."""


def check_teacher_server(settings: RunSettings, task: Task) -> None:
    """Rejects a teacher server that is missing, or cannot teach the policy.

    Raises:
      ConfigError: the message names the server, the fault and the remedy.
    """
    teacher = settings.teacher
    if teacher.address is None:
        return
    named = f"teacher.address={teacher.address}"
    require(
        task.processor is None,
        f"{named}: policies that are distilled read text alone. Leave out algorithm.distillation,"
        " or the images.",
    )
    client = RpcClient(teacher.address, "teacher server", _secret(teacher))
    try:
        found = client.call(AskTeacherDescription(), _ANSWER_SECS)
    except RefusedError as error:
        raise ConfigError(_refused(error)) from error
    except (PeerLostError, RemoteError) as error:
        raise ConfigError(
            f"{named}: no teacher answers there ({error}). Start one with `rl-sync teacher`, or"
            " give teacher.path for a teacher beside the trainer."
        ) from error
    finally:
        client.close()
    vocab_size = wiring.model_config(settings, task).vocab_size
    require(
        found.vocabulary == digest_of(task.tokenizer) and found.vocab_size == vocab_size,
        f"{named}: the server was started for another vocabulary, of {found.vocab_size} tokens; the"
        f" policy's has {vocab_size}. Its probabilities of the policy's tokens are unknown: start"
        " it with the run's config, and a teacher with the policy's tokenizer.",
    )
    needed = wiring.batching_of(settings, task).row_tokens
    require(
        needed <= found.row_tokens,
        f"{named}: the server was started for trajectories of at most {found.row_tokens} tokens,"
        f" but the task's may have {needed}: start it with the run's config.",
    )


def _refused(error: RefusedError) -> str:
    return f"{error} Give teacher.secret_path the file that the teacher server has."


def _secret(teacher: TeacherSettings) -> str:
    assert teacher.secret_path is not None, "checked with the settings"
    try:
        return read_secret(Path(teacher.secret_path))
    except OSError as error:
        raise ConfigError(
            f"teacher.secret_path={teacher.secret_path} cannot be read ({error.strerror or error}):"
            " `rl-sync teacher` makes it; copy it from the server's machine."
        ) from error


class TeacherClient:
    """Asks a teacher server about the tokens of batches.

    All processes of the trainer call it, and the first one asks.

    Args:
      session: the trainer's session, whose settings name the server.
      task: the task, with the policy's vocabulary.
      retry_secs: seconds until a server that does not answer is asked again.
    """

    def __init__(self, session: Session, task: Task, retry_secs: float = _RETRY_SECS) -> None:
        settings = session.settings
        address, algorithm = settings.teacher.address, settings.algorithm
        assert address is not None
        self._session, self._retry_secs = session, retry_secs
        self._whom = f"the teacher server at {address}"
        self._client: RpcClient | None = None
        if session.leads:  # The others may be on machines without the secret.
            self._client = RpcClient(address, "teacher server", _secret(settings.teacher))
        self._question = AskTeacher(
            vocabulary=digest_of(task.tokenizer),
            groups=[],
            best=algorithm.distillation_top_k if algorithm.distillation == TOPK else 0,
            temperature=settings.rollout.temperature,
            repetition_penalty=settings.rollout.repetition_penalty,
        )

    def taught(self, batch: Consumed) -> Consumed:
        """Returns a batch whose groups have the teacher's answers.

        Raises:
          TeacherServerError: the server did not answer for `launch.wait_secs`, failed several
            times, or has another secret.
          RunStoppedError: the run is being stopped.
        """
        question = dataclasses.replace(self._question, groups=[*map(_asked, batch.groups)])
        what = "the teacher's log-probabilities"
        with self._session.spans.span(SpanKind.WAIT, reason=what, for_whom=self._whom):
            answers = self._answers(question, what)
        groups = [
            with_answer(group, answer) for group, answer in zip(batch.groups, answers, strict=True)
        ]
        return batch._replace(groups=groups)

    def close(self) -> None:
        """Ends the connection."""
        if self._client is not None:
            self._client.close()

    def _answers(self, question: AskTeacher, what: str) -> list[TeacherAnswer]:
        """Asks the server until it answers; returns nothing in processes that do not ask."""
        found: list[TeacherAnswer] = []
        deadline, before, failures = self._session.deadline(what, self._whom), 0, 0
        trouble, is_told = "it computes", False

        def send(call: Await) -> Pending | None:
            nonlocal failures, trouble, is_told
            assert self._client is not None
            try:
                reply = self._client.call(call, self._session.settings.launch.call_secs)
            except RefusedError as error:
                raise TeacherServerError(_refused(error)) from error
            except RemoteError as error:
                failures, trouble = failures + 1, str(error)
                if failures >= _ATTEMPTS:
                    raise TeacherServerError(
                        f"{self._whom} failed {failures} times: {error}. See what it printed."
                    ) from error
            except PeerLostError as error:
                if not is_told:
                    _log.warning("%s Asking again until launch.wait_secs have passed.", error)
                trouble, is_told = str(error), True
            else:
                if isinstance(reply, Pending):
                    return reply
                found.extend(reply)
                return None
            time.sleep(self._retry_secs)
            return Pending(before, is_known=False)

        def between(progress: int) -> None:
            nonlocal before
            if progress > before:
                deadline.renew()
            before = progress
            try:
                deadline()
            except TimeoutError as error:
                raise TeacherServerError(
                    f"{error} Its state: {trouble}. Start it again with `rl-sync teacher`; the same"
                    " command then goes on with the run."
                ) from error

        # The others get no answers, but the errors of the first process.
        await_answer(
            lambda call: self._session.agree("answers of the teacher", lambda: send(call)),
            question,
            between,
        )
        return found


def _asked(group: Group) -> TaughtRows:
    return TaughtRows(group.tokens, group.completion_mask, group.segments, group.sampling_masks)


def with_answer(group: Group, answer: TeacherAnswer) -> Group:
    """Puts answers at the tokens that they are about; those elsewhere have no effect."""
    mask = group.completion_mask
    shape = (*mask.shape, answer.logprobs.shape[1])
    logprobs, ids = np.zeros(shape, np.float32), None
    logprobs[mask] = answer.logprobs
    if answer.ids is not None:
        ids = np.zeros(shape, np.int32)
        ids[mask] = answer.ids
    return dataclasses.replace(group, served_logprobs=logprobs, served_ids=ids)
