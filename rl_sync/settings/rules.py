"""Checks settings by rules beyond the bounds, choices and types that each setting declares.

A config is checked against all rules before any process starts. Rules that need a task's data or a
model are in the modules that load these: `rl_sync.roles.assembly.wiring` and `rl_sync.tasks` (where
a mixture also makes a task's section for each of its sets). Rules of the schedule are in
`rl_sync.schedule`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import string
from collections.abc import Callable, Sequence

from rl_sync.algorithms.algorithm import (
    ADVANTAGES,
    CORRECTIONS,
    EXACT,
    LOSSES,
    PUBLISHED_CORRECTIONS,
    SAMPLED,
)
from rl_sync.algorithms.screening import UNBOUNDED
from rl_sync.environments.environment_catalog import (
    ENVIRONMENTS,
    branches,
    environments_of_sets,
    gives_rewards,
    is_own,
)
from rl_sync.environments.opponents import is_scripted, parse_opponent
from rl_sync.expression import parse_sum
from rl_sync.learning.learning_settings import DECAYING, MIXED, PAIR
from rl_sync.models.config import Lora
from rl_sync.models.mesh_shape import MESH_AXES
from rl_sync.records.accuracy import MAJORITY, metric_names
from rl_sync.records.backends.backend_catalog import BACKENDS
from rl_sync.references import is_reference
from rl_sync.rewards.reward_catalog import may_vote
from rl_sync.role_names import process_name
from rl_sync.schedule import MODES
from rl_sync.settings.evaluation_settings import EXPLORERS
from rl_sync.settings.records import require
from rl_sync.settings.run_settings import RunSettings
from rl_sync.spelling import require_one_of
from rl_sync.tasks.curriculum import EASY_TO_HARD
from rl_sync.tasks.mixture import sets_of
from rl_sync.transfer import TRANSFERS
from rl_sync.weights.locations import STORES, is_remote, store

LOOSEST_BOUND = 10.0
"""Maximum `algorithm.clip_high` that still limits the effect of a stale token."""
_LAST_PORT = 65_535

Rule = Callable[[RunSettings], object]
"""A check that raises `ValueError` if settings break a rule, with the value and the way out."""


def check(settings: RunSettings) -> None:
    """Checks a run's settings against all rules.

    Raises:
      ValueError: the message has the rule, the value and the way out.
    """
    for rule in RULES.values():
        rule(settings)


def _require_address(
    name: str, address: str | None, otherwise: str = "leave it out to have a server started"
) -> None:
    if address is None:
        return
    host, _, port = address.rpartition(":")
    require(
        bool(host) and port.isdecimal() and 0 < int(port) <= _LAST_PORT,
        f"{name}={address!r} must be HOST:PORT, such as 10.0.0.2:8000; {otherwise}.",
    )


def _names_host_alone(shell: str) -> bool:
    """Says whether {host} is in a command, and is the only name in braces there."""
    try:
        words = shlex.split(shell)
        parts = [part for word in words for part in string.Formatter().parse(word)]
        for word in words:
            word.format(host="")
    except (ValueError, KeyError, IndexError):
        return False
    return {name for _, name, _, _ in parts if name is not None} == {"host"}


def _twice(names: Sequence[str]) -> str:
    """Returns the first repeated name; empty if there is none."""
    return next((name for name in names if names.count(name) > 1), "")


def _axes(s: RunSettings) -> None:
    for name, axes in s.sharding.rules:
        for axis in axes:
            require_one_of(f"sharding.{name}", axis, MESH_AXES)
        require(
            not _twice(axes),
            f"sharding.{name}={getattr(s.sharding, name)} names an axis twice: name each once.",
        )


def _hosts(s: RunSettings) -> None:
    hosts = f"launch.hosts={s.launch.hosts}"
    for name, address in s.launch.elsewhere.items():
        require(
            bool(name and address), f"{hosts} must be NAME=ADDRESS,… such as explorer2=10.0.0.2."
        )
    pairs = [pair for pair in s.launch.hosts.split(",") if pair.strip()]
    twice = _twice([pair.partition("=")[0].strip() for pair in pairs])
    require(not twice, f"{hosts} says twice where {twice} is: say it once.")


def _ports(s: RunSettings) -> None:
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", s.launch.ports)
    require(
        found is not None and 1024 <= int(found[1]) < int(found[2]) <= _LAST_PORT,
        f"launch.ports={s.launch.ports!r} must be FIRST-LAST with ports from 1024 to {_LAST_PORT},"
        " such as 20000-29999.",
    )


def _files(s: RunSettings) -> None:
    for name in s.launch.sent:
        require(
            not os.path.isabs(name) and ".." not in name.split("/"),
            f"launch.files={s.launch.files!r}: {name} must be in the current directory, as it gets"
            " the same relative path on the other machines: copy it or link it there.",
        )


def _processes(s: RunSettings) -> None:
    names = [
        process_name(program, process)
        for program in s.roles
        for process in range(s.processes_of(program))
    ]
    for name in s.launch.elsewhere:
        require_one_of(f"launch.hosts={s.launch.hosts}: the process", name, tuple(names))


def _parts(s: RunSettings) -> None:
    for section, of in (("trainer", s.trainer), ("explorer", s.explorer)):
        mesh = of.mesh.shape
        require(
            mesh.devices % of.processes == 0,
            f"{section}.processes={of.processes} cannot share {section}.mesh of {mesh}, which is"
            f" {mesh.devices} devices, evenly: the mesh is over the devices of all processes, so"
            " use sizes whose product is a multiple of their number.",
        )


def _directory(s: RunSettings) -> None:
    if (directory := s.sync.directory) is None:
        return
    name = f"sync.directory={directory}"
    require(
        is_remote(directory) or os.path.isabs(directory),
        f"{name} must be an absolute path, gs://bucket/… or s3://bucket/…: processes may run in"
        " different directories.",
    )
    require(
        not is_remote(directory)
        or (
            store(directory) in STORES and re.fullmatch(r"\w+://[^/]+(/.*)?", directory) is not None
        ),
        f"{name} is in no object store that is known: give gs://bucket/… or s3://bucket/…, or mount"
        " it and give its path.",
    )
    package = STORES.get(store(directory))
    require(
        package is None or importlib.util.find_spec(package) is not None,
        f"{name} needs {package}: pip install {package}.",
    )


def _servers(s: RunSettings) -> None:
    addresses = s.reward.server_addresses
    require(
        s.reward.addresses is None or bool(addresses),
        f"reward.addresses={s.reward.addresses!r} names no server: give HOST:PORT,…, or leave it"
        " out to have completions judged by workers of the run.",
    )
    for address in addresses:
        _require_address("reward.addresses", address)
    twice = _twice(addresses)
    require(not twice, f"reward.addresses names {twice} twice: name each server once.")


def _backends(s: RunSettings) -> None:
    for name in s.observe.chosen_backends:
        if not is_reference(name):
            require_one_of("observe.backends", name, BACKENDS)


def _best_metric(s: RunSettings) -> None:
    if (best := s.checkpoint.best) is not None:
        samples = s.evaluation.samples
        name = f"checkpoint.best with evaluation.samples={samples}: the metric"
        require_one_of(name, best, tuple(metric_names(samples)))


def _opponents(s: RunSettings) -> None:
    for name in ("opponent", "evaluation_opponent"):
        opponent = getattr(s.environment, name)
        try:
            parse_opponent(opponent)
        except ValueError as error:
            raise ValueError(f"environment.{name}={opponent}: {error}") from error


def _environment_name(s: RunSettings) -> None:
    name = s.environment.name
    if name is not None and not is_own(name):
        require_one_of("environment.name", name.partition("(")[0].strip(), ENVIRONMENTS)


def _corrections(s: RunSettings) -> None:
    for name in s.algorithm.corrections:
        require_one_of("algorithm.correction", name, [*CORRECTIONS, *PUBLISHED_CORRECTIONS])


def _centered_loss(s: RunSettings) -> None:
    algorithm, loss = s.algorithm, LOSSES[s.algorithm.loss]
    mode = f"algorithm.score_centering={algorithm.score_centering}"
    if algorithm.score_centering == "off":
        return
    require(
        algorithm.generates,
        f"{mode} is about tokens that explorers draw, and algorithm.name={algorithm.name} has none:"
        " leave it out.",
    )
    known = [name for name, one in LOSSES.items() if not one.of_sequences]
    require(
        not loss.of_sequences,
        f"{mode} needs a loss whose tokens do not depend on each other, and"
        f" algorithm.loss={algorithm.loss} is one of sequences: use one of {', '.join(known)}.",
    )
    require(
        not (loss.of_probabilities and algorithm.score_centering == "topk"),
        f"{mode} knows only ratios of the tokens that are not recorded, and"
        f" algorithm.loss={algorithm.loss} compares probabilities: use"
        " algorithm.score_centering=exact, or another loss.",
    )


def _centered_corrections(s: RunSettings) -> None:
    if not s.algorithm.centers:
        return
    known = [name for name, one in CORRECTIONS.items() if not one.of_sequences]
    for name in s.algorithm.corrections:
        require(
            name in known,
            f"algorithm.score_centering={s.algorithm.score_centering} does not know"
            f" algorithm.correction={name}, whose weights depend on whole sequences: use"
            f" {', '.join(known)}, or none.",
        )


def _excludes(s: RunSettings) -> bool:
    """Says whether tokens are excluded from sampling."""
    rollout = s.rollout
    return rollout.top_k > 0 or rollout.top_p < 1 or rollout.min_p > 0 or rollout.min_new_tokens > 0


def _truncations(s: RunSettings) -> list[str]:
    """Returns the corrections whose weights are ratios, not 0 or 1."""
    return [name for name in s.algorithm.corrections if CORRECTIONS[name].is_ratio]


def _given_data(s: RunSettings) -> None:
    """Rejects settings that need sampled tokens or rewards if nothing is generated."""
    algorithm = s.algorithm
    if algorithm.generates:
        return
    loss, drawn = (
        ("bradley_terry", "drawn") if algorithm.scores else ("reinforce", "drawn or judged")
    )
    expected = {
        "loss": loss,
        "correction": "",
        "demonstration_rows": 0,
        "filter_zero_variance": False,
        "filter": "",
        "group_mean_low": -UNBOUNDED,
        "group_mean_high": UNBOUNDED,
        "extremes": 0,
    }
    for field, value in expected.items():
        require(
            getattr(algorithm, field) == value,
            f"algorithm.{field}={getattr(algorithm, field)!r} does not fit algorithm.advantage="
            f"{algorithm.advantage}, whose completions nobody has {drawn}: it takes"
            f" algorithm.{field}={value!r}.",
        )


def _parts_alone(s: RunSettings) -> None:
    """Rejects changes of the reward that advantages by its parts do not see."""
    algorithm = s.algorithm
    changes = {
        f"algorithm.overlong_tokens={algorithm.overlong_tokens}": algorithm.overlong_tokens > 0,
        f"algorithm.turn_discount={algorithm.turn_discount:g}": algorithm.turn_discount < 1,
        "algorithm.kl_place=reward": algorithm.needs_reference and algorithm.kl_place == "reward",
        f"experience.pipeline={s.experience.pipeline}": s.experience.pipeline is not None,
    }
    for change, is_made in changes.items():
        require(
            not is_made or not ADVANTAGES[algorithm.advantage].needs_parts,
            f"{change} changes the sum of the reward, and algorithm.advantage="
            f"{algorithm.advantage} compares the terms of task.reward as they were judged: leave it"
            " out (task.reward has soft_overlong, algorithm.kl_place=loss), or use"
            " algorithm.advantage=grpo.",
        )


def _segments_credited(s: RunSettings) -> None:
    """Rejects returns of segments where there are none, or where nothing is made of them."""
    if not s.algorithm.segment_returns:
        return
    advantage = ADVANTAGES[s.algorithm.advantage]
    require(
        advantage.of_tokens and not advantage.needs_baselines,
        "algorithm.segment_returns=True gives each segment of an episode its own advantages, and"
        f" algorithm.advantage={s.algorithm.advantage} makes one of a whole episode: use gae,"
        " n_step or reinforce_pp.",
    )
    require(
        s.has_segments,
        "algorithm.segment_returns=True is for episodes of several segments, and those of"
        f" environment.name={s.environment.name} have one: leave it out.",
    )


def danger(settings: RunSettings) -> str | None:
    """Returns the reason why the algorithm does not tolerate stale data; None if it does.

    Something must limit the effect of a token whose probability has changed since it was sampled.
    """
    algorithm = settings.algorithm
    loss = LOSSES[algorithm.loss]
    if loss.clips and algorithm.clip_high > LOOSEST_BOUND:
        return (
            f"algorithm.clip_high={algorithm.clip_high:g} leaves the ratio as good as unclipped: a"
            " token that became much likelier since it was drawn counts as often. Use at most"
            f" {LOOSEST_BOUND:g}"
        )
    if algorithm.corrections or ADVANTAGES[algorithm.advantage].is_positive or algorithm.scores:
        return None
    if algorithm.proximal != "behavior":
        return (
            f"algorithm.proximal={algorithm.proximal} without a correction takes no notice of the"
            " policy that drew the tokens. Use algorithm.correction=token_truncation"
        )
    if not loss.has_ratio:
        return (
            f"algorithm.loss={algorithm.loss} without a correction pushes bad tokens down without"
            " end, however unlikely they have become since they were drawn. Use"
            " algorithm.correction=token_truncation"
        )
    return None


def _bears_staleness(s: RunSettings) -> None:
    bound = s.schedule.staleness_bound
    require(
        bound == 0 or s.algorithm.allow_unsafe or danger(s) is None,
        f"algorithm.name={s.algorithm.name} does not fit data that are up to {bound} trainer steps"
        f" old, which sync.mode={s.sync.mode} allows: {danger(s)}, leave out algorithm.name for one"
        " that bears them, or insist with algorithm.allow_unsafe=True.",
    )


def _bears_quantization(s: RunSettings) -> None:
    require(
        s.quantization is None
        or s.schedule.staleness_bound > 0
        or not s.algorithm.generates
        or s.algorithm.allow_unsafe
        or danger(s) is None,
        f"algorithm.name={s.algorithm.name} does not fit explorer.quantization={s.quantization},"
        f" with which explorers draw from another policy than the trainer's: {danger(s)}, leave out"
        " algorithm.name for one that bears it, or insist with algorithm.allow_unsafe=True.",
    )


def _explorer_count(s: RunSettings) -> None:
    mode, count = MODES[s.sync.mode], s.explorers
    least, most = mode.least_explorers if s.algorithm.generates else 0, mode.most_explorers
    require(
        count >= least and (most is None or count <= most),
        f"explorer.count={count} does not fit sync.mode={s.sync.mode}, which takes "
        + (f"{least}" if least == most else f"{least} or more")
        + (": for several explorers use sync.mode=multi_explorer." if most == 1 else "."),
    )


def _sets_played(s: RunSettings) -> None:
    mixture = s.mixture
    if mixture is None or mixture.sets is None:
        return
    names = [one.name for one in sets_of(mixture.sets)]
    for name in environments_of_sets(s.environment.name):
        require_one_of("environment.name=by_set(…): a set", name, names)


def _sets_taught(s: RunSettings) -> None:
    if s.teacher.sets is None:
        return
    mixture = s.mixture
    names = [one.name for one in sets_of(mixture.sets)] if mixture and mixture.sets else []
    require(
        sorted(s.teacher.paths) == sorted(names),
        f"teacher.sets={s.teacher.sets} must name a teacher for each set of task.mixture.sets,"
        f" which are {', '.join(names) or 'none'}: use teacher.path for one teacher of all.",
    )


def _chat(s: RunSettings) -> str:
    """Returns the setting that asks for a chat template; empty if none does."""
    if s.tokenizer.system is not None:
        return f"system={s.tokenizer.system!r}"
    if s.tokenizer.template_arguments is not None:
        return f"template_arguments={s.tokenizer.template_arguments!r}"
    return "chat=yes" if s.tokenizer.chat == "yes" else ""


def _terms(s: RunSettings) -> list[str]:
    """Returns the names of the terms in the user's reward."""
    return [term.name for term in parse_sum(s.task.reward, "task.reward")] if s.task.reward else []


