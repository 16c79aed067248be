"""A policy that sees runs the programs of one that reads text alone, as long as there is no image.

Programs are compared as StableHLO, before any compilation.
"""

import collections
import dataclasses
import functools
import re

import jax
import numpy as np
import pytest

from rl_sync.learning.rows.batching import Batching
from rl_sync.models.config import Lora
from rl_sync.models.placement import abstract_params
from rl_sync.models.transformer import decode_step
from rl_sync.rollout.engine import Engine
from rl_sync.rollout.engine_options import EngineOptions
from rl_sync.rollout.engine_programs import CompiledProgram, Requests
from rl_sync.sequence_images import TEXT
from rl_sync.types import RowImages
from tests.models.meshes import engine_layout
from tests.roles.trainer.training import group_of, trainer_of
from tests.rollout.pictures import CONFIG, VISION, tile

SEES = dataclasses.replace(CONFIG, num_layers=1, sliding_layers=(True,))
READS = dataclasses.replace(SEES, vision=None)
# Everything differs but the token that is never drawn.
SEES_MORE = dataclasses.replace(
    SEES,
    vision=dataclasses.replace(VISION, embed_dim=12, num_layers=2, mlp_dim=20, tile_tokens=16),
)
ASKED = Requests(frozenset({9}), prompts=1, new_tokens=8)
OF_IMAGES = re.compile(r"/vision/|Tower|\bimages\b|xui8>")
"""How a program names arguments and operations of images, and the dtype of pixels."""
# Of the optimizer, and of the norm of the gradient, which know nothing of a parameter's meaning.
ELEMENTWISE = {
    "add", "broadcast_in_dim", "constant", "convert", "divide", "multiply", "reduce", "select",
    "sqrt",
}  # fmt: skip


@functools.cache
def programs_of(config, **options):
    on = engine_layout().grouped(config.num_kv_heads)
    made = Engine(config, on, EngineOptions(slots=8, chunk_tokens=4, **options))
    return made.possible(abstract_params(config, on))


def batch_of(config, shown=False):
    batch = Batching("padded", 4, 8, 1, 0, vision=config.vision).batch([group_of((3, 4, 4, 2))])
    if not shown:
        return batch
    at = np.full((4, 8), TEXT, np.int32)
    at[:, : VISION.tile_tokens] = np.arange(VISION.tile_tokens)
    return batch._replace(rows=batch.rows._replace(images=RowImages(tile(1)[None], at)))


@functools.cache
def step_of(config, lora, shown=False):
    trainer = trainer_of(model=dataclasses.replace(config, lora=lora), trains_tower=lora is None)
    return trainer.lower_step(trainer.abstract(), batch_of(config, shown))


def operations(lowered):
    """Counts the operations of a program."""
    return collections.Counter(re.findall(r"\bstablehlo\.(\w+)", lowered.as_text()))


def body(lowered):
    """Returns the lines of a program without the names of values and without its signature.

    Parameters that nothing reads are in the signature, and are returned.
    """
    lines = [re.sub(r"%\w+(#\d+)?", "%", line) for line in lowered.as_text().splitlines()]
    return [line for line in lines if not re.match(r"  func\.func public|    return ", line)]


@pytest.mark.gate
@pytest.mark.parametrize("options", [{}, {"cache_bytes": 1 << 20}], ids=["rows", "pages"])
def test_engines_run_the_programs_of_text(options):
    sees, reads = programs_of(SEES, **options), programs_of(READS, **options)
    listed = reads.listed(ASKED)
    assert sees.listed(ASKED) == listed
    by_name = {program.name: program for program in listed}
    assert {"prefill", "insert", "decode"} <= set(by_name)
    for program in by_name.values():
        lowered = reads.lower(program)
        assert not OF_IMAGES.search(lowered.as_text(debug_info=True)), program
        if program.name != "decode":
            assert sees.lower(program).as_text() == lowered.as_text(), program


@pytest.mark.gate
def test_decoding_differs_only_by_the_token_that_is_never_drawn():
    (program,) = (one for one in programs_of(READS).listed(ASKED) if one.name == "decode")
    sees, more, reads = (programs_of(one).lower(program) for one in (SEES, SEES_MORE, READS))
    assert sees.as_text() == more.as_text()
    assert not OF_IMAGES.search(sees.as_text(debug_info=True))
    assert operations(sees)["dot_general"] == operations(reads)["dot_general"]
    slots = programs_of(READS)._slots(8, 4)
    tokens = jax.ShapeDtypeStruct((8, 1), np.int32)
    steps = [
        jax.jit(decode_step, static_argnums=(0, 5)).lower(
            config, programs_of(config).params, tokens, tokens, slots.cache, 64
        )
        for config in (SEES, READS)
    ]
    assert steps[0].as_text() == steps[1].as_text()


@pytest.mark.gate
def test_a_step_on_text_with_adapters_has_the_same_operations():
    lora = Lora(2, 4.0)
    sees, reads = step_of(SEES, lora), step_of(READS, lora)
    assert body(sees) == body(reads)
    assert not OF_IMAGES.search(reads.as_text(debug_info=True))


@pytest.mark.gate
def test_a_step_on_text_only_updates_the_parameters_of_vision():
    sees, reads = (operations(step_of(config, None)) for config in (SEES, READS))
    assert not reads - sees
    assert set(sees - reads) <= ELEMENTWISE


def test_images_are_found_in_a_prefill_that_has_them():
    (program,) = (one for one in programs_of(SEES).listed(ASKED) if one.name == "prefill")
    shown = CompiledProgram("prefill", (*program.size, 1))
    text, images = (programs_of(SEES).lower(one) for one in (program, shown))
    assert OF_IMAGES.search(images.as_text(debug_info=True))
    assert body(text) != body(images)


@pytest.mark.gate
def test_images_are_found_in_a_step_that_has_them():
    step = step_of(SEES, None, shown=True)
    assert OF_IMAGES.search(step.as_text(debug_info=True))
    more = operations(step) - operations(step_of(READS, None))
    assert {"dot_general", "gather"} <= set(more)
