"""Maps names of a checkpoint's tensors to the part of a parameter that each tensor fills.

Our parameters are stacked over layers and fused: one kernel for queries, keys and values, one for
gate and up, one for all experts. So a parameter is assembled from many tensors, and each tensor
fills a box of it.

Letters of axes: L layers, D embed, K kv heads, C columns of a kv head (its N queries, one key, one
value), N query heads of a kv head, H head dim, F mlp, G gate and up, E experts, V vocab.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rl_sync.models.config import HEAD, ModelConfig

EMBEDDING = "embed_tokens.weight"
UNEMBEDDING = "lm_head.weight"
SCORE = "score.weight"
"""Head of a sequence-classification model, here with one label."""


class TensorPiece(NamedTuple):
    """Part of a parameter that one tensor fills.

    Attributes:
      tensor: name of the tensor.
      dims: the parameter's axes in each dimension of the tensor, slowest first: `KCH D` has two
        dimensions. `1` is a dimension of length 1 that the parameter does not have.
      box: for each axis of the parameter, the slice that the tensor fills; it fills an axis that is
        not named completely.
    """

    tensor: str
    dims: str
    box: Mapping[str, slice]


@dataclasses.dataclass(frozen=True)
class ParameterParts:
    """A parameter and the pieces that fill it.

    Attributes:
      axes: letters of its axes.
    """

    axes: str
    pieces: Sequence[TensorPiece]


class Overlap(NamedTuple):
    """Part of one tensor that fills part of a window of a parameter.

    Attributes:
      read: slices of the tensor to read.
      view: shape that the values are reshaped to, with one axis for each axis of the parameter.
      cut: begin and end of the used part on each axis of the view.
      order: transposition that gives the parameter's order of axes.
      start: position in the window of the first element of the used part.
    """

    read: tuple[slice, ...]
    view: tuple[int, ...]
    cut: tuple[tuple[int, int], ...]
    order: tuple[int, ...]
    start: tuple[int, ...]


def assemblies(config: ModelConfig, prefix: str = "model.", head: str = UNEMBEDDING) -> Any:
    """Returns the assembly of every parameter, in the tree of `init_params`.

    Args:
      prefix: name prefix of all tensors except the unembedding.
      head: name of the unembedding.
    """
    tree: dict[str, Any] = {
        "embedding": ParameterParts("VD", [TensorPiece(prefix + EMBEDDING, "V D", {})]),
        "final_norm": {
            "scale": ParameterParts("D", [TensorPiece(prefix + "norm.weight", "D", {})])
        },
        "blocks": _blocks(config, prefix),
    }
    if config.scalar_head:
        tree[HEAD] = {"kernel": ParameterParts("D", [TensorPiece(SCORE, "1 D", {})])}
    elif not config.tie_embeddings:
        tree["unembedding"] = ParameterParts("VD", [TensorPiece(head, "V D", {})])
    return tree


def _blocks(config: ModelConfig, prefix: str) -> dict[str, Any]:
    def stacked(axes: str, *parts: TensorPiece) -> ParameterParts:
        return ParameterParts(
            f"L{axes}",
            [
                TensorPiece(f"{prefix}layers.{layer}.{name}", dims, {"L": _at(layer), **box})
                for layer in range(config.num_layers)
                for name, dims, box in parts
            ],
        )

    def norm(name: str, axis: str = "D") -> dict[str, ParameterParts]:
        return {"scale": stacked(axis, TensorPiece(f"{name}.weight", axis, {}))}

    N = config.heads_per_kv
    columns = {"q": slice(0, N), "k": _at(N), "v": _at(N + 1)}
    attention: dict[str, Any] = {
        "qkv": stacked(
            "DKCH",
            *(
                TensorPiece(f"self_attn.{x}_proj.weight", "KCH D", {"C": columns[x]})
                for x in columns
            ),
        ),
        "out": stacked("KNHD", TensorPiece("self_attn.o_proj.weight", "D KNH", {})),
    }
    if config.qkv_bias:
        biases = (
            TensorPiece(f"self_attn.{x}_proj.bias", "KCH", {"C": columns[x]}) for x in columns
        )
        attention["qkv_bias"] = stacked("KCH", *biases)
    if config.qk_norm:
        attention["query_norm"] = norm("self_attn.q_norm", "H")
        attention["key_norm"] = norm("self_attn.k_norm", "H")
    mlp_norm = "pre_feedforward_layernorm" if config.post_norms else "post_attention_layernorm"
    blocks: dict[str, Any] = {
        "attention": attention,
        "attention_norm": norm("input_layernorm"),
        "mlp_norm": norm(mlp_norm),
    }
    if config.post_norms:
        blocks["attention_post_norm"] = norm("post_attention_layernorm")
        blocks["mlp_post_norm"] = norm("post_feedforward_layernorm")
    halves = {"gate": _at(0), "up": _at(1)}
    if config.experts is None:
        gate_up = [TensorPiece(f"mlp.{x}_proj.weight", "F D", {"G": halves[x]}) for x in halves]
        down = TensorPiece("mlp.down_proj.weight", "D F", {})
        blocks["mlp"] = {"gate_up": stacked("DGF", *gate_up), "down": stacked("FD", down)}
        return blocks
    count = config.experts.count
    blocks["mlp"] = {
        "router": stacked("DE", TensorPiece("mlp.gate.weight", "E D", {})),
        "gate_up": stacked(
            "EDGF",
            *(
                TensorPiece(
                    f"mlp.experts.{e}.{x}_proj.weight", "F D", {"E": _at(e), "G": halves[x]}
                )
                for e in range(count)
                for x in halves
            ),
        ),
        "down": stacked(
            "EFD",
            *(
                TensorPiece(f"mlp.experts.{e}.down_proj.weight", "D F", {"E": _at(e)})
                for e in range(count)
            ),
        ),
    }
    return blocks


def _at(index: int) -> slice:
    return slice(index, index + 1)


def axis_sizes(config: ModelConfig) -> dict[str, int]:
    """Returns the length of each of our axes, by its letter."""
    sizes = {
        "L": config.num_layers, "D": config.embed_dim, "K": config.num_kv_heads,
        "C": config.heads_per_kv + 2, "N": config.heads_per_kv, "H": config.head_dim,
        "F": config.mlp_dim, "G": 2, "V": config.vocab_size,
    }  # fmt: skip
    if config.experts is not None:
        sizes |= {"F": config.experts.mlp_dim, "E": config.experts.count}
    return sizes


def tensor_shape(
    assembly: ParameterParts, piece: TensorPiece, shape: Sequence[int]
) -> tuple[int, ...]:
    """Returns the shape of a piece's tensor.

    Args:
      shape: shape of the parameter.
    """
    extents = {axis: high - low for axis, (low, high) in _box(assembly, piece, shape).items()}
    extents["1"] = 1
    return tuple(math.prod(extents[axis] for axis in dim) for dim in piece.dims.split())


def overlap(
    assembly: ParameterParts, piece: TensorPiece, shape: Sequence[int], window: Sequence[slice]
) -> Overlap | None:
    """Returns the part of a piece that lies in a window of a parameter; None if there is none.

    Args:
      shape: shape of the parameter.
      window: a slice for each axis, as in `jax.sharding.Sharding.devices_indices_map`.
    """
    box = _box(assembly, piece, shape)
    start: dict[str, int] = {}
    inside: dict[str, tuple[int, int]] = {}  # Relative to the beginning of the piece.
    for axis, size, part in zip(assembly.axes, shape, window, strict=True):
        first, last, _ = part.indices(size)
        low, high = max(first, box[axis][0]), min(last, box[axis][1])
        if low >= high:
            return None
        start[axis], inside[axis] = low - first, (low - box[axis][0], high - box[axis][0])
    extents = {axis: high - low for axis, (low, high) in box.items()}
    dims = piece.dims.split()
    read: list[slice] = []
    single = [axis for axis in assembly.axes if axis not in piece.dims]
    view, cut = dict.fromkeys(single, 1), dict.fromkeys(single, (0, 1))
    for dim in dims:
        if dim == "1":
            read.append(slice(0, 1))
            continue
        slowest, others = dim[0], dim[1:]
        # Only the slowest axis of a dimension is read partially. Other axes are cut after reading.
        stride = math.prod(extents[axis] for axis in others)
        low, high = inside[slowest]
        read.append(slice(low * stride, high * stride))
        view[slowest], cut[slowest] = high - low, (0, high - low)
        view |= {axis: extents[axis] for axis in others}
        cut |= {axis: inside[axis] for axis in others}
    held = list(view)
    return Overlap(
        tuple(read),
        tuple(view.values()),
        tuple(cut[axis] for axis in held),
        tuple(held.index(axis) for axis in assembly.axes),
        tuple(start[axis] for axis in assembly.axes),
    )


def _box(
    assembly: ParameterParts, piece: TensorPiece, shape: Sequence[int]
) -> dict[str, tuple[int, int]]:
    """Returns the begin and end of a piece on every axis."""
    return {
        axis: piece.box.get(axis, slice(None)).indices(size)[:2]
        for axis, size in zip(assembly.axes, shape, strict=True)
    }
