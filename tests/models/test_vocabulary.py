"""The vocabulary matrix in shards: lookups and log-probabilities are those of one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_sync.models.logprobs import next_logprobs
from rl_sync.models.mesh_shape import MeshShape
from rl_sync.models.platform import compiling_for
from rl_sync.models.sharding import Layout, using
from rl_sync.models.vocabulary.lookup import lookup
from rl_sync.models.vocabulary.token_sets import LogprobSettings
from rl_sync.plan.compiled_text import CompiledProgramText
from tests.models.meshes import RULES, layout

V, D, T = 600, 16, 5
BYTES = 4 * 128 * D  # Blocks of 128, the fewest.
OTHER_RULES = dict(RULES) | {"vocab": ("data", "tensor"), "embed": ()}
RARE_RULES = dict(RULES) | {"vocab": ("fsdp",), "embed": ("data", "tensor")}


def _with(rules, *sizes):
    return Layout(MeshShape(*sizes).mesh(jax.devices()), tuple(rules.items()))


CASES = {
    "fsdp": (layout(fsdp=4), 8, V),
    "data and fsdp": (layout(2, 2), 8, V),
    "fsdp and tensor": (layout(fsdp=2, tensor=2), 4, V),
    "tensor": (layout(tensor=4), 2, V),
    "tensor, where two devices share a kv head": (layout(tensor=4).grouped(2), 2, V),
    "fsdp and tensor, where two share one": (layout(fsdp=2, tensor=2).grouped(1), 4, V),
    "rows that are not cut": (layout(fsdp=4), 3, V),
    "rows that are cut along data only": (layout(2, 2), 2, V),
    "a vocabulary that is not cut": (layout(fsdp=2, tensor=2), 4, V + 1),
    "a width that is not cut": (_with(OTHER_RULES, 2, 1, 2), 4, V),
    "all the other way round": (_with(RARE_RULES, 2, 2, 1), 4, V),
    "a width that two axes cut": (_with(RARE_RULES, 2, 1, 2), 4, V),
    "rows in the vocabulary's cuts, a width in others": (_with(RARE_RULES, 1, 2, 2), 4, V),
}


def _drawn(rows, vocab, dtype="float32"):
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((vocab, D)).astype(np.float32) / 2
    hidden = jnp.asarray(rng.standard_normal((rows, T, D)), dtype)
    ids = rng.integers(0, vocab, (rows, T)).astype(np.int32)
    weights = jnp.asarray(rng.standard_normal((2, rows, T)), jnp.float32)
    return matrix, hidden, ids, weights


def _logprobs(on, logits_bytes=BYTES):
    """Makes a function of the matrix, hidden states, targets and weights of a loss."""

    def loss(matrix, hidden, ids, weights):
        with using(on):
            found = next_logprobs(matrix, hidden, ids, LogprobSettings(0.7, logits_bytes))
        return (jnp.stack(found) * weights).sum(), found

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)


@functools.cache
def _logprobs_on_one_device(rows, vocab):
    return jax.jit(_logprobs(layout(), 1 << 30))(*_drawn(rows, vocab))


@pytest.mark.nightly
@pytest.mark.samples(
    "fsdp and tensor",
    "tensor, where two devices share a kv head",
    "rows that are not cut",
    "a vocabulary that is not cut",
    "all the other way round",
    "rows in the vocabulary's cuts, a width in others",
)
@pytest.mark.parametrize(("on", "rows", "vocab"), CASES.values(), ids=CASES)
def test_logprobs_by_blocks_are_those_of_one_device(on, rows, vocab):
    # Of the platforms one takes the logits of targets in another way.
    with compiling_for("tpu" if on.mesh.shape["fsdp"] == 4 else "cpu"):
        found = jax.jit(_logprobs(on))(*_drawn(rows, vocab))
    expected = _logprobs_on_one_device(rows, vocab)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6)
    jax.tree.map(close, found, expected)


@pytest.mark.gate
def test_blocks_are_large_where_much_memory_is_allowed():
    on, given = layout(fsdp=2, tensor=2), _drawn(4, V)
    expected = _logprobs_on_one_device(4, V)
    for logits_bytes in (4 * 256 * D, 1 << 30):
        found = jax.jit(_logprobs(on, logits_bytes))(*given)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 2e-6), found, expected)


def _relative(found, exact):
    return np.linalg.norm(np.asarray(found, np.float64) - exact) / np.linalg.norm(exact)


@pytest.mark.nightly
def test_logprobs_in_bfloat16_are_exact_and_gradients_as_near_as_those_of_one_device():
    matrix, hidden, ids, weights = _drawn(8, V, "bfloat16")
    matrix = np.asarray(jnp.asarray(matrix, jnp.bfloat16), np.float32)
    given, wide = (matrix, hidden, ids, weights), (matrix, np.float32(hidden), ids, weights)
    (_, exact), exact_gradients = jax.jit(_logprobs(layout()))(*wide)
    (_, found), gradients = jax.jit(_logprobs(layout(2, 2)))(*given)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), found, exact)
    assert (gradients[0].dtype, gradients[1].dtype) == (jnp.float32, jnp.bfloat16)
    _, of_one = jax.jit(_logprobs(layout()))(*given)
    for mine, other, right in zip(gradients, of_one, exact_gradients, strict=True):
        assert _relative(mine, right) < 1.5 * _relative(other, right) < 2**-8


def _lookup(on, dtype):
    def loss(table, tokens, weights):
        if on is None:
            found = table[tokens].astype(dtype)
        else:
            with using(on):
                found = lookup(table, tokens, dtype)
        return (found * weights).sum(dtype=jnp.float32), found

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.nightly
@pytest.mark.samples(
    "fsdp and tensor",
    "tensor, where two devices share a kv head",
    "rows that are not cut",
    "a vocabulary that is not cut",
    "all the other way round",
    "rows in the vocabulary's cuts, a width in others",
)
@pytest.mark.parametrize(("on", "rows", "vocab"), CASES.values(), ids=CASES)
def test_a_lookup_in_shards_is_one_in_the_table(on, rows, vocab):
    dtype = "bfloat16"
    table, hidden, tokens, _ = _drawn(rows, vocab, dtype)
    tokens[:, 1:3] = tokens[0, 0]  # Its gradient has several parts.
    (_, found), gradient = _lookup(on, dtype)(table, tokens, hidden)
    (_, expected), right = _lookup(None, dtype)(table, tokens, hidden)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(gradient, right, rtol=1e-6, atol=1e-6)
    assert gradient.dtype == jnp.float32


def _compiled(on, function, *shapes):
    """Reads a function of the matrix and of other arrays, which are cut by rows."""
    matrix, *others = shapes
    given = [on.abstract(matrix, ("vocab", "embed")), *(on.abstract(x, ("batch",)) for x in others)]
    return CompiledProgramText.of(jax.jit(function).lower(*given).compile())


def _shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def test_a_block_is_gathered_at_a_time_and_its_gradient_reduced_once():
    on, vocab = layout(fsdp=4), 2048
    run = _logprobs(on)
    ids, weights = _shape(8, T, dtype=jnp.int32), _shape(8, 2, T)

    def gradients(matrix, hidden, ids, weights):
        return run(matrix, hidden, ids, weights.swapaxes(0, 1))

    read = _compiled(on, gradients, _shape(vocab, D), _shape(8, T, D), ids, weights)
    found = {(one.kind, one.loops, one.shapes[0].sizes) for one in read.collectives}
    # 16 blocks; the first is gathered before the loop, and the last is reduced behind it.
    assert found >= {
        ("all-gather", (15,), (D, 128)),
        ("reduce-scatter", (15,), (D // 4, 128)),
        ("reduce-scatter", (), (D // 4, 128)),
    }
    biggest = max(one.bytes for one in read.collectives)
    assert biggest <= 4 * 128 * D


def test_logits_stay_in_shards_of_the_vocabulary():
    on, rows = layout(tensor=4), 8
    run = _logprobs(on)
    ids, weights = _shape(rows, T, dtype=jnp.int32), _shape(2, rows, T)
    read = _compiled(on, run, _shape(V, D), _shape(rows, T, D), ids, weights)
    assert {one.kind for one in read.collectives} == {"all-reduce"}
    assert max(shape.bytes for one in read.collectives for shape in one.shapes) <= 4 * rows * T * D


@pytest.mark.gate
def test_a_matrix_that_learns_nothing_has_no_gradient_computed():
    on = layout(fsdp=4)

    def by_hidden(matrix, hidden, ids):
        with using(on):
            return jax.grad(
                lambda h: next_logprobs(matrix, h, ids, LogprobSettings(0.7, BYTES))[0].sum()
            )(hidden)

    shapes = _shape(V, D), _shape(8, T, D), _shape(8, T, dtype=jnp.int32)
    kinds = {one.kind for one in _compiled(on, by_hidden, *shapes).collectives}
    assert kinds == {"all-gather"}


def test_a_lookup_exchanges_what_was_found_and_no_part_of_the_table():
    on, vocab = layout(2, 2), 4096

    def gradient(table, tokens, weights):
        return _lookup(on, "bfloat16")(table, tokens, weights)

    shapes = _shape(vocab, D), _shape(8, T, dtype=jnp.int32), _shape(8, T, D, dtype=jnp.bfloat16)
    found = _compiled(on, gradient, *shapes).collectives
    assert {one.kind for one in found} == {"all-gather", "all-to-all", "all-reduce"}
    for one in found:
        size = max(shape.bytes for shape in one.shapes)
        # The gradient of a shard is summed over `data`.
        assert size == 4 * vocab * D // 2 if one.kind == "all-reduce" and size > 4 else size < 4096
