"""Rules of processes, devices and models."""

from __future__ import annotations

from rl_sync.environments.environment_catalog import branches
from rl_sync.role_names import process_name
from rl_sync.settings.records import require
from rl_sync.settings.rules.rule import Rule
from rl_sync.settings.run_settings import RunSettings
from rl_sync.spelling import require_one_of
from rl_sync.transfer import TRANSFERS


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


PROCESS_RULES: dict[str, Rule] = {
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
