"""The wiring: makes the task, the models and other objects from a run's settings."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from rl_sync.algorithms.algorithm import TOPK
from rl_sync.cluster.rpc import PeerLostError
from rl_sync.cluster.secret import read_secret
from rl_sync.environments.dialogue.episode_demonstrations import demonstrated
from rl_sync.environments.environment_catalog import environments_of_sets, gives_rewards
from rl_sync.learning.drawing_versions import KeptVersions
from rl_sync.learning.rows.batching import Batching, ExpectedImages, default_row_tokens
from rl_sync.models.config import ModelConfig
from rl_sync.models.invariant import KEYS
from rl_sync.models.kernels.flash import AttentionCall, require_fit
from rl_sync.models.paging.paged_cache import page_bytes
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import Layout
from rl_sync.records.spans import SpanRecorder
from rl_sync.rewards.reward_catalog import SET, is_quick
from rl_sync.rewards.reward_parts import OUTCOME, RewardPart, chosen_weights, read_parts
from rl_sync.rewards.reward_settings import RewardSettings
from rl_sync.rewards.rubric import Rubric
from rl_sync.role_names import MASTER, is_explorer
from rl_sync.roles.assembly.batch_invariance import require_batch_invariance
from rl_sync.roles.evaluation.evaluator import EvaluationSet
from rl_sync.roles.explorer.episode_wiring import environment_of
from rl_sync.roles.master.state import MasterSettings
from rl_sync.rollout.paging.page_table import PageTable, pages_of
from rl_sync.rollout.sampling import LogitsProcessors, Sampling
from rl_sync.sampling_masks import word_count
from rl_sync.scoring.judging import MasterScoring, Scored, Scorer, Success, Verdicts
from rl_sync.scoring.local_scorer import LocalScorer
from rl_sync.scoring.remote_servers import RemoteScorer, check_server
from rl_sync.settings.records import ConfigError, require
from rl_sync.settings.run_settings import RunSettings
from rl_sync.tasks import task_catalog
from rl_sync.tasks.curriculum import PromptPool, pool_of
from rl_sync.tasks.pictures.tile_processor import TileProcessor
from rl_sync.tasks.task import Task
from rl_sync.token_records import MOST_RECORDED, NO_RECORDS, SamplerShape, TokenRecords
from rl_sync.workdir import Workdir


def load_task(settings: RunSettings) -> Task:
    """Loads the problems and their tokenizer.

    Raises:
      ConfigError: they cannot be read (the message says where), do not fit the model, or lack
        demonstrations that a setting needs.
    """
    tokenizer = dataclasses.replace(
        settings.tokenizer, path=settings.tokenizer.path or settings.model.path
    )
    name = settings.environment.name
    processor, unread = _processor(settings)
    try:
        construction = environment_of(settings)
        needs = construction is not None and construction.needs_sight
        may_show = construction is not None and construction.may_show_images
        of_sets = environments_of_sets(name)
        task = task_catalog.load_task(
            settings.task,
            tokenizer,
            settings.seed,
            task_catalog.EpisodeNeeds(
                characters=construction.charset if construction else "",
                tokens=settings.environment.max_tokens if construction else 0,
                reward="environment" if name is not None and gives_rewards(name) else None,
                played=frozenset(of for of, one in of_sets.items() if gives_rewards(one)),
                rendering=demonstrated,
            ),
            processor,
        )
        if (task.shows_images or needs) and unread is not None:
            raise unread
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    if not (task.shows_images or may_show) and processor is not None:
        shown = f"the problems of task.name={settings.task.name} have no images"
        if name is not None:
            shown += f", and the class of environment.name={name} does not say shows_images = True"
        require(
            settings.model.path is not None,
            f"config.model.vision.image_size={settings.model.vision.image_size} gives the policy a"
            f" vision tower, but {shown}: leave it out, or take a task with images.",
        )
        task = dataclasses.replace(task, processor=None)
    if stop_ids := settings.rollout.more_stop_ids:
        task = dataclasses.replace(task, tokenizer=task.tokenizer.with_stop_ids(stop_ids))
    _require_sight(settings, task, needs, may_show)
    trainer_model(settings, task)
    with compiling_for("cpu"):  # No devices yet: a launcher must not take them.
        cache_pages(settings, task)
        if settings.explorers_evaluate_every:
            examination_cache_bytes(settings, task)
    sampling(settings, task)
    token_records(settings, task)
    _require_parts(settings, task)
    _require_demonstrations(settings, task)
    _require_preferences(settings, task)
    prompt_pool(settings, task)
    return task


def _processor(settings: RunSettings) -> tuple[TileProcessor | None, ValueError | None]:
    """Returns the processing of images for the policy, or the reason why there is none."""
    try:
        return settings.model.processor(), None
    except ConfigError:
        raise
    except ValueError as error:  # It matters only if the task has images.
        return None, error


def _require_sight(
    settings: RunSettings, task: Task, plays_images: bool, may_show_images: bool
) -> None:
    """Rejects images that the policy cannot see, or that nothing shows to it.

    Args:
      plays_images: whether observations of the environment are images.
      may_show_images: whether the environment may show some.
    """
    if not (task.shows_images or plays_images):
        return
    name, path = settings.task.name, settings.model.path
    about = f"task.name={name} asks about images (the field `images` of its rows)"
    if plays_images:
        about = f"environment.name={settings.environment.name} shows images"
    section = getattr(settings.task, name, None)
    if path is not None:
        way_out = "use a checkpoint with vision (Gemma 3, SmolVLM)"
        reason = f"config.model.path={path!r} reads text alone"
    else:
        way_out = (
            "give the policy a vision tower (--config.model.vision.image_size=32), or use a"
            " checkpoint with vision (--config.model.path=DIRECTORY)"
        )
        reason = "the policy reads text alone"
    if hasattr(section, "as_text"):
        way_out += f", or write images as characters (--config.task.{name}.as_text=true)"
    require(task.processor is not None, f"{about}, and {reason}: {way_out}.")
    require(
        not settings.plays or may_show_images,
        f"{about}, and observations of environment.name={settings.environment.name} are text: leave"
        " out the environment, or the images, or use an environment whose class says"
        " shows_images = True.",
    )
    generates, scores = settings.algorithm.generates, settings.algorithm.scores
    require(
        generates and not scores,
        f"{about}, and algorithm.name={settings.algorithm.name} trains on given texts: use an"
        " algorithm that generates, with sft.steps for demonstrations.",
    )


def _require_demonstrations(settings: RunSettings, task: Task) -> None:
    """Rejects a task without demonstrations if a setting needs some."""
    if task.demonstrations:
        return
    algorithm = settings.algorithm
    wanted = {
        "sft.steps": settings.sft.steps,
        "algorithm.demonstration_rows": algorithm.demonstration_rows,
    }
    for name, value in wanted.items():
        rule = f"{name}={value}, but the task has no demonstrations: use {name}=0 to do without."
        require(not value, " ".join([rule, *task.notes]))
    require(
        not algorithm.demonstrations_only,
        f"algorithm.name={algorithm.name} trains on demonstrations, but the task has none: name the"
        " field that they are in, or another algorithm.",
    )


def _require_preferences(settings: RunSettings, task: Task) -> None:
    """Rejects a task without preference pairs if a reward model is trained."""
    for name, pairs in {"train": task.preferences, "hold out": task.held_out_preferences}.items():
        require(
            bool(pairs) or not settings.algorithm.scores,
            f"algorithm.name={settings.algorithm.name} compares pairs of completions, but the task"
            f" has none to {name}: use task.dataset.format=preference, or name the fields with"
            " task.dataset.chosen and task.dataset.rejected. " + " ".join(task.notes),
        )


def reward_parts(settings: RunSettings, task: Task) -> tuple[RewardPart, ...]:
    """Returns the parts of the reward by which groups have scores; none if it has one part."""
    parts = read_parts(task.reward) if settings.algorithm.generates else ()
    return parts if len(parts) > 1 else ()


def outcome_weights(settings: RunSettings, task: Task) -> tuple[float, ...]:
    """Returns the weight of each part of the reward in the outcome; none if it is the whole reward.

    The outcome is the sum of the parts that `algorithm.filter` names, or else of all that do not
    judge the form.
    """
    if not (parts := reward_parts(settings, task)):
        return ()
    weights = chosen_weights(parts, settings.algorithm.filtered_parts or (OUTCOME,))
    is_whole = weights == tuple(part.weight for part in parts)
    return weights if any(weights) and not is_whole else ()


def filter_weights(settings: RunSettings, task: Task) -> tuple[float, ...]:
    """Returns the weight of each part in what groups are filtered by; none for the whole reward."""
    return outcome_weights(settings, task) if settings.algorithm.filtered_parts else ()


def _require_parts(settings: RunSettings, task: Task) -> None:
    """Rejects a filter by parts that the reward does not have, or that add nothing to it."""
    if not (names := settings.algorithm.filtered_parts):
        return
    name = f"algorithm.filter={settings.algorithm.filter}"
    parts = read_parts(task.reward)
    try:
        weights = chosen_weights(parts, names)
    except ValueError as error:
        raise ConfigError(f"{name} with task.reward={task.reward}: {error}") from error
    shown = ", ".join(f"{part.weight:g} * {part.label}" for part in parts)
    require(
        any(weights),
        f"{name} names nothing that makes a difference: the parts of task.reward are {shown}. Name"
        " one whose weight is not 0; terms for the form are no outcome.",
    )


def check_reward(task: Task) -> None:
    """Rejects a reward that cannot be made, or that cannot score the task's problems.

    Raises:
      ConfigError: the message names the reward, the problem and the remedy.
    """
    try:
        rubric = Rubric(task.reward)
        rubric.check(prompt.fields for prompt in (*task.train, *task.held_out))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def try_reward(settings: RunSettings, task: Task) -> list[str]:
    """Tests the reward's requirements on this machine; reward servers have tested their own.

    Returns:
      Sentences about problems whose completions cannot be scored.

    Raises:
      ConfigError: no completion could be scored.
    """
    if settings.reward.addresses is not None:
        return []
    try:
        return Rubric(task.reward).try_out(
            prompt.fields for prompt in (*task.train, *task.held_out)
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_reward_servers(settings: RunSettings, task: Task) -> None:
    """Rejects reward servers with another reward or another secret.

    A server that does not answer is not rejected: it may start later.

    Raises:
      ConfigError: the message names the server, the fault and the remedy.
    """
    if settings.reward.addresses is None:
        return
    secret = _reward_secret(settings.reward)
    for address in settings.reward.server_addresses:
        with contextlib.suppress(PeerLostError):
            check_server(address, secret, task.reward)


def _reward_secret(settings: RewardSettings) -> str:
    assert settings.secret_path is not None, "checked with the settings"
    try:
        return read_secret(Path(settings.secret_path))
    except OSError as error:
        raise ConfigError(
            f"reward.secret_path={settings.secret_path} cannot be read"
            f" ({error.strerror or error}): `rl-sync reward` makes it; copy it from the"
            " server's machine."
        ) from error


def delivers_beside(settings: RunSettings) -> bool:
    """Says whether threads get groups scored and inserted while the explorer generates others.

    The explorer waits if scores may make it generate a group again. Streaming explorers never wait,
    since they have other groups in flight.
    """
    return settings.rollout.streaming or not settings.algorithm.screening.replaces


def delivers_in_parts(settings: RunSettings, task: Task) -> bool:
    """Says whether explorers deliver each group once it is whole, while others are in flight.

    If the reward is quick, groups are delivered together, since a call for each would cost more.
    """
    rollout = settings.rollout
    if rollout.streaming:
        return True
    whole = rollout.budget_tokens > 0 or rollout.swap == "in_flight"
    is_slow = settings.reward.addresses is not None or not is_quick(task.reward)
    return is_slow and delivers_beside(settings) and not whole


def judge_of(settings: RunSettings, task: Task, say: Callable[[str], None]) -> Scorer:
    """Returns the scorer of a task's completions: workers, or reward servers if there are any.

    Args:
      say: function that gets a line for the user when no server answers.
    """
    if settings.reward.addresses is None:
        return LocalScorer(task.reward, settings.reward)
    return RemoteScorer(
        task.reward,
        settings.reward,
        secret=_reward_secret(settings.reward),
        wait_secs=settings.launch.wait_secs,
        say=say,
    )


def judging(
    settings: RunSettings,
    task: Task,
    fail: Callable[[str], None],
    say: Callable[[str], None],
    scored: Scored | None = None,
    noted: Callable[[Verdicts], None] | None = None,
) -> MasterScoring:
    """Makes the scoring of a task's completions; a thread tests the reward immediately.

    Args:
      fail: called with a reason if the reward cannot be used.
      say: see `judge_of`.
      scored: called with the success of scored groups.
      noted: called with the verdicts of scored groups.
    """
    made = MasterScoring(
        task=task,
        judge=judge_of(settings, task, say),
        terms=Rubric(task.reward).labels,
        settings=settings.reward,
        workdir=Workdir(settings.workdir),
        spans=SpanRecorder(Workdir(settings.workdir).spans_of(MASTER), MASTER),
        fail=fail,
        scored=scored,
        success=Success(settings.curriculum.success, settings.algorithm.needs_baselines),
        noted=noted,
        parts=[part.label for part in reward_parts(settings, task)],
        most_bytes=settings.observe.most_bytes_of_each,
    )
    made.start()
    return made


def model_config(settings: RunSettings, task: Task) -> ModelConfig:
    """Returns the model config for a task's vocabulary and lengths.

    Raises:
      ConfigError: `model.path` is not a supported checkpoint, or does not fit the task.
    """
    image_token = None
    if task.processor is not None:
        image_token = task.tokenizer.image_id(task.processor.marks)
    model = settings.model.config(task.tokenizer.vocab_size, task.row_tokens, image_token)
    if model.batch_invariant:
        require_batch_invariance(settings.compute_dtype)
    scores = settings.algorithm.scores
    require(
        scores or not model.scalar_head,
        f"config.model.path={settings.model.path!r} is a reward model, which cannot generate: give"
        " a language model, or train it further with algorithm.name=reward_model.",
    )
    return dataclasses.replace(model, scalar_head=scores)


def trainer_model(settings: RunSettings, task: Task) -> ModelConfig:
    """Returns the model config for the trainer's computations.

    Raises:
      ConfigError: as `model_config`, or the attention does not support the trainer's rows.
    """
    model = dataclasses.replace(model_config(settings, task), dtype=settings.compute_dtype)
    return fitting(settings, task, model)


def fitting(settings: RunSettings, task: Task, model: ModelConfig) -> ModelConfig:
    """Returns a model whose attention supports the trainer's rows.

    Raises:
      ConfigError: it does not.
    """
    batching = settings.trainer.batching
    packed, shared = batching == "packed" or settings.has_segments, batching == "shared"
    return _fitting(model, task, packed, shared)


def own_layout(settings: RunSettings, role: str) -> Layout:
    """Returns the layout of a role on the devices of this process.

    Raises:
      ConfigError: it has too few.
    """
    shape, devices = settings.mesh_of(role), jax.local_devices()
    named = "explorer" if is_explorer(role) else role
    require(
        shape.devices <= len(devices),
        f"{named}.mesh needs {shape.devices} devices, but this process has {len(devices)}: use a"
        " smaller mesh.",
    )
    return settings.layout(role, shape.mesh(devices[: shape.devices]))


def explorer_model(settings: RunSettings, task: Task) -> ModelConfig:
    """Returns the model config for explorers' computations; raises as `trainer_model` does.

    Its rows are as long as the devices that share prompts can cut into equal chunks.
    """
    model = dataclasses.replace(model_config(settings, task), dtype=settings.explorer_dtype)
    model = _fitting(model, task, packed=False, shared=False)
    divisor = settings.explorer_layout.row_divisor
    length = -(-model.max_length // divisor) * divisor
    return dataclasses.replace(model, max_length=length, quantization=settings.quantization)


def cache_pages(settings: RunSettings, task: Task) -> PageTable | None:
    """Returns the pages of an explorer's cache; None if each slot has a cache of its own.

    A launcher has replaced `rollout.cache_bytes=0`; without one, it counts as left out.

    A page has more bytes on TPUs, which pad narrow heads.

    Raises:
      ConfigError: as `trainer_model` does, or the cache cannot hold the longest sequence.
    """
    model, size = explorer_model(settings, task), settings.rollout.cache_bytes
    if not size:
        return None
    layout, slots = settings.explorer_layout, settings.slots
    try:
        return pages_of(model, layout, slots=slots, length=model.max_length, cache_bytes=size)
    except ValueError as error:
        raise ConfigError(f"rollout.{error}") from error


def examination_cache_bytes(settings: RunSettings, task: Task) -> int | None:
    """Returns the bytes of pages for an explorer's evaluations; None if each slot has a cache.

    They are in proportion to the slots, but hold the longest sequence.

    Raises:
      ConfigError: see `cache_pages`.
    """
    if (pages := cache_pages(settings, task)) is None:
        return None
    layout, slots = settings.explorer_layout, settings.evaluation_slots
    require(
        slots % layout.batch_shards == 0,
        f"evaluation.slots={slots} cannot be cut evenly into the {layout.batch_shards} parts of a"
        " cache in pages: use a multiple, or leave out rollout.cache_bytes.",
    )
    share = -(-pages.pages * slots // settings.slots)
    return max(share, pages.width) * page_bytes(explorer_model(settings, task), layout)


def _fitting(model: ModelConfig, task: Task, packed: bool, shared: bool) -> ModelConfig:
    both_ways = model.vision is not None and model.vision.both_ways
    try:
        require_fit(model, AttentionCall.of(model, task.row_tokens, packed, shared, both_ways))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return model


def sampling(settings: RunSettings, task: Task) -> Sampling:
    """Returns the sampling choices of explorers.

    Raises:
      ConfigError: the task's completions are shorter than the settings ask for.
    """
    rollout = settings.rollout
    try:
        return Sampling(
            max_new_tokens=task.max_completion_tokens,
            stop_ids=task.tokenizer.end_ids,
            stop_strings=rollout.stop_texts,
            min_new_tokens=rollout.min_new_tokens,
            repetition_penalty=rollout.repetition_penalty,
            temperature=rollout.temperature,
            top_k=rollout.top_k,
            top_p=rollout.top_p,
            min_p=rollout.min_p,
        )
    except ValueError as error:
        raise ConfigError(f"rollout.{error}") from error


def greedy_sampling(settings: RunSettings, task: Task) -> Sampling:
    """Returns the sampling choices of probes: those of explorers, but greedy."""
    return dataclasses.replace(sampling(settings, task), greedy=True)


def examination(settings: RunSettings, task: Task) -> EvaluationSet:
    """Returns the held-out problems of an evaluation, with random or greedy sampling."""
    evaluation = settings.evaluation
    if evaluation.samples == 1:
        drawn = greedy_sampling(settings, task)
    else:
        temperature = evaluation.temperature or settings.rollout.temperature
        drawn = dataclasses.replace(sampling(settings, task), temperature=temperature)
    return EvaluationSet(
        task=task,
        sampling=drawn,
        problems=evaluation.problems,
        samples=evaluation.samples,
        seed=settings.seed,
        plays=settings.plays,
    )


def batching_of(settings: RunSettings, task: Task) -> Batching:
    """Returns the layout of the trainer's batches for a task; raises the errors of `batching`."""
    records = token_records(settings, task)
    laid_out = batching(settings, task.row_tokens, mask_words(settings, task), records)
    laid_out = dataclasses.replace(laid_out, parts=len(reward_parts(settings, task)))
    if settings.teacher.sets is not None:
        names = [*settings.teacher.paths]
        sets = (str((prompt.row or {})[SET]) for prompt in task.train)
        laid_out = dataclasses.replace(laid_out, teachers=tuple(map(names.index, sets)))
    if settings.algorithm.needs_roles:
        labels = [str((prompt.row or {}).get(SET, "")) for prompt in task.train]
        numbers = {label: number for number, label in enumerate(sorted({*labels}))}
        laid_out = dataclasses.replace(laid_out, sets=tuple(map(numbers.__getitem__, labels)))
    if settings.teacher.address is not None:
        best, algorithm = 0, settings.algorithm
        if algorithm.distillation == TOPK:
            vocab_size = model_config(settings, task).vocab_size
            best = min(algorithm.distillation_top_k, vocab_size)
        laid_out = dataclasses.replace(laid_out, served_best=best)
    if task.processor is None:
        return laid_out
    features = explorer_model(settings, task).dtype if sends_features(settings, task) else None
    return dataclasses.replace(
        laid_out,
        vision=model_config(settings, task).vision,
        part_rows=settings.trainer.microbatch_rows,
        tile_shards=settings.trainer_layout.batch_shards,
        shown=ExpectedImages(settings.trainer.group_size, task.trained_tiles, features),
    )


