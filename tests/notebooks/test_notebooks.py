"""The notebooks in launch/colab: the files as they are, and their execution by a real kernel."""

import ast
import base64
import importlib.util
import io
import json
import math
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

from rl_sync.checkpoints.snapshots import latest_snapshot
from rl_sync.workdir import Workdir
from tests.records.judgement_lines import read_judgements
from tests.runs.conftest import quickly, session_directory

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "launch/colab"
PATHS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [
    "environment", "four_modes", "gpu_16gb", "lora_huggingface", "own_reward", "staleness",
    "tpu_8chips",
]  # fmt: skip
PICTURES = {
    "environment": 2, "four_modes": 6, "gpu_16gb": 0, "lora_huggingface": 0, "own_reward": 1,
    "staleness": 2, "tpu_8chips": 1,
}  # fmt: skip
MOST_BYTES = 600_000
# Folders of the machine that executed them; `/dev` is looked into by a notebook itself.
ELSEWHERE = re.compile(r"(?<![\w.~/-])/(?:tmp|root|home|work|Users|var|opt|usr|mnt|content)/\w")

TINY = {
    "model.embed_dim": 32,
    "model.num_layers": 1,
    "model.head_dim": 8,
    "model.mlp_dim": 64,
    "launch.colocate": True,
    "replay.backend": "embedded",
    "sft.steps": 2,
    "evaluation.problems": 8,
    "reward.workers": 1,
}
CHECKPOINT = str(ROOT / "tests/data/models/qwen2")
ON_ACCELERATORS = {  # What they do there, with rows of their own and a tiny checkpoint.
    "STEPS": 2,
    "MODEL": CHECKPOINT,
    "DATA": "rows.jsonl",
    "CHANGES": {
        "replay.backend": "embedded",
        "task.max_prompt_tokens": 160,
        "task.max_completion_tokens": 8,
        "trainer.groups_per_step": 4,
        "trainer.group_size": 4,
        "trainer.microbatch_rows": 4,
        "evaluation.problems": 8,
    },
}
SMALL = {
    "gpu_16gb": {**ON_ACCELERATORS, "DTYPE": "float16"},
    "tpu_8chips": {**ON_ACCELERATORS, "JUDGE": CHECKPOINT},
    "own_reward": {"STEPS": 2, "CHANGES": {**TINY, "trainer.groups_per_step": 4}},
    "environment": {"STEPS": 2, "SFT": 20, "CHANGES": TINY},
    "four_modes": {
        "STEPS": 3,
        "CHANGES": {name: value for name, value in TINY.items() if name != "launch.colocate"},
    },
    "staleness": {"STEPS": 4, "STALENESS": 2, "SEEDS": [0], "CHANGES": TINY},
    "lora_huggingface": {
        "STEPS": 2,
        "PROBLEMS": 8,
        "MODEL": "tiny",
        "CHANGES": {"replay.backend": "embedded", "trainer.groups_per_step": 4},
    },
}
CASES = {
    **{name: (name, SMALL[name]) for name in NAMES},
    "tpu_8chips, without a judge": ("tpu_8chips", {**SMALL["tpu_8chips"], "JUDGE": ""}),
}


def _script(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="execute", scope="module")
def _execute():
    return _script("execute")


@pytest.fixture(name="address", scope="module")
def _address():
    return _script("address")


