"""Calls of Tinker's API that travel as JSON, as the client of `CLIENT` writes them.

A field that is not listed is refused by its name; fields whose type is `Unserved` are known, and
refused unless they have the value that asks for nothing.
"""

from __future__ import annotations

import dataclasses
import http
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from rl_sync.isolation.codec import record

CLIENT = "0.38"
"""Version of the client, whose patch releases are served too."""

T = TypeVar("T")
_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)


class CallRefusedError(Exception):
    """Raised to refuse a call; the message has the rule, the value and the way out.

    Args:
      status: status of HTTP, unless a future carries the refusal.
    """

    def __init__(self, message: str, status: http.HTTPStatus = http.HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


def _unserved(value: Any) -> Any:
    if value:
        raise ValueError("this server does not serve it: leave it out")
    return value


Unserved = Annotated[Any, AfterValidator(_unserved)]
_Name = Annotated[str, Field(pattern=r"^[\w][\w.\-]{0,127}$")]
"""Name of a checkpoint, which is also that of its directory."""


@dataclass(frozen=True, config=_STRICT)
class ClientConfigCall:
    """A client's first call.

    Attributes:
      sdk_version: version of the client.
    """

    sdk_version: str


@dataclass(frozen=True, config=_STRICT)
class SessionCall:
    """Begins a session; see `ClientConfigCall`."""

    sdk_version: str
    tags: tuple[str, ...] = ()
    user_metadata: dict[str, Any] | None = None
    project_id: str | None = None
    display_name: str | None = None
    type: str = ""


@dataclass(frozen=True, config=_STRICT)
class HeartbeatCall:
    """Keeps a session alive."""

    session_id: str
    type: str = ""


@dataclass(frozen=True, config=_STRICT)
class LoraChoice:
    """Adapters that a client asks for.

    Attributes:
      rank: rank of each adapter.
      seed: seed of the initial values; None for one of the server's.
      train_unembed: asks for an adapter of the output projection, of which we have none.
      train_mlp, train_attn: whether MLPs and attention get adapters.
    """

    rank: int = Field(default=32, ge=1)
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


@dataclass(frozen=True, config=_STRICT)
class OptimizerChoice:
    """The optimizer of a model, which is AdamW."""

    type: Literal["adamw"] = "adamw"


@dataclass(frozen=True, config=_STRICT)
class CreateModelCall:
    """Makes a model with new adapters.

    Attributes:
      session_id, model_seq_id: session, and number of the model in it.
      base_model: name of the base model.
    """

    session_id: str
    model_seq_id: int
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraChoice = Field(default_factory=LoraChoice)
    optimizer_config: OptimizerChoice = Field(default_factory=OptimizerChoice)
    type: str = ""


@dataclass(frozen=True, config=_STRICT)
class ModelCall:
    """Asks for a model's description."""

    model_id: str
    type: str = ""


@dataclass(frozen=True, config=_STRICT)
class AdamChoice:
    """One step of AdamW (arXiv:1711.05101), in PyTorch's form.

    Attributes:
      learning_rate, beta1, beta2, eps, weight_decay: the algorithm's α·η, β₁, β₂, ε and λ.
      grad_clip_norm: maximum norm of the gradient; 0 for none.
    """

    learning_rate: float = 1e-4
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-12, ge=0)
    weight_decay: float = 0.0
    grad_clip_norm: float = Field(default=0.0, ge=0)


@dataclass(frozen=True, config=_STRICT)
class OptimizerStepCall:
    """Updates a model's adapters with the gradient that it has accumulated."""

    model_id: str
    seq_id: int
    adam_params: AdamChoice
    optimizer_params: Unserved = None
    type: str = ""


@dataclass(frozen=True, config=_STRICT)
class SaveCall:
    """Saves a model's adapters, with the state of its optimizer.

    Attributes:
      path: name of the checkpoint.
      ttl_seconds: time after which the client needs it no longer; it is kept.
      overwrite: whether it may replace one of the same name.
    """

    model_id: str
    seq_id: int
    path: _Name
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None
    type: str = ""


@dataclass(frozen=True, config=_STRICT)
class SaveForSamplerCall:
    """Saves a model's adapters for sampling: under a name, or for one sampling session.

    Attributes:
      path: name of the checkpoint; None for a sampling session, whose weights stay in memory.
      sampling_session_seq_id: number of that sampling session in its session.
      ttl_seconds: see `SaveCall`.
    """

    model_id: str
    seq_id: int
    path: _Name | None = None
    sampling_session_seq_id: int | None = None
    kind: Literal["snapshot"] = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None
    type: str = ""


