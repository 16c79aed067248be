# /// script
# requires-python = "==3.12.*"
# dependencies = [
#     "google-tunix==0.1.7",
#     "jax==0.12.0.1",
#     "flax==0.12.12",
#     "qwix==0.1.8",
#     "optax==0.2.8",
#     "transformers==5.12.1",
# ]
# ///
"""Tunix's GRPOLearner with LoRA, on the problems and with the settings of a file.

    uv run --script benchmarks/peers/tunix_grpo_peer.py JOB.json

The job is what `benchmarks/beside_peers.py` writes, and the lines are those of `trl_peer.py`.

Two things of Tunix 0.1.7 are mended: its Llama rotates by the base 1,000,000 whatever its
configuration says, and its rollouts sample with the same noise in each step. Others stay: the end
of a completion is no part of its loss, and prompts must not have the token that pads.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import optax
import qwix
from flax import nnx
from transformers import AutoTokenizer
from tunix.models.llama3 import model as llama3
from tunix.models.llama3 import params as llama3_params
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.sft.hooks import TrainingHooks

NUMBER = re.compile(r"-?\d+")
ADAPTED = r".*/(attn/(q|k|v|o)_proj|mlp/(gate|up|down)_proj)"
MODE, ROLE = rl_cluster.Mode, rl_cluster.Role
EVALUATED = 64
"""Problems that are evaluated at once."""


def is_right(text: str, answer: str) -> bool:
    """Says whether the last number of the first line is the answer."""
    found = NUMBER.findall(text.strip().partition("\n")[0])
    return bool(found) and found[-1] == answer


def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return [float(is_right(*pair)) for pair in zip(completions, answer, strict=True)]


def say(**values: Any) -> None:
    print(json.dumps(values), file=sys.__stdout__, flush=True)


class Clock(TrainingHooks):
    """Prints the end of each step, and the accuracy every few steps."""

    def __init__(self, examine: Callable[[], float], every: int) -> None:
        self.examine, self.every, self.step = examine, every, 0

    def on_train_end(self, train_ctx: Any) -> None:
        """Comes after each micro batch, when its computation is done."""
        if train_ctx.train_steps == self.step:
            return
        self.step = train_ctx.train_steps
        say(step=self.step, ended=time.time())
        if self.every and self.step % self.every == 0:
            say(step=self.step, accuracy=self.examine())

    def on_train_start(self, *_: Any) -> None: ...

    on_train_step_start = on_train_step_end = on_train_start
    on_eval_step_start = on_eval_step_end = on_train_start


def load_model(path: str, mesh: jax.sharding.Mesh) -> llama3.Llama3:
    """Loads a model of Hugging Face's Llama in float32."""
    config = json.loads(Path(path, "config.json").read_text())
    theta = config["rope_theta"]
    # The attention calls this without the theta of its configuration.
    llama3.apply_rope = functools.partial(llama3.apply_rope, rope_theta=theta)
    return llama3_params.create_model_from_safe_tensors(
        path,
        llama3.ModelConfig(
            num_layers=config["num_hidden_layers"],
            vocab_size=config["vocab_size"],
            embed_dim=config["hidden_size"],
            hidden_dim=config["intermediate_size"],
            num_heads=config["num_attention_heads"],
            head_dim=config["head_dim"],
            num_kv_heads=config["num_key_value_heads"],
            rope_theta=theta,
            norm_eps=config["rms_norm_eps"],
            weight_tying=config["tie_word_embeddings"],
        ),
        mesh,
        np.float32,
    )