@pytest.fixture(name="quick")
def _quick(tmp_path, monkeypatch):
    for name, value in quickly(session_directory(tmp_path)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # As where the package is installed.


@pytest.fixture(name="book", params=PATHS, ids=lambda path: path.stem)
def _book(request):
    return request.param, nbformat.read(request.param, as_version=4)


def _code(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def _outputs(book):
    return [output for cell in _code(book) for output in cell.outputs]


def _pictures(book):
    found = [output.get("data", {}).get("image/png") for output in _outputs(book)]
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found if data]


def _assert_same_after_export(book):
    """Checks that an exported policy, loaded again, says what the run's policy says."""
    text = json.dumps([output.get("text", "") for output in _outputs(book)])
    found = re.search(r"(\d+) of (\d+) completions are the same", text)
    assert found, text
    assert found[1] == found[2] != "0"


def test_these_are_the_notebooks():
    assert [path.stem for path in PATHS] == NAMES


def test_a_notebook_is_valid_and_small(book):
    path, content = book
    nbformat.validate(content)
    assert path.stat().st_size < MOST_BYTES


def test_a_notebook_begins_with_a_title_the_installation_and_its_settings(book):
    _, content = book
    assert content.cells[0].source.startswith("# ")
    install, settings = _code(content)[:2]
    assert "pip install" in install.source
    assert sum("pip install" in cell.source for cell in content.cells) == 1
    assert settings.metadata["tags"] == ["parameters"]
    assert "STEPS = " in settings.source
    assert install.outputs == []


@pytest.mark.nightly
def test_an_installation_that_fails_says_what_to_do(book, tmp_path):
    _, content = book
    hidden = "import sys; sys.meta_path[:] = [m for m in sys.meta_path if 'ditable' not in str(m)]"
    shell = "get_ipython().run_line_magic = lambda *words, **more: None"
    source = "\n".join([hidden, shell, _code(content)[0].source])
    tried = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    client = NotebookClient(tried, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    with pytest.raises(CellExecutionError, match=r"could not install SOURCE = '\.\./\.\.'"):
        client.execute()


def test_a_notebook_installs_from_the_address_that_the_project_declares(book, address):
    path, content = book
    before = content.cells[0].source, _code(content)[0].source
    address.addressed(content, path.stem, address.declared())
    assert (content.cells[0].source, _code(content)[0].source) == before, (
        "run launch/colab/address.py"
    )


@pytest.mark.parametrize(
    ("url", "installs", "opens"),
    [
        ("https://github.com/a-b/c.d", "git+https://github.com/a-b/c.d", "github/a-b/c.d/blob"),
        ("https://github.com/a/b.git", "git+https://github.com/a/b.git", "github/a/b/blob"),
        ("https://github.com/a/b/", "git+https://github.com/a/b", "github/a/b/blob"),
        ("https://git.example.org/a/b", "git+https://git.example.org/a/b", None),
    ],
)
def test_an_address_is_installed_from_and_opened_in_colab(
    book, address, tmp_path, url, installs, opens
):
    path, content = book
    project = tmp_path / "pyproject.toml"
    project.write_text(f'[project]\nname = "x"\n[project.urls]\nRepository = "{url}"\n')
    before = content.cells[0].source, _code(content)[0].source
    for _ in range(2):  # The second time it replaces what is there.
        address.addressed(content, path.stem, address.declared(project))
        assert f'SOURCE = "{installs}"\n' in _code(content)[0].source
        title = content.cells[0].source
        found = re.findall(
            r"\(https://colab[^)]*/(github/.*)/main/launch/colab/(.*)\.ipynb\)", title
        )
        assert found == ([(opens, path.stem)] if opens else [])
    nbformat.validate(content)
    address.addressed(content, path.stem, None)
    assert (content.cells[0].source, _code(content)[0].source) == before


def test_a_notebook_was_executed_as_it_stands(book, execute):
    _, content = book
    assert content.metadata["rl_sync"]["executed"] == execute.digest(content)
    counts = [cell.execution_count for cell in _code(content)]
    assert counts == list(range(1, len(counts) + 1))
    assert not [output for output in _outputs(content) if output.output_type == "error"]


def test_the_policy_that_a_notebook_exports_is_the_one_that_it_trained():
    _assert_same_after_export(nbformat.read(FOLDER / "lora_huggingface.ipynb", as_version=4))


def test_a_notebook_shows_pictures_that_can_be_read(book):
    path, content = book
    pictures = _pictures(content)
    assert len(pictures) == PICTURES[path.stem]
    for picture in pictures:
        assert min(picture.size) > 150
        shades = sum(map(bool, picture.convert("L").histogram()))
        assert shades > 20, "an empty picture"


def test_outputs_name_no_folder_of_the_machine(book):
    _, content = book
    for output in _outputs(content):
        data = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")}
        found = ELSEWHERE.search(json.dumps([data, output.get("text", "")], ensure_ascii=False))
        assert not found, found


def test_links_of_a_notebook_lead_to_files(book):
    path, content = book
    for cell in content.cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)\s#]+)", cell.source):
                assert (path.parent / target).exists() or target.startswith("https:"), target


def _check(book, name):
    """Checks an executed notebook: all cells ran, with pictures, and one output a run."""
    assert all(cell.execution_count for cell in _code(book))
    assert len(_pictures(book)) == PICTURES[name]
    text = json.dumps([output.get("data", output.get("text")) for output in _outputs(book)])
    assert "\\u001b[" not in text, "the run has drawn on a terminal"
    runs = re.findall(r"<summary>The plan of the run", text)
    trained = [cell for cell in _code(book) if "rl_sync.train(" in cell.source]
    own = {"four_modes": 4, "staleness": 0, "lora_huggingface": 1, "gpu_16gb": 1, "tpu_8chips": 1}
    assert len(runs) == own.get(name, len(trained))
    if name == "lora_huggingface":
        _assert_same_after_export(book)
    if name in ("gpu_16gb", "tpu_8chips"):
        assert "the export says the same" in text
    if name == "gpu_16gb":
        assert "loss scale 32,768; updates skipped because it was too high: 0" in text


def test_the_run_and_its_judge_divide_the_chips_of_a_host():
    code = [
        ast.parse(cell.source)
        for cell in _code(nbformat.read(FOLDER / "tpu_8chips.ipynb", as_version=4))
        if "square(" in cell.source
    ]
    nodes = [node for tree in code for node in ast.walk(tree)]
    (function,) = (one for one in nodes if getattr(one, "name", "") == "square")
    names = {}
    exec(ast.unparse(function), names)
    calls = [ast.unparse(one) for one in nodes if isinstance(one, ast.Call)]
    seen = [eval(call, names) for call in calls if call.startswith("square(")]
    chips = [int(chip) for one in seen for chip in one["TPU_VISIBLE_CHIPS"].split(",")]
    assert sorted(chips) == [*range(8)]
    for one in seen:
        sides = [int(side) for side in one["TPU_CHIPS_PER_PROCESS_BOUNDS"].split(",")]
        assert math.prod(sides) == len(one["TPU_VISIBLE_CHIPS"].split(","))
        assert one["TPU_PROCESS_ADDRESSES"] == f"localhost:{one['TPU_PROCESS_PORT']}"
    assert len({one["TPU_PROCESS_PORT"] for one in seen}) == len(seen) == 2


def _check_devices(book, workdir, judge):
    """Checks that half of the run's devices train, and that a judge takes half of all."""
    config = json.loads(workdir.config.read_text())
    assert config["trainer"]["mesh"]["fsdp"] == (2 if judge else 4)
    assert config["explorer"]["mesh"]["data"] == (2 if judge else 4)
    terms = [one["components"] for one in read_judgements(workdir)]
    assert terms
    assert all(("self_judge" in term) == bool(judge) for term in terms)
    printed = json.dumps(_outputs(book))
    assert bool(re.search(r"self_judge: 0\.\d\d in the last step", printed)) == bool(judge)


@pytest.mark.nightly
@pytest.mark.timeout(900)  # A notebook has up to four runs of several processes.
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("name", "settings"), CASES.values(), ids=CASES)
def test_a_kernel_executes_a_notebook(name, settings, execute, tmp_path):
    path = FOLDER / f"{name}.ipynb"
    sums = [{"prompt": f"{a} + {b}?", "answer": str(a + b)} for a in range(8) for b in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, sums)))
    done = execute.executed(path, settings, tmp_path)
    _check(done, name)
    if name == "tpu_8chips":
        _check_devices(done, Workdir(tmp_path / "runs" / name), settings["JUDGE"])
    assert [cell.source for cell in done.cells] == [
        cell.source for cell in nbformat.read(path, as_version=4).cells
    ]


