"""The package beside vLLM fetches the explorer's checkpoint, and only what has changed."""

import json
import threading

import ml_dtypes
import numpy as np
import pytest
import requests
from rl_sync_vllm.fetching import FetchError, fetch, report
from safetensors.numpy import save_file

from rl_sync.rollout.served.vllm_calls import EngineLostError
from rl_sync.rollout.served.weights_desk import WeightsDesk

RNG = np.random.default_rng(0)
ROWS = 3 * (512 << 10) // 128 + 5  # Three blocks and a part, of 64 columns of two bytes.


@pytest.fixture
def desk():
    made = WeightsDesk("127.0.0.1")
    yield made
    made.close()


def _tensors(dtype=ml_dtypes.bfloat16):
    return {
        "model.embed_tokens.weight": RNG.normal(size=(ROWS, 64)).astype(dtype),
        "model.norm.weight": RNG.normal(size=64).astype(dtype),
    }


def _offer(desk, folder, key, tensors):
    directory = folder / key
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    desk.offer(key, directory)


def _assert_equal(held, tensors):
    assert {*held} == {*tensors}
    for name, one in held.items():
        assert one.dtype == tensors[name].dtype.name
        assert one.shape == tensors[name].shape
        assert one.content.tobytes() == tensors[name].tobytes()


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_fetched_tensors_are_those_of_the_checkpoint_to_the_bit(desk, tmp_path, dtype):
    first = _tensors(dtype)
    _offer(desk, tmp_path, "1", first)
    held = fetch(desk.url, "1", {})
    _assert_equal(held, first)
    second = {name: values * dtype(1.5) for name, values in first.items()}
    _offer(desk, tmp_path, "2", second)
    _assert_equal(fetch(desk.url, "2", held), second)


def test_tensors_of_any_name_and_shape_arrive_from_any_number_of_files(desk, tmp_path):
    """Names need not be words, arrays may be empty or have no axes, and the index counts."""
    tensors = {
        "scale": np.array(0.5, np.float32),
        "none": np.zeros((0, 4), np.float32),
        "модель a?b#c%20": RNG.normal(size=(3, 5)).astype(np.float32),
    }
    directory = tmp_path / "several"
    directory.mkdir()
    files = {name: f"model-{number}.safetensors" for number, name in enumerate(tensors)}
    for name, file in files.items():
        save_file({name: tensors[name]}, directory / file)
    index = {"metadata": {}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    desk.offer("1", directory)
    _assert_equal(fetch(desk.url, "1", {}), tensors)


def test_a_worker_that_has_the_checkpoint_before_fetches_what_changed(desk, tmp_path):
    first = _tensors()
    _offer(desk, tmp_path, "1", first)
    held = fetch(desk.url, "1", {})
    assert desk.sent_bytes > sum(values.nbytes for values in first.values())
    second = {**first, "model.embed_tokens.weight": first["model.embed_tokens.weight"].copy()}
    second["model.embed_tokens.weight"][7] += 1
    _offer(desk, tmp_path, "2", second)
    before = desk.sent_bytes
    found = fetch(desk.url, "2", held)
    _assert_equal(found, second)
    assert 0 < desk.sent_bytes - before < 500, "64 elements of 2 bytes, and the norm not at all"
    assert found["model.norm.weight"] is held["model.norm.weight"]


def test_a_worker_with_another_checkpoint_fetches_all(desk, tmp_path):
    other = fetch_of_another(desk, tmp_path)
    tensors = _tensors()
    _offer(desk, tmp_path, "2", tensors)
    _offer(desk, tmp_path, "3", {name: values + 1 for name, values in tensors.items()})
    _assert_equal(
        fetch(desk.url, "3", other), {name: values + 1 for name, values in tensors.items()}
    )


def fetch_of_another(desk, folder):
    _offer(desk, folder, "1", _tensors())
    return fetch(desk.url, "1", {})


def test_a_copy_that_was_damaged_in_memory_is_fetched_anew(desk, tmp_path):
    first = _tensors()
    _offer(desk, tmp_path, "1", first)
    held = fetch(desk.url, "1", {})
    held["model.embed_tokens.weight"].content[5] ^= 1
    second = {**first, "model.embed_tokens.weight": first["model.embed_tokens.weight"] * 2}
    _offer(desk, tmp_path, "2", second)
    _assert_equal(fetch(desk.url, "2", held), second)


def test_bytes_that_are_not_the_checkpoints_are_refused(desk, tmp_path, monkeypatch):
    _offer(desk, tmp_path, "1", _tensors())
    honest = desk._blocks

    def damaged(*arguments):
        content = bytearray(honest(*arguments))
        content[-1] ^= 1
        return bytes(content)

    monkeypatch.setattr(desk, "_blocks", damaged)
    with pytest.raises(FetchError, match="weight arrives with another SHA-256"):
        fetch(desk.url, "1", {})


def test_only_the_newest_checkpoint_is_offered_and_only_with_the_secret(desk, tmp_path):
    _offer(desk, tmp_path, "1", _tensors())
    _offer(desk, tmp_path, "2", _tensors())
    with pytest.raises(FetchError, match=r"404: .*no longer the newest"):
        fetch(desk.url, "1", {})
    assert requests.get(f"http://{desk.address}/2", timeout=5).status_code == 404
    assert requests.get(f"http://{desk.address}/guess/2", timeout=5).status_code == 404


def test_the_explorer_waits_for_each_worker(desk, tmp_path):
    _offer(desk, tmp_path, "1", _tensors())
    told = []

    def work():
        for worker in (0, 1, 1, 2):
            report(desk.url, "1", worker, 3, "")
            told.append(worker)

    threading.Thread(target=work).start()
    desk.wait(5.0, lambda: None)
    assert {*told} >= {0, 1}
    _offer(desk, tmp_path, "2", _tensors())
    report(desk.url, "1", 0, 3, "late")  # Of a checkpoint that is no longer the newest.
    for worker in (0, 1):
        report(desk.url, "2", worker, 3, "")
    with pytest.raises(EngineLostError, match="has fetched no weights from"):
        desk.wait(0.3, lambda: None)


def test_the_error_of_a_worker_is_the_explorers(desk, tmp_path):
    _offer(desk, tmp_path, "1", _tensors())
    with pytest.raises(EngineLostError, match="could not fetch its weights: FetchError: torn"):
        desk.wait(5.0, lambda: report(desk.url, "1", 0, 1, "FetchError: torn"))
