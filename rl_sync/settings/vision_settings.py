"""`config.model.vision`: the vision of a policy, and how its tower is trained."""

from __future__ import annotations

import dataclasses

from rl_sync.models.vision.vision_config import Vision
from rl_sync.setting import check, setting


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
