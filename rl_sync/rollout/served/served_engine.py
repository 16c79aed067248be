"""An engine that lets a server of somebody else generate: vLLM.

Requests, seeds, deadlines and versions stay here; the server draws the tokens. A token counts as
drawn by a version only if the server's own record says so, under a label that was given after its
weights had been checked.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from rl_sync.models.config import ModelConfig
from rl_sync.rollout.engine_interface import RolloutEngine
from rl_sync.rollout.request import (
    CompletionRequest,
    FinishedCompletion,
    Handle,
    require_servable,
)
from rl_sync.rollout.sampling import Sampling
from rl_sync.rollout.sequence import Decode, GrowingSequence
from rl_sync.rollout.served.installation import Installation, InstalledVersion
from rl_sync.rollout.served.token_streams import StreamEvent, TokenStreams
from rl_sync.rollout.served.vllm_calls import (
    EngineAwayError,
    EngineLostError,
    EngineRefusedError,
    ServedTokens,
)
from rl_sync.rollout.stats import Stats
from rl_sync.sequence_images import PooledImages, SequenceImages
from rl_sync.types import CompletionProgress, Params

_CHUNK_SECS = 0.2
_RETRY_SECS = 1.0
_ENDS = ("stop", "length")


@dataclasses.dataclass
class _ServedSequence:
    """A completion in flight or in the queue.

    Attributes:
      sequence: its tokens so far.
      begun: number of its tokens when its present stream began.
      known: number of its tokens whose versions are known.
      swapped: whether the server got other weights during its present stream. Then the server says
        at the end of the stream which tokens they drew.
    """

    sequence: GrowingSequence
    begun: int = 0
    known: int = 0
    swapped: bool = False

    def append(self, part: ServedTokens, version: int, vocab_size: int) -> None:
        """Appends the tokens of a stream."""
        self.sequence.append(part.tokens, part.logprobs, version, None, vocab_size)
        if not self.swapped:
            self.known = len(self.sequence.tokens)

    def forget_unknown(self) -> None:
        """Drops the tokens whose versions are not known."""
        self.sequence.keep_first(self.known)
        self.swapped = False


class ServedEngine(RolloutEngine):
    """Generates completions with a server.

    The seeds of requests are not used: the server draws by its own. If the server dies, completions
    continue where they were as soon as it is back, with weights that were installed and checked
    again.

    Args:
      config: model config.
      installation: installs weights in the server.
      slots: maximum number of requests in flight.
      wait_secs: longest time for which the server may be away.
      decode: function from token ids to text, for stop strings.
      tell: gets a sentence when the server is lost, and when it is back.
      check: called during a wait for the server; it may raise.
    """

    def __init__(
        self,
        config: ModelConfig,
        installation: Installation,
        *,
        slots: int,
        wait_secs: float,
        decode: Decode | None = None,
        tell: Callable[[str], None] = lambda told: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._config, self._installation, self._slots = config, installation, slots
        self._wait_secs, self._decode, self._tell = wait_secs, decode, tell
        self._check = check
        self._streams = TokenStreams(installation.calls, slots)
        self._version, self._label, self._is_checked = -1, "", False
        self._installed: InstalledVersion | None = None
        self._labels: dict[str, int] = {}
        self._queue = deque[_ServedSequence]()
        self._running: dict[int, _ServedSequence] = {}
        self._held: dict[Handle, Int[np.ndarray, " S"]] = {}
        self._ended: list[FinishedCompletion] = []
        self._tickets = 0
        self._counted = Stats()

    @property
    def compiles(self) -> bool:
        """See `RolloutEngine`."""
        return False

    @property
    def chunk_tokens(self) -> int:
        """See `RolloutEngine`; the server does not wait between two chunks."""
        return 1

    @property
    def slots(self) -> int:
        """See `RolloutEngine`."""
        return self._slots

    @property
    def version(self) -> int:
        """See `RolloutEngine`."""
        return self._version

    @property
    def unfinished(self) -> int:
        """See `RolloutEngine`."""
        return len(self._queue) + len(self._running) + len(self._ended)

    @property
    def tokens_in_flight(self) -> int:
        """See `RolloutEngine`."""
        ended = sum(one.sampled_tokens for one in self._ended)
        return ended + sum(len(one.sequence.tokens) + one.sequence.surplus for one in self._growing)

    @property
    def installed(self) -> InstalledVersion | None:
        """Result of the last installation; None before the first."""
        return self._installed

    @property
    def _growing(self) -> tuple[_ServedSequence, ...]:
        return (*self._running.values(), *self._queue)

    @property
    def stats(self) -> Stats:
        """See `RolloutEngine`."""
        return self._counted

    def load(self, params: Params, version: int) -> None:
        """Installs new weights; see `RolloutEngine`.

        Raises:
          EngineAwayError: the server was away for too long.
          EngineRefusedError: it cannot take the weights; the message says why.
        """
        # A server that was lost gets the version before once more: `take` comes after.
        self._ended += self._heed(self._streams.events(0.0, _is_end))
        self._installation.take(params, version)
        for one in self._running.values():  # More tokens of the version before may come.
            one.swapped = True
        self._persist(lambda: self._install_afresh(goes_on=True))
        for one in self._running.values():
            one.swapped = True
        self._version = version
        self._labels[self._label] = version

    def _install_afresh(self, goes_on: bool = False) -> None:
        """Installs the weights that were taken.

        Args:
          goes_on: whether completions go on while these are on their way, unless the server was
            lost since: then it has none of our weights.
        """
        goes_on = goes_on and self._is_checked
        if not self._is_checked:
            self._installation.check_engine()
            self._is_checked = True
        began, install = time.monotonic(), self._installation.install
        self._installed = install(self._go_on) if goes_on else install()
        self._label = self._installed.label
        self._counted += Stats(
            installs=1,
            install_secs=time.monotonic() - began,
            paused_secs=self._installed.paused_secs,
        )

    def submit(self, requests: Sequence[CompletionRequest]) -> list[int]:
        """See `RolloutEngine`."""
        for request in requests:
            self._require_servable(request)
        tickets = []
        for request in requests:
            tickets.append(self._tickets)
            self._queue += self._accepted(request)
        return tickets

    def _accepted(self, request: CompletionRequest) -> list[_ServedSequence]:
        """Gives a request its ticket; returns the completions that are to be drawn."""
        ticket, seed = self._tickets, request.seed
        self._tickets += 1
        seed = (ticket,) if seed is None else seed
        found = []
        for index in range(request.completions):
            if index not in request.begun:
                sequence = GrowingSequence(ticket, index, request, seed)
            elif request.begun[index].finish is None:
                sequence = GrowingSequence.going_on(Handle(ticket, index), request, seed)
            else:
                continue
            found.append(_ServedSequence(sequence, known=len(sequence.tokens)))
        self._counted += Stats(prefill_tokens=len(request.prompt))
        return found

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
        """Continues a held completion after given tokens; see `RolloutEngine`."""
        whole = np.concatenate([self._find(handle), np.asarray(tokens, np.int32)])
        request = CompletionRequest(whole, sampling, seed=seed, held=held, images=images)
        self._require_servable(request)
        del self._held[handle]
        accepted = self._accepted(request)
        self._queue.extendleft(reversed(accepted))
        return accepted[0].sequence.ticket

    def release(self, handle: Handle) -> None:
        """See `RolloutEngine`."""
        self._find(handle)
        del self._held[handle]

    def _find(self, handle: Handle) -> Int[np.ndarray, " S"]:
        if handle not in self._held:
            raise ValueError(f"No completion is held as {handle}.")
        return self._held[handle]

    def features(self, images: PooledImages) -> Float[np.ndarray, "N M W"]:
        """Is not served.

        Raises:
          ValueError: always.
        """
        raise ValueError("A served engine computes no features of images.")

    def progress(self, handles: Collection[Handle]) -> dict[Handle, CompletionProgress]:
        """See `RolloutEngine`; it has no tokens whose versions are not known yet."""
        found = {}
        for one in self._growing:
            if one.sequence.handle in handles:
                one.sequence.cut(self._decode)
                whole = one.sequence.progress()
                found[one.sequence.handle] = whole._replace(
                    tokens=whole.tokens[: one.known],
                    logprobs=whole.logprobs[: one.known],
                    versions=whole.versions[: one.known],
                    finish=None,
                )
        return found

    def step(self) -> list[FinishedCompletion]:
        """Waits for tokens for a moment, and returns finished completions.

        Raises:
          ValueError: no weights are loaded.
          EngineAwayError: the server was away for too long.
          EngineRefusedError: it cannot be used; the message says why.
        """
        if self._version < 0:
            raise ValueError("The engine has no weights: call load(params, version) first.")
        ended, self._ended = self._ended, []
        if ended or not self.unfinished:
            return ended
        began, drawn = time.monotonic(), self._counted.decode_tokens
        while self._queue and len(self._running) < self._slots:
            self._begin(self._queue.popleft())
        finished = self._heed(self._streams.events(_CHUNK_SECS, _is_end))
        self._counted += Stats(
            completions=len(finished),
            decode_secs=time.monotonic() - began,
            steps=1,
            stretch_tokens=int(self._counted.decode_tokens > drawn),
        )
        return finished

    def _go_on(self) -> None:
        """Goes on for a moment with the weights before, while others are on their way.

        Raises:
          EngineLostError: the server is lost.
        """
        self._check()
        began = time.monotonic()
        while self._queue and len(self._running) < self._slots:
            self._begin(self._queue.popleft())
        if not self._running:
            return
        finished, lost = self._absorbed(self._streams.events(_CHUNK_SECS, _is_end))
        self._ended += finished
        secs = time.monotonic() - began
        self._counted += Stats(completions=len(finished), decode_secs=secs)
        if lost is not None:
            raise lost

    def _begin(self, one: _ServedSequence) -> None:
        one.begun, one.swapped = len(one.sequence.tokens), False
        number = self._streams.begin(
            one.sequence.whole.tolist(), _parameters(one.sequence), self._label
        )
        self._running[number] = one

    def _heed(self, events: Sequence[StreamEvent]) -> list[FinishedCompletion]:
        """Does what `_absorbed` does, and waits for a lost server."""
        finished, lost = self._absorbed(events)
        return finished if lost is None else finished + self._recover(lost)

    def _absorbed(
        self, events: Sequence[StreamEvent]
    ) -> tuple[list[FinishedCompletion], EngineLostError | None]:
        """Adds new tokens to their sequences.

        Returns:
          The completions that have ended, and what says that the server is lost, if it is.
        """
        finished = list[FinishedCompletion]()
        lost: EngineLostError | None = None
        for number, part in events:
            one = self._running.get(number)
            if one is None:
                continue  # Its stream was ended from here.
            if isinstance(part, EngineRefusedError):
                raise part
            if isinstance(part, EngineLostError):
                lost = part
                finished += self._begin_again(number)
                continue
            one.append(part, self._version, self._config.vocab_size)
            self._counted += Stats(decode_tokens=len(part.tokens))
            if part.finish is None:
                continue
            if part.finish not in _ENDS:
                finished += self._begin_again(number)
            elif self._has_known_versions(one, part):
                del self._running[number]
                finished += self._completed_or_queued(one, part)
            else:
                lost = EngineLostError(
                    f"{self._installation.calls.url} drew tokens with weights that this run has not"
                    f" installed ({part.spans}): it was restarted, or another run uses it"
                )
                for suspect in self._running.values():
                    suspect.known = suspect.begun
                finished += self._begin_again(number)
        return finished, lost

    def _has_known_versions(self, one: _ServedSequence, part: ServedTokens) -> bool:
        """Sets the versions of a stream's tokens by the server's record, if it is complete."""
        sequence, drawn = one.sequence, len(one.sequence.tokens) - one.begun
        versions: list[int] = []
        for label, start, end in part.spans:
            if label not in self._labels or start != len(versions):
                return False
            versions += [self._labels[label]] * (end - start)
        if len(versions) != drawn:
            return False
        sequence.versions[one.begun :] = versions
        one.known = len(sequence.tokens)
        return True

    def _completed_or_queued(
        self, one: _ServedSequence, part: ServedTokens | None = None
    ) -> list[FinishedCompletion]:
        """Returns a completion if it has ended by our own rules; otherwise it is next in the queue.

        Args:
          part: last part of its stream; None if that broke off.
        """
        sequence = one.sequence
        sequence.cut(self._decode)
        if sequence.tokens and sequence.is_over:
            self._counted += Stats(surplus_tokens=sequence.surplus)
            if sequence.request.held:
                self._held[sequence.handle] = sequence.whole
            return [sequence.finished()]
        if part is not None and part.finish == "length":
            raise EngineRefusedError(
                f"{self._installation.calls.url} ended a completion after {len(sequence.tokens)}"
                f" tokens, {sequence.left} before its limit: raise --max-model-len."
            )
        self._queue.appendleft(one)
        return []

    def _begin_again(self, number: int) -> list[FinishedCompletion]:
        """Lets a sequence whose stream broke off go on after the tokens of known versions."""
        one = self._running.pop(number)
        one.forget_unknown()
        return self._completed_or_queued(one)

    def _recover(self, lost: EngineLostError) -> list[FinishedCompletion]:
        """Waits for a lost server, and installs the present version again."""
        finished = list[FinishedCompletion]()
        for number in reversed([*self._running]):
            self._streams.end(number)
            finished += self._begin_again(number)
        self._is_checked = False
        self._persist(self._install_afresh, lost)
        self._labels[self._label] = self._version
        return finished

    def _persist(self, act: Callable[[], None], lost: EngineLostError | None = None) -> None:
        """Acts until the server answers.

        Raises:
          EngineAwayError: it did not in time.
        """
        since = time.monotonic()
        if lost is not None:
            self._tell(f"The engine is lost: {lost}.")
        while True:
            try:
                act()
            except EngineLostError as error:
                if lost is None:
                    self._tell(f"The engine does not answer: {error}.")
                lost, waited = error, time.monotonic() - since
                self._is_checked = False
                if waited > self._wait_secs:
                    raise EngineAwayError(
                        f"The explorer has waited {waited:.0f} s for its engine"
                        f" (explorer.engine_secs={self._wait_secs:g}): {error}. Start it again, or"
                        " raise the limit."
                    ) from error
                self._check()
                time.sleep(_RETRY_SECS)
            else:
                if lost is not None:
                    self._tell(
                        f"The engine is back after {time.monotonic() - since:.0f} s, and has"
                        " weights again."
                    )
                return

    def close(self) -> None:
        """Ends all requests."""
        self._streams.close()
        self._installation.transfer.close()

    def _require_servable(self, request: CompletionRequest) -> None:
        if request.images is not None and request.images.digests:
            raise ValueError("A served engine reads no images: leave out explorer.engine.")
        length, reads_text = self._config.max_length, self._decode is not None
        require_servable(request, self._config, length, reads_text)


def _is_end(event: StreamEvent) -> bool:
    return not isinstance(event.part, ServedTokens) or event.part.finish is not None


def _parameters(sequence: GrowingSequence) -> dict[str, Any]:
    """Returns all sampling parameters, so that none is a default of the server's model.

    It has no seed: the server's sums depend on the batch, so that a seed would repeat nothing; and
    vLLM 0.32 dies of seeds on CPUs, where a prompt is prefilled in parts.
    """
    sampling, drawn = sequence.request.sampling, len(sequence.tokens)
    draws = (
        {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        if sampling.greedy
        else {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
        }
    )
    stops = {
        "stop": [*sampling.stop_strings],
        "include_stop_str_in_output": True,
        "detokenize": True,
    }
    return {
        **draws,
        **(stops if sampling.stop_strings else {}),
        "max_tokens": sampling.max_new_tokens - drawn,
        "min_tokens": max(0, sampling.min_new_tokens - drawn),
        "stop_token_ids": [*sampling.stop_ids],
        "ignore_eos": True,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
