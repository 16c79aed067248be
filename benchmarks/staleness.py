"""Accuracy after a fixed number of trainer steps, by algorithm and by staleness of the data.

    python benchmarks/staleness.py [--bounds=0,1,2,4,8,16] [--seeds=300,...,307] [--algorithms=...]
        [--steps=60] [--sft-steps=400] [--results=docs/staleness.jsonl]
    python benchmarks/staleness.py --report

Runs the arithmetic task with the real explorer and trainer in one process, one after the other: the
batch of trainer step t is generated with the parameters of version max(0, t - 1 - bound), so that
staleness is exactly the bound from then on. Prompts, the seeds of draws, SFT (once a seed, kept in
`--warm-starts`) and the optimizer are the same for all. So are group-relative advantages and the
mean over tokens, except for TOPR, which has the settings of its name.

Each run adds a line to the results; runs that have one are not done again, so the study can be
stopped at any time and goes on where it was. At the end, or with `--report` from the results so
far, it draws the figure and puts the tables into the document beside the results,
`docs/staleness.md`. A run takes about 10 s on two CPU cores, SFT of a seed 20 s, and an algorithm 5
s to compile.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from staleness_report import write_report

from rl_sync.checkpoints.snapshot_folder import SnapshotFolder
from rl_sync.checkpoints.snapshots import Retention
from rl_sync.configs import base
from rl_sync.models.quantization import quantized
from rl_sync.records.json_lines import JsonLinesWriter, read_json_lines
from rl_sync.rewards.judgement import Completion
from rl_sync.rewards.rubric import Rubric, ScoringRequest
from rl_sync.role_names import TRAINER
from rl_sync.roles.assembly import wiring
from rl_sync.roles.assembly.build import trainer_of
from rl_sync.roles.assembly.engines import rollout_engine
from rl_sync.roles.explorer.actor import Explorer, ExplorerState
from rl_sync.roles.trainer.actor import Metrics, Step, Trainer, TrainState
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.request import CompletionRequest
from rl_sync.settings.config_reading import read_settings
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks.order import prompt_at
from rl_sync.tasks.task import Task
from rl_sync.token_records import SamplerShape
from rl_sync.types import Group, Lease, Params, Prompt

ROOT = Path(__file__).resolve().parents[1]
GROUPS_PER_STEP, GROUP_SIZE, UPDATES = 32, 8, 4
CURVE_POINTS = 6
_MEASURED = (
    *("reward_mean", "entropy", "effective_sample_share", "clip_fraction"),
    *("sampler_distance", "score_drift"),
)
SFT_STEPS = 400

_SAME = {"advantage": "grpo", "aggregation": "token_mean", "kl_coefficient": 0.0}
_PLAIN = {"name": "grpo", "loss": "reinforce", **_SAME}
_TRUNCATED, _CENTERED = {"correction": "token_truncation"}, {"score_centering": "exact"}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "PPO": {"name": "grpo", "clip_high": 0.28, **_SAME},
    "decoupled PPO": {"name": "decoupled_ppo", **_SAME},
    "CISPO": {"name": "cispo", **_SAME},
    "truncated IS": {**_PLAIN, **_TRUNCATED},
    "TOPR": {"name": "topr"},
    "no correction": _PLAIN,
    "no correction, centered": {**_PLAIN, **_CENTERED},
    "truncated IS, centered": {**_PLAIN, **_TRUNCATED, **_CENTERED},
}
"""Algorithms by name, as settings of `config.algorithm`."""
COMPARED = ("PPO", "decoupled PPO", "CISPO", "truncated IS", "TOPR")
"""Those that this study compares."""


class Case(NamedTuple):
    """One run of the study.

    Attributes:
      quantization: dtype of the explorers' kernels; see `explorer.quantization`.
    """

    algorithm: str
    bound: int
    seed: int
    quantization: str = "none"


def settings_of(
    algorithm: str, seed: int, steps: int, sft_steps: int = SFT_STEPS, quantization: str = "none"
) -> RunSettings:
    """The settings of a run. The study makes the staleness itself, so the mode has none."""
    config = base.get_config()
    config.explorer.quantization = quantization
    config.workdir, config.seed = "none", seed
    config.sync.mode = "synchronous"
    config.sft.steps = sft_steps
    config.algorithm.update({**ALGORITHMS[algorithm], "allow_unsafe": True})
    config.trainer.update(
        {"steps": steps, "groups_per_step": GROUPS_PER_STEP, "group_size": GROUP_SIZE}
    )
    config.optimizer.updates_per_batch = UPDATES
    return read_settings(config.to_dict())


@functools.cache
def task_of(seed: int) -> Task:
    """The problems; each seed holds out other ones."""
    return wiring.load_task(settings_of(next(iter(ALGORITHMS)), seed, steps=1))


class RolloutEngine(NamedTuple):
    """An explorer's engine, and how it holds the trainer's parameters."""

    engine: Engine
    quantize: Callable[[Params], Params] | None

    def held(self, params: Params) -> Params:
        """Returns the parameters in the engine's dtypes."""
        return params if self.quantize is None else self.quantize(params)


