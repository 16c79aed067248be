"""`config.model`: the policy, from a checkpoint or from scratch, with or without adapters."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast, get_args

from rl_sync.models.config import (
    ATTENTION_TARGETS,
    DTYPES,
    AttentionPath,
    Experts,
    Lora,
    LoraTarget,
    ModelConfig,
    Remat,
)
from rl_sync.models.huggingface.families import GEMMA_TRAITS
from rl_sync.models.huggingface.reading import load_config, locate
from rl_sync.models.vision.vision_config import Vision
from rl_sync.setting import check, section, setting
from rl_sync.settings.records import ConfigError, require
from rl_sync.tasks.pictures.checkpoint_tiles import checkpoint_tiles
from rl_sync.tasks.pictures.tile_processor import SquareTiles, TileProcessor


@dataclasses.dataclass(frozen=True)
class VisionSettings:
    """`config.model.vision`. The sizes are those of a policy from a random start."""

    image_size: int = setting(
        0,
        "Side in pixels of the square that the policy sees of each image; 0 for a policy from a"
        " random start that reads text alone.",
        unit="pixels",
        least=0,
    )
    patch_size: int = setting(
        4, "Side of a patch. The tower makes one feature of each patch.", least=1
    )
    embed_dim: int = setting(64, "Width of the tower's residual stream.", least=1)
    num_layers: int = setting(2, "Blocks of the tower.", least=1)
    num_heads: int = setting(4, "Heads of a block of the tower.", least=1)
    mlp_dim: int = setting(192, "Width of the tower's MLP.", least=1)
    tile_tokens: int = setting(
        16, "Tokens that an image stands for: a square number, of averaged patches.", least=1
    )
    trains_tower: bool | None = setting(
        None,
        "Whether the vision tower is trained. A frozen one encodes each image once.",
        implied="true for a policy from a random start without adapters, else false",
    )

    def __post_init__(self) -> None:
        check(self, "model.vision")

    def vision(self, token_id: int) -> Vision:
        """Returns the vision of a policy from a random start, as in Gemma 3.

        Args:
          token_id: see `Vision`.

        Raises:
          ValueError: the sizes do not fit.
        """
        return Vision(
            image_size=self.image_size,
            patch_size=self.patch_size,
            embed_dim=self.embed_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            mlp_dim=self.mlp_dim,
            tile_tokens=self.tile_tokens,
            token_id=token_id,
        )


@dataclasses.dataclass(frozen=True)
class LoraSettings:
    """`config.model.lora`."""

    path: str | None = setting(
        None,
        "Directory of PEFT, with adapter_config.json, or a hub name in the local cache: the"
        " adapters that the run begins with, also as its reference. It says rank, alpha and"
        " targets. Its dropout is not applied.",
        implied="new adapters, which change nothing",
        is_path=True,
    )
    rank: int = setting(
        0,
        "Rank of the adapters, which are then all that is trained and published; 0 to train all"
        " parameters.",
        least=0,
    )
    alpha: float = setting(
        32.0,
        "Numerator of the adapters' scale; their rank is the denominator.",
        above=0,
        implied="32, or that of the adapters at `path`",
    )
    targets: str | None = setting(
        None,
        "Projections that get an adapter, separated by commas, of q, k, v, o, gate, up and down.",
        implied="all of them; with a mixture of experts q, k, v and o; or those of the adapters at"
        " `path`",
    )

    def __post_init__(self) -> None:
        check(self, "model.lora")

    def lora(self, experts: bool = False) -> Lora | None:
        """Returns the adapters; None if there are none.

        Args:
          experts: whether the model has a mixture of experts.

        Raises:
          ValueError: a value outside its range.
        """
        return None if self.rank == 0 else Lora(self.rank, self.alpha, self.projections(experts))

    def projections(self, experts: bool = False) -> tuple[LoraTarget, ...]:
        """Returns the names in `targets`, or the default ones; for the argument see `lora`."""
        if self.targets is None:
            return ATTENTION_TARGETS if experts else get_args(LoraTarget)
        names = tuple(name.strip() for name in self.targets.split(",") if name.strip())
        return cast(tuple[LoraTarget, ...], names)


@dataclasses.dataclass(frozen=True)
class ExpertSettings:
    """`config.model.experts`, for a policy from a random start."""

    count: int = setting(
        0,
        "Experts of a mixture in place of each MLP, as in Qwen 3's mixtures; 0 for MLPs without"
        " experts.",
        least=0,
    )
    per_token: int = setting(2, "Experts that each token goes to.", least=1)
    mlp_dim: int = setting(96, "Width of an expert.", least=1)

    def __post_init__(self) -> None:
        check(self, "model.experts")

    def experts(self) -> Experts | None:
        """Returns the mixture; None if there is none.

        Raises:
          ValueError: a token goes to more experts than there are.
        """
        return None if self.count == 0 else Experts(self.count, self.per_token, self.mlp_dim)


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """`config.model`: see `ModelConfig`; its vocabulary and length come from the task."""

    path: str | None = setting(
        None,
        "Hugging Face checkpoint that the run starts from: its directory, or a hub name in the"
        " local cache. Of the other settings here only `dtype`, `remat`, `attention`,"
        " `batch_invariant` and `lora` then count.",
        implied="a random start",
        is_path=True,
    )
    embed_dim: int = setting(128, "Width of the residual stream.", least=1)
    num_layers: int = setting(2, "Blocks of attention and MLP.", least=1)
    num_heads: int = setting(4, "Query heads of a block.", least=1)
    num_kv_heads: int = setting(
        2, "Key and value heads of a block, each shared by as many query heads.", least=1
    )
    head_dim: int = setting(32, "Width of a head; even, since RoPE turns pairs.", least=2)
    mlp_dim: int = setting(384, "Width of the gated MLP.", least=1)
    rope_base: float = setting(10_000.0, "Base θ of the rotary position embedding.", above=0)
    norm_eps: float = setting(1e-6, "Number added to the mean square inside RMSNorm.", above=0)
    tie_embeddings: bool = setting(True, "Uses the embedding as the output projection too.")
    dtype: str = setting(
        "float32",
        "Dtype that blocks compute in, where a role has none of its own; logprobs are float32"
        " anyway.",
        choices=DTYPES,
    )
    remat: str = setting(
        "none",
        "Activations that the backward pass computes again: `none`, `full` blocks, all but the"
        " results of kernels that attend (`attention`: splash and cuDNN; with others it is"
        " `full`), all but matrix products (`dots`), or all but products with parameters"
        " (`dots_no_batch`).",
        choices=get_args(Remat),
        free="always",
    )
    attention: str = setting(
        "auto",
        "Implementation of attention within a call: `auto` for the best that the device and the"
        " rows allow, `einsum` or `dot_product` with all scores at once, `blocks` with those of a"
        " block of queries at a time, or a kernel (`splash` on TPUs, `cudnn` or `triton` on GPUs)."
        " On GPUs decode steps attend by one kernel with `auto` alone.",
        choices=get_args(AttentionPath),
        free="always",
    )
    batch_invariant: bool = setting(
        False,
        "Gives explorers and trainer the same logprobs of a token to the bit, on CPUs, for models"
        " without experts: sums are in an order that does not depend on what else is computed.",
        free="always",
    )
    experts: ExpertSettings = section(ExpertSettings, "Mixture of experts.")
    lora: LoraSettings = section(LoraSettings, "Low-rank adapters.")
    vision: VisionSettings = section(VisionSettings, "Images in prompts.")

    def __post_init__(self) -> None:
        check(self, "model")

    @property
    def trains_tower(self) -> bool:
        """True if the vision tower is trained, in a policy that sees."""
        given = self.vision.trains_tower
        return self.path is None and not self.lora.rank if given is None else given

    def processor(self) -> TileProcessor | None:
        """Returns the processing of images for the policy; None if it has no vision.

        Raises:
          ConfigError: `path` is not a checkpoint that can be read.
          ValueError: the checkpoint's processing of images is not supported.
        """
        if self.path is not None:
            return checkpoint_tiles(str(self._located(self.path)))
        if not self.vision.image_size:
            return None
        return SquareTiles(self.vision.image_size, self.vision.tile_tokens)

    def config(
        self, vocab_size: int, max_length: int, image_token: int | None = None
    ) -> ModelConfig:
        """Returns the model config for a vocabulary and a row length in tokens.

        Args:
          image_token: token that stands for images; None for a policy that reads text alone.

        Raises:
          ConfigError: `path` is not a checkpoint that can be read, or does not fit.
          ValueError: the values make no valid model.
        """
        sizes = {
            name: value
            for name, value in vars(self).items()
            if name not in ("path", "dtype", "remat", "attention", "experts", "lora", "vision")
        }
        if self.path is None:
            model = ModelConfig(
                vocab_size=vocab_size,
                max_length=max_length,
                experts=self.experts.experts(),
                **self._traits(sees=image_token is not None),
                vision=None if image_token is None else self.vision.vision(image_token),
                **sizes,
            )
        else:
            model = self._stored(self.path, vocab_size, max_length, image_token is not None)
        return dataclasses.replace(
            model,
            max_length=max_length,
            dtype=self.dtype,
            remat=cast(Remat, self.remat),
            attention=cast(AttentionPath, self.attention),
            lora=self.lora.lora(experts=model.experts is not None),
        )

    def _traits(self, sees: bool) -> dict[str, Any]:
        """Returns what a model from a random start has in common with a family of transformers.

        It can be exported as a model of this family.
        """
        if self.experts.count:
            return {"qk_norm": True}
        return GEMMA_TRAITS | {"activation": "gelu_tanh"} if sees else {}

    def kv_heads(self) -> int:
        """Returns the number of key and value heads.

        Raises:
          ConfigError: `path` is not a checkpoint that can be read.
        """
        return self.num_kv_heads if self.path is None else self._read(self.path).num_kv_heads

    def longest(self) -> int | None:
        """Returns how many tokens the checkpoint was made for; None without one.

        Raises:
          ConfigError: `path` is not a checkpoint that can be read.
        """
        return None if self.path is None else self._read(self.path).max_length

    def _stored(self, path: str, vocab_size: int, max_length: int, sees: bool) -> ModelConfig:
        stored = self._read(path, sees)
        require(
            vocab_size <= stored.vocab_size,
            f"The task's tokenizer has {vocab_size} tokens, but the model in config.model.path="
            f"{path!r} knows {stored.vocab_size}: use the tokenizer that belongs to the model.",
        )
        require(
            max_length <= stored.max_length,
            f"The task's rows have {max_length} tokens, but the model in config.model.path={path!r}"
            f" was made for at most {stored.max_length} (max_position_embeddings): lower"
            " task.max_prompt_tokens or task.max_completion_tokens, or for episodes"
            " environment.max_tokens.",
        )
        return stored

    def _located(self, path: str) -> Path:
        try:
            return locate(path)
        except ValueError as error:
            raise ConfigError(f"config.model.path={path!r}: {error}") from error

    def _read(self, path: str, sees: bool = False) -> ModelConfig:
        directory = self._located(path)
        try:
            return load_config(directory, vision=sees)
        except ValueError as error:
            raise ConfigError(f"config.model.path={path!r}: {error}") from error
