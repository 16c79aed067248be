"""Reads and writes LoRA adapters as PEFT directories.

A directory has adapter_config.json (`LoraConfig` of PEFT 0.21) and adapter_model.safetensors. The
adapters of a kernel W are matrices A [r, in] and B [out, r] with W + scale · B·A. The scale is
α / r, or α / √r with `use_rslora` (arXiv:2312.03732, theorem 3.2). `rank_pattern` and
`alpha_pattern` give single modules another r and α.

Adapters here have one rank and one scale. A module of lower rank is filled up with zeros, and one
of another scale has the ratio of the scales in its B, so the model computes the same function.
Modules without adapters, among layers that have some, get zeros, whose gradients are zero, too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

from rl_sync.models.config import Lora, LoraTarget, ModelConfig
from rl_sync.models.huggingface import files
from rl_sync.models.huggingface.names import Naming
from rl_sync.models.huggingface.reading import TensorFiles, read_values
from rl_sync.models.huggingface.vision_families import VISION_FAMILIES
from rl_sync.models.huggingface.writing import new_directory, write_json
from rl_sync.types import Params

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_OLD_WEIGHTS_FILE = "adapter_model.bin"
_WRAPPER = "base_model.model."
"""Prefix that PEFT gives to the names of a model's modules."""

_TENSOR = re.compile(
    r"(?P<module>(?P<prefix>(.*\.)?)layers\.(?P<layer>\d+)\.(self_attn|mlp)\."
    r"(?P<target>q|k|v|o|gate|up|down)_proj)\.lora_(?P<half>[AB])\.weight"
)
_VISION = re.compile(r".*(vision|visual|connector|multi_modal)")
_EXPERTS = re.compile(r".*\.experts(\.|$)")
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base model's kernels as they are."""

_PLACES: dict[LoraTarget, tuple[str, str]] = {
    "q": ("attention", "qkv_lora"), "k": ("attention", "qkv_lora"), "v": ("attention", "qkv_lora"),
    "o": ("attention", "out_lora"), "gate": ("mlp", "gate_up_lora"), "up": ("mlp", "gate_up_lora"),
    "down": ("mlp", "down_lora"),
}  # fmt: skip
"""Places of adapters among the parameters of a block."""

# Fields that say how the adapters were trained or found, and nothing of what they compute, and
# those that `_refuse` and the tensors' names take into account.
_READ = {
    "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern",
    "init_lora_weights", "bias", "target_modules", "exclude_modules", "layers_to_transform",
    "layers_pattern", "lora_dropout", "task_type", "inference_mode", "revision", "auto_mapping",
    "base_model_name_or_path", "peft_version", "megatron_core", "eva_config", "qalora_group_size",
    "ensure_weight_tying", "runtime_config",
}  # fmt: skip


class _Module(NamedTuple):
    """The adapters of one kernel.

    Attributes:
      rank: r.
      scale: factor on B·A.
    """

    rank: int
    scale: float


@dataclasses.dataclass(frozen=True)
class StoredAdapters:
    """The adapters of a PEFT directory, whose tensors are not yet read.

    Attributes:
      directory: the directory.
      prefix: name prefix of the tensors, up to `layers.`.
      modules: adapters by layer and target.
      lora: rank, alpha and targets with which the model here computes the same function.
    """

    directory: Path
    prefix: str
    modules: Mapping[tuple[int, LoraTarget], _Module]
    lora: Lora


def read_adapters(directory: Path) -> StoredAdapters:
    """Reads the config and the names and shapes of a PEFT directory.

    Raises:
      ValueError: files are missing or damaged, or the adapters do something that adapters here
        cannot; the message names the field or the tensor.
    """
    try:
        values = files.read_object(directory / CONFIG_FILE)
    except FileNotFoundError as error:
        raise ValueError(
            f"{directory} holds no {CONFIG_FILE}: it is not a directory of PEFT."
        ) from error
    _refuse(values, directory / CONFIG_FILE)
    tensors = _open(directory)
    rank = values["r"]
    patterns = {name: values.get(name) or {} for name in ("rank_pattern", "alpha_pattern")}
    prefixes, found = _ranks(tensors, directory / WEIGHTS_FILE)
    modules = {}
    for key, (module, ranks) in found.items():
        own = _of_pattern(patterns["rank_pattern"], module, rank, "rank_pattern")
        if ranks != {"A": own, "B": own}:
            raise ValueError(
                f"{directory / WEIGHTS_FILE} must have lora_A and lora_B of {module} with rank"
                f" {own}, as {CONFIG_FILE} says, and has {ranks or 'none'}: the files do not belong"
                " together."
            )
        alpha = _of_pattern(
            patterns["alpha_pattern"], module, values["lora_alpha"], "alpha_pattern"
        )
        modules[key] = _Module(own, alpha / _divisor(own, values))
    if len(prefixes) != 1:
        raise ValueError(
            f"{directory / WEIGHTS_FILE} has adapters of {len(prefixes)} models"
            f" ({', '.join(sorted(prefixes)) or 'no tensors'}), and must have those of one."
        )
    greatest = max(one.rank for one in modules.values())
    there = {target for _, target in modules}
    lora = Lora(
        rank=greatest,
        alpha=values["lora_alpha"] * greatest / _divisor(rank, values),
        targets=tuple(target for target in get_args(LoraTarget) if target in there),
    )
    return StoredAdapters(directory, prefixes.pop(), modules, lora)


