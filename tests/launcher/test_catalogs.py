"""Lists of algorithms, tasks, rewards and so on, on a terminal and for scripts."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from rl_sync.algorithms.algorithm import ALGORITHMS
from rl_sync.algorithms.published import PUBLISHED
from rl_sync.environments.environment_catalog import ENVIRONMENTS
from rl_sync.launcher.catalogs import CATALOGS
from rl_sync.models.huggingface.families import FAMILIES
from rl_sync.models.huggingface.vision_families import VISION_FAMILIES
from rl_sync.records.metric_catalog import METRICS
from rl_sync.rewards.reward_catalog import REWARDS
from rl_sync.schedule import MODES
from rl_sync.tasks.task_catalog import TASKS
from tests.launcher.command import ROOT, said_here

NAMES = {
    "algorithms": set(ALGORITHMS),
    "tasks": set(TASKS),
    "rewards": set(REWARDS),
    "environments": set(ENVIRONMENTS),
    "models": {*FAMILIES, *VISION_FAMILIES},
    "modes": set(MODES),
    "metrics": {
        one.name for parts in METRICS.values() for metrics in parts.values() for one in metrics
    },
    "configs": {path.stem for path in (ROOT / "configs").glob("*.py")} - {"__init__"},
}


def records(capsys, *words):
    said = said_here(capsys, *words, "--json")
    assert said.status == 0, said.err
    return json.loads(said.out)


@pytest.mark.parametrize("name", CATALOGS)
def test_a_list_has_a_line_with_a_plain_sentence_for_each_thing(name, capsys):
    found = records(capsys, name)
    assert {one["name"] for one in found} == NAMES[name]
    shown = said_here(capsys, name).out
    for one in found:
        assert re.search(rf"^  {re.escape(one['name'])}( |$)", shown, re.M)
        assert re.search(r"^\S.*\S\.$", one["meaning"]), one
    assert max(map(len, shown.splitlines())) <= 100
    assert CATALOGS[name].page in shown


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("algorithms dapo", ["arXiv:2503.14476", "algorithm.clip_high=0.28"]),
        ("algorithms grpo", ["other than GRPO's  nothing", "algorithm.name=grpo"]),
        ("tasks sums careless", ["task.arithmetic.forgotten", "Default: 0.6", "task.name=arithm"]),
        ("rewards format", ["only_tags  Default: False", "by workers", "task.reward=format"]),
        ("environments guess", ["rewards  its own", "--config.environment.name=guess"]),
        ("models gemma3_text", ["Gemma3ForCausalLM", "--config.model.path=DIRECTORY"]),
        ("modes one_step_off_policy", ["sync.offset         1, always", "staleness  1 trainer"]),
        ("metrics staleness_max", ["unit    steps", "at most the bound"]),
        ("configs tools", [str(ROOT / "configs/tools.py"), "plan --config=tools"]),
    ],
)
def test_a_pattern_that_fits_one_thing_shows_all_that_is_known_of_it(words, parts, capsys):
    said = said_here(capsys, *words.split())
    for part in parts:
        assert part in said.out
    (record,) = records(capsys, *words.split())
    assert record["meaning"] in " ".join(said.out.split())
    assert "settings" in record


def test_a_pattern_that_fits_several_lists_them_and_a_whole_name_is_that_thing_alone(capsys):
    several = {one["name"] for one in records(capsys, "algorithms", "PPO")}
    assert {"decoupled_ppo", "m2po", "reinforce_pp"} <= several < set(ALGORITHMS)
    assert [one["name"] for one in records(capsys, "algorithms", "ppo")] == ["ppo"]


@pytest.mark.parametrize("name", CATALOGS)
def test_a_pattern_that_fits_nothing_is_a_mistake_that_gets_the_nearest(name, capsys):
    some = sorted(NAMES[name])[0]
    said = said_here(capsys, name, f"{some[:-1]}xx")
    assert (said.status, said.out) == (2, "")
    assert f"did you mean {some!r}?" in said.err
    assert len(said.err.splitlines()) == 1


def test_settings_are_listed_for_scripts_with_what_a_terminal_shows(capsys):
    (mode,) = records(capsys, "settings", "sync.mode")
    assert mode["choices"] == [*MODES]
    assert (mode["default"], mode["kind"]) == ("one_step_off_policy", "str")
    assert len(records(capsys, "settings")) > 200
    assert said_here(capsys, "settings", "lerning", "--json").status == 2


def test_the_papers_of_algorithms_are_those_of_their_page():
    page = (ROOT / "docs/algorithms.md").read_text()
    rows = re.findall(r"^\| `(\w+)` (?:\|[^|\n]*){6}\| ([^|\n]*) ?\|$", page, re.M)
    assert {name for name, _ in rows} == set(PUBLISHED)
    for name, paper in rows:
        assert paper.partition(";")[0].strip() == PUBLISHED[name].paper, name


@pytest.mark.gate
@pytest.mark.parametrize("words", ["--help", "algorithms dapo", "rewards", "metrics", "configs"])
def test_help_and_lists_load_no_jax(words):
    code = f"from rl_sync.launcher.__main__ import main; import sys; main({words.split()!r})"
    code += "; assert not {'jax', 'flax', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)
