"""The policy that replies to agents; each file has an endpoint of its own."""

import pytest

from tests.addons.agents.test_endpoint import Policy


@pytest.fixture(name="policy")
def _policy(endpoint):
    policy = Policy(endpoint)
    policy.thread.start()
    yield policy
    policy.halted.set()
    policy.thread.join()