def test_an_unknown_setting_is_named(execute):
    book = nbformat.read(PATHS[0], as_version=4)
    with pytest.raises(ValueError, match="STEP is not a setting; there are CHANGES, SFT, STEPS"):
        execute.with_settings(book, {"STEP": 1})


def test_edited_code_has_another_digest_and_edited_text_has_not(execute):
    book = nbformat.read(PATHS[0], as_version=4)
    before = execute.digest(book)
    book.cells[0].source += " Really."
    assert execute.digest(book) == before
    _code(book)[0].source += "\n# The installation changes no output."
    assert execute.digest(book) == before
    _code(book)[-1].source += " "
    assert execute.digest(book) != before


INTERRUPTED = """
import os, pathlib, signal, threading, time

import rl_sync

def interrupt():
    while '"phase":"rl"' not in (
        metrics.read_text().replace(" ", "") if metrics.exists() else ""
    ):
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)  # As the stop button does.

metrics = pathlib.Path("runs/long/metrics.jsonl")
threading.Thread(target=interrupt, daemon=True).start()
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("quick")
def test_the_stop_button_makes_a_run_save_and_end_with_one_line(tmp_path):
    changes = {**TINY, "trainer.steps": 100_000, "trainer.groups_per_step": 4}
    train = f"rl_sync.train({{}}, changes={changes}, workdir='runs/long')"
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(source) for source in (INTERRUPTED, train, "'alive'")]
    NotebookClient(
        book, timeout=240, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    display, error = book.cells[1].outputs
    assert "Stopping: interrupted by the user" in display["data"]["text/plain"]
    assert error["traceback"] == [error["evalue"]]
    assert "was stopped. The same call with workdir=" in error["evalue"]
    assert book.cells[2].outputs[0]["data"]["text/plain"] == "'alive'"
    assert (latest_snapshot(Workdir(tmp_path / "runs/long").snapshots) or 0) > 0


@pytest.mark.nightly
@pytest.mark.usefixtures("quick")
def test_a_mistake_is_one_line_below_the_cell(tmp_path):
    source = "import rl_sync\nrl_sync.train({'trainer': {'stepps': 3}})"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    client = NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    with pytest.raises(CellExecutionError, match="did you mean config"):
        client.execute()
    (error,) = book.cells[0].outputs
    assert error["traceback"] == [
        "ConfigError: config.trainer.stepps is not a setting; did you mean config.trainer.steps?"
    ]
