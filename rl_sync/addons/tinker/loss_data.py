"""Data of passes: read from Tinker's requests into rows, and results written for the client.

Letters in shapes: N tokens of a datum, K targets of each.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from rl_sync.addons.tinker import tinker_wire_pb2 as wire
from rl_sync.addons.tinker.tinker_calls import CallRefusedError
from rl_sync.addons.tinker.tinker_losses import LOSSES, TinkerLoss

TARGETS = "target_tokens"
_DTYPES: dict[int, np.dtype[Any]] = {
    wire.ELEMENT_TYPE_FLOAT32: np.dtype("<f4"),
    wire.ELEMENT_TYPE_INT64: np.dtype("<i8"),
    wire.ELEMENT_TYPE_INT32: np.dtype("<i4"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class LossDatum:
    """A sequence, and the targets of each of its tokens.

    Attributes:
      tokens: token ids that the model reads.
      targets: targets of each token, whose log-probabilities follow the tokens up to it.
      inputs: the loss's other inputs by name, a value for each target.
      is_flat: whether each token has one target, without an axis of its own.
    """

    tokens: Int[np.ndarray, " N"]
    targets: Int[np.ndarray, "N K"]
    inputs: Mapping[str, Float[np.ndarray, "N K"]]
    is_flat: bool


def loss_named(name: str) -> TinkerLoss:
    """Returns a loss.

    Raises:
      CallRefusedError: this server has no such loss.
    """
    if (loss := LOSSES.get(name)) is None:
        raise CallRefusedError(
            f"The loss {name!r} is not served: {', '.join(LOSSES)} are, and losses of your own by"
            " forward_backward_custom."
        )
    return loss


def read_options(name: str, request: wire.PassRequest) -> dict[str, float]:
    """Returns the options of a loss, with defaults.

    Raises:
      CallRefusedError: the loss has no such option, or it is no number.
    """
    options = dict(loss_named(name).options)
    for option, value in request.loss_fn_config_v2.items():
        if option not in options:
            has = f"it has {', '.join(options)}" if options else "it has none"
            raise CallRefusedError(f"The loss {name!r} has no option {option!r}: {has}.")
        if value.WhichOneof("value") != "number":
            raise CallRefusedError(
                f"The option {option!r} of {name!r} is a number, not {value.text!r}."
            )
        options[option] = value.number
    return options


def read_data(
    request: wire.PassRequest, *, most_rows: int, most_tokens: int, vocab_size: int
) -> list[LossDatum]:
    """Reads the data of a pass.

    Args:
      most_rows: maximum number of data.
      most_tokens: maximum number of tokens of each.
      vocab_size: number of tokens that the model knows.

    Raises:
      CallRefusedError: a datum is malformed, too large, or has what this server does not serve.
    """
    if not 1 <= len(request.data) <= most_rows:
        raise CallRefusedError(
            f"A pass takes 1 to {most_rows} data, not {len(request.data)}: send them in several"
            " calls, whose gradients add up."
        )
    loss, found = loss_named(request.loss_fn), []
    for index, datum in enumerate(request.data):
        try:
            one = _read(datum, loss)
            _require_known(one, most_tokens, vocab_size)
        except ValueError as error:
            raise CallRefusedError(f"data[{index}]: {error}") from error
        found.append(one)
    return found


def _read(datum: wire.TrainingDatum, loss: TinkerLoss) -> LossDatum:
    chunks = []
    for chunk in datum.model_input:
        if (kind := chunk.WhichOneof("chunk")) != "encoded_text":
            raise ValueError(f"a chunk of the kind {kind} is not served: send text alone.")
        chunks.append(np.frombuffer(chunk.encoded_text.tokens, np.dtype("<i4")))
    tokens = np.concatenate(chunks) if chunks else np.zeros(0, np.int32)
    given = {name: _tensor(name, tensor) for name, tensor in datum.loss_fn_inputs.items()}
    names = {TARGETS, *loss.inputs, *loss.defaults}
    if unknown := sorted(given.keys() - names):
        raise ValueError(
            f"the loss has no input {unknown[0]!r}: it has {', '.join(sorted(names))}."
        )
    if lacking := sorted({TARGETS, *loss.inputs} - given.keys()):
        raise ValueError(f"the loss needs {lacking[0]!r} in loss_fn_inputs.")
    targets = given.pop(TARGETS)
    if not np.issubdtype(targets.dtype, np.integer):
        raise ValueError(f"{TARGETS} must be int64, not {targets.dtype}.")
    if targets.ndim not in (1, 2) or len(targets) != len(tokens):
        raise ValueError(
            f"{TARGETS} must have a row for each of {len(tokens)} tokens, not the shape"
            f" {list(targets.shape)}."
        )
    for name, values in given.items():
        if values.shape != targets.shape:
            raise ValueError(
                f"{name} must have the shape {list(targets.shape)} of {TARGETS}, not"
                f" {list(values.shape)}."
            )
        if not np.isfinite(values).all():
            raise ValueError(f"{name} has values that are NaN or infinite.")
    wide = (len(targets), -1) if targets.size else (len(targets), 1)
    defaults = {
        name: np.full(targets.shape, value, np.float32)
        for name, value in loss.defaults.items()
        if name not in given
    }
    return LossDatum(
        tokens=tokens,
        targets=targets.reshape(wide),
        inputs={
            name: values.astype(np.float32).reshape(wide)
            for name, values in {**given, **defaults}.items()
        },
        is_flat=targets.ndim == 1,
    )


def _tensor(name: str, tensor: wire.DenseTensor) -> np.ndarray:
    if tensor.WhichOneof("encoding") != "dense":
        raise ValueError(f"{name} is sparse, which is not served: send it dense.")
    if (dtype := _DTYPES.get(tensor.dtype)) is None:
        raise ValueError(f"{name} must be float32 or int64.")
    values = np.frombuffer(tensor.dense, dtype)
    return values.reshape(tuple(tensor.shape) or -1)


def _require_known(datum: LossDatum, most_tokens: int, vocab_size: int) -> None:
    if not 1 <= len(datum.tokens) <= most_tokens:
        raise ValueError(f"it may have 1 to {most_tokens} tokens, and has {len(datum.tokens)}.")
    for name, ids in (("model_input", datum.tokens), (TARGETS, datum.targets)):
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise ValueError(
                f"{name} has the token ids {ids.min()} to {ids.max()}, and the model knows 0 to"
                f" {vocab_size - 1}: is it another model's tokenizer?"
            )


def pass_result(
    data: Sequence[LossDatum], logprobs: Sequence[Float[np.ndarray, "N K"]], loss: float
) -> bytes:
    """Writes the result of a pass: the log-probability of each target, and the sum of the loss.

    Args:
      logprobs: log-probabilities of each datum, in the order of `data`.
    """
    result = wire.PassResult(loss_fn_output_type="ArrayRecord", metrics={"loss:sum": loss})
    shaped = [
        one.reshape(-1) if datum.is_flat else one for datum, one in zip(data, logprobs, strict=True)
    ]
    for trailing, group in itertools.groupby(shaped, lambda one: one.shape[1:]):
        rows = [np.ascontiguousarray(one, np.dtype("<f4")) for one in group]
        offsets = np.cumsum([0, *(one.nbytes for one in rows)])
        values = wire.BatchedTensor(
            data=b"".join(one.tobytes() for one in rows),
            offsets=offsets.astype(np.dtype("<i8")).tobytes(),
            dtype=wire.ELEMENT_TYPE_FLOAT32,
            trailing_shape=trailing,
        )
        record = wire.ArrayRecord(fields={"logprobs": values}, num_datums=len(rows))
        result.loss_fn_outputs.append(record)
    return result.SerializeToString()