class Study:
    """Runs cases, and keeps their shared SFT states and compiled programs.

    Args:
      steps: trainer steps of a run.
      sft_steps: steps of SFT before it.
      warm_starts: the directory of the policies after SFT, one snapshot for each seed.
    """

    def __init__(self, steps: int, sft_steps: int, warm_starts: Path):
        self._steps, self._sft_steps, self._warm_starts = steps, sft_steps, warm_starts
        first = self._settings(next(iter(ALGORITHMS)), 0)
        self._layout = first.layout(TRAINER, first.trainer.mesh.shape.mesh(jax.devices()))
        self._engines: dict[tuple[SamplerShape | None, str], RolloutEngine] = {}
        self._compiled: dict[str, Step] = {}

    def trainer(self, algorithm: str) -> Trainer:
        """The same for all seeds, so that its programs are compiled once."""
        return trainer_of(self._settings(algorithm, 0), task_of(0), self._layout)

    def _settings(self, algorithm: str, seed: int, quantization: str = "none") -> RunSettings:
        return settings_of(algorithm, seed, self._steps, self._sft_steps, quantization)

    def _engine(self, case: Case) -> RolloutEngine:
        """The engine of an explorer; cases that record the same share it."""
        settings = self._settings(case.algorithm, 0, case.quantization)
        key = wiring.token_records(settings, task_of(0)).sampler, case.quantization
        if key not in self._engines:
            engine = rollout_engine(settings, task_of(0), self._layout)
            model = wiring.explorer_model(settings, task_of(0))
            load = jax.jit(functools.partial(quantized, model)) if model.quantization else None
            self._engines[key] = RolloutEngine(engine, load)
        return self._engines[key]

    def _step(self, algorithm: str) -> Step:
        if algorithm not in self._compiled:
            settings, trainer = self._settings(algorithm, 0), self.trainer(algorithm)
            largest = wiring.batching_of(settings, task_of(0)).largest()
            self._compiled[algorithm] = trainer.compile_step(trainer.abstract(), largest)
        return self._compiled[algorithm]

    def run(self, case: Case) -> dict[str, Any]:
        """Makes one run; returns its line of the results."""
        settings, task = self._settings(case.algorithm, case.seed), task_of(case.seed)
        step, state = self._step(case.algorithm), self._warm(case)
        batching, engine = wiring.batching_of(settings, task), self._engine(case)
        explorer = Explorer(
            number=1,
            engine=engine.engine,
            task=task,
            sampling=wiring.sampling(settings, task),
            group_size=GROUP_SIZE,
            groups=GROUPS_PER_STEP,
            seed=case.seed,
            records=wiring.token_records(settings, task),
        )
        started = time.monotonic()
        curve = [self._accuracy(task, settings, state.params)]
        # The oldest one generates the next batch.
        versions = collections.deque([(0, _copy(state.params))], maxlen=case.bound + 1)
        metrics: list[Metrics] = []
        for t in range(1, self._steps + 1):
            version, params = versions[0]
            # A version of another run may have the same number.
            held = engine.held(params)
            engine.engine.load(held, version)
            groups = self._generate(explorer, task, ExplorerState(version, held), t)
            state, values = step(state, batching.batch(groups))
            metrics.append(values)
            versions.append((t, _copy(state.params)))
            if t * CURVE_POINTS // self._steps > (t - 1) * CURVE_POINTS // self._steps:
                curve.append(self._accuracy(task, settings, state.params))
        late = [jax.device_get(values) for values in metrics[len(metrics) // 2 :]]
        assert late[-1]["staleness_max"] == min(case.bound, self._steps - 1)
        means = {
            name: float(np.mean([values[name] for values in late]))
            for name in _MEASURED
            if name in late[0]
        }
        return {
            **case._asdict(), "steps": self._steps, "accuracy": curve[-1], "curve": curve,
            "second_half": means, "secs": time.monotonic() - started,
        }  # fmt: skip

    def _generate(
        self, explorer: Explorer, task: Task, state: ExplorerState, t: int
    ) -> list[Group]:
        """The judged groups of trainer step t."""
        ordinals = range((t - 1) * GROUPS_PER_STEP, t * GROUPS_PER_STEP)
        leases = [
            Lease(i, i, 0, task.train[prompt_at(i, len(task.train), explorer.seed)])
            for i in ordinals
        ]
        _, groups = explorer.rollout(state, leases)
        return [
            dataclasses.replace(group, rewards=self._rewards(task, lease.prompt, group))
            for group, lease in zip(groups, leases, strict=True)
        ]

    def _rewards(self, task: Task, prompt: Prompt, group: Group) -> np.ndarray:
        completions = [
            tokens[mask] for tokens, mask in zip(group.tokens, group.completion_mask, strict=True)
        ]
        return np.array(self._judged(task, [prompt] * len(completions), completions), np.float32)

    def _judged(
        self, task: Task, prompts: list[Prompt], completions: list[np.ndarray]
    ) -> list[float]:
        items = [
            ScoringRequest(prompt.fields, Completion(task.tokenizer.decode(tokens.tolist())))
            for prompt, tokens in zip(prompts, completions, strict=True)
        ]
        scores = [one.score for one in Rubric(task.reward).judge(items)]
        assert None not in scores, "the task's reward can judge every text"
        return [score for score in scores if score is not None]

    def _accuracy(self, task: Task, settings: RunSettings, params: Params) -> float:
        """The share of held-out problems that are solved without sampling."""
        prompts = list(task.held_out)
        tokens, lengths = task.encode_prompts([prompt.text for prompt in prompts])
        greedy = wiring.greedy_sampling(settings, task)
        engine = self._engine(Case(next(iter(ALGORITHMS)), 0, 0)).engine
        engine.load(params, version=-1)
        done = engine.generate(
            [CompletionRequest(row[:n], greedy) for row, n in zip(tokens, lengths, strict=True)]
        )
        return float(np.mean(self._judged(task, prompts, [one.tokens for (one,) in done])))

    def _warm(self, case: Case) -> TrainState:
        """The policy after SFT of a seed, ready for RL."""
        trainer, path = self.trainer(case.algorithm), self._warm_starts / str(case.seed)
        try:
            return SnapshotFolder(path).load(None, trainer.abstract())[1]
        except FileNotFoundError:
            pass
        task = task_of(case.seed)
        settings = self._settings(case.algorithm, case.seed).sft
        state = trainer.init(jax.random.key(case.seed))
        for step in range(1, settings.steps + 1):
            random = np.random.default_rng([case.seed, step])
            chosen = random.integers(0, len(task.demonstrations), settings.batch_size)
            rows = task.encode_demonstrations([task.demonstrations[i] for i in chosen])
            tokens, mask = map(jnp.asarray, rows)
            state, _ = trainer.sft_step(state, tokens, mask)
        state = trainer.begin(state)
        SnapshotFolder(path).save(0, state, {}, Retention(1))
        return state


def _copy(params: Params) -> Params:
    """Parameters that the next step does not donate."""
    return jax.tree.map(jnp.copy, params)


def main() -> None:
    """Makes the runs that have no result yet, then reports."""
    arguments = _arguments()
    cases = itertools.product(arguments.seeds, arguments.algorithms, arguments.bounds)
    lines = results_of(
        [Case(algorithm, bound, seed) for seed, algorithm, bound in cases], arguments
    )
    write_report(lines, list(COMPARED), arguments.results.with_suffix(".md"))


def results_of(cases: Sequence[Case], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Makes the runs that have no result yet; returns all results of so many steps.

    Args:
      arguments: those of `parser_of`; with `report` no run is made.
    """
    if not arguments.report:
        writer, study = JsonLinesWriter(arguments.results), None
        done = _done_in(arguments.results)
        for case in cases:
            if (*case, arguments.steps) in done:
                continue
            study = study or Study(arguments.steps, arguments.sft_steps, arguments.warm_starts)
            result = study.run(case)
            writer.write(result)
            print(f"{case}: {result['accuracy']:.1%} in {result['secs']:.0f} s", flush=True)
        writer.close()
    return [line for line in read_json_lines(arguments.results) if line["steps"] == arguments.steps]


def _done_in(results: Path) -> set[tuple[Any, ...]]:
    """The cases with a line in the results, each with its number of steps."""
    lines = [{**Case._field_defaults, **line} for line in read_json_lines(results)]
    return {(*(line[name] for name in Case._fields), line["steps"]) for line in lines}


def _numbers(text: str) -> list[int]:
    """Reads numbers between commas."""
    return [int(part) for part in text.split(",")]


def _arguments() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in COMPARED]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(COMPARED)}")
        return text.split(",")

    parser = parser_of(__doc__.splitlines()[0], bounds=[0, 1, 2, 4, 8, 16])
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "staleness.jsonl")
    parser.add_argument("--algorithms", type=names, default=list(COMPARED))
    return parser.parse_args()


def parser_of(title: str, bounds: list[int]) -> argparse.ArgumentParser:
    """Returns a parser of the arguments that such studies have in common.

    Args:
      title: description of the command.
      bounds: default of `--bounds`.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--bounds", type=_numbers, default=bounds)
    parser.add_argument("--seeds", type=_numbers, default=list(range(300, 308)))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--sft-steps", type=int, default=SFT_STEPS, help="if there is no warm start"
    )
    parser.add_argument("--warm-starts", type=Path, default=ROOT / "runs" / "staleness")
    parser.add_argument("--report", action="store_true", help="only report the results so far")
    return parser


if __name__ == "__main__":
    main()
