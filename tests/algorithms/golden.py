"""Reference values that independent torch code computed in float64 on random inputs.

12 rollouts (3 groups of 4) of 10 tokens; `mask` marks completion tokens. Settings: GRPO ε 1e-6 and
sample standard deviation; REINFORCE++ γ 0.97; GAE γ 0.99, λ 0.95; ReMax baseline 0.3; clip
0.2 / 0.28, dual clip 3; truncation at 2; value clip 0.2; losses use `adv/grpo` and are token means
unless a test says otherwise.
"""

from pathlib import Path

import jax
import numpy as np

from tests.algorithms.compiled import compiled

GROUP_SIZE = 4
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
VALUES = dict(np.load(Path(__file__).parent.parent / "data" / "algorithms.npz"))
MASK = VALUES["mask"].astype(bool)
LENGTHS = MASK.sum(axis=1)
HALVES = [range(0, 6), range(6, 12)]
ROW_ADVANTAGES = VALUES["adv/grpo"].sum(axis=1, keepdims=True) / LENGTHS[:, None]


def assert_is_reference(loss_of, name, argument="logprobs"):
    """Compares a loss and its gradient with those of the reference."""
    value, gradient = compiled(jax.value_and_grad(loss_of))(VALUES[argument])
    np.testing.assert_allclose(value, VALUES[f"loss/{name}"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(gradient, VALUES[f"grad/{name}"], atol=1e-6)


def packed(values, mask=MASK, fill=0.0, rows=HALVES, padding=3):
    """Packs the masked tokens of rows, one after the other, into other rows with padding.

    Args:
      rows: numbers of the rows that each new row holds.
      padding: tokens of padding in the longest new row.

    Returns:
      (values, mask, sequences), sequences -1 at padding.
    """
    shape = len(rows), max(sum(int(mask[i].sum()) for i in row) for row in rows) + padding
    out = np.full(shape, fill, np.asarray(values).dtype)
    sequences = np.full(shape, -1, np.int32)
    for row, held in enumerate(rows):
        start = 0
        for i in held:
            there = slice(start, start + int(mask[i].sum()))
            out[row, there], sequences[row, there] = np.asarray(values)[i][mask[i]], i
            start = there.stop
    return out, sequences >= 0, sequences