def _ranks(
    tensors: TensorFiles, path: Path
) -> tuple[set[str], dict[tuple[int, LoraTarget], tuple[str, dict[str, int]]]]:
    """Returns name prefixes of the tensors, and by layer and target the module and its ranks.

    Ranks are those of the matrices A and B, by these letters.
    """
    prefixes: set[str] = set()
    ranks: dict[tuple[int, LoraTarget], tuple[str, dict[str, int]]] = {}
    for name in sorted(tensors.names):
        found = _TENSOR.fullmatch(name)
        if found is None or _VISION.match(found["prefix"]):
            kind = "experts" if _EXPERTS.match(name) else "this kind"
            raise ValueError(
                f"{path} has {name}, and adapters of {kind} are not supported: only those of the"
                " language model's q, k, v, o, gate, up and down projections are."
            )
        key = (int(found["layer"]), cast(LoraTarget, found["target"]))
        prefixes.add(found["prefix"])
        shape = (*tensors.shape(name), 0, 0)  # A damaged file may have fewer dimensions.
        _, halves = ranks.get(key, ("", {}))
        halves[found["half"]] = shape["AB".index(found["half"])]
        ranks[key] = found["module"].removeprefix(_WRAPPER), halves
    return prefixes, ranks


def load_adapters(stored: StoredAdapters, config: ModelConfig, abstract: Params) -> Params:
    """Loads adapters into their shards; the host holds one parameter of all layers at a time.

    Args:
      stored: the adapters; `config.lora` must be their `lora`.
      config: the model.
      abstract: `blocks` of the adapters' abstract parameters, with dtypes and shardings.

    Raises:
      ValueError: the adapters belong to a model of other sizes.
    """
    assert config.lora == stored.lora, "the settings have what the directory says"
    beyond = max(layer for layer, _ in stored.modules)
    if beyond >= config.num_layers:
        raise ValueError(
            f"{stored.directory} has adapters of layer {beyond}, and the model has"
            f" {config.num_layers} layers: they were trained on another model."
        )
    tensors = _open(stored.directory)
    loaded: dict[str, Any] = {}
    for target in stored.lora.targets:
        part, group = _PLACES[target]
        ours = loaded.setdefault(part, {}).setdefault(group, {})
        for half, name in (("A", f"{target}_a"), ("B", f"{target}_b")):
            shape = abstract[part][group][name]
            values = _assembled(stored, tensors, target, half, shape)
            ours[name] = jax.make_array_from_callback(
                shape.shape, shape.sharding, values.__getitem__
            )
    return loaded


def _assembled(
    stored: StoredAdapters,
    tensors: TensorFiles,
    target: LoraTarget,
    half: str,
    abstract: jax.ShapeDtypeStruct,
) -> np.ndarray:
    """Assembles A [L, in, r] or B [L, r, …out] of one target in all layers."""
    values = np.zeros(abstract.shape, abstract.dtype)
    _, *inner = abstract.shape
    outer = inner[0] if half == "A" else math.prod(inner[1:])
    for layer in range(len(values)):
        module = stored.modules.get((layer, target))
        if module is None:
            continue
        name = f"{stored.prefix}layers.{layer}.{_module(target)}.lora_{half}.weight"
        rank = module.rank
        wanted = (rank, outer) if half == "A" else (outer, rank)
        if tensors.shape(name) != wanted:
            raise ValueError(
                f"Tensor {name} in {stored.directory} has shape {list(tensors.shape(name))}, and"
                f" the model needs {list(wanted)}: the adapters were trained on another model."
            )
        tensors.dtype(name)  # Raises if parameters cannot have it.
        matrix = tensors.read(name, (slice(None),) * 2).astype(values.dtype).T
        if half == "A":
            values[layer, :, :rank] = matrix
        else:
            ratio = module.scale / stored.lora.scale
            values[layer, :rank] = matrix.reshape(rank, *inner[1:]) * values.dtype.type(ratio)
    return values