@dataclass(frozen=True, config=_STRICT)
class LoadCall:
    """Loads a checkpoint: into a model, or as a new model of a session.

    Attributes:
      path: address of the checkpoint.
      optimizer: whether the optimizer's state is loaded too.
      model_id, seq_id: the model; None for a new one.
      session_id, model_seq_id: the new model's session, and its number in it.
      base_model: name of the base model, which must be that of the checkpoint.
    """

    path: str
    optimizer: bool
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    optimizer_config: OptimizerChoice | None = None
    weights_access_token: Unserved = None
    type: str = ""


@dataclass(frozen=True, config=_STRICT)
class SamplingSessionCall:
    """Begins a sampling session, with weights of a checkpoint or of the base model."""

    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None
    type: str = ""


@record
@dataclass(frozen=True, config=_STRICT)
class SamplingChoice:
    """Sampling of one request.

    Attributes:
      max_tokens: maximum number of tokens of a completion; None for as many as there is room.
      seed: seed of the draws; None for one of the server's.
      stop: texts or token ids that end a completion, in place of the ends of sequence; None for the
        ends of sequence, an empty list for neither.
      temperature: divisor of the logits; 0 for the likeliest token always.
      top_k: number of likeliest tokens that can be sampled; −1 for all.
      top_p: see `rl_sync.rollout.sampling.Sampling`.
    """

    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | tuple[int, ...] | tuple[str, ...] | None = None
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=-1, ge=-1)
    top_p: float = Field(default=1.0, gt=0, le=1)


@record
@dataclass(frozen=True, config=_STRICT)
class PromptChunk:
    """A part of a prompt: token ids."""

    tokens: tuple[int, ...]
    type: Literal["encoded_text"] = "encoded_text"


@record
@dataclass(frozen=True, config=_STRICT)
class PromptChoice:
    """A prompt in parts."""

    chunks: tuple[PromptChunk, ...]


@record
@dataclass(frozen=True, config=_STRICT)
class SampleCall:
    """Asks for completions of a prompt.

    Attributes:
      num_samples: number of completions.
      sampling_session_id, seq_id: sampling session, and number of the request in it.
      prompt_logprobs: whether log-probabilities of the prompt's tokens are returned.
      prompt_logprobs_last_n: number of last tokens of which they are; None for all.
    """

    prompt: PromptChoice
    sampling_params: SamplingChoice
    sampling_session_id: str
    seq_id: int
    num_samples: int = Field(default=1, ge=1)
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    topk_prompt_logprobs: Unserved = 0
    topk_sample_logprobs: Unserved = 0
    target_prompt_logprobs: Unserved = None
    prompt_alt_tokens_k: Unserved = 0
    record_stability_info: Unserved = None
    base_model: str | None = None
    model_path: str | None = None
    type: str = ""


@dataclass(frozen=True, config=_STRICT)
class RetrieveCall:
    """Asks for the result of a future."""

    request_id: str
    allow_metadata_only: bool = False


@dataclass(frozen=True, config=_STRICT)
class WeightsInfoCall:
    """Asks for the description of a checkpoint."""

    tinker_path: str


def read_call(kind: type[T], body: bytes) -> T:
    """Reads a call.

    Raises:
      CallRefusedError: the body is no such call.
    """
    try:
        return pydantic.TypeAdapter(kind).validate_json(body)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise CallRefusedError(f"{place}: {first['msg']}.") from error


@dataclasses.dataclass(frozen=True)
class CallPlace:
    """The place of a call in the order of its model's calls."""

    model_id: str
    seq_id: int


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class _InOrder:
    model_id: str
    seq_id: int


def place_of(body: bytes) -> CallPlace | None:
    """Reads the place of a call, whatever else is wrong with it; None if it has none."""
    try:
        found = pydantic.TypeAdapter(_InOrder).validate_json(body)
    except pydantic.ValidationError:
        return None
    return CallPlace(found.model_id, found.seq_id)


def require_client(sdk_version: str) -> None:
    """Refuses a client of another version.

    Raises:
      CallRefusedError: the version is not `CLIENT`, or a patch release of it.
    """
    if sdk_version != CLIENT and not sdk_version.startswith(f"{CLIENT}."):
        raise CallRefusedError(
            f"This server speaks to tinker {CLIENT}, and this client is tinker {sdk_version}:"
            f" install the client with `pip install 'tinker=={CLIENT}.*'`."
        )
