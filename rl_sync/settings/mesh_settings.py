"""The config's sections for devices: the meshes of programs, and the sharding along their axes."""

from __future__ import annotations

import dataclasses

from rl_sync.models.mesh_shape import MeshShape, Rules
from rl_sync.setting import check, setting


@dataclasses.dataclass(frozen=True)
class TrainerMesh:
    """`config.trainer.mesh`; `config.sharding` says which arrays are sharded along which axis."""

    data: int = setting(
        1,
        "Devices that rows are split over; parameters are replicated.",
        unit="devices",
        least=1,
    )
    fsdp: int = setting(
        1,
        "Devices that rows, parameters and the optimizer's state are split over.",
        unit="devices",
        least=1,
    )
    tensor: int = setting(
        1,
        "Devices that heads, the MLP's width and the vocabulary are split over.",
        unit="devices",
        least=1,
    )
    experts: int = setting(
        1,
        "Devices that rows, and the experts of a mixture, are split over: tokens travel to the"
        " devices of their experts.",
        unit="devices",
        least=1,
    )
    context: int = setting(
        1,
        "Devices that the positions of each row are split over, for rows that are too long for one"
        " device. Parameters and the optimizer's state are split over them, too.",
        unit="devices",
        least=1,
    )

    def __post_init__(self) -> None:
        check(self, "trainer.mesh")

    @property
    def shape(self) -> MeshShape:
        """The mesh."""
        return MeshShape(self.data, self.fsdp, self.tensor, self.experts, self.context)


@dataclasses.dataclass(frozen=True)
class ExplorerMesh:
    """`config.explorer.mesh`; `config.sharding` says which arrays are sharded along which axis."""

    data: int = setting(
        1,
        "Devices that slots and their caches are split over; parameters are replicated.",
        unit="devices",
        least=1,
    )
    tensor: int = setting(
        1,
        "Devices that heads, their caches, the MLP's width and the vocabulary are split over.",
        unit="devices",
        least=1,
    )
    experts: int = setting(
        1,
        "Devices that slots and their caches, and the experts of a mixture, are split over.",
        unit="devices",
        least=1,
    )
    context: int = setting(
        1,
        "Devices that slots and their caches are split over, and the positions of prompts while"
        " they are prefilled; parameters are replicated.",
        unit="devices",
        least=1,
    )

    def __post_init__(self) -> None:
        check(self, "explorer.mesh")

    @property
    def shape(self) -> MeshShape:
        """The mesh."""
        return MeshShape(
            data=self.data, tensor=self.tensor, experts=self.experts, context=self.context
        )


@dataclasses.dataclass(frozen=True)
class ShardingSettings:
    """`config.sharding`: the mesh axes of each logical axis, separated by commas.

    If several axes of an array claim the same mesh axis, the axis that comes first in this record
    gets it, and the other one the rest of its mesh axes. An axis that does not divide evenly is not
    sharded.
    """

    batch: str = setting(
        "data,fsdp,experts", "Mesh axes that cut rows of a batch and slots of an engine."
    )
    length: str = setting("context", "Mesh axes that cut positions of a row.")
    vocab: str = setting(
        "tensor", "Mesh axes that cut the vocabulary of the embedding and the output projection."
    )
    kv: str = setting(
        "tensor",
        "Mesh axes that cut key and value heads, the query heads that share them, and their"
        " caches. If an axis has several devices for each key and value head, they share the head,"
        " and cut its query heads and the tokens of its cache.",
    )
    head_dim: str = setting("", "Mesh axes that cut the width of a head.")
    mlp: str = setting("tensor", "Mesh axes that cut the width of the MLP.")
    experts: str = setting("experts", "Mesh axes that cut the experts of a mixture.")
    embed: str = setting(
        "fsdp,context", "Mesh axes that cut the width of the residual stream in parameters."
    )
    layers: str = setting("", "Mesh axes that cut the stack of layers.")

    @property
    def rules(self) -> Rules:
        """Mesh axes of each logical axis, in order of precedence."""
        return tuple(
            (name, tuple(axis.strip() for axis in axes.split(",") if axis.strip()))
            for name, axes in vars(self).items()
        )

    @property
    def engine_rules(self) -> Rules:
        """The same for an engine: the axes that cut positions cut its slots, and no parameters."""
        cutting = dict(self.rules)["length"]
        return tuple(
            (
                name,
                axes if name == "length" else _without(axes, cutting) + cutting * (name == "batch"),
            )
            for name, axes in self.rules
        )


def _without(axes: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis not in others)
