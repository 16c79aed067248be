"""The programs that an engine may need, listed before it has a request, and compiled ahead."""

import collections
import contextlib
import dataclasses

import jax
import numpy as np
import pytest

from rl_sync.models.placement import abstract_params, shardings
from rl_sync.models.platform import compiling_for
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.engine_programs import DECODING, Requests
from rl_sync.rollout.request import CompletionRequest
from rl_sync.rollout.sampling import Sampling
from tests.models import tiny
from tests.models.meshes import layout

CONFIG = dataclasses.replace(tiny.CONFIG, num_layers=1, vocab_size=12, max_length=128)
PARAMS = tiny.params(CONFIG)
PROMPT_TOKENS = frozenset({5, 20})
ASKED = Requests(PROMPT_TOKENS, prompts=2, new_tokens=80)


@contextlib.contextmanager
def compilations():
    """Counts what XLA compiles meanwhile."""
    found, counts = collections.Counter(), [True]

    def count(event, _, **__):
        found[event] += counts[0]

    jax.monitoring.register_event_duration_secs_listener(count)
    yield lambda: found["/jax/core/compile/backend_compile_duration"]
    counts[0] = False


def engine(on, config=CONFIG, slots=16, **options):
    made = Engine(config, on, EngineOptions(slots=slots, chunk_tokens=16, **options))
    params = PARAMS if config.mlp_dim == CONFIG.mlp_dim else tiny.params(config)
    made.load(jax.device_put(params, shardings(abstract_params(config, on))), version=0)
    return made


def request(tokens, new_tokens, completions, **options):
    sampling = Sampling(max_new_tokens=new_tokens, stop_ids=())
    return CompletionRequest(np.full(tokens, 3, np.int32), sampling, completions, (0,), **options)


def rollouts(made):
    """Takes an engine of two numbers of rows through both of them, and all lengths."""
    for tokens in PROMPT_TOKENS:
        for completions in (made.slots, 1):
            made.generate([request(tokens, 80, completions)])
    made.generate([request(5, 60, 4), request(5, 20, made.slots - 4)])  # Shrinks.
    made.submit([request(5, 40, 1)])
    made.step()
    made.submit([request(5, 20, made.slots - 1)])  # Grows.
    made.advance()


@pytest.mark.nightly
@pytest.mark.samples("cpu")
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_an_engine_needs_the_listed_programs_and_no_other(platform):
    with compiling_for(platform):  # One span, or two.
        made = engine(layout())
        listed = made.possible(PARAMS).listed(ASKED)
        rollouts(made)
    assert len(set(listed)) == len(listed)
    assert made.programs == set(listed)


@pytest.mark.nightly
def test_an_engine_of_episodes_needs_no_program_that_is_not_listed():
    made = engine(layout(), slots=2, cache="recompute", kv_offload_bytes=1 << 20)
    asked = dataclasses.replace(ASKED, prompts=2, held=True, offloads_kv=True, recomputes=True)
    given, sampling = np.full(7, 4, np.int32), request(5, 20, 1).sampling
    first = made.generate([request(5, 20, 2, held=True)])[0]
    made.generate([request(20, 20, 2)])  # Sets the others aside.
    for completion in first:
        made.extend(completion.handle, given, sampling, held=True)
    made.step()
    made.load(PARAMS, version=1)
    (second, _) = made.advance()
    made.extend(second.handle, given, sampling)
    made.advance()
    listed = set(made.possible(PARAMS).listed(asked))
    assert made.programs <= listed
    # With two slots there is nothing to rearrange.
    assert {one.name for one in made.programs} == {one.name for one in listed}


@pytest.mark.nightly
@pytest.mark.samples(gate=("mesh1-28-off", "mesh2-36-auto"))
@pytest.mark.parametrize(
    ("mesh", "mlp_dim", "speculation"),
    [({}, 20, "off"), ({"data": 2, "tensor": 2}, 28, "off"), ({"data": 2}, 36, "auto")],
)
def test_what_is_compiled_ahead_is_not_compiled_again(mesh, mlp_dim, speculation):
    config = dataclasses.replace(CONFIG, mlp_dim=mlp_dim)  # Of which nothing is compiled yet.
    on = layout(**mesh).grouped(CONFIG.num_kv_heads)
    made = engine(on, config, speculation=speculation)
    programs = made.possible(abstract_params(config, on))
    for program in programs.listed(ASKED):
        programs.lower(program).compile()
    with compilations() as count:
        rollouts(made)
        assert count() == 0
    names = {one.name for one in made.programs if one.name.startswith("decode")}
    assert names == set(DECODING[speculation])
