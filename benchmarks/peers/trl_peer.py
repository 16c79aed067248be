# /// script
# requires-python = "==3.11.*"
# dependencies = ["torch==2.13.0", "transformers>=5", "trl==1.16.0", "peft>=0.21"]
# ///
"""TRL's GRPOTrainer with LoRA, on the problems and with the settings of a file; answers in lines.

    uv run --script benchmarks/peers/trl_peer.py JOB.json

The job is what `benchmarks/beside_peers.py` writes. A line of standard output that starts with `{"`
has the end of a step in Unix seconds, or the accuracy on held-out problems after so many steps.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

NUMBER = re.compile(r"-?\d+")


def is_right(text: str, answer: str) -> bool:
    """Says whether the last number of the first line is the answer."""
    found = NUMBER.findall(text.strip().partition("\n")[0])
    return bool(found) and found[-1] == answer


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return [float(is_right(*pair)) for pair in zip(completions, answer, strict=True)]


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


class Clock(TrainerCallback):
    """Prints the end of each step, and the accuracy every few steps."""

    def __init__(self, examine: Callable[[], float], every: int) -> None:
        self.examine, self.every = examine, every

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        say(step=state.global_step, ended=time.time())
        if self.every and state.global_step % self.every == 0:
            say(step=state.global_step, accuracy=self.examine())


def accuracy(model: Any, tokenizer: Any, problems: list[dict[str, str]], job: Any) -> float:
    """Greedy accuracy on problems."""
    model.eval()
    right = 0
    for start in range(0, len(problems), 64):
        some = problems[start : start + 64]
        batch = tokenizer([one["prompt"] for one in some], return_tensors="pt", padding=True)
        with torch.inference_mode():
            out = model.generate(
                **batch,
                do_sample=False,
                max_new_tokens=job["max_new_tokens"],
                eos_token_id=job["end_ids"],
                pad_token_id=tokenizer.pad_token_id,
            )
        texts = tokenizer.batch_decode(
            out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
        )
        right += sum(is_right(text, one["answer"]) for text, one in zip(texts, some, strict=True))
    model.train()
    return right / len(problems)


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    say(versions={name: version(name) for name in ("torch", "transformers", "trl")})
    torch.manual_seed(job["seed"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    # The trainer takes the ends of completions from here.
    model.generation_config.eos_token_id = job["end_ids"]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=folder,
                seed=job["seed"],
                max_steps=job["steps"],
                per_device_train_batch_size=job["rows"],
                num_generations=job["group_size"],
                max_completion_length=job["max_new_tokens"],
                learning_rate=job["learning_rate"],
                lr_scheduler_type="constant",
                weight_decay=job["weight_decay"],
                adam_beta2=job["adam_b2"],
                max_grad_norm=job["max_grad_norm"],
                beta=0.0,
                epsilon=job["clip"],
                temperature=1.0,
                use_cpu=True,
                **{"bf16": False, **job["arguments"]},
                gradient_checkpointing=False,
                shuffle_dataset=False,
                logging_steps=10**6,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(job["train"]),
            processing_class=tokenizer,
            peft_config=LoraConfig(
                r=job["rank"],
                lora_alpha=job["alpha"],
                target_modules=[
                    f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")
                ],
            ),
        )

        def examine() -> float:
            return accuracy(trainer.model, tokenizer, job["held_out"], job)

        if job["every"]:
            say(step=0, accuracy=examine())
        trainer.add_callback(Clock(examine, job["every"]))
        trainer.train()


if __name__ == "__main__":
    main()
