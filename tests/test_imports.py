"""Imports run one way, from the launcher down to the types."""

import ast
import collections
import graphlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

ROOT = Path(__file__).resolve().parents[1]
LEAVES = {
    "addresses",
    "aliases",
    "clock",
    "spelling",
    "setting",
    "references",
    "expression",
    "ending",
    "image_files",
    "images",
    "row_answers",
    "token_records",
    "sequence_images",
    "sampling_masks",
    "thoughts",
    "transfer",
    "role_names",
    "workdir",
}
ACTORS = {
    "roles/explorer/actor.py",
    "roles/explorer/commands.py",
    "roles/explorer/group_rows.py",
    "roles/explorer/life.py",
    "roles/master/group_deadlines.py",
    "roles/master/group_admission.py",
    "roles/master/prompt_choice.py",
    "roles/master/state.py",
    "roles/master/transition.py",
    "roles/trainer/actor.py",
    "roles/trainer/commands.py",
    "roles/trainer/life.py",
    "roles/trainer/origins.py",
    "roles/trainer/reward_trainer.py",
}
"""The pure halves of the roles, which know nothing of the drivers beside them."""

LOWEST = {"types", "schedule", "algorithms", "models", "learning"}
SIDE = {"replay", "weights", "rewards", "tasks", "records", "display"}
RUN = {"rollout", "environments", "settings", "cluster", "checkpoints", "transfers", "scoring"}
# What each part may import, besides itself and the leaves.
ALLOWED = {
    "__main__": {"launcher"},
    **{leaf: set() for leaf in LEAVES},
    "isolation": set(),
    "ports": set(),
    "types": set(),
    "schedule": set(),
    "messages": {"types"},
    "algorithms": {"types"},
    "models": {"types", "algorithms"},
    "learning": {"types", "algorithms", "models"},
    "sandbox": set(),
    "rewards": {"types", "sandbox"},
    "tasks": {"types", "models", "rewards"},
    "environments": {"types", "tasks", "sandbox"},
    "rollout": {"types", "models", "environments", "weights"},
    "replay": {"types", "models"},
    "weights": {"types", "messages", "models"},
    "records": {"types", "messages", "models", "schedule"},
    "display": {"messages", "records"},
    "page": {"records", "display"},
    "actors": LOWEST | {"messages", "rollout", "environments", "tasks"},
    "settings": LOWEST - {"types"} | SIDE - {"display"} | {"rollout", "environments"},
    "cluster": {"ports", "messages", "models", "weights", "records", "display", "settings"},
    "checkpoints": LOWEST - {"algorithms"}
    | {"messages", "weights", "records", "settings", "cluster"},
    "transfers": {"types", "schedule", "messages", "models", "weights", "records", "cluster"},
    "scoring": {
        "ports",
        "types",
        "messages",
        "tasks",
        "rewards",
        "records",
        "display",
        "settings",
        "cluster",
    },
    "roles": LOWEST | SIDE | RUN | {"ports", "messages", "actors", "configs"},
    "reward_models": LOWEST | SIDE | {"settings", "roles"},
    "simulation": LOWEST | SIDE | RUN | {"ports", "messages", "actors", "roles", "configs"},
    "plan": LOWEST | SIDE | RUN | {"roles", "simulation"},
    "api": LOWEST | SIDE | {"rollout", "settings", "roles"},
}
ISOLATED = set(ALLOWED) - {"__main__", "schedule", "algorithms", "models", "learning"} - LEAVES
"""Parts that may import how processes are isolated, and understand each other."""


TABLES = {
    "launch/launcher/command_tables/policy_commands.py",
    "launch/launcher/command_tables/training_commands.py",
    "launch/launcher/processes/run_processes.py",
    "rl_sync/environments/environment_catalog.py",
    "rl_sync/records/backends/backend_catalog.py",
    "rl_sync/tasks/task_catalog.py",
}
"""Modules of the core that name add-ons, which are imported when they are used."""