def _microbatches(s: RunSettings) -> None:
    rows, mixed = s.trainer.microbatch_rows, s.trainer.batching in MIXED
    most = s.trainer.groups_per_step * s.trainer.group_size // s.optimizer.updates_per_batch
    require(
        rows <= most and (not rows or mixed or most % rows == 0),
        f"trainer.microbatch_rows={rows} must be {'at most' if mixed else 'a divisor of'} {most},"
        " the trajectories of an optimizer update (trainer.groups_per_step · trainer.group_size /"
        " optimizer.updates_per_batch); 0 for no microbatches.",
    )


def _pairs_together(s: RunSettings) -> None:
    rows, group_size, batching = s.trainer.microbatch_rows, s.trainer.group_size, s.trainer.batching
    require(
        not (LOSSES[s.algorithm.loss].of_pairs and rows)
        or (rows % group_size == 0 and batching not in MIXED),
        f"algorithm.loss={s.algorithm.loss} compares the completions of a group, but"
        f" trainer.microbatch_rows={rows} with trainer.batching={batching} takes groups apart: use"
        f" a multiple of trainer.group_size={group_size} and batching that is neither"
        f" {' nor '.join(MIXED)}, or trainer.microbatch_rows=0.",
    )


def _demonstrations_shared(s: RunSettings) -> None:
    updates, rows = s.optimizer.updates_per_batch, s.trainer.microbatch_rows
    multiple = updates * max(1, rows)
    require(
        s.algorithm.demonstration_rows % multiple == 0,
        f"algorithm.demonstration_rows={s.algorithm.demonstration_rows} demonstrations cannot be"
        f" shared evenly by optimizer.updates_per_batch={updates} updates in microbatches of"
        f" trainer.microbatch_rows={rows} (0 for whole updates): use a multiple of {multiple}.",
    )


