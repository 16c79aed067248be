"""The architecture of a model's vision, in one frozen and validated record."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, get_args

from rl_sync.spelling import require_one_of

Connector = Literal["pooled", "shuffled"]


@dataclasses.dataclass(frozen=True)
class Vision:
    """Vision of a language model: a tower that encodes tiles of images, and a projector.

    An image is one or more tiles, squares of pixels of one size. The tower turns the patches of a
    tile into features (SigLIP, arXiv:2303.15343), which the projector maps to embeddings in place
    of those of the tile's placeholder tokens.

    Attributes:
      image_size: side of a tile, in pixels.
      patch_size: side of a patch, in pixels.
      embed_dim: width of the tower's residual stream, E.
      num_layers: number of the tower's blocks.
      num_heads: number of the tower's heads.
      mlp_dim: width of the tower's MLP.
      norm_eps: ε inside the tower's LayerNorm and the projector's RMSNorm.
      tile_tokens: number of tokens that a tile stands for, M.
      connector: `pooled` averages the patches of each square of patches, and normalizes the
        averages before the projection (Gemma 3, arXiv:2503.19786). `shuffled` concatenates them
        (pixel shuffle; SmolVLM, arXiv:2504.05299).
      both_ways: whether tokens of one tile attend to each other both ways, not only backwards.
      token_id: token that stands at an image's tokens. A sampler must never draw it.
    Raises:
      ValueError: a size is not positive, or sizes do not fit.
    """

    image_size: int
    patch_size: int
    embed_dim: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    tile_tokens: int
    token_id: int
    norm_eps: float = 1e-6
    connector: Connector = "pooled"
    both_ways: bool = True

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "embed_dim", "num_layers", "num_heads", "mlp_dim"):
            self._require(name, getattr(self, name) > 0, "must be positive")
        self._require("norm_eps", self.norm_eps > 0, "must be positive")
        self._require("token_id", self.token_id >= 0, "must not be negative")
        require_one_of("model.vision.connector", self.connector, get_args(Connector))
        self._require(
            "image_size",
            self.image_size % self.patch_size == 0,
            f"must be a multiple of model.vision.patch_size={self.patch_size}",
        )
        self._require(
            "embed_dim",
            self.embed_dim % self.num_heads == 0,
            f"must be a multiple of model.vision.num_heads={self.num_heads}",
        )
        tokens = math.isqrt(max(self.tile_tokens, 0))
        squares = [n * n for n in range(1, self.patches + 1) if self.patches % n == 0]
        self._require(
            "tile_tokens",
            tokens > 0 and tokens**2 == self.tile_tokens and self.patches % tokens == 0,
            f"must be the square of a divisor of the {self.patches} patches of a tile's side:"
            f" {', '.join(map(str, squares))}",
        )

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ValueError(f"model.vision.{name}={getattr(self, name)!r} {rule}.")

    @property
    def patches(self) -> int:
        """Number of patches of a tile's side."""
        return self.image_size // self.patch_size

    @property
    def scale(self) -> int:
        """Number of patches of the side of a square that becomes one token."""
        return self.patches // math.isqrt(self.tile_tokens)

    @property
    def head_dim(self) -> int:
        """Width of a head of the tower."""
        return self.embed_dim // self.num_heads

    @property
    def pixel_bytes(self) -> int:
        """Size of a tile's pixels."""
        return 3 * self.image_size**2

    def tile_bytes(self, width: int) -> int:
        """Returns the size of a tile's features.

        Args:
          width: bytes of a number.
        """
        return self.tile_tokens * self.feature_width * width

    @property
    def feature_width(self) -> int:
        """Width of a token's features, W."""
        return self.embed_dim * (self.scale**2 if self.connector == "shuffled" else 1)