OFFERED = {
    "addresses",
    "algorithms.losses",
    "api.loaded_policy",
    "clock",
    "cluster.compilation_cache",
    "cluster.gpus",
    "cluster.host_names",
    "cluster.malloc",
    "cluster.ports",
    "cluster.rpc",
    "cluster.secret",
    "cluster.topology",
    "display.span_styles",
    "display.timeline_figure",
    "ending",
    "environments.dialogue.tool_call_text",
    "environments.hosts.construction",
    "environments.hosts.episode_limits",
    "environments.hosts.host",
    "environments.hosts.process_host",
    "environments.interface",
    "environments.opponents",
    "expression",
    "images",
    "isolation.codec",
    "isolation.machine_limits",
    "isolation.process_limits",
    "launcher.command",
    "launcher.commands.report",
    "launcher.commands.serving",
    "launcher.config_file",
    "launcher.processes.stack_dump",
    "launcher.processes.supervisor",
    "launcher.what_if",
    "learning.forward",
    "messages.call",
    "models.config",
    "models.huggingface.adapters",
    "models.huggingface.reading",
    "models.huggingface.writing",
    "models.logprobs",
    "models.lora",
    "models.placement",
    "models.platform",
    "models.sharding",
    "models.transformer",
    "models.vocabulary.token_sets",
    "plan.compile_text",
    "plan.memory.explorer_memory",
    "plan.memory.memory_text",
    "plan.memory.trainer_memory",
    "plan.version_bytes",
    "records.backends.backend",
    "records.json_lines",
    "records.metrics",
    "references",
    "role_names",
    "roles.assembly.wiring",
    "roles.exit_status",
    "roles.process",
    "rollout.engine",
    "rollout.engine_options",
    "rollout.request",
    "rollout.sampling",
    "schedule",
    "setting",
    "settings",
    "simulation.speed",
    "spelling",
    "tasks.choices",
    "tasks.problems",
    "thoughts",
    "transfer",
    "types",
    "weights.digest",
    "workdir",
}
"""Modules and folders of the core that add-ons may import."""


