"""The benchmarks that documents name, each with its smallest size and what it prints.

A command is written as in the documents, without `python`. `{out}` stands for a folder for its
files, which has a copy of the documents that benchmarks write to; `{model}` for the directory of a
tiny checkpoint; `{run}` for a work directory; `{gguf}` for a tiny file of that format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.benchmarks.printed_tables import Table

QUICK = "--config=tests/benchmarks/quick.py"


class Case(NamedTuple):
    """A benchmark at its smallest size.

    Attributes:
      command: its command line.
      tables: the Markdown tables that it prints, in their order.
      lines: templates of other lines; see `printed_tables.is_line`.
      document: a file of `{out}` that has its tables, if it does not print them.
      needs: what it does not run without; a key of `test_smallest_runs.MISSING`.
    """

    command: str
    tables: Sequence[Table] = ()
    lines: Sequence[str] = ()
    document: str = ""
    needs: str = ""


TESTED_ELSEWHERE = {
    "benchmarks/device.py": "tests/test_device_benchmark.py",
    "benchmarks/planted_faults.py": "tests/test_planted_faults.py",
    "benchmarks/served_engine.py": "tests/rollout/served/test_vllm.py",
}
"""Scripts that other tests run as commands."""

_TUNED = (
    "schedule | steps/h, predicted | real | error | tokens/s, predicted | real | error"
    " | staleness, predicted | real | error"
)
_RATIOS = "schedule | 0.3 × a step | 1 × a step | 3 × a step | 10 × a step"
_VISION = "| seconds | x text | operations, x text | x transformers"
_PAGES = "cache | tokens/s | x | in use | saved by sharing | put aside"
_MODE_ROWS = (
    "to 90 %, s", "… ideal, s", "… trainer steps", "RL phase, s", "whole run, s", "rollout, s",
    "train, s", "generated tokens/s", "trained tokens/s", "explorer idle, %", "trainer idle, %",
    "staleness, mean", "staleness, max", "accuracy before RL, %", "accuracy, %", "achieved",
    "ideal",
)  # fmt: skip
_CALLS = (
    "signs of life a second", "CPU for a sign of life, µs", "calls for work a second",
    "CPU for a call for work, µs", "all wait: median answer, ms", "all wait: slowest answer, ms",
    "publication until all have work, s", "file descriptors an explorer",
    "memory an explorer, kB", "memory without explorers, MB", "threads",
)  # fmt: skip
_PACE = (
    "groups a minute, all explorers", "calls a second", "cores of the master",
    "CPU seconds of the master a step", "median answer, ms", "99th percentile, ms",
    "behind at the end, s", "memory, MB",
)  # fmt: skip
_ALGORITHMS = "staleness | PPO | decoupled PPO | CISPO | truncated IS | TOPR"

CASES = (
    Case(
        "benchmarks/beside_peers.py --model={model} --seeds=0 --steps=3 --every=0 --sides=rl_sync"
        " --results={out}/beside_peers.jsonl",
        [Table("| seed 0", ("rl_sync, s a step",))],
    ),
    Case(
        "benchmarks/beside_peers.py --model={model} --seeds=0 --steps=4 --every=2 --longer=2"
        " --sides=rl_sync,trl --results={out}/beside_peers_too.jsonl",
        [
            Table("| seed 0", ("rl_sync, s a step", "trl, s a step")),
            Table(
                "| steps | accuracy, % | seconds | CPU seconds", ("rl_sync",) * 5 + ("trl",) * 3
            ),
            Table(
                "side | seed | its end, s | its accuracy, % | ours by then: steps, %"
                " | its CPU seconds | ours in as many: steps, %",
                ("trl",),
            ),
        ],
        needs="TRL",
    ),
    Case(
        f"benchmarks/mode_pictures.py {QUICK} --rate=plain --steps=6 --seeds=0"
        " --modes=synchronous,one_step_off_policy --results={out}/mode_pictures.jsonl",
        [
            Table(
                "mode | seeds | steps an hour | explorers idle, % | trainer idle, %"
                " | mean staleness | greatest | s to a reward of 0.9 | accuracy, %",
                ("`synchronous`", "`one_step_off_policy`"),
                words=("inf",),
            ),
            Table(
                "mode | steps an hour, predicted to measured | explorers idle, %"
                " | trainer idle, % | mean staleness",
                ("`synchronous`", "`one_step_off_policy`"),
            ),
        ],
    ),
    Case(
        "benchmarks/cards.py --models=Qwen2.5-0.5B --cards=24",
        [Table("model | trained | 24 GB", ("Qwen2.5-0.5B",) * 2, texts=("trained", "24 GB"))],
    ),
    Case(
        "benchmarks/changed_share.py Small={run} --out={out}/sync.png",
        lines=[
            "Small, values that changed: 1.00 / 2.00 / 3.00 % (least, median, greatest)",
            "Small, bytes, of a full copy: 0.50 / 1.00 / 1.50 % (least, median, greatest)",
        ],
    ),
    Case(
        "benchmarks/choosing.py --steps=2 --seeds=0 --document={out}/choosing.md",
        [
            Table(
                _RATIOS,
                (
                    "synchronous", "synchronous, interval 4", "one-step off-policy", "offset 2",
                    "asynchronous, bound 1", "asynchronous, bound 2", "4 explorers, synchronous",
                    "4 explorers, one-step", "2 explorers, bound 2", "4 explorers, bound 2",
                    "16 explorers, bound 4",
                ),
            ),
            Table(
                _RATIOS,
                (
                    "synchronous", "one-step off-policy", "offset 2", "asynchronous, bound 2",
                    "asynchronous, bound 4", "streaming, bound 2", "streaming, bound 4",
                    "streaming, bound 8", "4 explorers, one-step", "4 explorers, bound 2",
                    "4 explorers, bound 4",
                ),
            ),
            Table(
                "schedule | judging 0 rollouts | judging 1 rollouts | judging 5 rollouts",
                (
                    "synchronous", "one-step off-policy", "offset 2", "asynchronous, bound 2",
                    "asynchronous, bound 8", "streaming, bound 8",
                ),
            ),
            Table(
                "schedule | 0.01 steps | 0.3 steps | 1 steps | 3 steps",
                (
                    "synchronous", "synchronous, interval 4", "one-step off-policy",
                    "offset 2, checkpoint", "asynchronous, bound 2, checkpoint",
                    "asynchronous, bound 4, checkpoint", "asynchronous, bound 2, fetched beside",
                    "asynchronous, bound 4, fetched beside",
                    "asynchronous, bound 8, fetched beside",
                ),
            ),
        ],
    ),
    Case(
        "benchmarks/compiled.py --target=v5e --only='qwen2.5-0.5b insert' --estimate_only",
        lines=[
            '{"case": "qwen2.5-0.5b insert, v5e:2x2 2x1x2, 64 x 2048", "planned_gb": #,'
            ' "fits": true, "parts_gb": {"KV cache": #, "keys and values of prompts": #,'
            ' "gathered prompts": #}}'
        ],
    ),
    Case(
        "benchmarks/control_plane.py --explorers=4 --schedules=synchronous --seeds=0 --steps=3",
        [
            Table(
                "event | a step | µs each",
                (
                    "BatchTrained", "ExplorersSeen", "GroupsBuffered", "GroupsScored",
                    "LeaseRequested", "LeaseRequested, held back", "Ticked", "VersionPublished",
                ),
            ),
            Table(
                "schedule | explorers | events a step | events a CPU second | CPU seconds a step"
                " | of it signs of life | state, MB | journal, kB a step | first line, MB"
                " | CPU seconds for it",
                ("synchronous",),
                same={("synchronous", "explorers"): "4"},
            ),
        ],
    ),
    Case(
        "benchmarks/control_plane.py --calls --explorers=2,4 --seeds=0 --secs=1",
        [Table("explorers | 2 | 4", _CALLS)],
    ),
    Case(
        "benchmarks/control_plane.py --paced --explorers=2 --seeds=0 --secs=3 --lease=4",
        [Table("explorers | 2", _PACE)],
    ),
    Case(
        "benchmarks/delta.py --megabytes=2 --leaves=2 --shares=1 --patterns=scattered --rounds=1"
        " --networks=plain",
        [
            Table(
                "% changed | pattern | delta s | dense s | ratio | bytes % | cut s | encode s"
                " | fetch s | apply s | blocks ms, delta | blocks ms, dense"
                " | memory: delta trainer | delta explorer | dense trainer | dense explorer",
                ("1",),
                texts=("pattern",),
                same={("1", "pattern"): "scattered"},
            )
        ],
    ),
    Case(
        "benchmarks/delta.py --relays=1,2 --megabytes=2 --leaves=2 --rounds=1 --networks=100mbit",
        [
            Table(
                "receivers | fanout | last has it, s | to one | sent | streams",
                ("1", "1", "1", "2", "2", "2"),
                words=("none",),
            )
        ],
        needs="shaped networks",
    ),
    Case("benchmarks/evidence.py --check", lines=["# claims: as recorded."]),
    Case(
        "benchmarks/guarantees.py --cases=0,4 --seeds=1 --steps=3 --results={out}/guarantees.jsonl",
        [
            Table(
                "mode | runs | transfers | processes killed | bound | greatest staleness"
                " | digests of a seed | faults in records",
                ("`synchronous`", "`one_step_off_policy`"),
                same={
                    ("`one_step_off_policy`", "greatest staleness"): "1",
                    ("`synchronous`", "faults in records"): "0",
                },
            )
        ],
    ),
    Case(
        "benchmarks/simulated_seeds.py --ranges=51000000:3 --results={out}/simulated.jsonl",
        [
            Table(
                "seeds | events | deaths of processes | runs that broke a rule",
                ("51,000,000 to 51,000,002",),
                same={("51,000,000 to 51,000,002", "runs that broke a rule"): "0"},
            )
        ],
    ),
    Case(
        f"benchmarks/evaluations.py {QUICK} --steps=4 --every=2 --seeds=1"
        " --also=replay.backend=embedded",
        lines=[
            "seed 1, without: RL # s, # tokens/s, rollouts stood still for # s (#%): no"
            " evaluations",
            "seed 1, with: RL # s, # tokens/s, rollouts stood still for # s (#%): version 2 # s",
            "rollouts lost, least / median / greatest: #% / #% / #%",
        ],
    ),
    Case(
        "benchmarks/final_report.py --steps=2",
        lines=["# MB of records", "# s, of the CPU # s, # MB more at most"],
    ),
    Case(
        "benchmarks/figures.py --rounds=1 --append --draw --results={out}/figures.jsonl"
        " --picture={out}/figures.png",
        lines=[
            '{"speed": {"decode": [#, #, #], "step": [#, #, #], "transfer": [#, #, #],'
            ' "delivery": [#, #, #], "judging": [#, #, #]}, "reference_ms": {'
            '"products": #, "memory": #, "interpreter": #}}',
            "Appended to figures.jsonl: the first line.",
            "…/figures.png",
        ],
    ),
    Case(
        "benchmarks/gap.py --seeds=0 --completions=4 --tokens=8 --only=packed",
        [
            Table(
                "| same bits, % | mean gap, nats | greatest gap, nats | ratios",
                ("packed rows", "bfloat16, packed rows", "batch-invariant: packed rows"),
            )
        ],
    ),
    Case(
        "benchmarks/batch_invariance.py kernels --sizes=2",
        [Table("rows | products, % of sizes | sums, % of sizes", ("64 to 500", "1 to 32"))],
    ),
    Case(
        "benchmarks/batch_invariance.py cost --rounds=1 --slots=4",
        [
            Table(
                "| time with / without: least / median / greatest of the rounds",
                ("decoding, 4 slots", "gradient, 32 rows of 256"),
            )
        ],
    ),
    Case(
        "benchmarks/batch_invariance.py runs --seeds=1 --steps=2 --into={run}",
        [
            Table(
                "seed, meshes | tokens | in completions of several versions"
                " | greatest mismatch, nats",
                ("1, trainer.mesh.fsdp=2, explorer.mesh.data=2",),
            )
        ],
    ),
    Case(
        "benchmarks/speculation.py --steps=2 --prompts=1 --tokens=8 --rounds=1",
        [
            Table(
                "text | tokens a step | drafts drawn | speed, x | same tokens",
                [
                    f"{kind}, epoch {epoch}"
                    for kind in ("arithmetic", "JSON", "long copies", "tool calls")
                    for epoch in (1, 2)
                ],
            )
        ],
    ),
    Case(
        "benchmarks/host.py --slots=8 --step_ms=1 --seeds=1",
        [
            Table(
                "stop strings | host, % of the device's time (wall) | its thread's CPU time, %",
                ("none", "one of two characters"),
            )
        ],
    ),
    Case(
        "benchmarks/hostile.py --sandboxes wasm none --programs='is in no order'",
        [
            Table(
                "program | language | wasm | none",
                ("is in no order", "is in no order, in decimals"),
                texts=("language",),
                words=("held",),
            )
        ],
        needs="wasmtime",
    ),
    Case(
        "benchmarks/machines.py --config=tests/runs/quick.py --seeds=41 --lines=0 --runs=2"
        " --steps=8 --results={out}/machines.jsonl",
        [
            Table(
                "steps an hour, predicted and real | one-step, server",
                ("loopback", "1 ms, 1,000 Mbit/s"),
            )
        ],
        needs="long lines",
    ),
    Case(
        "benchmarks/long_run.py --config=tests/runs/quick.py --hours=0.012 --every=5"
        " --disk=0 --set=replay.backend=embedded --workdir={out}/long_run"
        " --results={out}/long_run.jsonl",
        [
            Table(
                "resident MB | first tenth | fifth | last | greatest | threads | open files",
                ("explorer1", "explorer2", "join", "launcher", "master", "replay", "trainer"),
                words=("",),
            ),
            Table(
                "MB | begin | quarter | half | three quarters | end | greatest",
                ("trainer steps",),
                optional="`.*`",
            ),
        ],
        lines=["Faults of the records: none."],
        needs="long lines",
    ),
    Case(
        f"benchmarks/memory.py {QUICK}",
        lines=[
            "Memory per device, from shapes:",
            "master peak # GB, # bytes a step",
            "trainer+explorers peak # GB, # bytes a step",
        ],
    ),
    Case(
        f"benchmarks/modes.py {QUICK} --modes=asynchronous --every=1 --steps=2"
        " --results={out}/modes.jsonl",
        [Table("| asynchronous", _MODE_ROWS, words=("never",))],
    ),
    Case(
        "benchmarks/own_data.py --tasks=capitals --seeds=100 --results={out}/own_data.jsonl"
        " --set=sft.steps=1 --set=trainer.steps=1 --set=evaluation.problems=8",
        [
            Table(
                "task | rows | groups a step | seeds | before RL, % | after RL, % | change",
                ("capitals",),
                same={("capitals", "rows"): "300", ("capitals", "seeds"): "1"},
            )
        ],
    ),
    Case(
        f"benchmarks/page.py {QUICK} --steps=2 --seeds=1",
        lines=[
            "seed 0: # s a step without the page, # with it (#×); the page computed # s of #,"
            " #% of the CPU",
            "ratio of steps, least / median / greatest: # / # / #",
            "share of the cores, least / median / greatest: # / # / #",
        ],
    ),
    Case(
        "benchmarks/pages.py --rounds=1 --only='64 x 64'",
        [
            Table(
                _PAGES,
                ("for each slot", "in pages", "in pages, a quarter"),
                same={("for each slot", "x"): "1.00 / 1.00 / 1.00"},
            )
        ],
    ),
    Case(
        "benchmarks/prompts.py --model={model} --groups=1 --rounds=1",
        [
            Table(
                "layout | rows | step, s | of the first | first call, s",
                ("padded", "packed", "shared"),
                same={("padded", "of the first"): "1.00, 1.00, 1.00"},
            )
        ],
    ),
    Case(
        "benchmarks/real_model.py {out}/model --gguf={gguf}",
        lines=["…/model: 11 tensors, # parameters"],
        needs="gguf",
    ),
    Case(
        "benchmarks/recording.py --steps=2 --turns=1 --seeds=1",
        lines=[
            "seed 0: # ms a step without, # with records (#×); the recorder's CPU time is #% of a"
            " step, for # records",
            "recorder's share of a step, least / median / greatest: #% / #% / #%",
        ],
    ),
    Case(
        "benchmarks/replay.py --rounds=1",
        lines=[
            "item ours official ratio",
            "bytes items/s MB/s items/s MB/s",
            *(
                f"{action} {size} # # ##"
                for size in ("1,000", "66,000", "4,000,000")
                for action in (
                    "insert one by one", "insert pipelined", "sample one by one", "sample all",
                )
            ),
        ],
        needs="Reverb",
    ),
    Case(
        "benchmarks/rewards.py --seeds=1 --rollouts=2 --rollout_secs=0.1 --workers=1",
        lines=[
            "reward takes groups/s (min median max) ratio (min median max)",
            "nothing # # # 1.000 1.000 1.000",
            "1 rollout # # # # # #",
            "2 rollouts # # # # # #",
            "reward completions/s in workers in this process (min median max)",
            "exact # # # # # #",
            "busy # # # # # #",
        ],
    ),
    Case(
        "benchmarks/rollout.py --rounds=1 --only='64 x 64'",
        [
            Table(
                "| tokens/s | rl_sync is | first call, s",
                ("rl_sync",),
                optional="Tunix.*|transformers",
                same={("rl_sync", "rl_sync is"): "1.00 x"},
            )
        ],
    ),
    Case(
        "benchmarks/sandbox.py --rounds=1 --programs=1",
        [
            Table(
                "contestant | ms a program | overhead, ms | programs a second, all cores | of bare",
                ("bare interpreter",),
                optional="(bubblewrap|landlock|wasm) .*",
            )
        ],
    ),
    Case(
        f"benchmarks/seeds.py {QUICK} --seeds=100 --modes=synchronous --every=1"
        " --results={out}/seeds.jsonl",
        [
            Table(
                "mode | seeds | accuracy before RL, % | accuracy after RL, % | RL phase, s"
                " | whole command, s",
                ("synchronous",),
                same={("synchronous", "seeds"): "1"},
            )
        ],
        lines=["…/seeds.png"],
    ),
    Case(
        "benchmarks/schedules.py --model={model} --seeds=400 --tasks=sums --trained=adapters"
        " --schedules=asynchronous:2 --corrections=none --steps=2 --groups=2"
        " --results={out}/schedules.jsonl",
        [
            Table(
                "schedule | seeds | none | staleness | gap, nats | effective sample share"
                " | RL phase, s",
                ("`asynchronous:2`",),
                same={("`asynchronous:2`", "seeds"): "1"},
            )
        ],
        lines=["sums, adapters trained:", "…/schedules.png"],
    ),
    Case(
        f"benchmarks/shaped_rewards.py {QUICK} --seeds=200 --cases='shaped, filter' --steps=1"
        " --set=trainer.groups_per_step=4 --set=trainer.group_size=2"
        " --results={out}/shaped_rewards.jsonl",
        [
            Table(
                "case | seeds | before RL, % | after RL, % | greatest share of shaping, %",
                ("shaped, filter",),
                same={("shaped, filter", "seeds"): "1"},
            )
        ],
    ),
    Case(
        "-m launcher plan --config=benchmarks/shapes/run.py"
        " --config.model.path=benchmarks/shapes/qwen2.5-0.5b --find=h100:1",
        lines=[
            "Fits h100:1, fastest first (from shapes and peak rates; nothing was compiled):",
            "# GB a device, at least # s a step",
            "# GB a device, at least # ms a token of each slot",
        ],
    ),
    Case(
        f"benchmarks/size.py {QUICK} --config.workdir={{out}}/run",
        [
            Table(
                "figure | value",
                (
                    "lines", "files", "functions", "functions over 50 lines",
                    "functions over 5 parameters", "uses of Any", "functions executed",
                    "files with executed functions", "modules loaded", "frames down to the step",
                    "frames of the sources",
                ),
            )
        ],
        needs="sys.monitoring",
    ),
    Case(
        "benchmarks/centering.py --bounds=2 --quantizations=int8 --seeds=300 --steps=3"
        " --sft-steps=2 --results={out}/centering.jsonl --warm-starts={out}/warm"
        " --document={out}/centering.md",
        [
            Table(
                "drawn with | no correction | no correction, centered | truncated IS"
                " | truncated IS, centered | gain, no correction | gain, truncated IS"
                " | `sampler_distance`",
                ("staleness 2", "int8"),
                words=("",),
            )
        ],
        document="centering.md",
    ),
    Case(
        "benchmarks/staleness.py --bounds=0,1 --seeds=300 --algorithms=PPO --steps=3 --sft-steps=2"
        " --results={out}/staleness.jsonl --warm-starts={out}/warm",
        [
            Table(
                f"{_ALGORITHMS} | as good as the best",
                ("0", "1"),
                texts=("as good as the best",),
                words=("",),
            ),
            Table(_ALGORITHMS, ("0", "1"), words=("",), same={("0", "PPO"): "+0.0 ± 0.0"}),
            Table(_ALGORITHMS, ("0", "1"), words=("",)),
        ],
        document="staleness.md",
    ),
    Case(
        "benchmarks/streaming.py --seeds=0 --steps=6 --slots=4",
        [
            Table(
                "| reward, rollouts | occupancy | steps | CPU | waited | groups/s",
                ("leases", "streaming") * 3,
            )
        ],
    ),
    Case(
        "benchmarks/streaming.py --simulated --seeds=0 --steps=10",
        [
            Table("judgement, batches | `max_staleness` | leases | streaming", (*"000111555",)),
        ],
    ),
    Case(
        "benchmarks/train.py --rounds=1 --rows=8",
        [
            Table(
                "| step, s | rl_sync takes | first call, s",
                ("rl_sync", "matrix products"),
                optional="(Tunix|transformers).*",
                same={("rl_sync", "rl_sync takes"): "1.00 x"},
            )
        ],
    ),
    Case(
        f"benchmarks/tune.py {QUICK} --seeds=300 --steps=8 --schedules=4"
        " --results={out}/tune.jsonl",
        [Table(_TUNED, ("one-step off-policy",))],
        lines=[
            "Within 10%: steps/h: # of 1, tokens/s: # of 1, staleness: # of 1.",
            "Seed 300: predicted to be the fastest: one-step off-policy; really the fastest:"
            " one-step off-policy; regret 0.0% (at most 5% wanted).",
        ],
    ),
    Case(
        "benchmarks/vision.py --sizes=32 --rounds=1 --only='new images,features'",
        [
            Table(_VISION, names, optional="transformers, .*", words=("",))
            for names in (("text", "new images"), ("text", "features, an image a group"))
        ],
    ),
    Case(
        "benchmarks/weights.py --megabytes=2 --leaves=2 --rounds=1",
        lines=[
            "transfer MB leaves dtype sharding explorers secs GB/s of socket of files blocked"
            " trainer explorer socket copy files",
            *(
                f"{transfer} 2 2 float32 one 1 # # #% #x #% #x #x # # #"
                for transfer in ("collective", "checkpoint", "server")
            ),
        ],
    ),
)  # fmt: skip
