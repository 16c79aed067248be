"""Claims of README: their artifacts, how these are made anew, and what they do not show."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import beside_peers
import centering
import guarantees
import mode_pictures
import seeds
import simulated_seeds
import staleness_report

Lines = list[dict[str, Any]]
"""Lines of an artifact."""

TABLE_MARK = "<!-- measured: {} -->"


class Claim(NamedTuple):
    """A claim, and what it rests on.

    Attributes:
      says: the claim, in a sentence.
      artifact: file with the results, from the root of the repository.
      digest: SHA-256 of the artifact.
      commit: the sources that made it.
      command: makes it anew; `{artifact}` stands for the file to write.
      runs: number of runs, and of seeds.
      table: writes the claim's numbers, from the artifact alone.
      quotes: writes texts that must stand in documents, by document.
      weak: what is weak about it.
      not_claimed: what it does not say.
      peer: what it was compared with, with its version.
    """

    says: str
    artifact: str
    digest: str
    commit: str
    command: str
    runs: str
    table: Callable[[Lines], list[str]]
    quotes: Callable[[Lines], Mapping[str, Sequence[str]]]
    weak: str
    not_claimed: str
    peer: str = "none"


def learned(lines: Lines) -> list[str]:
    """Writes README's table of modes: least / median / greatest over the seeds."""
    rows = ["| mode | held-out accuracy before RL, % | after RL, % | whole command, s |"]
    rows.append("|---" * 4 + "|")
    for case in seeds.CASES:
        if of_mode := [line for line in lines if line["mode"] == case]:
            mode, *numbers = case.split(":")
            told = f"`{mode}`"
            if numbers:
                told += ", interval {}, offset {}".format(*numbers)
            before = _spread([100 * line["accuracy"][0] for line in of_mode], ".1f")
            after = _spread([100 * line["accuracy"][-1] for line in of_mode], ".1f")
            secs = _spread([line["total_secs"] for line in of_mode], ".0f")
            rows.append(f"| {told} | {before} | {after} | {secs} |")
    return rows


def real_model(lines: Lines) -> list[str]:
    """Writes the accuracies of the real model, a column for each seed."""
    rows = ["| | " + " | ".join(f"seed {line['seed']}" for line in lines) + " |"]
    rows.append("|---" * (1 + len(lines)) + "|")
    for number, step in enumerate(lines[0]["steps"]):
        told = f"after {step} steps" if step else "held-out accuracy before"
        cells = [f"{100 * line['accuracy'][number]:.1f} %" for line in lines]
        rows.append(f"| {told} | {' | '.join(cells)} |")
    return rows


def _real_model_quotes(lines: Lines) -> dict[str, list[str]]:
    before, after = (
        statistics.median(100 * line["accuracy"][number] for line in lines) for number in (0, -1)
    )
    minutes = statistics.median(line["total_secs"] for line in lines) / 60
    written = {10: "ten"}[round(minutes)]
    told = f"went from {before:.1f} to {after:.1f} % of held-out sums in {written} minutes"
    return {"README.md": [told], "docs/real_model.md": real_model(lines)[2:]}


def _beside_peers_quotes(lines: Lines) -> dict[str, list[str]]:
    """Returns the rows of the seconds a step, and of the ends of the other sides."""
    *tables, rest = "\n".join(beside_peers.report(lines)).split("\n\n")
    rows = [*tables[0].splitlines(), *rest.splitlines()]
    ours, trl = (
        [statistics.median(beside_peers.step_secs(line)) for line in lines if line["side"] == side]
        for side in (beside_peers.OURS, "trl")
    )
    told = f"took {min(trl):.0f} to {max(trl):.0f} seconds"
    return {
        "docs/real_model.md": rows,
        "docs/comparison.md": [f"{told}, and one of rl_sync {min(ours):.1f} to {max(ours):.1f}"],
    }


def _staleness(lines: Lines) -> list[str]:
    names = [*dict.fromkeys(line["algorithm"] for line in lines)]
    return staleness_report.tables(lines, names)


def _spread(numbers: Sequence[float], form: str) -> str:
    three = (min(numbers), statistics.median(numbers), max(numbers))
    return " / ".join(format(number, form) for number in three)


