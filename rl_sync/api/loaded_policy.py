"""Loads a policy that generates: from a run, or from a Hugging Face checkpoint."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from rl_sync.images import FIELD
from rl_sync.models.config import ModelConfig
from rl_sync.models.huggingface.loading import load_params
from rl_sync.models.huggingface.reading import load_config, locate
from rl_sync.models.placement import abstract_params, cast_abstract
from rl_sync.models.sharding import Layout
from rl_sync.roles.saved_policy import policy_of_run, require_snapshot, step_named
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.request import CompletionRequest, FinishedCompletion
from rl_sync.rollout.sampling import Sampling
from rl_sync.sequence_images import SequenceImages
from rl_sync.settings.records import ConfigError
from rl_sync.tasks.dialogues import is_messages, prompt_of
from rl_sync.tasks.pictures.checkpoint_tiles import checkpoint_tiles
from rl_sync.tasks.pictures.places import PLACEHOLDER
from rl_sync.tasks.pictures.prompt_encoder import PromptEncoder
from rl_sync.tasks.pictures.tile_processor import TileProcessor
from rl_sync.tasks.tokenizers import pretrained
from rl_sync.tasks.tokenizers.pretrained import PretrainedTokenizer, TokenizerConfig
from rl_sync.tasks.tokenizers.tokenizer import Tokenizer
from rl_sync.types import Params
from rl_sync.workdir import Workdir

Prompt = str | Sequence[Mapping[str, Any]]
"""A text, or a conversation: a list of messages as in OpenAI's protocol."""

