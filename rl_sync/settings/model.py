"""`config.model`: the policy, from a checkpoint or from scratch, with or without adapters."""

from __future__ import annotations

import dataclasses
from typing import cast

from rl_sync.models.config import AttentionPath, Lora, LoraTarget, ModelConfig, Remat
from rl_sync.models.huggingface.reading import load_config, locate
from rl_sync.settings.records import ConfigError, require


@dataclasses.dataclass(frozen=True)
class LoraSettings:
    """`config.model.lora`.

    Attributes:
      rank: 0 to train all parameters; else only adapters of this rank, and the rest stays.
      alpha, targets: see `Lora`; the targets with commas between them.
    """

    rank: int
    alpha: float
    targets: str

    def __post_init__(self) -> None:
        Lora(1, 1.0, self._names)  # A wrong name is wrong also where there are no adapters.

    def lora(self) -> Lora | None:
        """The adapters, if there are any.

        Raises:
          ValueError: a value outside its range.
        """
        return None if self.rank == 0 else Lora(self.rank, self.alpha, self._names)

    @property
    def _names(self) -> tuple[LoraTarget, ...]:
        names = tuple(name.strip() for name in self.targets.split(",") if name.strip())
        return cast(tuple[LoraTarget, ...], names)


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """`config.model`: see `ModelConfig`; its vocabulary and length come from the task.

    Attributes:
      path: a Hugging Face checkpoint that the run starts from: its directory, or a hub name in the
        local cache. Vocabulary, sizes and parameters are then the checkpoint's, and of the fields
        here only `dtype`, `remat`, `attention` and `lora` count. None for a random start.
      others: as there.
    """

    path: str | None
    embed_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    rope_base: float
    norm_eps: float
    tie_embeddings: bool
    dtype: str
    remat: str
    attention: str
    lora: LoraSettings

    def config(self, vocab_size: int, max_length: int) -> ModelConfig:
        """The model for a vocabulary, and rows of so many tokens.

        Raises:
          ConfigError: `path` is no checkpoint of ours, or does not fit.
          ValueError: a value that makes no model.
        """
        sizes = {
            name: value
            for name, value in vars(self).items()
            if name not in ("path", "dtype", "remat", "attention", "lora")
        }
        if self.path is None:
            model = ModelConfig(vocab_size=vocab_size, max_length=max_length, **sizes)
        else:
            model = self._stored(self.path, vocab_size, max_length)
        return dataclasses.replace(
            model,
            max_length=max_length,
            dtype=self.dtype,
            remat=cast(Remat, self.remat),
            attention=cast(AttentionPath, self.attention),
            lora=self.lora.lora(),
        )

    def _stored(self, path: str, vocab_size: int, max_length: int) -> ModelConfig:
        try:
            stored = load_config(locate(path))
        except ValueError as error:
            raise ConfigError(f"config.model.path={path!r}: {error}") from error
        require(
            vocab_size <= stored.vocab_size,
            f"The task's tokenizer has {vocab_size} tokens, but the model in config.model.path="
            f"{path!r} knows {stored.vocab_size}: use the tokenizer that belongs to the model.",
        )
        require(
            max_length <= stored.max_length,
            f"The task's rows have {max_length} tokens, but the model in config.model.path={path!r}"
            f" was made for at most {stored.max_length} (max_position_embeddings): shorten prompts"
            " or completions.",
        )
        return stored