CLAIMS = {
    "modes": Claim(
        says="In every mode the main command solves more than 98 % of held-out sums.",
        artifact="docs/seeds-arithmetic.jsonl",
        digest="d01abfcbce4c377d5e6a00789e880100a2a74bf315cf58563b54baf054a13750",
        commit="96c63b2e",
        command="python benchmarks/seeds.py --results={artifact}",
        runs="72 runs: six modes, seeds 100 to 111, on which nothing was tuned",
        table=learned,
        quotes=lambda lines: {"README.md": learned(lines)[2:]},
        weak="One task, which a model of 0.4 million parameters solves. Seconds are those of two"
        " cores that had other work, so they do not rank the modes.",
        not_claimed="That a mode is faster or learns better than another one.",
    ),
    "real model": Claim(
        says="SmolLM2-135M-Instruct learns sums from rewards alone, in ten minutes on two cores.",
        artifact="docs/seeds-smollm2.jsonl",
        digest="f93d3bec885e6138a8b37be40d0e36ea1ecd95849569ebfdd872de5681bda6ca",
        commit="28d0c630",
        command="python benchmarks/seeds.py --config=configs/smollm2.py --set=model.path=smollm2"
        " --seeds=0:2 --modes=one_step_off_policy --every=8 --results={artifact}",
        runs="3 runs, seeds 0 to 2, on which nothing was tuned",
        table=real_model,
        quotes=_real_model_quotes,
        weak="Three seeds. The form of the prompt was chosen by hand (three solved sums, no chat"
        " template), and a good part of the gain may be that form.",
        not_claimed="That the model learns to reason, or does better at other tasks.",
    ),
    "beside peers": Claim(
        says="On two cores a run of ours is as far as TRL's and Tunix's when their 32 updates are"
        " done, or further.",
        artifact="docs/evidence/beside_peers.jsonl",
        digest="240c86c01937dd299bc7d9e126a8aa6cb6df98c8fb7e4693f7df849c2ca142ab",
        commit="e9f45c86",
        command="python benchmarks/beside_peers.py --model=smollm2"
        " --sides=rl_sync,trl,trl_bfloat16,tunix --every=8 --longer=3 --results={artifact}",
        runs="11 runs, seeds 0 to 2; bfloat16 for seeds 0 and 1 only. Seed 0 on another day and"
        " machine than the others. Other sides' settings were chosen on seed 9",
        table=beside_peers.report,
        quotes=_beside_peers_quotes,
        peer="TRL 1.16 with torch 2.13 and transformers 5.24; Tunix 0.1.7 with JAX",
        weak="Three seeds, 200 held-out sums, so an accuracy has a standard error of 3 points: at"
        " the ends of TRL in float32 ours is ahead by 1 to 6.5, hardly more than that. The second"
        " machine became slower by a third during seed 2. Ours is one step off-policy, the others"
        " are on policy, and after as many updates TRL was ahead on each seed.",
        not_claimed="Anything about GPUs, for which TRL is made, TPUs, for which Tunix is, longer"
        " completions, or other models.",
    ),
    "staleness": Claim(
        says="How much accuracy each algorithm loses on data of a given age.",
        artifact="docs/staleness.jsonl",
        digest="1cb07032961820d592a6ff0a14674f8b864f7ec5b2b3518dcd05b3b189998f18",
        commit="9f758db9",
        command="python benchmarks/staleness.py --results={artifact}",
        runs="240 runs: five algorithms, six ages, seeds 300 to 307",
        table=lambda lines: _staleness(lines)[:1],
        quotes=lambda lines: {"docs/staleness.md": _staleness(lines)},
        weak="A model of 0.4 million parameters, one task, one learning rate, 60 steps. Completions"
        " have two to four tokens. TOPR also scales advantages and sums tokens in another way than"
        " the others. Seeds differ by up to 52 points, so only differences within a seed mean"
        " something.",
        not_claimed="That the same order holds for pretrained models.",
    ),
    "centering": Claim(
        says="What score centering gains on stale data, and with explorers in 8 bits.",
        artifact="docs/centering.jsonl",
        digest="bc31aa62df1065c54e6924636081b06de2b1d6b91ac475efe8c8fa75b51de993",
        commit="11a5faae",
        command="python benchmarks/centering.py --results={artifact}",
        runs="192 runs: four settings, six kinds of data, seeds 300 to 307",
        table=lambda lines: centering.report(lines).splitlines(),
        quotes=lambda lines: {"docs/staleness.md": centering.report(lines).splitlines()},
        weak="As for the claim on staleness.",
        not_claimed="That centering helps on fresh data in the trainer's precision.",
    ),
    "guarantees": Claim(
        says="The bound on staleness that is printed before a run holds in it; with exact pulls a"
        " seed gives the same bits over any transfer; killed processes change neither.",
        artifact="docs/evidence/guarantees.jsonl",
        digest="feb46cdf5dd817017e5933bc38f4197a58b69d34389e442f6e393fb473f03e08",
        commit="61b8a9b4",
        command="python benchmarks/guarantees.py --results={artifact}",
        runs="45 runs: five modes, up to three transfers, with and without kills, seeds 61 to 63",
        table=guarantees.table,
        quotes=lambda lines: {},
        weak="Forty steps of a tiny model on one machine; kills come every 12 seconds or so."
        " One more run failed, whose explorer was killed while it ended; the line in its place is"
        " of the sources in which such an explorer is started again. One run of two"
        " hours is in docs/reliability.md, without kills and without an artifact.",
        not_claimed="The same bits on another machine, number of devices or version of JAX.",
    ),
    "simulated": Claim(
        says="In simulated runs with crashes, lost messages and torn writes no rule is broken.",
        artifact="docs/evidence/simulated_seeds.jsonl",
        digest="e9e2a57a755dc205fcf65859ecccb99f54d4b0401a41e22c220b338acdaba4e5",
        commit="61b8a9b4",
        command="python benchmarks/simulated_seeds.py --results={artifact}",
        runs="3,000 seeds in three ranges that no test uses",
        table=simulated_seeds.table,
        quotes=lambda lines: {},
        weak="The simulator has our loops and a model of the network and the disks, not the real"
        " ones; faults are of the kinds that it knows.",
        not_claimed="That no run can break a rule.",
    ),
    "pictures": Claim(
        says="Where rollouts, train steps and transfers take 0.5 to 0.8 s each, modes that overlap"
        " them take more steps an hour than the synchronous one, at the staleness that the schedule"
        " says.",
        artifact="docs/evidence/mode_pictures.jsonl",
        digest="793118c58d79ed9f08e5c6b553c97bea57b82c8afe34e9421cc7bf4312ed61bf",
        commit="2e6bc97d",
        command="python benchmarks/mode_pictures.py --model=policy --results={artifact}",
        runs="48 runs: six schedules, seeds 500 to 507, on which nothing was tuned. Two were made"
        " again, since tests ran beside them. docs/modes.md says how `policy` is made",
        table=mode_pictures.report,
        quotes=lambda lines: {"docs/modes.md": mode_pictures.report(lines)},
        weak="One job on two cores, which explorers and trainer share: a train step takes more than"
        " twice as long beside rollouts as alone. All seeds begin with one policy. Links are shaped"
        " namespaces of one machine.",
        not_claimed="The same order of modes on devices that roles do not share, or for other"
        " lengths of rollouts, steps and transfers.",
    ),
}
"""The claims of README with artifacts, by name, in the order of EVIDENCE.md."""

WITHOUT_ARTIFACT = {
    "Models that fit one GPU": "Computed from shapes each time; tests compare README's table"
    " with what `python benchmarks/cards.py` prints. No such run was made"
    " on a GPU.",
    "One H200": "docs/accelerators.md has the table that `benchmarks/device.py` wrote; the file"
    " itself was not kept. One card, one day.",
    "Beside other projects": "docs/measured.md has tables of runs whose results were not kept; each"
    " names its command, versions and seeds.",
    "Timelines": "Pictures of two runs of `configs/long_tail.py`, drawn by `launcher timeline`;"
    " they illustrate who waits, and measure nothing.",
    "Speed of the first command": "`.ci/run` runs it, and fails if the held-out accuracy ends below"
    " 95 %; its seconds are those of the machine.",
}
"""Claims of README that rest on something else."""