def sends_features(settings: RunSettings, task: Task) -> bool:
    """True if groups carry features of their images, which a frozen tower computed, not pixels.

    They do if features are smaller.
    """
    model = explorer_model(settings, task)
    if model.vision is None or settings.model.trains_tower:
        return False
    return model.vision.tile_bytes(jnp.dtype(model.dtype).itemsize) < model.vision.pixel_bytes


def token_records(settings: RunSettings, task: Task) -> TokenRecords:
    """Returns the shapes of what explorers record of tokens.

    Raises:
      ConfigError: the vocabulary is too large to be recorded, or smaller than the likeliest tokens.
    """
    if not settings.algorithm.generates:
        return NO_RECORDS
    routes = model_config(settings, task).routes if settings.rollout.routing_replay else None
    return TokenRecords(routes, sampler_shape(settings, task))


def sampler_shape(settings: RunSettings, task: Task) -> SamplerShape | None:
    """Returns the shape of the distributions that explorers record; None for none.

    Raises:
      ConfigError: see `token_records`.
    """
    algorithm = settings.algorithm
    exact = algorithm.score_centering == "exact"
    if not algorithm.centers or (exact and settings.rollout.score == "trainer"):
        return None
    vocab_size, best = model_config(settings, task).vocab_size, algorithm.centering_tokens
    require(
        exact or best < vocab_size,
        f"algorithm.centering_tokens={best} must be fewer than the model's vocabulary of"
        f" {vocab_size} tokens: use fewer, or algorithm.score_centering=exact.",
    )
    require(
        not exact or vocab_size <= MOST_RECORDED,
        f"algorithm.score_centering=exact would record all {vocab_size} tokens of the vocabulary"
        f" with each token, {4 * vocab_size:,} bytes, and takes at most {MOST_RECORDED} of them:"
        " use algorithm.score_centering=topk, or rollout.score=trainer, with which the trainer"
        " computes them.",
    )
    return SamplerShape(vocab_size, 0 if exact else best)


