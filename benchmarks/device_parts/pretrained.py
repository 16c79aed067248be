"""SmolLM2 on the device: greedy completions beside the CPU's, and a short run of its config."""

from __future__ import annotations

from collections.abc import Iterator

from device_parts.finding import Finding, PartOptions
from device_parts.greedy_tokens import GreedyJob, compared
from device_parts.jobs import run
from rl_sync.configs import smollm2
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings

_PROMPTS, _TOKENS = 16, 24


def measure(options: PartOptions) -> Iterator[Finding]:
    """Compares completions of held-out problems, then makes a run with a few steps."""
    path = str(options.smollm2)
    config = smollm2.get_config()
    config.update_from_flattened_dict({"model.path": path, "workdir": "nowhere"})
    task = wiring.load_task(read_settings(config.to_dict()))
    count, tokens = (2, 4) if options.small else (_PROMPTS, _TOKENS)
    rows, lengths = task.encode_prompts([one.text for one in task.held_out[:count]])
    prompts = [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]
    yield from compared(GreedyJob(path, prompts, tokens))
    settings = {"model.path": path, "launch.colocate": "true", "launch.share_devices": "true"}
    if options.small:
        settings |= {"trainer.steps": "2", "trainer.groups_per_step": "2"}
        settings |= {"evaluation.problems": "2", "evaluation.every_steps": "0"}
    yield from run("configs/smollm2.py", settings)
