"""The config's sections of devices: the meshes of programs, and what is cut along their axes."""

from __future__ import annotations

import dataclasses

from rl_sync.models.sharding import MESH_AXES, MeshShape, Rules
from rl_sync.settings.records import one_of, require


@dataclasses.dataclass(frozen=True)
class TrainerMesh:
    """`config.trainer.mesh`: on how many devices what is repeated or shared out; see `sharding`.

    Attributes:
      data: rows are; parameters are repeated.
      fsdp: rows, parameters and the optimizer's state are.
      tensor: heads, the MLP's width and the vocabulary are.
    """

    data: int
    fsdp: int
    tensor: int

    def __post_init__(self) -> None:
        _require_sizes("trainer.mesh", data=self.data, fsdp=self.fsdp, tensor=self.tensor)

    @property
    def shape(self) -> MeshShape:
        """The mesh."""
        return MeshShape(self.data, self.fsdp, self.tensor)


@dataclasses.dataclass(frozen=True)
class ExplorerMesh:
    """`config.explorer.mesh`: on how many devices what is repeated or shared out; see `sharding`.

    Attributes:
      data: slots and their caches are; parameters are repeated.
      tensor: heads, their caches, the MLP's width and the vocabulary are.
    """

    data: int
    tensor: int

    def __post_init__(self) -> None:
        _require_sizes("explorer.mesh", data=self.data, tensor=self.tensor)

    @property
    def shape(self) -> MeshShape:
        """The mesh."""
        return MeshShape(data=self.data, tensor=self.tensor)


def _require_sizes(section: str, **sizes: int) -> None:
    for name, size in sizes.items():
        require(size >= 1, f"{section}.{name} must be at least 1 device, not {size}.")


def require_parts(section: str, processes: int, mesh: MeshShape) -> None:
    """Raises ConfigError unless processes can share the devices of a mesh evenly."""
    require(processes >= 1, f"{section}.processes must be at least 1, not {processes}.")
    require(
        mesh.devices % processes == 0,
        f"{section}.processes={processes} cannot share {section}.mesh of {mesh}, which is"
        f" {mesh.devices} devices, evenly: the mesh is over the devices of all processes, so use"
        " sizes whose product is a multiple of their number.",
    )


@dataclasses.dataclass(frozen=True)
class ShardingSettings:
    """`config.sharding`: along which mesh axes each logical axis is cut, separated by commas.

    Where several axes of one array claim a mesh axis, the one that comes first here has it; what
    does not divide evenly is not cut.

    Attributes:
      batch: rows of a batch, slots of an engine.
      length: positions of a row.
      vocab: of the embedding and the output projection.
      kv: key and value heads, with the query heads that share them, and their caches.
      head_dim: width of a head.
      mlp: width of the MLP.
      experts: of a mixture.
      embed: width of the residual stream, in parameters.
      layers: of the stack.
    """

    batch: str
    length: str
    vocab: str
    kv: str
    head_dim: str
    mlp: str
    experts: str
    embed: str
    layers: str

    def __post_init__(self) -> None:
        for name, axes in self.rules:
            for axis in axes:
                one_of(f"sharding.{name}", axis, MESH_AXES)
            require(
                len(set(axes)) == len(axes),
                f"sharding.{name}={getattr(self, name)} names an axis twice: name each once.",
            )

    @property
    def rules(self) -> Rules:
        """In the order of precedence."""
        return tuple(
            (name, tuple(axis.strip() for axis in axes.split(",") if axis.strip()))
            for name, axes in vars(self).items()
        )
