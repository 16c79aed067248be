"""Arrays in files: the long-run cost for this process of reading and writing them."""

import contextlib
import gc
import itertools
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.weights.storage import ArrayStorage

ARRAYS = {f"w{i}": jnp.full((4, 2), i, jnp.float32) for i in range(4)}


@pytest.mark.gate
def test_what_is_written_and_read_again_and_again_leaves_nothing_behind(tmp_path):
    directory = tmp_path / "arrays"

    def go_round(times: int) -> int:
        for _ in range(times):
            storage.write(directory, ARRAYS)
            read = storage.read(directory, ARRAYS)
            shutil.rmtree(directory)
        np.testing.assert_array_equal(read["w3"], ARRAYS["w3"])
        gc.collect()
        return sum(isinstance(one, list) for one in gc.get_objects())

    with contextlib.closing(ArrayStorage()) as storage:
        counts = [go_round(times) for times in (5, 10, 10, 10)]
        # What other threads make meanwhile comes once. TensorStore frees none of its descriptions
        # of arrays, nor of its counters, which are 410 each time; what pytest logs is 10.
        assert min(after - before for before, after in itertools.pairwise(counts)) < 50


def test_what_is_missing_is_named_though_nothing_can_be_read(tmp_path):
    with contextlib.closing(ArrayStorage()) as storage:
        storage.write(tmp_path / "arrays", ARRAYS)
        with pytest.raises(ValueError, match=r"it lacks \['more'\]"):
            storage.read(tmp_path / "arrays", ARRAYS | {"more": jnp.ones(3)}, partial=True)
        fewer = {name: x for name, x in ARRAYS.items() if name != "w3"}
        with pytest.raises(ValueError, match=r"it also has \['w3'\]"):
            storage.read(tmp_path / "arrays", fewer)
        with pytest.raises(ValueError, match=r"w0 is float32\[4, 2\] there and float32\[8\] here"):
            storage.read(tmp_path / "arrays", ARRAYS | {"w0": jnp.ones(8)})
        with pytest.raises(FileNotFoundError):
            storage.read(tmp_path / "nowhere", ARRAYS)