def load_tokenizer(path: str) -> Any:
    """Loads a tokenizer that has no token to put before prompts."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.bos_token = None
    return tokenizer


def adapt(model: llama3.Llama3, job: Any) -> llama3.Llama3:
    """Adds adapters to a model."""
    provider = qwix.LoraProvider(module_path=ADAPTED, rank=job["rank"], alpha=job["alpha"])
    return qwix.apply_lora_to_model(
        model, provider, rngs=nnx.Rngs(job["seed"]), **model.get_model_input()
    )


def rollouts(tokenizer: Any, job: Any) -> dict[rl_cluster.Mode, RolloutConfig]:
    """Returns how to sample, without padding beyond the longest prompt."""
    lengths = [len(tokenizer.encode(one["prompt"])) for one in [*job["train"], *job["held_out"]]]
    shared = {
        "max_prompt_length": max(lengths),
        "max_tokens_to_generate": job["max_new_tokens"],
        "kv_cache_size": max(lengths) + job["max_new_tokens"],
        "eos_tokens": job["end_ids"],
    }
    return {
        MODE.TRAIN: RolloutConfig(temperature=1.0, top_p=1.0, **shared),
        MODE.EVAL: RolloutConfig(temperature=0.0, top_p=None, **shared),
    }


def batches(job: Any, sampling: RolloutConfig) -> Iterator[dict[str, np.ndarray]]:
    """Yields the problems of each step, and gives its rollouts noise of their own."""
    size = job["rows"] // job["group_size"]
    for step in range(job["steps"]):
        sampling.seed = jax.random.fold_in(jax.random.PRNGKey(job["seed"]), step)
        some = [job["train"][(step * size + i) % len(job["train"])] for i in range(size)]
        yield {
            "prompts": np.array([one["prompt"] for one in some]),
            "answer": np.array([one["answer"] for one in some]),
        }


def accuracy(cluster: rl_cluster.RLCluster, problems: list[dict[str, str]]) -> float:
    """Greedy accuracy on problems."""
    prompts = [one["prompt"] for one in problems]
    prompts += prompts[:1] * (-len(prompts) % EVALUATED)
    texts = cluster.generate(prompts, mode=MODE.EVAL, micro_batch_size=EVALUATED).text
    pairs = zip(texts[: len(problems)], problems, strict=True)
    return sum(is_right(text, one["answer"]) for text, one in pairs) / len(problems)


def train(job: Any) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    tokenizer = load_tokenizer(job["model"])
    sampling = rollouts(tokenizer, job)
    groups = job["rows"] // job["group_size"]
    with jax.set_mesh(mesh):
        actor = adapt(load_model(job["model"], mesh), job)
    optimizer = optax.chain(
        optax.clip_by_global_norm(job["max_grad_norm"]),
        optax.adamw(job["learning_rate"], b2=job["adam_b2"], weight_decay=job["weight_decay"]),
    )
    cluster = rl_cluster.RLCluster(
        actor=actor,
        tokenizer=tokenizer,
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh={ROLE.ACTOR: mesh, ROLE.ROLLOUT: mesh, ROLE.REFERENCE: mesh},
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optimizer,
                max_steps=job["steps"],
                eval_every_n_steps=job["steps"] + 1,
                mini_batch_size=groups,
                # On a core, micro batches of one group are the fastest and take least memory.
                train_micro_batch_size=1,
                rollout_micro_batch_size=groups,
                compute_logps_micro_batch_size=groups,
            ),
            rollout_config=sampling,
        ),
    )
    learner = GRPOLearner(
        rl_cluster=cluster,
        algo_config=GRPOConfig(num_generations=job["group_size"], beta=0.0, epsilon=job["clip"]),
        reward_fns=reward,
    )

    def examine() -> float:
        return accuracy(cluster, job["held_out"])

    if job["every"]:
        say(step=0, accuracy=examine())
    cluster.actor_trainer.with_training_hooks(Clock(examine, job["every"]))
    learner.train(batches(job, sampling[MODE.TRAIN]))


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    names = ("google-tunix", "jax", "jaxlib", "flax", "qwix")
    say(versions={name: version(name) for name in names})
    with contextlib.redirect_stdout(sys.stderr):
        train(job)


if __name__ == "__main__":
    main()