def _batch_cut(s: RunSettings) -> None:
    parts, updates = s.trainer_layout.batch_shards, s.optimizer.updates_per_batch
    of_rows = {
        "trainer.groups_per_step · trainer.group_size / optimizer.updates_per_batch": (
            s.trainer.groups_per_step * s.trainer.group_size // updates
        ),
        "trainer.microbatch_rows": s.trainer.microbatch_rows,
        "algorithm.demonstration_rows / optimizer.updates_per_batch": (
            s.algorithm.demonstration_rows // updates
        ),
        "sft.batch_size": s.sft.batch_size if s.sft.steps else 0,
    }
    for name, value in of_rows.items():
        require(
            value % parts == 0,
            f"{name} = {value} rows cannot be cut evenly into {parts} parts, as trainer.mesh of"
            f" {s.trainer.mesh.shape} wants it: use a multiple.",
        )


def _slots_cut(s: RunSettings) -> None:
    parts = s.explorer_layout.batch_shards
    require(
        s.slots % parts == 0,
        f"An explorer's {s.slots} slots (rollout.slots) cannot be cut evenly into {parts} parts, as"
        f" explorer.mesh of {s.explorer.mesh.shape} wants it: use a multiple.",
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


RULES: dict[str, Rule] = {
    # Rules about one setting. They come first, since the other rules rely on them.
    "name": lambda s: require(
        re.fullmatch(r"[^/\0]*[^/\0.][^/\0]*", s.name) is not None,
        f"name={s.name!r} is part of a directory's name: give letters and digits, and no slash"
        " (where the directory lies is said by workdir).",
    ),
    "workdir": lambda s: require(
        "\0" not in s.workdir, f"workdir={s.workdir!r} must not hold a null."
    ),
    "environment.name": _environment_name,
    "environment.opponent": _opponents,
    "environment.evaluation_opponent": lambda s: require(
        is_scripted(s.environment.evaluation_opponent),
        f"environment.evaluation_opponent={s.environment.evaluation_opponent} changes with"
        " training, so success against it says nothing: use a scripted player, such as random.",
    ),
    "model.lora.path, model.path": lambda s: require(
        s.model.lora.path is None or s.model.path is not None,
        f"model.lora.path={s.model.lora.path!r} adapts a checkpoint: set model.path to it.",
    ),
    "model.lora.targets": lambda s: Lora(1, 1.0, s.model.lora.projections()),
    "algorithm.correction": _corrections,
    "rollout.stop_ids": lambda s: require(
        all(part.isdecimal() and int(part) < 2**31 for part in s.rollout.stop_parts),
        f"rollout.stop_ids={s.rollout.stop_ids!r} must be token ids separated by commas.",
    ),
    "sync.directory": _directory,
    "sharding.embed": _axes,
    "replay.address": lambda s: _require_address("replay.address", s.replay.address),
    "reward.addresses": _servers,
    "observe.backends": _backends,
    "launch.hosts": _hosts,
    "launch.ports": _ports,
    "launch.files": _files,
    "launch.remote_shell": lambda s: require(
        _names_host_alone(s.launch.remote_shell),
        f"launch.remote_shell={s.launch.remote_shell} must say where {{host}} goes, as in"
        " 'ssh {host}': with that alone in braces (double others: {{ and }}), and quotation marks"
        " that are closed.",
    ),
    "launch.compilation_cache": lambda s: require(
        "://" not in (s.launch.compilation_cache or ""),
        f"launch.compilation_cache={s.launch.compilation_cache} is not a local directory. Give JAX"
        " a remote one by the variable JAX_COMPILATION_CACHE_DIR.",
    ),
    # Values that make no algorithm, or one that does not tolerate the schedule.
    "algorithm.demonstration_rows, algorithm.demonstration_coefficient": lambda s: require(
        (s.algorithm.demonstration_rows > 0) == (s.algorithm.demonstration_coefficient > 0),
        f"algorithm.demonstration_coefficient={s.algorithm.demonstration_coefficient:g} is the"
        f" weight of algorithm.demonstration_rows={s.algorithm.demonstration_rows} demonstrations a"
        " step: set both, or both to 0.",
    ),
    "algorithm.dual_clip": lambda s: require(
        not 0 < s.algorithm.dual_clip <= 1,
        f"algorithm.dual_clip={s.algorithm.dual_clip} must be above 1, or 0 for none.",
    ),
    "algorithm.extremes": lambda s: require(
        s.algorithm.extremes % 2 == 0,
        f"algorithm.extremes={s.algorithm.extremes} must be even, or 0 for all.",
    ),
    "algorithm.group_mean_low, algorithm.group_mean_high": lambda s: require(
        s.algorithm.group_mean_low <= s.algorithm.group_mean_high,
        f"algorithm.group_mean_low={s.algorithm.group_mean_low} is above algorithm.group_mean_high"
        f"={s.algorithm.group_mean_high}: no group would be left.",
    ),
    "algorithm.max_attempts, algorithm.filter_zero_variance": lambda s: require(
        s.algorithm.screening.refuses or not s.algorithm.screening.replaces,
        f"algorithm.max_attempts={s.algorithm.max_attempts} has groups replaced that teach nothing,"
        " but no setting says which: use algorithm.filter_zero_variance=True, algorithm.filter, or"
        " algorithm.group_mean_low and algorithm.group_mean_high; or algorithm.max_attempts=1 to"
        " replace none.",
    ),
    "algorithm.advantage, algorithm.overlong_tokens": _parts_alone,
    "algorithm.filter, trainer.group_size": lambda s: require(
        s.trainer.group_size >= 2 or not s.algorithm.needs_spread,
        (
            f"algorithm.filter={s.algorithm.filter}"
            if s.algorithm.filtered_parts
            else "algorithm.filter_zero_variance=True"
        )
        + " leaves out groups whose completions are alike, and"
        f" trainer.group_size={s.trainer.group_size} makes all of them so: use at least 2, or turn"
        " the filter off.",
    ),
    "algorithm.correction, algorithm.loss": lambda s: require(
        not _truncations(s)
        or s.algorithm.proximal != "behavior"
        or not LOSSES[s.algorithm.loss].has_ratio,
        f"algorithm.correction={' and '.join(_truncations(s))} weighs by the ratio that"
        f" algorithm.loss={s.algorithm.loss} has in it already: with it use"
        " algorithm.proximal=start, or algorithm.loss=reinforce.",
    ),
    "algorithm.correction: twice": lambda s: require(
        len(_truncations(s)) <= 1,
        f"algorithm.correction={s.algorithm.correction} weighs by the ratio twice: use one of"
        f" {' and '.join(_truncations(s))}.",
    ),
    "algorithm.correction, algorithm.proximal": lambda s: require(
        not s.algorithm.looks_ahead or s.algorithm.proximal == "start",
        "algorithm.correction=second_moment is taken over all tokens of an update before it, which"
        f" needs algorithm.proximal=start, not {s.algorithm.proximal}.",
    ),
    "algorithm.score_centering, algorithm.loss": _centered_loss,
    "algorithm.score_centering, algorithm.correction": _centered_corrections,
    "algorithm.score_centering, rollout.keep_sampling_mask": lambda s: require(
        not s.algorithm.centers or s.rollout.keep_sampling_mask or not _excludes(s),
        f"algorithm.score_centering={s.algorithm.score_centering} compares the policy with the"
        " distribution that tokens were drawn from, which rollout.keep_sampling_mask=False takes"
        " to be another one where top_k, top_p, min_p or min_new_tokens exclude tokens: leave"
        " rollout.keep_sampling_mask out, or use algorithm.score_centering=off.",
    ),
    "algorithm.loss, algorithm.advantage: preferences": lambda s: require(
        ADVANTAGES[s.algorithm.advantage].of_preferences == s.algorithm.scores,
        f"algorithm.loss={s.algorithm.loss} with algorithm.advantage={s.algorithm.advantage}: a"
        " reward model learns from preferences, and nothing else does. Use both"
        " algorithm.loss=bradley_terry and algorithm.advantage=preference, or neither.",
    ),
    "algorithm.advantage, algorithm.filter_zero_variance": _given_data,
    "algorithm.loss, algorithm.kl_coefficient, algorithm.entropy_coefficient": lambda s: require(
        not (
            s.algorithm.scores and (s.algorithm.kl_coefficient or s.algorithm.entropy_coefficient)
        ),
        "algorithm.kl_coefficient and algorithm.entropy_coefficient must be 0 with"
        " algorithm.loss=bradley_terry: a reward model has no probabilities.",
    ),
    "algorithm.loss, algorithm.advantage: pairs": lambda s: require(
        LOSSES[s.algorithm.loss].of_pairs == ADVANTAGES[s.algorithm.advantage].of_pairs,
        f"algorithm.loss={s.algorithm.loss} with algorithm.advantage={s.algorithm.advantage}: dpo"
        " compares the trajectories of a pair, which nothing else does. Use both"
        " algorithm.loss=dpo and algorithm.advantage=pair, or neither.",
    ),
    "algorithm.kl_target, algorithm.kl_coefficient": lambda s: require(
        not s.algorithm.kl_target or s.algorithm.kl_coefficient > 0,
        f"algorithm.kl_target={s.algorithm.kl_target} has no weight to adapt: set"
        " algorithm.kl_coefficient to what it starts with, above 0.",
    ),
    "algorithm.loss, algorithm.advantage: tokens": lambda s: require(
        not (
            ADVANTAGES[s.algorithm.advantage].of_tokens and LOSSES[s.algorithm.loss].of_trajectories
        ),
        f"algorithm.loss={s.algorithm.loss} takes one advantage a trajectory, but"
        f" algorithm.advantage={s.algorithm.advantage} makes one a token: use"
        " algorithm.advantage=reinforce_pp_baseline, or dr_grpo.",
    ),
    "teacher.path, algorithm.distillation": lambda s: require(
        s.teacher.is_there == s.algorithm.has_teacher,
        f"algorithm.distillation={s.algorithm.distillation} with teacher.path={s.teacher.path!r}"
        + f" and teacher.sets={s.teacher.sets!r}" * (s.teacher.sets is not None)
        + f" and teacher.address={s.teacher.address!r}" * (s.teacher.address is not None)
        + ": a teacher is for distillation, which needs one. Set both, such as"
        " algorithm.distillation=exact and teacher.path=DIRECTORY, or leave out both.",
    ),
    "teacher.sets, teacher.path": lambda s: require(
        s.teacher.sets is None or s.teacher.path is None,
        f"teacher.sets={s.teacher.sets} names the teacher of each set, and"
        f" teacher.path={s.teacher.path} one for all: leave out one of them.",
    ),
    "teacher.sets, task.mixture.sets": _sets_taught,
    "teacher.address": lambda s: _require_address(
        "teacher.address", s.teacher.address, "use teacher.path for a teacher beside the trainer"
    ),
    "teacher.address, teacher.path": lambda s: require(
        s.teacher.address is None or not (s.teacher.paths or s.teacher.step or s.teacher.offload),
        f"teacher.address={s.teacher.address} names a server, which has one teacher for all tasks"
        " and takes teacher.path and teacher.step itself: leave out teacher.path, teacher.sets,"
        " teacher.step and teacher.offload here.",
    ),
    "teacher.address, algorithm.distillation": lambda s: require(
        s.teacher.address is None or s.algorithm.distillation != EXACT,
        "algorithm.distillation=exact compares all tokens of the vocabulary, and the server of"
        f" teacher.address={s.teacher.address} would have to send a number for each of them at each"
        " token: use algorithm.distillation=topk or sampled, or teacher.path in place of"
        " teacher.address.",
    ),
    "teacher.address, teacher.secret_path": lambda s: require(
        s.teacher.address is None or s.teacher.secret_path is not None,
        f"teacher.address={s.teacher.address} needs teacher.secret_path=FILE with the secret of the"
        " server, which `rl-sync teacher` makes.",
    ),
    "teacher.step, teacher.path": lambda s: require(
        s.teacher.step is None or bool(s.teacher.paths),
        f"teacher.step={s.teacher.step} names a snapshot of the run in teacher.path: set it.",
    ),
    "algorithm.distillation, algorithm.name": lambda s: require(
        s.algorithm.generates or not s.algorithm.has_teacher,
        f"algorithm.distillation={s.algorithm.distillation} is on the policy's own completions, and"
        f" algorithm.name={s.algorithm.name} generates none: use"
        " algorithm.name=on_policy_distillation.",
    ),
    "algorithm.advantage, algorithm.distillation": lambda s: require(
        s.algorithm.advantage != "none" or s.algorithm.has_teacher,
        "algorithm.advantage=none leaves rewards out, so that only a teacher teaches: set"
        " algorithm.distillation, or use another advantage.",
    ),
    "algorithm.distillation, algorithm.loss": lambda s: require(
        s.algorithm.distillation != SAMPLED
        or not (LOSSES[s.algorithm.loss].of_trajectories or LOSSES[s.algorithm.loss].of_pairs),
        f"algorithm.distillation=sampled gives each token an advantage of its own, but"
        f" algorithm.loss={s.algorithm.loss} takes one a trajectory: use"
        " algorithm.distillation=exact or topk, or another loss.",
    ),
    "algorithm.name, sync.mode, algorithm.allow_unsafe": _bears_staleness,
    "algorithm.name, explorer.quantization, algorithm.allow_unsafe": _bears_quantization,
    # Settings that need completions from the policy.
    "curriculum.selection, algorithm.name": lambda s: require(
        s.algorithm.generates or not s.curriculum.follows_history,
        f"curriculum.selection={s.curriculum.selection} goes by what became of prompts before, and"
        f" algorithm.name={s.algorithm.name} generates nothing: leave it out.",
    ),
    "experience.pipeline, algorithm.name": lambda s: require(
        s.algorithm.generates or s.experience.pipeline is None,
        f"experience.pipeline={s.experience.pipeline} gets what was generated, and"
        f" algorithm.name={s.algorithm.name} generates nothing: leave it out.",
    ),
    "task.mixture.weights, algorithm.name": lambda s: require(
        s.mixture is None or s.mixture.weights == "fixed" or s.algorithm.generates,
        "task.mixture.weights=progress goes by success, and algorithm.name="
        f"{s.algorithm.name} generates nothing: use fixed.",
    ),
    "environment.name, algorithm.name": lambda s: require(
        not s.plays or s.algorithm.generates,
        f"environment.name={s.environment.name} plays with a policy, and"
        f" algorithm.name={s.algorithm.name} generates nothing: leave out one.",
    ),
    "explorer.count, algorithm.name": lambda s: require(
        s.algorithm.generates or not s.explorer.count,
        f"explorer.count={s.explorer.count} explorers would have nothing to generate:"
        f" algorithm.name={s.algorithm.name} trains on the task's own data alone.",
    ),
    "trainer.group_size, algorithm.name": lambda s: require(
        not s.algorithm.scores or s.trainer.group_size == PAIR,
        f"trainer.group_size={s.trainer.group_size} does not fit algorithm.name="
        f"{s.algorithm.name}, whose groups are pairs: use trainer.group_size={PAIR}.",
    ),
    "sft.steps, algorithm.name": lambda s: require(
        not (s.algorithm.scores and s.sft.steps),
        f"sft.steps={s.sft.steps} would imitate demonstrations, which a reward model cannot: it has"
        " a scalar head in place of an output for tokens. Use sft.steps=0, and begin with a"
        " checkpoint (model.path) if there is one.",
    ),
    "evaluation.samples, algorithm.name": lambda s: require(
        not s.algorithm.scores or s.evaluation.samples == 1,
        f"evaluation.samples={s.evaluation.samples} does not fit algorithm.name="
        f"{s.algorithm.name}, whose evaluations compare the held-out pairs once each: use"
        " evaluation.samples=1.",
    ),
    # Settings that the schedule does not allow.
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
    # Values that make no batch or no update.
    "trainer.steps, optimizer.updates_per_batch": lambda s: require(
        s.trainer.steps * s.optimizer.updates_per_batch < 2**31,
        f"trainer.steps={s.trainer.steps} steps of optimizer.updates_per_batch="
        f"{s.optimizer.updates_per_batch} updates are more than the 2,147,483,647 that an optimizer"
        " counts: use fewer.",
    ),
    "trainer.groups_per_step, algorithm.over_sampling, trainer.group_size": lambda s: require(
        s.groups_generated * s.trainer.group_size < 2**31,
        "trainer.groups_per_step · algorithm.over_sampling · trainer.group_size ="
        f" {s.groups_generated * s.trainer.group_size:.3g} completions a step are more than arrays"
        " can hold (2,147,483,647): use fewer.",
    ),
    "trainer.groups_per_step, optimizer.updates_per_batch": lambda s: require(
        s.trainer.groups_per_step % s.optimizer.updates_per_batch == 0,
        f"trainer.groups_per_step={s.trainer.groups_per_step} groups cannot be shared evenly by"
        f" optimizer.updates_per_batch={s.optimizer.updates_per_batch} updates: use a divisor.",
    ),
    "trainer.group_size, algorithm.advantage": lambda s: require(
        s.trainer.group_size >= 2 or not ADVANTAGES[s.algorithm.advantage].compares_groups,
        f"trainer.group_size must be at least 2, not {s.trainer.group_size}:"
        f" algorithm.advantage={s.algorithm.advantage} compares a group's completions with each"
        " other. For one completion a prompt use algorithm.name=ppo or reinforce_pp.",
    ),
    "algorithm.advantage, environment.name": lambda s: require(
        s.plays or s.mixture is not None or not s.algorithm.needs_roles,
        f"algorithm.advantage={s.algorithm.advantage} compares the games of a seat, or the"
        " completions of a set of a mixture, and this run has neither: set environment.name to a"
        " game of several players, or use algorithm.advantage=reinforce_pp.",
    ),
    "algorithm.segment_returns, algorithm.advantage": _segments_credited,
    "optimizer.weight_decay, optimizer.name": lambda s: require(
        not s.optimizer.weight_decay or s.optimizer.name in DECAYING,
        f"optimizer.weight_decay={s.optimizer.weight_decay} means nothing to optimizer.name="
        f"{s.optimizer.name}: set it to 0, or use {' or '.join(DECAYING)}.",
    ),
    "critic.warmup_steps, trainer.steps": lambda s: require(
        not s.algorithm.needs_values or s.critic.warmup_steps < s.trainer.steps,
        f"critic.warmup_steps={s.critic.warmup_steps} leaves the policy none of"
        f" trainer.steps={s.trainer.steps} to learn in: use fewer.",
    ),
    "algorithm.loss, trainer.microbatch_rows, trainer.batching": _pairs_together,
    "algorithm.demonstration_rows, optimizer.updates_per_batch": _demonstrations_shared,
    "trainer.microbatch_rows, trainer.batching": _microbatches,
    "trainer.shared_row_tokens, trainer.batching": lambda s: require(
        s.trainer.shared_row_tokens is None or s.trainer.batching == "shared",
        f"trainer.shared_row_tokens={s.trainer.shared_row_tokens} is for rows with shared prompts,"
        f" which trainer.batching={s.trainer.batching} does not make: use trainer.batching=shared,"
        " or leave it out.",
    ),
    # Values that make no problems or no rewards.
    "task.shots, tokenizer.system, tokenizer.chat": lambda s: require(
        not (s.task.shots and _chat(s)),
        f"task.shots={s.task.shots} makes prompts that a completion continues, and"
        f" tokenizer.{_chat(s)} makes them a user's message: use one of the two.",
    ),
    "tokenizer.system, tokenizer.chat": lambda s: require(
        s.tokenizer.system is None or s.tokenizer.chat != "no",
        f"tokenizer.system={s.tokenizer.system!r} has no place in a prompt without a chat template:"
        " leave it out, or use tokenizer.chat=auto.",
    ),
    "tokenizer.system, tokenizer.chat, tokenizer.path": lambda s: require(
        not _chat(s) or s.tokenizer.path is not None or s.model.path is not None,
        f"tokenizer.{_chat(s)} needs a tokenizer with a chat template, and this run's tokens are"
        " characters: give --config.tokenizer.path=DIRECTORY.",
    ),
    "task.name, task.mixture.sets": lambda s: require(
        s.mixture is None or s.mixture.sets is not None,
        "task.name=mixture needs task.mixture.sets: two or more tasks with weights, such as"
        " 2 * arithmetic + jsonl(path='mine.jsonl').",
    ),
    "curriculum.low, curriculum.high": lambda s: require(
        s.curriculum.low <= s.curriculum.high,
        f"curriculum.low={s.curriculum.low:g} is above curriculum.high={s.curriculum.high:g}: no"
        " success rate is in that band. Exchange them.",
    ),
    "curriculum.difficulty, curriculum.selection": lambda s: require(
        s.curriculum.difficulty is None or s.curriculum.selection == EASY_TO_HARD,
        f"curriculum.difficulty={s.curriculum.difficulty!r} is read with"
        f" curriculum.selection={EASY_TO_HARD} alone, not with {s.curriculum.selection}: leave it"
        " out.",
    ),
    "environment.name, task.name": lambda s: require(
        s.mixture is not None or not environments_of_sets(s.environment.name),
        f"environment.name={s.environment.name} is for the sets of a mixture, and"
        f" task.name={s.task.name} has none: use task.name=mixture.",
    ),
    "environment.name, task.mixture.sets": _sets_played,
    "task.reward, environment.name": lambda s: require(
        s.plays or "environment" not in _terms(s),
        f"task.reward={s.task.reward} takes what an environment gave, and there is none: set"
        " environment.name, or another reward.",
    ),
    "task.reward, environment.name: no rewards": lambda s: require(
        s.environment.name is None
        or "environment" not in _terms(s)
        or gives_rewards(s.environment.name),
        f"task.reward={s.task.reward} takes what an environment gave, and environment.name="
        f"{s.environment.name} gives no rewards: use a reward that judges the last reply.",
    ),
    "environment.workers, trainer.group_size, evaluation.samples": lambda s: require(
        not s.plays or s.environment.workers >= max(s.trainer.group_size, s.evaluation.samples),
        f"environment.workers={s.environment.workers} is less than the"
        f" {max(s.trainer.group_size, s.evaluation.samples)} episodes of a problem"
        " (trainer.group_size, evaluation.samples), which begin together: use at least as many.",
    ),
    "trainer.batching, environment.rewrites": lambda s: require(
        s.trainer.batching != "shared" or not s.has_segments,
        "trainer.batching=shared has no place for episodes of several segments, as those of agents,"
        " and those whose chat template rewrites what was said before: use trainer.batching=packed,"
        " or, without an agent, environment.rewrites=refuse.",
    ),
    "reward.addresses, reward.secret_path": lambda s: require(
        s.reward.addresses is None or s.reward.secret_path is not None,
        f"reward.addresses={s.reward.addresses} needs reward.secret_path=FILE with the secret of"
        " these servers, which `rl-sync reward` makes.",
    ),
    # Settings of evaluations that would have no effect.
    "evaluation.by, sync.mode": lambda s: require(
        s.evaluation.by != EXPLORERS or (s.schedule.pull == "latest" and s.explorers > 0),
        f"evaluation.by={s.evaluation.by} needs explorers that run at their own pace, and"
        f" sync.mode={s.sync.mode} has none: use sync.mode=asynchronous or multi_explorer, or"
        " evaluation.by=trainer.",
    ),
    "evaluation.slots, evaluation.by": lambda s: require(
        s.evaluation.slots is None or s.evaluates_on_explorers,
        f"evaluation.slots={s.evaluation.slots} is for evaluations by explorers beside their"
        " rollouts, but the trainer makes them: leave it out, or set evaluation.by=explorers where"
        " pulls are latest.",
    ),
    "checkpoint.best, evaluation.samples": _best_metric,
    "checkpoint.best, task.reward": lambda s: require(
        s.task.reward is None
        or not (s.checkpoint.best or "").startswith(MAJORITY)
        or may_vote(s.task.reward),
        f"checkpoint.best={s.checkpoint.best} needs a reward that reads an answer to vote on, and"
        f" task.reward={s.task.reward} reads none: use mean@{s.evaluation.samples} or pass@k.",
    ),
    "checkpoint.best, evaluation.every_steps": lambda s: require(
        s.checkpoint.best is None or s.evaluation.every_steps > 0,
        f"checkpoint.best={s.checkpoint.best} compares evaluations between steps, and there are"
        " none: set evaluation.every_steps.",
    ),
    "checkpoint.best, evaluation.by": lambda s: require(
        s.checkpoint.best is None or s.evaluation.by != EXPLORERS,
        f"checkpoint.best={s.checkpoint.best} does not fit evaluation.by={s.evaluation.by}:"
        " explorers may evaluate a version of which there is no snapshot. Use"
        " evaluation.by=trainer.",
    ),
    "checkpoint.memory_directory": lambda s: require(
        os.path.isabs(s.checkpoint.memory_directory),
        f"checkpoint.memory_directory={s.checkpoint.memory_directory} must be an absolute path, as"
        " processes may start in other folders.",
    ),
    "checkpoint.memory_every_steps, launch.hosts": lambda s: require(
        not s.checkpoint.memory_every_steps
        or not any(name.startswith("trainer/") for name in s.launch.elsewhere),
        f"checkpoint.memory_every_steps={s.checkpoint.memory_every_steps} writes to the memory of"
        f" one machine, and launch.hosts={s.launch.hosts} puts the trainer's processes on several:"
        " leave out one of them.",
    ),
    # Values that processes and devices cannot share; last, values that make no model.
    "launch.hosts, launch.host": lambda s: require(
        not s.launch.elsewhere or bool(s.launch.host),
        f"launch.hosts={s.launch.hosts} needs launch.host, this machine's address as those reach"
        " it.",
    ),
    "launch.hosts, launch.colocate": lambda s: require(
        not (s.launch.elsewhere and s.launch.colocate),
        f"launch.hosts={s.launch.hosts} does not fit launch.colocate, with which all are in one"
        " process: leave out one of them.",
    ),
    "launch.hosts, explorer.count": _processes,
    "trainer.processes, trainer.mesh": _parts,
    "launch.colocate, trainer.processes, explorer.processes": lambda s: require(
        not s.launch.colocate or s.trainer.processes == s.explorer.processes == 1,
        "launch.colocate=true runs all roles in one process: use it with trainer.processes=1 and"
        f" explorer.processes=1, not {s.trainer.processes} and {s.explorer.processes}.",
    ),
    "launch.share_devices, launch.colocate": lambda s: require(
        s.launch.colocate or not s.launch.share_devices,
        "launch.share_devices is for roles in one process: use it with launch.colocate=true.",
    ),
    "sync.transfer, launch.colocate": lambda s: require(
        not (s.launch.colocate and TRANSFERS[s.transfer].needs_processes),
        f"sync.transfer={s.transfer} is for roles in processes of their own: with"
        " launch.colocate=true use sync.transfer=collective, which hands the weights over.",
    ),
    "master.port, replay.port": lambda s: require(
        not s.master.port or s.master.port != s.replay.port or s.replay.address is not None,
        f"master.port and replay.port are both {s.master.port}: each server needs one of its own."
        " Change one, or set it to 0 for any free one.",
    ),
    "trainer.groups_per_step, trainer.mesh": _batch_cut,
    "rollout.slots, explorer.mesh": _slots_cut,
    "model.experts.count, model.experts.per_token": lambda s: s.model.experts.experts(),
    "model.num_heads, model.num_kv_heads": lambda s: s.model.config(vocab_size=1, max_length=1),
    "model.vision": lambda s: s.model.vision.image_size and s.model.vision.vision(token_id=0),
    "rollout.progress_tokens, environment.name": lambda s: require(
        not s.rollout.progress_tokens or not branches(s.environment.name or ""),
        f"rollout.progress_tokens={s.rollout.progress_tokens} plays episodes again up to where they"
        f" were, but the programs of environment.name={s.environment.name} ask as they like, and"
        " cannot be made to ask the same again: leave rollout.progress_tokens at 0.",
    ),
    "rollout.progress_tokens, rollout.routing_replay": lambda s: require(
        not (s.rollout.progress_tokens and s.rollout.routing_replay),
        f"rollout.progress_tokens={s.rollout.progress_tokens} does not keep the experts that"
        " rollout.routing_replay=True records: set one of them to its default.",
    ),
    "model.batch_invariant, trainer.batching": lambda s: require(
        not s.model.batch_invariant or (s.trainer.batching != "shared" and not s.has_segments),
        "model.batch_invariant=true wants each trajectory as one sequence of its own: not with"
        " trainer.batching=shared (use packed), and not with episodes of several segments.",
    ),
    "model.batch_invariant, model.lora.rank, explorer.dtype": lambda s: require(
        not s.model.batch_invariant
        or (
            s.quantization is None and not s.model.lora.rank and s.explorer_dtype == s.compute_dtype
        ),
        "model.batch_invariant=true wants the same weights in explorers and trainer: not with"
        " explorer.quantization, not with adapters (model.lora.rank), which explorers merge into"
        " the kernels, and explorer.dtype must be that of the trainer.",
    ),
    "model.batch_invariant, explorer.mesh, trainer.mesh": lambda s: require(
        not s.model.batch_invariant
        or s.trainer.mesh.tensor == s.explorer.mesh.tensor == s.explorer.mesh.context == 1,
        "model.batch_invariant=true does not hold where devices add up parts of a sum: use meshes"
        " of data and fsdp (the trainer's may also have context), with tensor=1, and context=1 for"
        " explorers.",
    ),
    "rollout.speculation, explorer.processes": lambda s: require(
        s.rollout.speculation != "auto" or s.explorer.processes == 1,
        "rollout.speculation=auto decides by a clock, but explorer.processes="
        f"{s.explorer.processes} share each step and must decide alike: use"
        " rollout.speculation=always or off.",
    ),
    "rollout.routing_replay, model.experts": lambda s: require(
        not s.rollout.routing_replay
        or s.model.config(vocab_size=1, max_length=1).experts is not None,
        "rollout.routing_replay=True replays the experts that explorers chose, but the model has"
        " none: leave it out, or use a model with a mixture of experts.",
    ),
}
"""Rules by the names of their settings, separated by commas; a colon precedes a further subject."""
