"""The config's section `explorer`."""

from __future__ import annotations

import dataclasses
from typing import get_args

from rl_sync.models.config import DTYPES, Quantization
from rl_sync.setting import check, section, setting
from rl_sync.settings.mesh_settings import ExplorerMesh

VLLM = "vllm:"
"""Begins the address of a vLLM server."""


@dataclasses.dataclass(frozen=True)
class ExplorerSettings:
    """`config.explorer`."""

    count: int | None = setting(
        None,
        "Explorers of the run.",
        least=0,
        implied="the fewest that the mode takes",
        free="always",
    )
    groups_per_lease: int | None = setting(
        None,
        "Maximum groups of a lease. Ignored with `rollout.streaming`, where `rollout.slots` is the"
        " limit.",
        least=1,
        implied="an explorer's even share of a batch",
        free="always",
    )
    dtype: str | None = setting(
        None,
        "Dtype that parameters are cast to when they are published, and that explorers compute and"
        " cache in.",
        choices=DTYPES,
        implied="model.dtype",
    )
    quantization: str = setting(
        "none",
        "Dtype of 8 bits, or `none`, that kernels of attention, MLPs and experts are rounded to,"
        " with a scale for each output, when they are published. Explorers compute in `dtype`."
        " Norms, routers and embeddings stay.",
        choices=("none", *get_args(Quantization)),
    )
    processes: int = setting(
        1,
        "Processes of each explorer, each with an equal part of its devices.",
        least=1,
        free="always",
    )
    engine: str = setting(
        "",
        "Engine that generates in place of the explorers' own: `vllm:http://HOST:PORT`, a vLLM"
        " server, and as many of them, separated by commas, as there are explorers. The explorers"
        " install and check each version of the weights in it. Empty for their own engines.",
        free="always",
    )
    engine_directory: str | None = setting(
        None,
        "Directory of the checkpoints by which a served engine (`explorer.engine`) gets weights."
        " Explorers write it; with `explorer.engine_transfer=checkpoint` the engine reads it, by"
        " the same name.",
        implied="`engines` in the work directory",
        free="always",
        is_path=True,
    )
    engine_transfer: str = setting(
        "checkpoint",
        "How a served engine gets weights: `checkpoint` (it reads `explorer.engine_directory`) or"
        " `delta` (it fetches what has changed from the explorer while it generates, and needs the"
        " package `rl_sync_vllm`).",
        choices=("checkpoint", "delta"),
        free="always",
    )
    engine_secs: float = setting(
        300.0,
        "Longest time for which a served engine may be away, or silent, before the run ends.",
        unit="s",
        above=0,
        free="always",
    )
    mesh: ExplorerMesh = section(
        ExplorerMesh,
        "Sizes of each explorer's mesh, over the devices of all its processes.",
        free="always",
    )

    def __post_init__(self) -> None:
        check(self, "explorer")

    @property
    def engines(self) -> tuple[str, ...]:
        """Served engines of the explorers, in their order; empty for their own engines."""
        return tuple(part.strip() for part in self.engine.split(",") if part.strip())
