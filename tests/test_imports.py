"""Imports run one way, from the launcher down to the types."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAVES = {
    "aliases",
    "spelling",
    "setting",
    "references",
    "expression",
    "ending",
    "images",
    "sampling_masks",
    "transfer",
    "roles",
    "workdir",
}
LOWEST = {"types", "schedule", "algorithms", "models", "rollout", "learning"}
SIDE = {"replay", "weights", "rewards", "tasks", "observe"}
# What each part may import, besides itself.
ALLOWED = {
    "__main__": {"launcher"},
    "aliases": set(),
    "spelling": set(),
    "setting": set(),
    "references": set(),
    "expression": set(),
    "ending": set(),
    "images": set(),
    "sampling_masks": set(),
    "transfer": set(),
    "roles": set(),
    "types": set(),
    "schedule": set(),
    "forecast": {"schedule"},
    "workdir": set(),
    "algorithms": {"types"},
    "models": {"types", "algorithms"},
    "rollout": {"types", "models"},
    "learning": {"types", "algorithms", "models"},
    "sandbox": set(),
    "rewards": {"types", "sandbox"},
    "tasks": {"types", "models", "rewards"},
    "environments": {"types", "tasks", "sandbox"},
    "replay": {"types", "models"},
    "weights": {"types", "models"},
    "observe": {"types", "models"},
    "page": {"schedule", "observe"},
    "actors": LOWEST | SIDE - {"replay", "observe"} | {"environments"},
    "settings": LOWEST - {"types"}
    | {"tasks", "rewards", "environments", "weights", "replay", "observe"},
    "processes": {"types", "models", "weights", "observe", "settings", "actors"},
    "storage": {"types", "models", "weights", "observe", "actors", "learning", "processes"},
    "transfers": {"types", "schedule", "models", "weights", "observe", "actors", "processes"},
    "runtime": LOWEST
    | SIDE
    | {"environments", "actors", "settings", "processes", "storage", "transfers"},
    "scoring": LOWEST | SIDE | {"settings", "runtime"},
    "aot": LOWEST | {"tasks", "settings", "runtime", "transfers"},
    "api": LOWEST | SIDE | {"settings", "runtime"},
}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "rl_sync").parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    """The dotted names of all that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(path: Path) -> set[str]:
    """Returns the parts of rl_sync that a file imports."""
    return {name.split(".")[1] for name in imported_names(path) if name.startswith("rl_sync.")}


def test_a_file_imports_only_what_lies_below_it():
    files = [p for p in sorted((ROOT / "rl_sync").rglob("*.py")) if p.name != "__init__.py"]
    assert len(files) > 100
    allowed = {part: names | {part} | LEAVES for part, names in ALLOWED.items()}
    wrong = {
        str(path.relative_to(ROOT)): above
        for path in files
        if (above := imported(path) - allowed[part_of(path)])
    }
    assert not wrong


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
    ["rewards", "sandbox", "replay", "environments/hosts", "schedule.py", "actors/events.py"],
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