def part_of(path: Path) -> str:
    inside = path.relative_to(ROOT / "rl_sync")
    return "actors" if str(inside) in ACTORS else inside.parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    """The dotted names of all that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_at(name: str) -> Path | None:
    """Returns the file of a module of rl_sync by its dotted name; None if it names no module."""
    path = ROOT.joinpath(*name.split("."))
    within = name.startswith("rl_sync.") and "rl_sync.launcher" not in name
    return path.with_suffix(".py") if within and path.with_suffix(".py").is_file() else None


def imported(path: Path) -> set[str]:
    """Returns the parts of rl_sync that a file imports."""
    return {part_of(found) for name in imported_names(path) if (found := module_at(name))}


def core_files() -> list[Path]:
    """Returns the modules of rl_sync that are no add-ons."""
    files = sorted((ROOT / "rl_sync").rglob("*.py"))
    return [p for p in files if p.name != "__init__.py" and part_of(p) != "addons"]


def test_a_file_imports_only_what_lies_below_it():
    files = core_files()
    assert len(files) > 100
    allowed = {
        part: names | {part} | LEAVES | ({"isolation"} if part in ISOLATED else set())
        for part, names in ALLOWED.items()
    }
    wrong = {
        str(path.relative_to(ROOT)): above
        for path in files
        if (above := imported(path) - allowed[part_of(path)])
    }
    assert not wrong


def test_addons_are_named_in_tables_alone():
    """Experiments in `configs/` may use add-ons directly, as those of users do."""
    files = [
        path for top in ("rl_sync", "launch", "benchmarks") for path in (ROOT / top).rglob("*.py")
    ]
    core = [path for path in files if ROOT / "rl_sync/addons" not in path.parents]
    naming = {path for path in core if "rl_sync.addons" in path.read_text()}
    assert {path.relative_to(ROOT).as_posix() for path in naming} == TABLES
    for path in naming:
        assert not any(name.startswith("rl_sync.addons") for name in imported_names(path)), path


def test_addons_import_public_names_of_what_the_core_offers():
    files = [*(ROOT / "rl_sync/addons").rglob("*.py")]
    files = [path for path in files if not path.name.endswith("_pb2.py")]  # Generated.
    assert files
    used = set()
    for path in files:
        tree, names = ast.parse(path.read_text()), imported_names(path)
        ours = {name for name in names if name.startswith("rl_sync.")}
        for name in ours:
            if Path(ROOT, *name.split(".")).with_suffix(".py").is_file() and ".addons." not in name:
                within = name.removeprefix("rl_sync.")
                folder = within.rpartition(".")[0]
                used.add(folder if folder in OFFERED else within)
        assert not [name for name in ours if re.search(r"\._(?!_)", name)], path
        bound = {
            (alias.asname or alias.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        private = {
            f"{node.value.id}.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if re.match("_(?!_)", node.attr) and node.value.id in bound
        }
        assert not private, path
    assert used == OFFERED


@pytest.mark.parametrize("folder", ["rl_sync", "configs", "launch", "benchmarks", "tests"])
def test_files_import_the_package_by_names_that_the_wheel_has(folder):
    for path in (ROOT / folder).rglob("*.py"):
        tops = {name.partition(".")[0] for name in imported_names(path)}
        assert not tops & {"configs", "launcher"}, path


def test_no_module_imports_one_that_imports_it():
    paths = [p for p in (ROOT / "rl_sync").rglob("*.py") if p.name != "__init__.py"]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    graph = {name: imported_names(path) & modules.keys() for name, path in modules.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # Raises where there is a cycle.


@pytest.mark.parametrize(
    "part",
    [
        "rewards",
        "sandbox",
        "replay",
        "isolation",
        "environments/hosts",
        "messages",
        "schedule.py",
        "roles/master/group_deadlines.py",
    ],
)
def test_parts_that_serve_without_a_model_do_not_import_jax(part):
    path = ROOT / "rl_sync" / part
    for file in [path] if path.is_file() else path.rglob("*.py"):
        names = {
            name.name.split(".")[0]
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Import)
            for name in node.names
        }
        assert not names & {"jax", "flax", "optax"}, file


def test_settings_are_a_leaf():
    """Settings name models, losses and optimizers, and import none of their code."""
    wanted = "import json, sys, rl_sync.settings.config_reading; print(json.dumps([*sys.modules]))"
    command = [sys.executable, "-c", wanted]
    found = json.loads(subprocess.check_output(command, cwd=ROOT, text=True))
    frameworks = {"jax", "flax", "optax", "orbax", "torch", "transformers"}
    assert not frameworks & {name.partition(".")[0] for name in found}
    assert not [name for name in found if name.startswith(("rl_sync.roles", "rl_sync.cluster"))]
    others = [name for name in found if re.match(r"rl_sync(?!\.settings)", name)]
    assert len(others) <= 125  # Now 120.


def test_no_folder_is_large_and_no_name_is_used_twice():
    """A file or a class is worth a search: its name finds one thing.

    The folders of roles are built alike, so each may have an `actor`, a `life`,
    its `commands` and a `loop`.
    """
    files = [
        path
        for top in ("rl_sync", "launch/launcher")
        for path in (ROOT / top).rglob("*.py")
        if not path.name.startswith("__") and not path.name.endswith("_pb2.py")
    ]
    folders = collections.Counter(path.parent for path in files)
    assert not {str(folder): count for folder, count in folders.items() if count > 20}
    alike = {"actor", "commands", "life", "loop"}
    stems = collections.Counter(path.stem for path in files if path.stem not in alike)
    assert not {name: count for name, count in stems.items() if count > 1}
    classes = collections.Counter(
        node.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert not {name: count for name, count in classes.items() if count > 1}
