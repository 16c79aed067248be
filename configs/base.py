"""Every setting and its default. Experiment files import this and change a few lines.

None (a placeholder) stands for what the mode, or another setting, implies. What each setting means
is said where it is validated, in `rl_sync/settings/run.py`.
"""

from typing import get_type_hints

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from rl_sync.algorithms.algorithm import Algorithm


def get_config() -> ConfigDict:
    """Returns the defaults."""
    config = ConfigDict()
    config.name = "run"
    config.seed = 0
    config.workdir = placeholder(str)  # None: runs/<name>-<mode>-<time>

    config.task = ConfigDict({"name": "arithmetic", "too_long": "drop"})
    config.task.max_prompt_tokens = placeholder(int)
    config.task.max_completion_tokens = placeholder(int)
    config.task.update({"arithmetic": {}, "worked": {}, "jsonl": {}, "dataset": {}})
    config.task.arithmetic.operators = "+-"
    config.task.arithmetic.least_operand = 10
    config.task.arithmetic.greatest_operand = 99
    config.task.arithmetic.forgotten = 0.6
    config.task.arithmetic.held_out_problems = 512
    config.task.worked.problems = 6000
    config.task.worked.held_out_problems = 512
    config.task.worked.median_additions = 5.0
    config.task.worked.spread = 0.9
    config.task.worked.most_additions = 34
    config.task.worked.tired_after = 6
    config.task.worked.slip = 0.25
    config.task.worked.tired_slip = 0.75
    config.task.jsonl.path = placeholder(str)
    config.task.jsonl.held_out_path = placeholder(str)
    config.task.jsonl.held_out_fraction = 0.1
    config.task.jsonl.reward = "exact"
    config.task.dataset.path = placeholder(str)
    config.task.dataset.subset = placeholder(str)
    config.task.dataset.split = "train"
    config.task.dataset.held_out_path = placeholder(str)
    config.task.dataset.held_out_split = placeholder(str)
    config.task.dataset.held_out_fraction = 0.1
    config.task.dataset.limit = 0
    config.task.dataset.format = "plain"
    config.task.dataset.prompt = placeholder(str)
    config.task.dataset.template = placeholder(str)
    config.task.dataset.answer = placeholder(str)
    config.task.dataset.answer_pattern = placeholder(str)
    config.task.dataset.choices = placeholder(str)
    config.task.dataset.demonstration = placeholder(str)
    config.task.dataset.reward = "exact"

    config.tokenizer = ConfigDict({"chat": "auto"})
    config.tokenizer.path = placeholder(str)
    config.tokenizer.system = placeholder(str)

    config.model = ConfigDict(
        {
            "embed_dim": 128,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 32,
            "mlp_dim": 384,
            "rope_base": 10_000.0,
            "norm_eps": 1e-6,
            "tie_embeddings": True,
            "dtype": "float32",
            "remat": "none",
            "attention": "auto",
        }
    )
    config.model.lora = ConfigDict({"rank": 0, "alpha": 32.0, "targets": "q,k,v,o,gate,up,down"})
    config.model.path = placeholder(str)
    config.warm_up = ConfigDict(
        {
            "steps": 400,
            "batch_size": 128,
            "probe_every_steps": 100,
            "probe_problems": 128,
        }
    )
    # None: as in the algorithm of that name.
    config.algorithm = ConfigDict(
        {name: placeholder(kind) for name, kind in get_type_hints(Algorithm).items()}
    )
    config.critic = ConfigDict(
        {"model": "own", "coefficient": 0.5, "clip": 0.2, "warm_up_steps": 0}
    )
    config.critic.learning_rate = placeholder(float)
    config.optimizer = ConfigDict(
        {
            "name": "adamw",
            "learning_rate": 3e-4,
            "warm_up_learning_rate": 2e-3,
            "schedule": "constant",
            "warm_up_schedule": "cosine",
            "final_share": 0.0,
            "ramp_updates": 10,
            "b1": 0.9,
            "b2": 0.95,
            "weight_decay": 0.0,
            "max_gradient_norm": 1.0,
            "updates_per_batch": 4,
            "max_skipped_updates": 20,
        }
    )
    config.trainer = ConfigDict(
        {
            "steps": 100,
            "groups_per_step": 64,
            "group_size": 8,
            "evaluate_every_steps": 0,
            "evaluation_problems": 512,
            "batching": "padded",
            "microbatch_rows": 0,
            "logits_bytes": 64 << 20,
            "processes": 1,
            "offload_reference": False,
            "offload_optimizer": False,
        }
    )
    config.trainer.compute_dtype = placeholder(str)
    config.trainer.mesh = ConfigDict({"data": 1, "fsdp": 1, "tensor": 1})
    config.rollout = ConfigDict(
        {
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "min_new_tokens": 0,
            "stop_ids": "",
            "stop_strings": "",
            "chunk_tokens": 16,
            "swap": "between",
            "cache": "keep",
            "budget_tokens": 0,
        }
    )
    config.rollout.slots = placeholder(int)

    config.sync = ConfigDict({"mode": "one_step_off_policy", "verify": True})
    config.sync.interval = placeholder(int)
    config.sync.offset = placeholder(int)
    config.sync.max_staleness = placeholder(int)
    config.sync.pull = placeholder(str)
    config.sync.transfer = placeholder(str)
    config.sync.directory = placeholder(str)
    config.explorer = ConfigDict({"processes": 1})
    config.explorer.count = placeholder(int)
    config.explorer.groups_per_lease = placeholder(int)
    config.explorer.dtype = placeholder(str)
    config.explorer.mesh = ConfigDict({"data": 1, "tensor": 1})
    config.sharding = ConfigDict(
        {
            "batch": "data,fsdp",
            "length": "",
            "vocab": "tensor",
            "kv": "tensor",
            "head_dim": "",
            "mlp": "tensor",
            "experts": "",
            "embed": "fsdp",
            "layers": "",
        }
    )

    config.replay = ConfigDict({"backend": "reverb", "port": 0, "sampler": "fifo"})
    config.replay.address = placeholder(str)
    config.master = ConfigDict({"port": 0, "reward_workers": 1, "lease_secs": 60.0})
    config.checkpoint = ConfigDict({"every_steps": 50, "keep": 3})
    config.launch = ConfigDict(
        {
            "colocate": False,
            "share_devices": False,
            "explorer_restarts": 3,
            "start_secs": 300.0,
            "wait_secs": 600.0,
            "call_secs": 60.0,
            "master_lost_secs": 10.0,
            "stop_secs": 60.0,
            "resume_changed": False,
            "hosts": "",
            "remote_shell": "ssh -T -o BatchMode=yes {host}",
        }
    )
    config.launch.host = placeholder(str)
    config.launch.compilation_cache = placeholder(str)
    return config
