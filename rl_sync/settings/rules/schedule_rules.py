"""Rules of schedules: settings that a schedule does not allow."""

from __future__ import annotations

from rl_sync.schedule import MODES
from rl_sync.settings.records import require
from rl_sync.settings.rules.rule import Rule
from rl_sync.settings.run_settings import RunSettings
from rl_sync.transfer import TRANSFERS


def _explorer_count(s: RunSettings) -> None:
    mode, count = MODES[s.sync.mode], s.explorers
    least, most = mode.least_explorers if s.algorithm.generates else 0, mode.most_explorers
    require(
        count >= least and (most is None or count <= most),
        f"explorer.count={count} does not fit sync.mode={s.sync.mode}, which takes "
        + (f"{least}" if least == most else f"{least} or more")
        + (": for several explorers use sync.mode=multi_explorer." if most == 1 else "."),
    )


def _exact_replay(s: RunSettings) -> None:
    for name, only, why in (
        ("sampler", "fifo", "consume batches in their order"),
        ("times_sampled", 1, "train on each batch once, with weights of the version that is due"),
        ("max_size", None, "say themselves how far explorers are ahead, and a full buffer would"
         " keep an explorer from the sync that the trainer waits at"),
    ):  # fmt: skip
        value = getattr(s.replay, name)
        require(
            s.schedule.pull == "latest" or value == only,
            f"replay.{name}={value} does not fit sync.mode={s.sync.mode}: exact pulls {why}. "
            + (f"Use replay.{name}={only}." if only is not None else f"Leave out replay.{name}."),
        )


SCHEDULE_RULES: dict[str, Rule] = {
    "sync.interval, sync.offset, sync.max_staleness": lambda s: s.schedule,
    "replay.sampler, replay.times_sampled, replay.max_size, sync.mode": _exact_replay,
    "replay.times_sampled, sync.max_staleness": lambda s: require(
        s.replay.times_sampled <= s.schedule.staleness_bound + 1,
        f"replay.times_sampled={s.replay.times_sampled} steps cannot all train on a group: after"
        f" {s.schedule.staleness_bound + 1} it is older than"
        f" sync.max_staleness={s.schedule.staleness_bound}. Use at most"
        f" {s.schedule.staleness_bound + 1}, or a greater sync.max_staleness.",
    ),
    "replay.times_sampled, rollout.budget_tokens": lambda s: require(
        s.replay.times_sampled == 1 or not s.rollout.budget_tokens,
        f"replay.times_sampled={s.replay.times_sampled} does not fit rollout.budget_tokens="
        f"{s.rollout.budget_tokens}: steps that train on groups again would overtake those that"
        " explorers carry over. Use replay.times_sampled=1, or rollout.budget_tokens=0 (no"
        " budget).",
    ),
    "sync.offset, trainer.steps": lambda s: require(
        s.schedule.pull == "latest" or s.schedule.offset <= s.trainer.steps,
        f"sync.offset={s.schedule.offset} is beyond trainer.steps={s.trainer.steps}: explorers"
        " would generate all of the run with its first weights. Use a smaller offset, or more"
        " steps.",
    ),
    "sync.directory, sync.transfer": lambda s: require(
        s.sync.directory is None or TRANSFERS[s.transfer].has_directory,
        f"sync.directory={s.sync.directory} is for weights that go by checkpoint, not by"
        f" sync.transfer={s.transfer}: use sync.transfer=checkpoint, or leave it out.",
    ),
    "sync.delta, sync.transfer": lambda s: require(
        s.sync.delta != "on" or TRANSFERS[s.transfer].has_deltas,
        f"sync.delta=on does not fit sync.transfer={s.transfer}, which moves whole weights between"
        " devices: use sync.transfer=server or checkpoint, or sync.delta=off.",
    ),
    "sync.delta, sync.verify": lambda s: require(
        s.sync.verify or s.sync.delta != "on",
        "sync.delta=on needs sync.verify=true: what changed is only right on the weights that it"
        " was taken from, which their digest shows.",
    ),
    "sync.fanout, sync.delta": lambda s: require(
        not s.sync.fanout or (s.deltas and s.transfer == "server"),
        f"sync.fanout={s.sync.fanout} lets explorers hand on what changed, but"
        f" sync.transfer={s.transfer} with sync.delta={s.sync.delta} sends whole weights to each:"
        " use sync.transfer=server and sync.delta=on, or sync.fanout=0.",
    ),
    "rollout.swap, sync.pull, sync.transfer": lambda s: require(
        s.rollout.swap == "between" or (s.schedule.pull == "latest" and not s.is_joint),
        f"rollout.swap={s.rollout.swap} needs weights that an explorer takes when it likes, but"
        f" sync.pull={s.schedule.pull} over sync.transfer={s.transfer} has none: use"
        " sync.mode=asynchronous or multi_explorer, or rollout.swap=between.",
    ),
    "rollout.budget_tokens, sync.pull": lambda s: require(
        not s.rollout.budget_tokens or s.schedule.pull == "latest",
        f"rollout.budget_tokens={s.rollout.budget_tokens} leaves groups to be finished with later"
        f" weights, but sync.pull={s.schedule.pull} fixes the groups and the version of every"
        " batch: use sync.mode=asynchronous or multi_explorer, or rollout.budget_tokens=0 (no"
        " budget).",
    ),
    "rollout.streaming, sync.pull": lambda s: require(
        not s.rollout.streaming or s.schedule.pull == "latest",
        "rollout.streaming=true begins groups whenever slots are free, but"
        f" sync.pull={s.schedule.pull} fixes the groups and the version of every batch: use"
        " sync.mode=asynchronous or multi_explorer, or rollout.streaming=false.",
    ),
    "rollout.streaming, replay.times_sampled": lambda s: require(
        not s.rollout.streaming or s.replay.times_sampled == 1,
        f"rollout.streaming=true does not fit replay.times_sampled={s.replay.times_sampled}: steps"
        " that train on groups again would overtake those in flight. Use replay.times_sampled=1,"
        " or rollout.streaming=false.",
    ),
    "rollout.streaming, rollout.budget_tokens": lambda s: require(
        not s.rollout.streaming or not s.rollout.budget_tokens,
        "rollout.streaming=true has no rollouts that rollout.budget_tokens="
        f"{s.rollout.budget_tokens} could end: use rollout.budget_tokens=0, or"
        " rollout.streaming=false.",
    ),
    "explorer.count, sync.mode": _explorer_count,
    "explorer.count, trainer.groups_per_step": lambda s: require(
        s.explorers <= s.trainer.groups_per_step,
        f"explorer.count={s.explorers} explorers cannot share trainer.groups_per_step="
        f"{s.trainer.groups_per_step}: some would have nothing to generate.",
    ),
}
