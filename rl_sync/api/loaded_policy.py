"""Loads a policy that generates: from a run, or from a Hugging Face checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.reading import load_config, load_params, locate
from rl_sync.models.placement import abstract_params, cast_abstract
from rl_sync.models.sharding import Layout
from rl_sync.roles.saved_policy import policy_of_run, require_snapshot, step_named
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion
from rl_sync.rollout.sampling import Sampling
from rl_sync.settings.records import ConfigError
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer
from rl_sync.types import Params
from rl_sync.workdir import Workdir


class Generated(NamedTuple):
    """A completion.

    Attributes:
      text: text without special tokens.
      tokens: sampled token ids.
      logprobs: log-probability of each token under the distribution that it was sampled from.
      finish: `stop`, or `length` if it was cut.
    """

    text: str
    tokens: Int[np.ndarray, " T"]
    logprobs: Float[np.ndarray, " T"]
    finish: str


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """A language model with its tokenizer, on devices of this process.

    Attributes:
      tokenizer: encodes prompts as in training, with a chat template if the run has one.
      model: model config.
      params: parameters of the model.
      step: number of finished trainer steps; 0 for a checkpoint.
      layout: sharding of the parameters.
    """

    tokenizer: Tokenizer
    model: ModelConfig
    params: Params
    step: int
    layout: Layout

    def engine(self, slots: int = 64, max_length: int | None = None) -> Engine:
        """Makes an engine with these weights.

        Args:
          slots, max_length: see `Engine`.
        """
        made = Engine(
            self.model,
            slots,
            max_length=max_length,
            decode=self.tokenizer.decode,
            layout=self.layout,
        )
        made.load(self.params, self.step)
        return made

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        completions: int = 1,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        greedy: bool = False,
        stop_strings: Sequence[str] = (),
        seed: int = 0,
    ) -> list[list[Generated]]:
        """Completes prompts.

        Args:
          prompts: one text or several.
          completions: number of completions of each prompt.
          max_new_tokens, temperature, top_p, top_k, greedy, stop_strings: see `Sampling`.
          seed: seed of the sampling; the same seed gives the same completions.

          Returns:
            The completions of each prompt.

        Raises:
          ValueError: a value is out of range, or a prompt has no room for the completion.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        sampling = Sampling(
            max_new_tokens=max_new_tokens,
            stop_ids=self.tokenizer.eos_ids,
            stop_strings=tuple(stop_strings),
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            greedy=greedy,
        )
        requests = [
            CompletionRequest(
                np.array(self.tokenizer.encode_prompt(text), np.int32),
                sampling,
                completions=completions,
                seed=(seed, number),
            )
            for number, text in enumerate(texts)
        ]
        if not requests:
            return []
        longest = max(len(request.prompt) for request in requests) + max_new_tokens
        rows = min(64, len(requests) * completions)
        engine = self.engine(rows, min(longest, self.model.max_length))
        return [[self._read(one) for one in of_prompt] for of_prompt in engine.generate(requests)]

    def _read(self, one: FinishedCompletion) -> Generated:
        text = self.tokenizer.decode(one.tokens.tolist())
        return Generated(text, one.tokens, one.logprobs, one.finish)


def load(
    path: str | Path,
    *,
    step: int | str | None = None,
    dtype: str | None = None,
    chat: str = "auto",
    system: str | None = None,
) -> Policy:
    """Loads the policy of a run, from its work directory, or of a Hugging Face checkpoint.

    Args:
      path: a work directory, a directory of a checkpoint, or a hub name in the local cache.
      step: for a run: the snapshot's trainer step, `best`, 0 for the initial policy, or None for
        the newest.
      dtype: dtype of the parameters; None for the run's dtype, or for a checkpoint `float32`.
      chat, system: tokenizer options for a checkpoint; see `config.tokenizer`. A run has its own.

    Raises:
      ConfigError: there is no such policy.
    """
    directory = Path(path).expanduser()
    layout = Layout.single()
    if Workdir(str(directory)).config.is_file() and not _is_checkpoint(directory):
        if step is None:
            require_snapshot(directory)
        wanted = (
            0 if str(step) == "0" else step_named(directory, None if step is None else str(step))
        )
        policy = policy_of_run(directory, layout, wanted)
        tokenizer, model, params = policy.task.tokenizer, policy.model, policy.params
        step = policy.step
    elif step is not None:
        raise ConfigError(f"step={step} is for runs, and {path} is a checkpoint: leave it out.")
    else:
        try:
            located = locate(str(path))
            tokenizer, model = pretrained.load(str(located), chat, system), load_config(located)
            model = dataclasses.replace(model, dtype=dtype or "float32")
            params = load_params(
                located, model, cast_abstract(abstract_params(model, layout), model.dtype)
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        step = 0
    if dtype is not None:
        model = dataclasses.replace(model, dtype=dtype)
        params = jax.tree.map(lambda x: x.astype(jnp.dtype(dtype)), params)
    return Policy(tokenizer, model, params, int(step), layout)


def engine(path: str | Path, slots: int = 64, max_length: int | None = None) -> Engine:
    """Makes an engine with the weights of a run or of a Hugging Face checkpoint.

    Args:
      path: see `load`.
      slots, max_length: see `Engine`.

    Raises:
      ConfigError: see `load`.
    """
    return load(path).engine(slots, max_length)


def _is_checkpoint(directory: Path) -> bool:
    return any(directory.glob("*.safetensors"))
