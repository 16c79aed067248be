"""The examples of all documents: command lines, settings, Python, JSON, and names of files."""

import ast
import builtins
import functools
import importlib
import inspect
import json
import re
import shlex
import tomllib
from importlib.util import find_spec

import pytest
from click.exceptions import Exit

from rl_sync.configs import base
from rl_sync.display.timeline_figure import parse_steps
from rl_sync.environments.environment_catalog import (
    ENVIRONMENTS,
    environments_of_sets,
    reference_of,
)
from rl_sync.expression import parse_call, parse_sum
from rl_sync.launcher import command_line, config_file
from rl_sync.launcher.catalogs import CATALOGS, find
from rl_sync.launcher.command_table import COMMANDS
from rl_sync.launcher.commands import lists, rollouts
from rl_sync.launcher.completing import SHELLS
from rl_sync.launcher.mistakes import setting_names
from rl_sync.launcher.processes import run_directory, sweep_grid
from rl_sync.plan.schedule_text import describe
from rl_sync.plan.targets import target
from rl_sync.references import is_reference, resolve
from rl_sync.rewards.reward_catalog import REWARDS
from rl_sync.setting import sections
from rl_sync.settings.run_settings import RunSettings
from tests.docs.pages import PAGES, ROOT, blocks, commands, flags, inline, named_commands

SETTINGS = {entry.name: entry for part in sections(RunSettings) for entry in part.entries}
PLACEHOLDER = re.compile(r"=(?:[A-Z][A-Z_:0-9]*|[a-z]|…|)$")
IMPORTABLE = ("rl_sync", "configs", "launcher", "tests")
GIVEN = {"docs/agents.md": {"look", "row"}, "docs/tasks.md": {"config"}}
"""Names that a page's text introduces, and its code uses."""

OTHERS = {"experience.step", "experience.samples", "--config.sync.mo", "rl_sync.resumed_at"}
"""Names that look like settings or modules: attributes, a beginning of a name, a tag of MLflow."""


