import subprocess
import sys

import pytest

from rl_sync.rewards.pool import RewardPool
from rl_sync.rewards.router import RewardRequest, RewardRouter


class _Length:
    def score(self, prompt, completion, answer):
        return float(len(completion))


class _Constant:
    def score(self, prompt, completion, answer):
        return -1.0


ROUTER = RewardRouter({"length": _Length(), "constant": _Constant()})


def _request(reward, completion):
    return RewardRequest(reward, "p", completion, "a")


def test_each_request_goes_to_the_model_it_names_and_keeps_its_place():
    requests = [_request("length", "xx"), _request("constant", "x"), _request("length", "")]
    assert ROUTER.judge(requests) == [2.0, -1.0, 0.0]


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"'lenght' is not one of .*; did you mean 'length'\?"):
        ROUTER.judge([_request("lenght", "x")])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pool_keeps_the_order_of_its_requests(workers):
    pool = RewardPool(workers)
    try:
        rewards = pool.judge([_request("exact", c) for c in "abaab"])
        assert rewards == [1.0, 0.0, 1.0, 1.0, 0.0]
        assert pool.judge([]) == []
    finally:
        pool.close()


def test_reward_models_are_importable_without_jax():
    code = "import sys, rl_sync.rewards.pool; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
