"""Maps names of a checkpoint's tensors to the part of a parameter that each tensor fills.

Our parameters are stacked over layers and fused: one kernel for queries, keys and values, one for
gate and up, one for all experts. So a parameter is assembled from many tensors, and each tensor
fills a box of it.

Letters of axes: L layers, D embed, K kv heads, C columns of a kv head (its N queries, one key, one
value), N query heads of a kv head, H head dim, F mlp, G gate and up, E experts, V vocab. Of vision:
l layers of the tower, e its embed, a heads, t queries, keys and values, h head dim, f mlp,
p patches, y and x pixels of a patch, c colors, w width of a token's features.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rl_sync.models.config import HEAD, Experts, ModelConfig
from rl_sync.models.vision.vision_config import Vision

EMBEDDING = "embed_tokens.weight"
UNEMBEDDING = "lm_head.weight"
SCORE = "score.weight"
"""Head of a sequence-classification model, here with one label."""


PATCH = "embeddings.patch_embedding.weight"
POOLED, SHUFFLED = "mm_input_projection_weight", "modality_projection.proj.weight"
"""Names of a tower's first tensor, and of the matrix of a projector of each kind."""


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


class Naming(NamedTuple):
    """Names of a checkpoint's tensors.

    Attributes:
      prefix: name prefix of the language model's tensors, except the unembedding.
      head: name of the unembedding.
      tower, projector: name prefixes of the tensors of vision.
    """

    prefix: str = "model."
    head: str = UNEMBEDDING
    tower: str = ""
    projector: str = ""


Assemblies = Mapping[str, "ParameterParts | Assemblies"]
"""Assemblies of parameters, in the tree of the parameters."""