@pytest.fixture(autouse=True)
def _in_the_clone(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(config_file, "of_run", lambda workdir: base.get_config())


def _validate(config, page):
    """Resolves all settings of a config, and the names in them."""
    settings = run_directory.settings_of(config.to_dict())
    _check_reward(settings.task.reward, page)
    name = settings.environment.name
    for one in [*environments_of_sets(name).values()] or [name] * (name is not None):
        if is_reference(one.partition("(")[0]):
            _check_own(one, page)
        else:
            _check_options(reference_of(one))
    if is_reference(settings.task.name.partition("(")[0]):
        _check_own(settings.task.name, page)
    for one in (settings.experience.pipeline or "").split(", "):
        if one:
            _check_own(one, page)


def _check_reward(reward, page):
    for term in [] if reward is None else parse_sum(reward):
        if is_reference(term.name):
            _check_own(str(term.name), page)
        elif term.name == "by_set":
            for inner in term.options.values():
                _check_reward(inner, page)
        else:
            _check_options(f"{REWARDS[term.name].where}", term.options)


def _check_own(reference, page):
    """The function or the class exists, its page shows it, or it is at `path/to`."""
    path, _, name = parse_call(reference).name.rpartition(":")
    if path.partition(".")[0] in IMPORTABLE or (ROOT / path).is_file():
        resolve(f"{path}:{name}")
    elif not path.startswith(("path/to/", "my_package")):
        shown = "\n".join(block.text for block in blocks() if block.page == page)
        assert re.search(rf"(?:def|class) {name}\b", shown), f"{page} does not show {reference}"


def _check_options(reference, options=None):
    options = parse_call(reference).options if options is None else options
    parameters = inspect.signature(resolve(reference.partition("(")[0])).parameters
    kinds = {one.kind for one in parameters.values()}
    unknown = set() if inspect.Parameter.VAR_KEYWORD in kinds else {*options} - {*parameters}
    assert not unknown, f"{reference} has no options {unknown}"


def _check_command_line(example, folder):
    words = shlex.split(example.text)
    if "experiments/sums.py" in example.text:
        (folder / "sums.py").write_text(_block("def get_config(steps=").text)
        words = [word.replace("experiments", str(folder)) for word in words]
    try:
        arguments = command_line.parse(words)
    except Exit:
        return  # Help, or the version.
    command, given = arguments.command, arguments.flags
    if command == "sweep":
        assert sweep_grid.combinations(arguments.config, given)
    elif arguments.config is not None:
        _validate(arguments.config, example.page)
    if command in CATALOGS:
        find(command, CATALOGS[command], arguments.text)
    elif command == "settings":
        assert lists.text(arguments.text)
    elif command == "completion":
        assert arguments.text in SHELLS
    elif command == "rollouts":
        rollouts._selection(given)
    elif command == "timeline" and "steps" in given:
        parse_steps(given["steps"])
    for name in ("compile", "find"):
        if name in given:
            target(given[name])


@pytest.mark.gate
def test_a_command_line_is_valid(subtests, tmp_path):
    for example in commands():
        with subtests.test(str(example)):
            _check_command_line(example, tmp_path)


@functools.cache
def _setting_names():
    return {*setting_names(base.get_config().to_dict())}


def _check_names(page):
    assert {one.text for one in named_commands() if one.page == page} <= {*COMMANDS}
    if page.endswith("from-trl-or-verl.md"):
        return  # Its own test knows which names are ours.
    names = _setting_names()
    heads = {name.partition(".")[0] for name in names if "." in name}
    for one in inline():
        if one.page != page:
            continue
        match = re.fullmatch(r"(?:--)?(?:config\.)?([a-z_]+\.[a-z_.]+)(?:=([\w.-]+))?", one.text)
        if match is None or match[1].partition(".")[0] not in heads or one.text in OTHERS:
            continue
        name, value = match.groups()
        if name.endswith((".json", ".jsonl", ".md", ".py", ".html", ".png", ".svg", ".log")):
            continue
        if name.endswith("."):
            assert any(known.startswith(name) for known in names), one
        elif name not in names:
            assert any(known.startswith(f"{name}.") for known in names), one
        elif value is not None and not PLACEHOLDER.search(one.text):
            command_line.changed(base.get_config(), [f"--config.{name}={value}"])
            choices = SETTINGS[name].setting.choices
            assert not choices or value in choices, one


@pytest.mark.gate
def test_a_page_names_commands_and_settings_that_exist(subtests):
    for path in PAGES:
        page = str(path.relative_to(ROOT))
        with subtests.test(page):
            _check_names(page)


@pytest.mark.gate
def test_settings_that_stand_by_themselves_have_names_and_values(subtests):
    for example in flags():
        with subtests.test(str(example)):
            words = shlex.split(example.text)
            values = [word for word in words if not PLACEHOLDER.search(word)]
            names = {word.partition("=")[0].removeprefix("--config.") for word in words}
            assert names <= {*SETTINGS}
            config = command_line.changed(base.get_config(), values)
            _check_reward(config.task.reward, example.page)


def _is_python(block):
    text = block.text.lstrip()
    return block.language == "python" or (
        not block.language and text.startswith(("from ", "import ", "def ", "class "))
        and "FROM" not in text
    )  # fmt: skip


def _block(beginning):
    (found,) = [block for block in blocks() if beginning in block.text]
    return found


@functools.cache
def _python():
    """Returns the blocks of Python code of all documents."""
    return [block for block in blocks() if _is_python(block)]


def _bound(tree):
    """Returns the names that a text binds anywhere."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]


def _parsed(block):
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    text = block.text.replace("super()", "object()") if "class " not in block.text else block.text
    return compile(text, block.page, "exec", flags)


def _check_python(block):
    trees = [_parsed(one) for one in _python() if one.page == block.page]
    known = {name for tree in trees for name in _bound(tree)}
    known |= {*dir(builtins)} | GIVEN.get(block.page, set())
    for node in ast.walk(_parsed(block)):
        if isinstance(node, ast.Name):
            assert node.id in known, f"{node.id} is not defined"
        elif isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in IMPORTABLE:
            module = importlib.import_module(node.module)
            for one in node.names:
                if not hasattr(module, one.name):
                    importlib.import_module(f"{node.module}.{one.name}")
        elif re.fullmatch(r"rl_sync(?:\.\w+)+", dotted := ast.unparse(node)):
            _object(dotted)


def test_the_names_of_python_code_exist(subtests):
    for block in _python():
        with subtests.test(str(block)):
            _check_python(block)


def _object(dotted):
    """Returns what a dotted name stands for."""
    found, *names = importlib.import_module("rl_sync"), *dotted.split(".")[1:]
    at = "rl_sync"
    for name in names:
        at = f"{at}.{name}"
        if not hasattr(found, name):
            importlib.import_module(at)
        found = getattr(found, name)
    return found


def _only_defines(tree):
    """Says whether a text defines things and changes a config, and computes nothing else."""
    for node in tree.body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.ClassDef():
                continue
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Assign(targets=[ast.Attribute() as target]) if ast.unparse(target).startswith(
                "config."
            ):
                continue
        return False
    return True


def _has_its_packages(tree):
    for node in ast.walk(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        if any(find_spec(name.partition(".")[0]) is None for name in names):
            return False
    return True


def test_definitions_can_be_executed(subtests):
    trees = [(block, _parsed(block)) for block in _python()]
    definitions = [(block, tree) for block, tree in trees if _only_defines(tree)]
    lacking = [str(block) for block, tree in definitions if not _has_its_packages(tree)]
    for block, tree in definitions:
        if str(block) not in lacking:
            with subtests.test(str(block)):
                given = {"config": base.get_config(), "__name__": "example"}
                exec(compile(tree, block.page, "exec"), given)
    if lacking:
        pytest.skip(f"packages are not installed that these need: {lacking}")


def test_enough_examples_are_found():
    assert len(commands()) > 110
    assert len(flags()) > 40
    assert len(_python()) > 25
    pages = {block.page for block in _python()}
    assert pages >= {"README.md", "docs/python.md", "docs/rewards-vision.md", "docs/code.md"}


def _check_json(text):
    from rl_sync.rewards.code_tests import code_tests

    try:
        rows = [json.loads(text)]
    except ValueError:
        rows = [json.loads(line) for line in text.strip().split("\n")]
    for row in rows:
        if "tests" in row:
            assert len(code_tests(row, 1e-6)) > 0


def test_json_can_be_read(subtests):
    for block in blocks():
        if block.language == "json" or (block.text[0] == "{" and "…" not in block.text):
            with subtests.test(str(block)):
                _check_json(block.text)


def test_the_plan_in_using_md_is_what_plan_prints():
    block = _block("$ python -m launcher plan")
    command, _, printed = block.text.partition("\n\n")
    words = shlex.split(command.replace("\\\n", "").partition("launcher ")[2])
    arguments = command_line.parse(words)
    plan = describe(run_directory.settings_of(arguments.config.to_dict()))
    plan = plan.replace("\n  ", "\n")
    for line in printed.strip().split("\n"):
        assert f"\n{line.removesuffix('…').rstrip()}" in plan


def _check_files(page):
    text = re.sub(r"\[[^\]]*\]\(https:[^)]*\)|`docs/\w+\.md` at", "", page.read_text())
    folders = "rl_sync|tests|benchmarks|configs|docs|launch"
    for path in re.findall(rf"(?<![\w/.…{{-])((?:{folders})/[\w./-]*\w/?)", text):
        there = (page.parent / path, ROOT / path, ROOT / f"{path}.py", ROOT / "rl_sync" / path)
        assert any(one.exists() for one in there), f"no file {path}"
    for name in re.findall(r"`(rl_sync(?:\.\w+)+)(?:\([^`]*)?`", text):
        if name not in OTHERS:
            _object(name)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for names in re.findall(r"(?:rl_sync|['\" ]\.)\[([\w,]+)\]", text):
        assert {*names.split(",")} <= {*known}


def test_files_modules_and_extras_exist(subtests):
    for page in PAGES:
        with subtests.test(str(page.relative_to(ROOT))):
            _check_files(page)


SCRIPT = re.compile(
    r"python (?:-m )?((?:benchmarks|launch/colab)/\w+\.py|rl_sync\.roles\.process)([^\n#]*)"
)


def test_scripts_have_the_flags_that_they_are_given(subtests):
    for block in [*blocks(), *inline()]:
        for script, rest in SCRIPT.findall(block.text.replace("\\\n", "")):
            with subtests.test(f"{block.page}: {script}{rest}"):
                is_path = script.endswith(".py")
                path = ROOT / (script if is_path else f"{script.replace('.', '/')}.py")
                source = path.read_text()
                for flag in re.findall(r"--(\w[\w-]*)", rest):
                    assert re.search(rf'"(?:--)?{flag}"', source), f"{script} has no --{flag}"


def test_environments_that_pages_name_are_made_with_options_that_they_have():
    found = 0
    pattern = re.compile(rf"(?:{'|'.join(ENVIRONMENTS)})\(\w+=[^…]*\)")
    for one in inline():
        is_there = one.page in ("docs/environments.md", "docs/agents.md")
        if is_there and pattern.fullmatch(one.text) and not one.text.startswith("by_set"):
            _check_options(reference_of(one.text))
            found += 1
    assert found >= 6
