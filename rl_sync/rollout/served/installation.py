"""Installation of a version in a served engine, which is believed only after it was checked."""

from __future__ import annotations

import dataclasses
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from rl_sync.rollout.served.engine_transfers import EngineTransfer
from rl_sync.rollout.served.held_digests import HeldTensors, compare
from rl_sync.rollout.served.vllm_calls import EngineRefusedError, VllmCalls
from rl_sync.types import Params

_PROBES, _PROBE_TOKENS = 4, 24
_SHOWN = 3
_WIDEST_GAP = {"float32": 3e-4, "bfloat16": 0.5, "float16": 0.25}
"""Greatest mean difference of log-probabilities that rounding makes, in nats."""

Score = Callable[[Params, Int[np.ndarray, "B T"]], Float[np.ndarray, "B T"]]
"""A function that computes the log-probability of each token; see `token_logprobs`."""


class InstalledVersion(NamedTuple):
    """Result of a checked installation.

    Attributes:
      label: label that the engine gives to the tokens of this installation.
      held: comparison of the engine's tensors with the checkpoint.
      gap: mean difference of the engine's log-probabilities from ours, in nats; None if all tensors
        could be compared instead.
      paused_secs: time for which the engine drew no tokens.
    """

    label: str
    held: HeldTensors
    gap: float | None
    paused_secs: float


@dataclasses.dataclass
class Installation:
    """Writes versions as checkpoints of transformers, and lets an engine take them.

    Attributes:
      calls: calls of the engine.
      transfer: how the checkpoints reach the engine.
      directory: directory for the checkpoints. The newest two are kept.
      write: writes parameters as a checkpoint.
      score: see `Score`.
      dtype: dtype of the parameters.
      vocab_size: number of token ids.
      max_length: number of tokens of the longest sequence, prompt included.
      recompute: whether completions in flight get new keys and values.
    """

    calls: VllmCalls
    transfer: EngineTransfer
    directory: Path
    write: Callable[[Path, Params], None]
    score: Score
    dtype: str
    vocab_size: int
    max_length: int
    recompute: bool
    _owner: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex[:12])
    _count: int = 0
    _expected: Float[np.ndarray, "B T"] | None = None
    _before: Float[np.ndarray, "B T"] | None = None
    _checkpoint: Path | None = None

    def take(self, params: Params, version: int) -> None:
        """Writes a version, for `install`."""
        path = self.directory.absolute() / f"version-{version:08d}"
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write(path, params)
        before, self._checkpoint = self._checkpoint, path
        for old in path.parent.glob("version-*"):
            if old not in (path, before):
                shutil.rmtree(old, ignore_errors=True)
        self._before, self._expected = self._expected, self.score(params, self._probes)

    def check_engine(self) -> None:
        """Checks that an engine was started as it must be.

        Raises:
          EngineRefusedError: the message says how to start it.
          EngineLostError: the engine does not answer.
        """
        if self.calls.is_paused():  # A trainer before us ended in the middle of an installation.
            self.calls.resume()
        length = self.calls.served_length()
        if length < self.max_length:
            raise EngineRefusedError(
                f"{self.calls.url} serves sequences of {length} tokens, but the run's have up to"
                f" {self.max_length}: start vLLM with --max-model-len={self.max_length} or more."
            )
        likeliest = {"max_tokens": 1, "logprobs": 0, "top_k": 1, "temperature": 2.0}
        (choice,) = self.calls.complete(self._probes[0].tolist(), likeliest)["choices"]
        if abs(choice["logprobs"]["content"][0]["logprob"]) > 1e-3:
            raise EngineRefusedError(
                f"{self.calls.url} returns log-probabilities before temperature and top-k, not"
                " those of the distribution that it samples from: start vLLM with"
                " --logprobs-mode=processed_logprobs."
            )

    def install(self, meanwhile: Callable[[], None] = lambda: None) -> InstalledVersion:
        """Installs the version that `take` has written, and returns it when it has been checked.

        Completions in flight stop while the engine takes it, and continue with it.

        Args:
          meanwhile: called again and again while the version is on its way.

        Raises:
          EngineLostError: the engine does not answer.
          EngineRefusedError: it cannot read the checkpoint, or holds other weights afterwards.
        """
        assert self._checkpoint is not None, "take() comes first"
        self._count += 1
        label = f"{self._owner}:{self._checkpoint.name}:{self._count}"
        self.transfer.send(self._checkpoint, label, meanwhile)
        began = time.monotonic()
        self.calls.pause()
        try:
            self.transfer.load(self._checkpoint, label)
            self.calls.name_weights(label, self.recompute)
            held = compare(self._checkpoint, self.calls.digests())
            self._require_equal(held)
        finally:
            self.calls.resume()
        paused_secs = time.monotonic() - began
        gap = self._gap(held) if held.unread else None
        if (now := self.calls.label()) != label:
            raise EngineRefusedError(
                f"{self.calls.url} got other weights ({now!r}) while this run installed its own:"
                " give each explorer an engine of its own, and each run."
            )
        return InstalledVersion(label, held, gap, paused_secs)

    @property
    def _probes(self) -> Int[np.ndarray, "B T"]:
        """Sequences whose log-probabilities tell versions apart."""
        # The engine draws a token more.
        shape = (_PROBES, min(_PROBE_TOKENS, self.max_length - 1))
        return np.random.default_rng(0).integers(0, self.vocab_size, shape, np.int32)

    def _require_equal(self, held: HeldTensors) -> None:
        names = held.differing or held.missing
        if not names:
            return
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        what = "other values in" if held.differing else "no place for"
        raise EngineRefusedError(
            f"{self.calls.url} has {what} {len(names)} tensors of {self._checkpoint} ({shown})"
            f" after it has read it; {held.equal} are equal. Start vLLM with this run's model"
            f" (--model), without quantization, and with --dtype={self.dtype}."
        )

    def _gap(self, held: HeldTensors) -> float:
        """Computes the mean difference of log-probabilities, and requires it to be small."""
        assert self._expected is not None, "take() comes first"
        found = np.stack([self._scored(row) for row in self._probes])
        gap = float(np.abs(found - self._expected[:, 1:]).mean())
        widest = _WIDEST_GAP[held.dtype or self.dtype]
        if self._before is not None:
            moved = float(np.abs(self._expected - self._before)[:, 1:].mean())
            to_before = float(np.abs(found - self._before[:, 1:]).mean())
            is_older = gap > to_before and moved > 2 * to_before
        else:
            is_older = False
        if is_older or not gap <= widest:
            raise EngineRefusedError(
                f"{self.calls.url} gives log-probabilities that are {gap:.3g} nats from those of"
                f" {self._checkpoint} (at most {widest:g} is rounding)"
                + (", and nearer to those of the version before" if is_older else "")
                + ": it has not read it, it has another model or tokenizer, or it was started with"
                f" quantization or without --dtype={self.dtype}."
            )
        return gap

    def _scored(self, tokens: Int[np.ndarray, " T"]) -> Float[np.ndarray, " T-1"]:
        """Returns the engine's log-probabilities of all tokens but the first."""
        asked = {"max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0, "top_p": 1.0}
        asked |= {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        found = self.calls.complete(tokens.tolist(), asked)["prompt_logprobs"]
        return np.array(
            [
                one[str(token)]["logprob"]
                for one, token in zip(found[1:], tokens[1:].tolist(), strict=True)
            ]
        )