def mask_words(settings: RunSettings, task: Task) -> int:
    """Maximum number of entries of a token's sampling mask; 0 for runs without masks."""
    keeps = settings.algorithm.generates and settings.rollout.keep_sampling_mask
    if not (keeps and LogitsProcessors.of(sampling(settings, task)).excludes):
        return 0
    most, top_k = word_count(model_config(settings, task).vocab_size), settings.rollout.top_k
    return min(most, top_k + 1) if top_k else most


def batching(
    settings: RunSettings,
    row_tokens: int,
    mask_words: int = 0,
    records: TokenRecords = NO_RECORDS,
) -> Batching:
    """Returns the layout of the trainer's batches, for trajectories of up to `row_tokens` tokens.

    Rows are as long as the devices that share their positions can cut into equal chunks.

    Args:
      mask_words, records: see `Batching`.

    Raises:
      ConfigError: a row of shared prompts has no room for such a trajectory.
    """
    shards = settings.trainer_layout.batch_shards
    divisor = settings.trainer_layout.row_divisor
    row_tokens = -(-row_tokens // divisor) * divisor
    shared = settings.trainer.shared_row_tokens or default_row_tokens(row_tokens)
    require(
        shared >= row_tokens,
        f"trainer.shared_row_tokens={shared} has no room for a trajectory, which may have"
        f" {row_tokens} tokens: use at least as many, or leave it out.",
    )
    return Batching(
        kind=settings.trainer.batching,
        trajectories=settings.trainer.groups_per_step * settings.trainer.group_size,
        row_tokens=row_tokens,
        updates=settings.optimizer.updates_per_batch,
        microbatch_rows=settings.trainer.microbatch_rows,
        row_shards=shards,
        with_baselines=settings.algorithm.needs_baselines,
        of_episodes=settings.plays,
        with_segments=settings.has_segments,
        # The text of a completion says that it ends with a stop string, and not its last token.
        with_truncated=settings.algorithm.generates and bool(settings.rollout.stop_texts),
        shared_row_tokens=shared,
        mask_words=mask_words,
        records=records,
        aligned=KEYS if settings.model.batch_invariant else 1,
    )


def kept_versions(settings: RunSettings) -> KeptVersions | None:
    """Returns the versions by which the trainer scores tokens; None if explorers score them."""
    if settings.rollout.score != "trainer" or not settings.algorithm.generates:
        return None
    schedule = settings.schedule
    count = -(-schedule.staleness_bound // schedule.interval)
    return KeptVersions(schedule.interval, schedule.start, count)


def prompt_pool(settings: RunSettings, task: Task) -> PromptPool:
    """Returns the prompts that the run chooses from.

    Raises:
      ConfigError: the rows lack a field that the curriculum needs.
    """
    try:
        return pool_of(settings.curriculum, task.train, settings.mixture)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def master_settings(settings: RunSettings, pool: PromptPool) -> MasterSettings:
    """Returns the settings of the master actor."""
    return MasterSettings(
        schedule=settings.schedule,
        steps=settings.trainer.steps,
        groups_per_step=settings.groups_generated,
        explorers=settings.explorers,
        groups_per_lease=settings.groups_at_once,
        lease_secs=settings.master.lease_secs,
        carries_over=settings.carries_over,
        screening=settings.algorithm.screening,
        max_leases=settings.environment.max_leases,
        times_sampled=settings.replay.times_sampled,
        evaluate_every_steps=settings.explorers_evaluate_every,
        evaluations_waiting=settings.evaluation.waiting,
        curriculum=settings.curriculum,
        pool=pool,
        seed=settings.seed,
    )
