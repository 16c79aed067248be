"""The benchmark of a device: its table is written whatever happens to its parts."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

_ROOT = Path(__file__).resolve().parents[1]
_BENCHMARKS = _ROOT / "benchmarks"
_PYTHON = [sys.executable, "-c"]
_LINE = '{"name": "speed", "value": 2.5, "unit": "GB/s", "beside": ""}'


def _run(benchmarks, tmp_path, program, secs=20.0):
    """Runs a program in place of a part; returns its findings and its end."""
    found = []
    process = benchmarks("device_parts.part_process").PartProcess(
        [*_PYTHON, program], tmp_path / "log", dict(os.environ)
    )
    return found, process.run(secs, found.append)


def test_findings_arrive_and_the_end_is_told(benchmarks, tmp_path):
    program = f"print('{_LINE}', flush=True); print('{{\"end\": \"done\"}}')"
    found, end = _run(benchmarks, tmp_path, program)
    assert end == "done"
    assert [(one.name, one.value, one.unit) for one in found] == [("speed", 2.5, "GB/s")]


def test_a_part_that_hangs_is_ended_and_its_findings_stay(benchmarks, tmp_path):
    program = (
        f"import sys, time; print('{_LINE}', flush=True);"
        "print('slow work', file=sys.stderr, flush=True); time.sleep(60)"
    )
    found, end = _run(benchmarks, tmp_path, program, secs=1.0)
    assert end == "failed: not over after its 1 s; last: slow work"
    assert len(found) == 1


def test_processes_that_a_part_started_in_groups_of_their_own_end_with_it(benchmarks, tmp_path):
    program = (
        "import json, subprocess, sys, time\n"
        "one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " process_group=0)\n"
        "print(json.dumps({'name': 'pid', 'value': one.pid}), flush=True)\n"
        "time.sleep(60)\n"
    )
    (found,), _ = _run(benchmarks, tmp_path, program, secs=1.5)
    stat = Path(f"/proc/{found.value}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_part_that_is_killed_says_by_what_and_what_it_wrote_last(benchmarks, tmp_path):
    program = (
        "import os, signal, sys; print('low on memory', file=sys.stderr, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    _, end = _run(benchmarks, tmp_path, program)
    assert end == ("failed: ended by SIGKILL (out of the machine's memory?); last: low on memory")


def test_a_part_that_raises_gives_the_reason_in_one_line(benchmarks, tmp_path):
    program = (
        f"import sys; sys.path.insert(0, {str(_BENCHMARKS)!r})\n"
        "from device_parts.part_process import serve\n"
        "from device_parts.finding import Finding, PartOptions\n"
        "def measure(options):\n"
        "    yield Finding('speed', 1.0)\n"
        "    print('noise')\n"
        "    raise ValueError('\\nfirst line\\nsecond line')\n"
        "sys.exit(serve(measure, PartOptions()))\n"
    )
    found, end = _run(benchmarks, tmp_path, program)
    assert end == "failed: ValueError: first line"
    assert [one.name for one in found] == ["speed"]


def test_a_part_ends_with_the_process_that_asked_for_it(tmp_path):
    part = (
        f"import sys, time; sys.path.insert(0, {str(_BENCHMARKS)!r})\n"
        "from device_parts.part_process import serve\n"
        "def measure(options):\n"
        "    time.sleep(60)\n"
        "    yield\n"
        "serve(measure, None)\n"
    )
    started = subprocess.Popen([*_PYTHON, part], stdin=subprocess.PIPE, start_new_session=True)
    time.sleep(0.5)
    assert started.poll() is None
    started.stdin.close()
    assert started.wait(20) == -signal.SIGKILL


def test_the_table_is_whole_after_every_change(benchmarks, tmp_path):
    finding = benchmarks("device_parts.finding").Finding
    table = benchmarks("device_parts.result_table").ResultTable(
        tmp_path / "new" / "v0.1", {"machine": "The device.", "decode": "Decoding."}, ["device.py"]
    )
    text, data = table.files
    assert text.name == "v0.1.md"
    parts = json.loads(data.read_text())["parts"]
    assert {part["status"] for part in parts.values()} == {"not reached"}
    table.add("machine", finding("device", "a chip", beside="one | two"))
    table.add("decode", finding("rate", 1234.5678, "tokens/s", "1 / 2 / 3"))
    assert json.loads(data.read_text())["parts"]["decode"]["findings"][0]["unit"] == "tokens/s"
    table.mark("decode", "failed: ValueError: why", 3.4)
    assert "| device | a chip  one / two |" in text.read_text()
    assert "| rate | 1,235 | tokens/s | 1 / 2 / 3 |" in text.read_text()
    assert "| decode | failed: ValueError: why | 3 |" in text.read_text()
    assert json.loads(data.read_text())["parts"]["decode"]["findings"][0]["value"] == 1234.5678
    assert json.loads(data.read_text())["status"] == "running, or killed"
    assert not [*text.parent.glob("*.tmp")]


@pytest.fixture
def with_parts(benchmarks, monkeypatch, tmp_path):
    """Returns a function that runs given programs as parts, and returns the table."""
    device = benchmarks("device")
    part = benchmarks("device_parts.part_table").Part

    def run(programs, minutes=1.0, least_secs=0.0):
        parts = {name: part("", "", "About it.", least_secs, 20.0) for name in programs}
        monkeypatch.setattr(device, "PARTS", parts)
        monkeypatch.setattr(device, "_command", lambda name, _: [*_PYTHON, programs[name]])
        about = {name: "About it." for name in programs}
        table = benchmarks("device_parts.result_table").ResultTable(tmp_path / "t", about, ["x"])
        device.run_parts([*programs], SimpleNamespace(minutes=minutes), table)
        return table

    return run


def test_a_part_that_fails_stops_no_other(with_parts):
    done = 'print(\'{"end": "done"}\')'
    table = with_parts({"one": done, "two": "raise SystemExit('no memory')", "three": done})
    assert table.statuses() == {
        "one": "done",
        "two": "failed: ended with code 1; last: no memory",
        "three": "done",
    }


def test_a_part_that_does_not_fit_in_the_time_left_is_skipped(with_parts):
    table = with_parts({"one": "never run"}, minutes=0.25, least_secs=11.0)
    assert table.statuses() == {"one": "skipped: 10 s are left, and it needs 11"}


def test_packages_that_are_missing_or_too_old_are_named_as_pip_takes_them(benchmarks, monkeypatch):
    device = benchmarks("device")
    known = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {*device.UNUSED} <= {one.partition(">=")[0] for one in known}
    assert device.missing_packages() == []
    versions = {"flax": "0.9.12", "optax": "0.2.10"}

    def version(name):
        if name == "orjson":
            raise device.importlib.metadata.PackageNotFoundError(name)
        return versions.get(name, "9999.0")

    monkeypatch.setattr(device.importlib.metadata, "version", version)
    assert [one.partition(">=")[0] for one in device.missing_packages()] == ["flax", "orjson"]


def test_parts_keep_their_order_and_wrong_names_are_refused(benchmarks):
    device, options = (
        benchmarks("device"),
        benchmarks("device_parts.finding").PartOptions,
    )
    assert device.chosen("step,tokens", options()) == ["machine", "tokens", "step"]
    assert "smollm2" not in device.chosen("", options())
    assert "smollm2" in device.chosen("", options(smollm2=Path("there")))
    with pytest.raises(SystemExit, match="'stop' is not one of machine"):
        device.chosen("stop", options())
    with pytest.raises(SystemExit, match="needs --smollm2=DIR"):
        device.chosen("smollm2", options())


def test_each_part_has_its_function(benchmarks):
    for part in benchmarks("device_parts.part_table").PARTS.values():
        assert callable(getattr(benchmarks(f"device_parts.{part.module}"), part.function))
        assert part.least_secs < part.most_secs


def test_weights_have_the_same_bits_everywhere_and_a_spread(benchmarks):
    random_weights = benchmarks("device_parts.model_shape").random_weights
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = {
        "kernel": jax.ShapeDtypeStruct((64, 48), jnp.float32, sharding=place),
        "scale": jax.ShapeDtypeStruct((5,), jnp.float32, sharding=place),
        "bias": jax.ShapeDtypeStruct((5,), jnp.float32, sharding=place),
    }
    made = random_weights(abstract)
    bits = np.arange(64 * 48, dtype=np.uint32) * np.uint32(0x9E3779B1)
    bits += np.uint32(1) * np.uint32(0x85EBCA6B)  # The second of the sorted names.
    bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
    bits ^= bits >> 16
    unit = (bits >> 9).astype(np.float32) * np.float32(2.0**-22) - 1
    expected = (unit * np.float32(0.035)).reshape(64, 48)
    np.testing.assert_array_equal(made["kernel"], expected)
    assert abs(expected.mean()) < 0.002
    assert 0.019 < expected.std() < 0.0215
    assert made["scale"].tolist() == [1] * 5
    assert made["bias"].tolist() == [0] * 5


def test_first_differences_are_ties_only_if_both_tokens_are_equally_likely(benchmarks):
    difference = benchmarks("device_parts.greedy_tokens").difference
    ours = {
        "tokens": [[1, 2, 3], [1, 2, 3], [1, 2, 3]],
        "logprobs": [[-1.0, -2.0, -3.0]] * 3,
    }
    theirs = {
        "tokens": [[1, 2, 3], [1, 7, 3], [1, 7, 3]],
        "logprobs": [[-1.0, -2.25, -3.0], [-1.0, -2.0005, -9.0], [-1.0, -2.1, -9.0]],
    }
    assert difference(ours, theirs) == (1, 1, 0.25)


@pytest.mark.nightly
def test_attention_far_from_the_reference_fails_the_part(benchmarks, monkeypatch):
    kernels = benchmarks("device_parts.attention_kernels")
    options = benchmarks("device_parts.finding").PartOptions(small=True)
    monkeypatch.setattr(kernels, "_SMALL_SHAPES", kernels._SMALL_SHAPES[:1])
    monkeypatch.setattr(kernels, "_INTERPRETED", ())
    way = kernels._way

    def wrong(config, name, shape, dtype):
        right = way(config, name, shape, dtype)
        if name == "blocks" and dtype == "bfloat16":
            return lambda *inputs: 1.1 * right(*inputs)
        return right

    assert len([*kernels.compare(options)]) == 2
    monkeypatch.setattr(kernels, "_way", wrong)
    with pytest.raises(RuntimeError, match=r"blocks on qwen2.5-0.5b, 1 x 256: error"):
        [*kernels.compare(options)]


@pytest.mark.nightly
def test_a_decode_step_far_from_the_definition_fails_the_part(benchmarks, monkeypatch):
    decode = benchmarks("device_parts.decode_attention")
    options = benchmarks("device_parts.finding").PartOptions(small=True)
    assert len([*decode.compare(options)]) == 2
    right = decode.attend_new

    def wrong(new, held, **others):
        return right(new._replace(window=new.window - 20), held, **others)

    monkeypatch.setattr(decode, "attend_new", wrong)
    with pytest.raises(RuntimeError, match=r"pages, a window of 40: error"):
        [*decode.compare(options)]


@pytest.mark.nightly
def test_the_fetched_weights_must_be_the_published_ones(benchmarks, monkeypatch):
    transfers = benchmarks("device_parts.transfers")
    options = benchmarks("device_parts.finding").PartOptions(small=True)
    monkeypatch.setattr(transfers, "_TRANSFERS", {"deltas": transfers._deltas})
    found = {one.name: one for one in transfers.measure(options)}
    assert {"device to host", "digest", "deltas: 3% of values changed"} <= found.keys()
    monkeypatch.setattr(transfers, "digest", lambda params: object())
    with pytest.raises(RuntimeError, match="failed: deltas"):
        [*transfers.measure(options)]


@pytest.mark.nightly
def test_one_command_measures_on_a_cpu(tmp_path):
    command = [sys.executable, str(_BENCHMARKS / "device.py"), "--small", f"--out={tmp_path}/t"]
    done = subprocess.run(
        [*command, "--parts=step,decode"], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "t.json").read_text())
    assert found["status"] == "complete"
    names = [one["name"] for one in found["parts"]["step"]["findings"]]
    assert [name.rpartition(": ")[2] for name in names] == [
        "compiling", "peak of the memory", "a step", "rate", "MFU",
        "with recomputing and the reference",
    ]  # fmt: skip
