# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "transformers>=5", "peft>=0.21", "numpy", "safetensors"]
# ///
"""Makes the reference adapters of tests/data/adapters: uv run --script FILE [DIRECTORY].

Each is written by PEFT for the checkpoint tests/data/models/qwen2, with random weights, and
`expected.npz` holds the `logits` that PEFT computes with it on a CPU, for the tokens of the
checkpoint's own. Nothing else needs torch or PEFT.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM

DATA = Path(__file__).resolve().parents[2] / "data"
BASE = DATA / "models" / "qwen2"
CONFIGS = {
    "plain": (
        LoraConfig(
            r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], layers_to_transform=[1]
        ),
        torch.float32,
    ),
    "all_linear": (
        LoraConfig(r=2, lora_alpha=16, target_modules="all-linear", lora_dropout=0.1),
        torch.bfloat16,
    ),
    "patterns": (
        LoraConfig(
            r=4,
            lora_alpha=4,
            use_rslora=True,
            target_modules=r".*\.layers\.[02]\.(self_attn\.[ko]_proj|mlp\.(gate|up)_proj)",
            rank_pattern={"k_proj": 1, r"layers\.2\.mlp\.up_proj": 6},
            alpha_pattern={"o_proj": 10, r"layers\.2\.mlp\.up_proj": 3},
        ),
        torch.float16,
    ),
}


def main(root: Path) -> None:
    with np.load(BASE / "expected.npz") as given:
        tokens, lengths = given["tokens"], given["lengths"]
    real = np.arange(tokens.shape[1]) < lengths[:, None]
    for name, (config, dtype) in CONFIGS.items():
        torch.manual_seed(len(name))
        config.task_type = "CAUSAL_LM"
        config.base_model_name_or_path = "qwen2"
        base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
        model = get_peft_model(base, config).eval()
        adapted = {
            one: module for one, module in model.named_modules() if isinstance(module, LoraLayer)
        }
        with torch.no_grad():
            for module in adapted.values():
                for part in (module.lora_A, module.lora_B):
                    weight = part["default"].weight
                    weight.copy_((0.3 * torch.randn_like(weight)).to(dtype))
            logits = model(torch.tensor(tokens), attention_mask=torch.tensor(real)).logits
        directory = root / name
        shutil.rmtree(directory, ignore_errors=True)
        model.to(dtype).save_pretrained(directory)
        (directory / "README.md").unlink()
        logits = np.where(real[..., None], logits.numpy(), 0)
        np.savez_compressed(directory / "expected.npz", logits=logits)
        config_file = directory / "adapter_config.json"
        config_file.write_text(config_file.read_text().replace(str(BASE), BASE.name) + "\n")
        print(name, sorted({one.rpartition(".")[2] for one in adapted}))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA / "adapters")