def assemblies(config: ModelConfig, naming: Naming) -> Assemblies:
    """Returns the assembly of every parameter, in the tree of `init_params`."""
    prefix, head = naming.prefix, naming.head
    tree: dict[str, ParameterParts | Assemblies] = {
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
    if config.vision:
        tree["vision"] = {
            "tower": _tower(config.vision, naming.tower),
            "projector": _projector(config.vision, naming.projector),
        }
    return tree


def parameters(tree: ParameterParts | Assemblies) -> Iterator[ParameterParts]:
    """Yields every assembly of a tree, by sorted names."""
    if isinstance(tree, ParameterParts):
        yield tree
    else:
        for _, part in sorted(tree.items()):
            yield from parameters(part)


def _tower(vision: Vision, prefix: str) -> Assemblies:
    def one(axes: str, name: str, dims: str) -> ParameterParts:
        return ParameterParts(axes, [TensorPiece(prefix + name, dims, {})])

    def stacked(axes: str, *parts: TensorPiece) -> ParameterParts:
        return _stacked("l", vision.num_layers, f"{prefix}encoder.", axes, *parts)

    def norm(name: str) -> dict[str, ParameterParts]:
        names = {"scale": "weight", "bias": "bias"}
        return {
            ours: stacked("e", TensorPiece(f"{name}.{theirs}", "e", {}))
            for ours, theirs in names.items()
        }

    def each(kind: str, dims: str) -> list[TensorPiece]:
        return [
            TensorPiece(f"self_attn.{x}_proj.{kind}", dims, {"t": _at(number)})
            for number, x in enumerate("qkv")
        ]

    def linear(ours: str, theirs: str, axes: str) -> dict[str, ParameterParts]:
        dims = f"{axes[-1]} {axes[:-1]}"
        return {
            ours: stacked(axes, TensorPiece(f"{theirs}.weight", dims, {})),
            f"{ours}_bias": stacked(axes[-1], TensorPiece(f"{theirs}.bias", axes[-1], {})),
        }

    return {
        "patch": one("yxce", PATCH, "e c y x"),
        "patch_bias": one("e", "embeddings.patch_embedding.bias", "e"),
        "positions": one("pe", "embeddings.position_embedding.weight", "p e"),
        "final_norm": {
            "scale": one("e", "post_layernorm.weight", "e"),
            "bias": one("e", "post_layernorm.bias", "e"),
        },
        "blocks": {
            "attention_norm": norm("layer_norm1"),
            "attention": {
                "qkv": stacked("eath", *each("weight", "ah e")),
                "qkv_bias": stacked("ath", *each("bias", "ah")),
                **linear("out", "self_attn.out_proj", "ahe"),
            },
            "mlp_norm": norm("layer_norm2"),
            "mlp": {**linear("up", "mlp.fc1", "ef"), **linear("down", "mlp.fc2", "fe")},
        },
    }


def _projector(vision: Vision, prefix: str) -> Assemblies:
    if vision.connector == "shuffled":
        return {"kernel": ParameterParts("wD", [TensorPiece(prefix + SHUFFLED, "D w", {})])}
    norm = TensorPiece(f"{prefix}mm_soft_emb_norm.weight", "w", {})
    return {
        "norm": {"scale": ParameterParts("w", [norm])},
        "kernel": ParameterParts("wD", [TensorPiece(prefix + POOLED, "w D", {})]),
    }


def _stacked(
    layer_axis: str, layers: int, prefix: str, axes: str, *parts: TensorPiece
) -> ParameterParts:
    """Returns a parameter whose first axis has the layers."""
    return ParameterParts(
        layer_axis + axes,
        [
            TensorPiece(f"{prefix}layers.{layer}.{name}", dims, {layer_axis: _at(layer), **box})
            for layer in range(layers)
            for name, dims, box in parts
        ],
    )


def _blocks(config: ModelConfig, prefix: str) -> Assemblies:
    def stacked(axes: str, *parts: TensorPiece) -> ParameterParts:
        return _stacked("L", config.num_layers, prefix, axes, *parts)

    def norm(name: str, axis: str = "D") -> dict[str, ParameterParts]:
        return {"scale": stacked(axis, TensorPiece(f"{name}.weight", axis, {}))}

    N = config.heads_per_kv
    columns = {"q": slice(0, N), "k": _at(N), "v": _at(N + 1)}
    attention: dict[str, ParameterParts | Assemblies] = {
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
    blocks: dict[str, ParameterParts | Assemblies] = {
        "attention": attention,
        "attention_norm": norm("input_layernorm"),
        "mlp_norm": norm(mlp_norm),
    }
    if config.post_norms:
        blocks["attention_post_norm"] = norm("post_attention_layernorm")
        blocks["mlp_post_norm"] = norm("post_feedforward_layernorm")
    blocks["mlp"] = _dense(stacked) if config.experts is None else _mixture(config.experts, stacked)
    return blocks


_HALVES = {"gate": slice(0, 1), "up": slice(1, 2)}
"""Places of the projections in the axis G of their kernel."""


def _dense(stacked: Callable[..., ParameterParts]) -> Assemblies:
    """Returns the parts of a gated MLP.

    Args:
      stacked: makes the parts of a parameter of all layers from its axes and pieces.
    """
    gate_up = [TensorPiece(f"mlp.{x}_proj.weight", "F D", {"G": _HALVES[x]}) for x in _HALVES]
    down = TensorPiece("mlp.down_proj.weight", "D F", {})
    return {"gate_up": stacked("DGF", *gate_up), "down": stacked("FD", down)}


def _mixture(experts: Experts, stacked: Callable[..., ParameterParts]) -> Assemblies:
    """Returns the parts of a mixture of experts; see `_dense`."""
    gate_up = [
        TensorPiece(f"mlp.experts.{e}.{x}_proj.weight", "F D", {"E": _at(e), "G": _HALVES[x]})
        for e in range(experts.count)
        for x in _HALVES
    ]
    down = [
        TensorPiece(f"mlp.experts.{e}.down_proj.weight", "D F", {"E": _at(e)})
        for e in range(experts.count)
    ]
    return {
        "router": stacked("DE", TensorPiece("mlp.gate.weight", "E D", {})),
        "gate_up": stacked("EDGF", *gate_up),
        "down": stacked("EFD", *down),
    }


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
    if (vision := config.vision) is not None:
        sizes |= {
            "l": vision.num_layers, "e": vision.embed_dim, "a": vision.num_heads, "t": 3,
            "h": vision.head_dim, "f": vision.mlp_dim, "p": vision.patches**2, "c": 3,
            "y": vision.patch_size, "x": vision.patch_size, "w": vision.feature_width,
        }  # fmt: skip
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
