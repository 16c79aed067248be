"""The interface of an engine: requests go in, steps give finished completions."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Sequence

import numpy as np
from jaxtyping import Float, Int

from rl_sync.rollout.request import CompletionRequest, FinishedCompletion, Handle
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.stats import Stats
from rl_sync.sequence_images import PooledImages, SequenceImages
from rl_sync.types import CompletionProgress, Params


class RolloutEngine(abc.ABC):
    """Generates completions with the weights that it was given last."""

    @property
    def compiles(self) -> bool:
        """True if programs are compiled for the requests."""
        return True

    @property
    @abc.abstractmethod
    def chunk_tokens(self) -> int:
        """Maximum number of tokens that a sequence gets in a step."""

    @property
    @abc.abstractmethod
    def slots(self) -> int:
        """Maximum number of sequences that are decoded at once."""

    @property
    @abc.abstractmethod
    def version(self) -> int:
        """Version of the weights; −1 before any are loaded."""

    @property
    @abc.abstractmethod
    def unfinished(self) -> int:
        """Number of completions that are queued or in flight."""

    @property
    def occupied(self) -> int:
        """Number of slots that are occupied or waited for."""
        return self.unfinished

    @property
    @abc.abstractmethod
    def tokens_in_flight(self) -> int:
        """Number of tokens that were sampled for completions that are not finished."""

    @property
    @abc.abstractmethod
    def stats(self) -> Stats:
        """Counts of the engine's work so far."""

    @abc.abstractmethod
    def load(self, params: Params, version: int) -> None:
        """Takes new weights; unfinished and held sequences continue with them."""

    @abc.abstractmethod
    def submit(self, requests: Sequence[CompletionRequest]) -> list[int]:
        """Puts requests at the end of the queue.

        Returns:
          Their tickets, which their completions carry.

        Raises:
          ValueError: a request can never be served; then none is accepted.
        """

    @abc.abstractmethod
    def extend(
        self,
        handle: Handle,
        tokens: Int[np.ndarray, " T"],
        sampling: Sampling,
        *,
        seed: tuple[int, ...] | None = None,
        held: bool = False,
        images: SequenceImages | None = None,
    ) -> int:
        """Continues a held completion after given tokens, ahead of queued requests.

        Args:
          handle: the completion, which is held no longer.
          tokens: token ids that follow it; there may be none.
          sampling, seed, held: see `CompletionRequest`.
          images: images of the given tokens.

        Returns:
          The ticket of a new completion, number 0, which has only the tokens sampled from here on.

        Raises:
          ValueError: no such completion is held, or the request can never be served; then the
            completion stays held.
        """

    @abc.abstractmethod
    def release(self, handle: Handle) -> None:
        """Releases a held completion, whose episode is over.

        Raises:
          ValueError: no such completion is held.
        """

    @abc.abstractmethod
    def features(self, images: PooledImages) -> Float[np.ndarray, "N M W"]:
        """Returns the features of tiles by the present weights."""

    @abc.abstractmethod
    def progress(self, handles: Collection[Handle]) -> dict[Handle, CompletionProgress]:
        """Returns the tokens so far of each given completion that is in flight.

        The finished completion will begin with these tokens.
        """

    @abc.abstractmethod
    def step(self) -> list[FinishedCompletion]:
        """Lets sequences grow by at most a chunk, and returns finished completions.

        Raises:
          ValueError: no weights are loaded.
        """

    def rest(self) -> None:  # noqa: B027
        """Gives the memory of the cache back until the next step, if no sequence needs it."""

    def unload(self) -> None:  # noqa: B027
        """Lets go of the weights, if no sequence is in flight or held; `load` brings others."""

    def close(self) -> None:  # noqa: B027
        """Ends what the engine has begun elsewhere; nothing may be asked of it any more."""

    def advance(
        self,
        budget_tokens: int | None = None,
        between: Callable[[list[FinishedCompletion]], None] | None = None,
    ) -> list[FinishedCompletion]:
        """Takes steps until nothing is left, or `budget_tokens` tokens were sampled.

        Unfinished sequences continue in the next step; held ones stay. The budget is checked
        between steps.

        Args:
          between: function called after each step that leaves unfinished sequences, with the
            completions that have finished so far; it may `load` new weights.
        """
        before, finished = self.stats.decode_tokens, list[FinishedCompletion]()
        while self.unfinished:
            finished += self.step()
            drawn = self.stats.decode_tokens - before
            if budget_tokens is not None and drawn >= budget_tokens:
                break
            if between is not None and self.unfinished:
                between(finished)
        return finished

    def generate(
        self,
        requests: Sequence[CompletionRequest],
        between: Callable[[list[FinishedCompletion]], None] | None = None,
    ) -> list[list[FinishedCompletion]]:
        """Completes requests; returns a list of completions for each request, in order.

        Args:
          between: see `advance`.

        Raises:
          ValueError: other requests are unfinished, or a request can never be served.
        """
        if self.unfinished:
            raise ValueError(
                f"{self.unfinished} completions are unfinished, and generate would drop them: use"
                " submit and step."
            )
        tickets = self.submit(requests)
        found = sorted(self.advance(between=between), key=lambda completion: completion.index)
        by_ticket: dict[int, list[FinishedCompletion]] = {ticket: [] for ticket in tickets}
        for completion in found:
            by_ticket[completion.ticket].append(completion)
        return list(by_ticket.values())