def write_adapters(
    target: Path, config: ModelConfig, adapters: Params, *, base: str, prefix: str, dtype: str
) -> None:
    """Writes adapters as a PEFT directory.

    Args:
      target: a new or empty directory. It appears under its name once it is complete.
      config: a config with `lora`.
      adapters: `blocks` of the adapters, arrays that this process can address completely.
      base: checkpoint of the model that they adapt, a directory or a name.
      prefix: name prefix of the model's modules; see `module_prefix`.
      dtype: dtype of the tensors.

    Raises:
      ValueError: the target is in use, or there is no such dtype.
    """
    from safetensors.numpy import save_file

    assert config.lora is not None, "there are adapters"
    with new_directory(target, dtype) as unfinished:
        tensors = {}
        for name in config.lora.targets:
            part, group = _PLACES[name]
            for half in "AB":
                values = np.asarray(adapters[part][group][f"{name}_{half.lower()}"])
                for layer, matrix in enumerate(values.astype(jnp.dtype(dtype))):
                    flat = matrix if half == "A" else matrix.reshape(len(matrix), -1)
                    tensor = f"{_WRAPPER}{prefix}layers.{layer}.{_module(name)}.lora_{half}.weight"
                    tensors[tensor] = np.ascontiguousarray(flat.T)
        write_json(unfinished / CONFIG_FILE, _config_values(config, base, prefix))
        save_file(tensors, unfinished / WEIGHTS_FILE, metadata={"format": "pt"})


def _module(target: LoraTarget) -> str:
    """Returns the name of a target's module in its layer."""
    return f"{'self_attn' if _PLACES[target][0] == 'attention' else 'mlp'}.{target}_proj"


def module_prefix(base: Path) -> str:
    """Returns the name prefix that transformers 5 gives to the language model's modules."""
    family = VISION_FAMILIES.get(str(read_values(base).get("model_type")))
    if family is None:
        return Naming().prefix
    # Some tensors have names of before transformers 4.52 in files, and others in the model.
    return re.sub(r"^language_model\.model\.", "model.language_model.", family.prefix)


def _config_values(config: ModelConfig, base: str, prefix: str) -> dict[str, Any]:
    lora = config.lora
    assert lora is not None, "there are adapters"
    modules: list[str] | str = [f"{name}_proj" for name in lora.targets]
    if prefix != Naming().prefix:  # A vision tower has projections of the same names.
        modules = rf"{re.escape(prefix)}layers\.\d+\.\w+\.({'|'.join(lora.targets)})_proj"
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "target_modules": modules,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _open(directory: Path) -> TensorFiles:
    if not (directory / WEIGHTS_FILE).exists() and (directory / _OLD_WEIGHTS_FILE).exists():
        raise ValueError(
            f"{directory} holds {_OLD_WEIGHTS_FILE}, which runs code when it is read: save the"
            f" adapters as {WEIGHTS_FILE}, with model.save_pretrained(…)."
        )
    return TensorFiles(directory, WEIGHTS_FILE)


def _refuse(values: Mapping[str, Any], path: Path) -> None:
    """Raises for a field that adapters here cannot honour."""

    def refuse(name: str, way_out: str) -> None:
        value = json.dumps(values.get(name))
        raise ValueError(f"{path} has {name}={value:.200}, which is not supported: {way_out}.")

    if values.get("peft_type") != "LORA":
        refuse("peft_type", "only LORA is; merge other adapters into the checkpoint")
    for name in ("r", "lora_alpha"):
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            refuse(name, "it must be a number above 0")
    if not isinstance(values["r"], int):
        refuse("r", "it must be a whole number")
    if values.get("bias", "none") != "none":
        refuse("bias", "only none is; merge the adapters into the checkpoint")
    if values.get("init_lora_weights", True) not in _PLAIN_STARTS:
        refuse(
            "init_lora_weights",
            "it changes the base model; convert the adapters to plain ones"
            " (path_initial_model_for_weight_conversion of PEFT's save_pretrained)",
        )
    for name in sorted(values.keys() - _READ):
        if values[name] not in (None, False, "", [], {}):
            refuse(name, "merge the adapters into the checkpoint, with merge_and_unload()")


def _divisor(rank: int, values: Mapping[str, Any]) -> float:
    return math.sqrt(rank) if values.get("use_rslora") else rank


def _of_pattern(pattern: Mapping[str, Any], module: str, usual: Any, field: str) -> Any:
    """Returns a module's value: that of the first key that its name ends with, as in PEFT."""
    for key, value in pattern.items():
        try:
            if re.match(rf"(.*\.)?({key})$", module):
                return value
        except re.error as error:
            raise ValueError(f"{CONFIG_FILE} has {field} with {key!r}: {error}.") from error
    return usual
