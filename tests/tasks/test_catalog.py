import subprocess
import sys

import pytest

from tests.tasks.loading import dataset, write_lines

_LOAD = """
import sys
from configs import {name} as module
from rl_sync.runtime import wiring
from rl_sync.settings.reading import read_settings
config = module.get_config()
config.task.jsonl.path = {path!r}
wiring.load_task(read_settings(config.to_dict() | {{"workdir": "x"}}))
print([name for name in ("transformers", "tokenizers", "datasets", "pyarrow", "torch")
       if name in sys.modules])
"""


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