_CHECKPOINT_DTYPE = "float32"


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
      processor: returns the processing of images; None for a policy that reads text alone.
      placeholder: text that stands for an image in prompts.
      stop_strings, stop_ids: texts, and token ids besides the tokenizer's, that end completions in
        the run.
    """

    tokenizer: Tokenizer
    model: ModelConfig
    params: Params
    step: int
    layout: Layout
    processor: Callable[[], TileProcessor | None] = lambda: None
    placeholder: str = PLACEHOLDER
    stop_strings: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()

    def engine(self, slots: int = 64, max_length: int | None = None) -> Engine:
        """Makes an engine with these weights.

        Args:
          slots, max_length: see `EngineOptions`.
        """
        made = Engine(
            self.model,
            self.layout,
            EngineOptions(slots=slots, max_length=max_length, decode=self.tokenizer.decode),
        )
        made.load(self.params, self.step)
        return made

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        images: Sequence[Any] = (),
        completions: int = 1,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        greedy: bool = False,
        stop_strings: Sequence[str] | None = None,
        seed: int = 0,
        chat: bool | None = None,
    ) -> list[list[Generated]]:
        """Completes prompts.

        Args:
          prompts: one text or several; a prompt may also be a conversation, a list of messages as
            in OpenAI's protocol, which the chat template writes. If its last message is the
            assistant's, the policy continues it.
          images: for one text its images, for several texts a list of images each: paths, bytes,
            data URLs, arrays, or images of Pillow. They stand at the placeholders of the text, or
            before a text without any. Empty for text alone.
          completions: number of completions of each prompt.
          max_new_tokens, temperature, top_p, top_k, greedy: see `Sampling`.
          stop_strings: texts that end a completion; None for those of the run.
          seed: seed of the sampling; the same seed gives the same completions.
          chat: whether the chat template writes prompts; None for as in the run.

          Returns:
            The completions of each prompt.

        Raises:
          ValueError: a value is out of range, a prompt has no room for the completion, an image
            cannot be read or has no place, the policy reads text alone, or it has no chat template.
        """
        asking = self if chat is None else self._chatting(chat)
        sampling = Sampling(
            max_new_tokens=max_new_tokens,
            stop_ids=(*self.tokenizer.eos_ids, *self.stop_ids),
            stop_strings=self.stop_strings if stop_strings is None else tuple(stop_strings),
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            greedy=greedy,
        )
        requests = [
            CompletionRequest(
                ids, sampling, completions=completions, seed=(seed, number), images=pictures
            )
            for number, (ids, pictures) in enumerate(asking._encoded(prompts, images))
        ]
        if not requests:
            return []
        longest = max(len(request.prompt) for request in requests) + max_new_tokens
        rows = min(64, len(requests) * completions)
        engine = self.engine(rows, min(longest, self.model.max_length))
        return [[self._read(one) for one in of_prompt] for of_prompt in engine.generate(requests)]

    def _chatting(self, chat: bool) -> Policy:
        """Returns the policy with or without the chat template."""
        tokenizer = self.tokenizer
        if isinstance(tokenizer, PretrainedTokenizer):
            if chat and not tokenizer.backend.chat_template:
                raise ValueError("chat=True needs a chat template, and the tokenizer has none.")
            return dataclasses.replace(self, tokenizer=dataclasses.replace(tokenizer, chat=chat))
        if chat:
            raise ValueError("chat=True needs a chat template, and tokens are characters here.")
        return self

    def _encoded(
        self, prompts: Prompt | Sequence[Prompt], images: Sequence[Any]
    ) -> list[tuple[Int[np.ndarray, " P"], SequenceImages | None]]:
        """Encodes one prompt or several, with their images if there are any."""
        is_one = isinstance(prompts, str) or is_messages(prompts)
        asked = cast("Sequence[Prompt]", [prompts] if is_one else prompts)
        if images:
            return self._pictured(asked, [images] if is_one else images)
        return [(self._ids(one), None) for one in asked]

    def _ids(self, asked: Prompt) -> Int[np.ndarray, " P"]:
        if isinstance(asked, str):
            return np.array(self.tokenizer.encode_prompt(asked), np.int32)
        if not (isinstance(self.tokenizer, PretrainedTokenizer) and self.tokenizer.chat):
            raise ValueError("A conversation needs a chat template, and this policy has none.")
        return np.array(self.tokenizer.encode_messages(*prompt_of(asked)), np.int32)

    def _pictured(
        self, prompts: Sequence[Prompt], images: Sequence[Any]
    ) -> list[tuple[Int[np.ndarray, " P"], SequenceImages | None]]:
        """Encodes prompts with their images."""
        processor = self.processor()
        if processor is None:
            raise ValueError(
                "This policy reads text alone: leave images out, or load one that sees."
            )
        if len(images) != len(prompts):
            raise ValueError(
                f"{len(prompts)} prompts have {len(images)} lists of images: give each prompt a"
                " list, which is empty for text alone."
            )
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if len(texts) < len(prompts):
            raise ValueError("A conversation with images cannot be given here: give texts.")
        encoder, found = PromptEncoder(self.tokenizer, processor, self.placeholder), []
        for text, shown in zip(texts, images, strict=True):
            ids, at, tiles, digests = encoder.pictured(text, {FIELD: shown})
            pictures = SequenceImages(at, tiles, digests) if digests else None
            found.append((ids, pictures))
        return found

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
    template_arguments: str | None = None,
) -> Policy:
    """Loads the policy of a run, from its work directory, or of a Hugging Face checkpoint.

    Args:
      path: a work directory, a directory of a checkpoint, or a hub name in the local cache.
      step: for a run: the snapshot's trainer step, `best`, 0 for the initial policy, or None for
        the newest.
      dtype: dtype of the parameters; None for the run's dtype, or for a checkpoint `float32`.
      chat, system, template_arguments: tokenizer options for a checkpoint; see `config.tokenizer`.
        A run has its own.

    Raises:
      ConfigError: there is no such policy.
    """
    directory = Path(path).expanduser()
    is_checkpoint = any(directory.glob("*.safetensors"))
    if Workdir(str(directory)).config.is_file() and not is_checkpoint:
        policy = _of_run(directory, None if step is None else str(step))
    elif step is not None:
        raise ConfigError(f"step={step} is for runs, and {path} is a checkpoint: leave it out.")
    else:
        try:
            located = locate(str(path))
            tokenizer = pretrained.load(
                TokenizerConfig(str(located), chat, system, template_arguments)
            )
            policy = _of_checkpoint(located, tokenizer, dtype or _CHECKPOINT_DTYPE)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    if dtype is None:
        return policy
    return dataclasses.replace(
        policy,
        model=dataclasses.replace(policy.model, dtype=dtype),
        params=jax.tree.map(lambda x: x.astype(jnp.dtype(dtype)), policy.params),
    )


def _of_run(directory: Path, step: str | None) -> Policy:
    """Loads the policy of a run; see `load` for its steps."""
    if step is None:
        require_snapshot(directory)
    wanted = 0 if step == "0" else step_named(directory, step)
    layout = Layout.single()
    found = policy_of_run(directory, layout, wanted)
    task, rollout = found.task, found.settings.rollout
    return Policy(
        task.tokenizer,
        found.model,
        found.params,
        found.step,
        layout,
        processor=lambda: task.processor,
        placeholder=task.placeholder,
        stop_strings=rollout.stop_texts,
        stop_ids=rollout.more_stop_ids,
    )


def _of_checkpoint(located: Path, tokenizer: PretrainedTokenizer, dtype: str) -> Policy:
    """Loads the policy of a Hugging Face checkpoint."""
    layout = Layout.single()
    model = dataclasses.replace(load_config(located), dtype=dtype)
    params = load_params(located, model, cast_abstract(abstract_params(model, layout), model.dtype))
    processor = functools.partial(checkpoint_tiles, str(located))
    return Policy(tokenizer, model, params, 0, layout, processor)


def engine(path: str | Path, slots: int = 64, max_length: int | None = None) -> Engine:
    """Makes an engine with the weights of a run or of a Hugging Face checkpoint.

    Args:
      path: see `load`.
      slots, max_length: see `EngineOptions`.

    Raises:
      ConfigError: see `load`.
    """
    return load(path).engine(slots, max_length)
