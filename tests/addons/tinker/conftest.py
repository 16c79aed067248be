"""A server of Tinker's API in this process, on a tiny checkpoint, for each file of tests."""

import contextlib
import dataclasses
import threading
from pathlib import Path

import jax
import pytest

from rl_sync.addons.tinker.sampler_calls import SampledModel
from rl_sync.addons.tinker.sampler_pool import SamplerLimits, SamplerPool, SamplersLostError
from rl_sync.addons.tinker.service_bounds import ServiceBounds
from rl_sync.addons.tinker.tinker_server import TinkerServer
from rl_sync.addons.tinker.tinker_service import TinkerService
from rl_sync.api import loaded_policy
from rl_sync.weights.digest import digest

BASE = Path(__file__).resolve().parents[2] / "data" / "models" / "qwen2"
NAME = "tiny/qwen2"
DEFAULTS = SamplerLimits()
BOUNDS = ServiceBounds(models=3, rows=6, length=96, slots=4, batch_tokens=128, snapshots=2)


@dataclasses.dataclass(frozen=True)
class Served:
    """A server that runs.

    Attributes:
      failures: the error that has ended it, if one has.
    """

    service: TinkerService
    address: str
    root: Path
    failures: list[Exception] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def serving(policy, root, bounds=BOUNDS, key=None, pool=None):
    """Runs a server until the end of the context."""
    ended = threading.Event()
    service = TinkerService(policy, base=BASE, name=NAME, root=root, bounds=bounds, sampler=pool)
    server = TinkerServer(service, host="127.0.0.1", port=0, key=key)
    served = Served(service, server.address, root)

    def run():
        try:
            service.run(ended)
        except SamplersLostError as error:
            served.failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield served
    finally:
        ended.set()
        thread.join()
        server.close()
        service.close()


@contextlib.contextmanager
def sampling(policy, root, count, limits=DEFAULTS, **changed):
    """Runs samplers until the end of the context.

    Args:
      changed: fields of `SampledModel` that are not the policy's.
    """
    model = SampledModel(str(BASE), None, digest(policy.params), BOUNDS)._replace(**changed)
    names = [f"sampler{number + 1}" for number in range(count)]
    # With as many devices as here, they find the programs that are compiled here.
    devices = {name: {"JAX_NUM_CPU_DEVICES": str(len(jax.devices()))} for name in names}
    with contextlib.closing(SamplerPool(model, devices, root / "samplers", limits)) as pool:
        pool.start()
        yield pool


@pytest.fixture(scope="module", name="policy")
def _policy():
    return loaded_policy.load(BASE)


@pytest.fixture(scope="module", name="served")
def _served(policy, tmp_path_factory):
    with serving(policy, tmp_path_factory.mktemp("tinker")) as served:
        yield served
