import dataclasses
import subprocess
import sys

import pytest

from rl_sync.tasks import task_catalog
from rl_sync.tasks.problems import Problems
from rl_sync.tasks.tokenizers.pretrained import TokenizerConfig
from rl_sync.thoughts import KNOWN
from rl_sync.types import Prompt
from tests.tasks.loading import TOKENIZER, dataset, load, write_lines

_LOAD = """
import sys
from rl_sync.configs import {name} as module
from rl_sync.roles.assembly import wiring
from rl_sync.settings.config_reading import read_settings
config = module.get_config()
config.task.jsonl.path = {path!r}
wiring.load_task(read_settings(config.to_dict() | {{"workdir": "x"}}))
print([name for name in ("transformers", "tokenizers", "datasets", "pyarrow", "torch")
       if name in sys.modules])
"""


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["arithmetic", "jsonl"])
def test_tasks_of_characters_load_neither_transformers_nor_datasets(name, tmp_path):
    path = write_lines(
        tmp_path / "rows.jsonl", [{"prompt": str(i), "answer": str(i)} for i in range(20)]
    )
    code = _LOAD.format(name=name, path=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_task_is_loaded_once_a_process(tmp_path):
    rows = [{"prompt": f"p{i}", "answer": "a"} for i in range(10)]
    path = write_lines(tmp_path / "r.jsonl", rows)
    assert dataset(path) is dataset(path)
    assert dataset(path) is not dataset(path, seed=1)


def test_a_line_of_the_table_is_all_that_a_task_needs(monkeypatch):
    def load(section, seed):
        prompts = [Prompt(0, section.greeting, str(seed))]
        return Problems(train=prompts, held_out=prompts, demonstrations=[])

    monkeypatch.setitem(task_catalog.TASKS, "greeting", load)

    @dataclasses.dataclass(frozen=True)
    class Greeting:
        greeting: str = "hello"

    @dataclasses.dataclass(frozen=True)
    class Config(task_catalog.TaskConfig):
        greeting: Greeting = task_catalog.task(Greeting, load, "Greets.")

    found = task_catalog.load_task(Config(name="greeting"), TokenizerConfig(), seed=7)
    assert (found.train[0].text, found.train[0].answer) == ("hello", "7")
    with pytest.raises(ValueError, match=r"task.name='greet' is not one of .*'greeting'"):
        Config(name="greet")


def test_every_section_of_a_task_has_a_loader():
    names = {field.name for field in dataclasses.fields(task_catalog.TaskSections)}
    assert names == task_catalog.TASKS.keys()
    assert {"arithmetic", "worked", "jsonl", "dataset"} <= names


@pytest.mark.gate
def test_every_tokenizer_knows_the_marks_of_thoughts(tmp_path):
    rows = [{"prompt": f"{i}+0=", "answer": str(i)} for i in range(9)]
    path = str(write_lines(tmp_path / "rows.jsonl", rows))
    of_file = {"name": "jsonl", "jsonl__path": path}
    pretrained = {**of_file, "tokenizer": TOKENIZER, "max_completion_tokens": 8}
    for fields in ({"name": "arithmetic"}, of_file, pretrained):
        assert load(**fields).tokenizer.thoughts == KNOWN
        assert load(**fields, thoughts="none").tokenizer.thoughts == ()
        first, *_ = load(**fields, thoughts="<a> </a>").tokenizer.thoughts
        assert (first.opens, first.closes) == ("<a>", "</a>")
    with pytest.raises(ValueError, match=r"tokenizer\.thoughts='<a>' must be the two different"):
        load(name="arithmetic", thoughts="<a>")
