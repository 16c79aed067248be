"""The roles' side of scoring: requests to the master for the scores of completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int

from rl_sync.cluster.pending import await_answer
from rl_sync.cluster.session import Session
from rl_sync.ending import Ending
from rl_sync.isolation.codec import Records
from rl_sync.messages.call import Call
from rl_sync.messages.scoring_calls import CompletionToScore, RequestScores, Scores
from rl_sync.tasks.tokenizers.prompt_messages import messages_of
from rl_sync.tasks.tokenizers.tokenizer import BEFORE_TOKENS, Tokenizer, begun_reply
from rl_sync.types import Group, Prompt

T = TypeVar("T")


def begun_of(
    tokenizer: Tokenizer, before: Sequence[int], problem: Prompt, ending: Ending | None = None
) -> str:
    """Returns what the prompt has written of a reply: a message that is begun, or a mark.

    Args:
      before: ids before the reply; the last `BEFORE_TOKENS` are enough.
      problem: the problem of the reply.
      ending: end of its episode, if it is the last reply of one.
    """
    stands_between = ending is not None and ending.turns > 1  # Other turns follow the prompt.
    asked = None if stands_between else messages_of(problem.row)
    if asked is not None and asked.messages[-1]["role"] == "assistant":
        return str(asked.messages[-1].get("content") or "")
    return begun_reply(tokenizer, before)


def last_replies(group: Group) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the ids of the last reply of each episode of a group, or of each completion.

    Before them, it yields the ids that precede the reply, at most `BEFORE_TOKENS`.
    """
    mask = group.completion_mask
    counts, firsts = mask.sum(axis=1), mask.argmax(axis=1)
    ends = np.where(counts, mask.shape[1] - mask[:, ::-1].argmax(axis=1), firsts)
    is_one_run = (ends - firsts == counts).tolist()
    for row, (first, end) in enumerate(zip(firsts.tolist(), ends.tolist(), strict=True)):
        tokens = group.tokens[row]
        ids = tokens[first:end] if is_one_run[row] else last_reply(tokens, mask[row])
        start = end - len(ids)
        yield tokens[max(0, start - BEFORE_TOKENS) : start].tolist(), ids.tolist()


def last_reply(
    tokens: Int[np.ndarray, " T"], mask: Bool[np.ndarray, " T"]
) -> Int[np.ndarray, " C"]:
    """Returns the last run of tokens under a mask: an episode's last reply, or a completion."""
    (drawn,) = np.nonzero(mask)
    if not drawn.size:
        return tokens[:0]
    gaps = np.flatnonzero(np.diff(drawn) > 1)
    start = drawn[gaps[-1] + 1] if gaps.size else drawn[0]
    return tokens[start : drawn[-1] + 1]


def judged(session: Session, items: Sequence[CompletionToScore]) -> Scores:
    """Lets the master score completions; raises what `await_call` raises."""
    return await_call(session, RequestScores(Records(items)))


def await_call(session: Session, call: Call[T]) -> T:
    """Calls the master, and waits for the answer while completions are being judged.

    Raises:
      TimeoutError: nothing was judged for `launch.wait_secs` or twice `reward.limit_secs`,
        whichever is longer.
      RunStoppedError: the run is being stopped.
    """
    until, before = _deadline_secs(session), -1

    def between(progress: int) -> None:
        nonlocal until, before
        if progress > before:
            until, before = _deadline_secs(session), progress
        _wait(session, until)

    return await_answer(session.call, call, between)


def _deadline_secs(session: Session) -> float:
    """Returns the time at which a wait without any progress ends."""
    settings = session.settings
    return session.clock.now() + max(settings.launch.wait_secs, 2 * settings.reward.limit_secs)


def _wait(session: Session, until: float) -> None:
    def lasts() -> None:
        session.check()
        if session.clock.now() > until:
            raise TimeoutError(
                f"{session.role} waits for completions to be judged, and for"
                f" launch.wait_secs={session.settings.launch.wait_secs:g} none was. See"
                " logs/master.log, and config.reward."
            )

    session.agree("patience for verdicts", lasts)
