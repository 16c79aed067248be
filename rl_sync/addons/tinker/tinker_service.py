"""The service: sessions, models, sampling sessions, and the thread that computes.

Calls are accepted in any thread. `TinkerService.run` does all that computes here, one call or one
chunk of tokens at a time. If it samples, training and sampling take turns; otherwise processes of
their own sample meanwhile.
"""

from __future__ import annotations

import dataclasses
import functools
import http
import logging
import math
import secrets
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from rl_sync.addons.tinker import tinker_calls as calls
from rl_sync.addons.tinker import tinker_wire_pb2 as wire
from rl_sync.addons.tinker.adapter_files import SAMPLER, TRAINING, AdapterFiles
from rl_sync.addons.tinker.adapter_passes import (
    AdamRates,
    AdapterPasses,
    AdapterState,
    new_adapters,
    stepped,
)
from rl_sync.addons.tinker.adapter_sampler import (
    AdapterSampler,
    AdapterWeights,
    CompletionSampler,
    SampleOrder,
)
from rl_sync.addons.tinker.call_order import AcceptedCall, CallOrder, CallResult
from rl_sync.addons.tinker.loss_data import loss_named, pass_result, read_data, read_options
from rl_sync.addons.tinker.sampler_sources import SamplerSource, SamplerSources
from rl_sync.addons.tinker.service_bounds import ServiceBounds
from rl_sync.addons.tinker.tinker_calls import CallPlace, CallRefusedError
from rl_sync.api.loaded_policy import Policy
from rl_sync.models.config import ATTENTION_TARGETS, Lora, LoraTarget
from rl_sync.records.json_lines import JsonLinesWriter
from rl_sync.types import Params

ALPHA = 32.0
"""Numerator of the adapters' scale, which Tinker leaves fixed (LoRA Without Regret, 2025)."""

UNADAPTED = (
    "This server adapts attention and MLPs, and not the output projection: models are trained as"
    " with train_unembed=False."
)
_POLL_SECS = 0.5
_SAMPLE = "sample"
_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class ClientSession:
    """A client's session.

    Attributes:
      seen: time of its last sign.
    """

    seen: float


@dataclasses.dataclass(eq=False)
class TrainedModel:
    """A model that a client trains.

    Attributes:
      passes: its passes; None until it is made.
      state: its adapters and their optimizer; None until it is made.
      gradient: sum of the gradients since the last step; None without any.
      spoiled: reason why the gradient is not whole; None if it is.
    """

    model_id: str
    session_id: str
    user_metadata: Mapping[str, Any] | None
    passes: AdapterPasses | None = None
    state: AdapterState | None = None
    gradient: Params | None = None
    spoiled: str | None = None

    @property
    def made(self) -> tuple[AdapterPasses, AdapterState]:
        """The passes and the state.

        Raises:
          CallRefusedError: the model could not be made.
        """
        if self.passes is None or self.state is None:
            raise CallRefusedError(f"The model {self.model_id} could not be made.")
        return self.passes, self.state


class TinkerService:
    """Serves the clients of one base model.

    Args:
      policy: the base model.
      base: directory of its checkpoint.
      name: its name.
      root: directory of checkpoints and records.
      sampler: serves requests to sample; None for this process.

    Raises:
      OSError: the directory cannot be written.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        base: Path,
        name: str,
        root: Path,
        bounds: ServiceBounds,
        sampler: CompletionSampler | None = None,
    ) -> None:
        self.name, self.base, self.bounds = name, base, bounds
        self.length = bounds.length_in(policy.model)
        self.files = AdapterFiles(root, base, name)
        self.order = CallOrder()
        self._policy = policy
        self._lock = threading.RLock()
        self._sessions: dict[str, ClientSession] = {}
        self._models: dict[str, TrainedModel] = {}
        self.sources = SamplerSources(bounds.snapshots)
        self._sampler = sampler or AdapterSampler.of_policy(policy, bounds)
        self._records = JsonLinesWriter(root / "calls.jsonl", vital=False)

    # Calls whose answers are immediate.

    def begin_session(self, call: calls.SessionCall) -> str:
        """Begins a session; returns its id.

        Raises:
          CallRefusedError: the client has another version.
        """
        calls.require_client(call.sdk_version)
        session_id = f"s-{secrets.token_hex(6)}"
        with self._lock:
            of_models = {one.session_id for one in self._models.values()}
            for other in [*self._silent() - of_models]:
                self.end_session(other)
            self._sessions[session_id] = ClientSession(time.monotonic())
        return session_id

    def touch(self, session_id: str) -> None:
        """Notes a sign of a session's client.

        Raises:
          CallRefusedError: there is no such session.
        """
        with self._lock:
            if (found := self._sessions.get(session_id)) is None:
                raise CallRefusedError(
                    f"There is no session {session_id}: it has ended, or the server was started"
                    " again. Make a new ServiceClient.",
                    http.HTTPStatus.GONE,
                )
            found.seen = time.monotonic()

    def end_session(self, session_id: str) -> None:
        """Ends a session, its models and its sampling sessions."""
        with self._lock:
            self._sessions.pop(session_id, None)
            ended = [one.model_id for one in self._models.values() if one.session_id == session_id]
            for model_id in ended:
                del self._models[model_id]
        self.sources.end(session_id)
        for model_id in ended:
            self.order.close(model_id)

    def model(self, model_id: str) -> TrainedModel:
        """Returns a model.

        Raises:
          CallRefusedError: there is none.
        """
        with self._lock:
            if (found := self._models.get(model_id)) is None:
                raise CallRefusedError(f"There is no model {model_id}.", http.HTTPStatus.NOT_FOUND)
            return found

    def begin_sampling(self, call: calls.SamplingSessionCall) -> str:
        """Begins a sampling session; returns its id.

        Raises:
          CallRefusedError: there is no such model or checkpoint.
        """
        self.touch(call.session_id)
        if call.model_path is None:
            self._require_base(call.base_model)
        else:
            self.files.find(call.model_path)
        sampler_id = f"{call.session_id}:sample:{call.sampling_session_seq_id}"
        self.sources.keep(sampler_id, SamplerSource(call.session_id, call.model_path, None))
        return sampler_id

    # Calls whose results are futures; they return the future's name.

    def create_model(self, call: calls.CreateModelCall) -> str:
        """Makes a model with new adapters.

        Raises:
          CallRefusedError: it is another base model, or there is no room for more models.
        """
        self._require_base(call.base_model)
        shape = self._shape(call.lora_config)

        def make(model: TrainedModel) -> AdapterState:
            seed = call.lora_config.seed
            passes = self._passes(shape)
            model.passes = passes
            seed = secrets.randbits(31) if seed is None else seed & 0x7FFFFFFF
            return AdapterState.begun(new_adapters(passes.config, self._policy.layout, seed))

        return self._make(
            call.session_id, call.model_seq_id, call.user_metadata, "create_model", make
        )

    def load(self, call: calls.LoadCall) -> str:
        """Loads a checkpoint into a model, or as a new one.

        Raises:
          CallRefusedError: there is no such checkpoint or model, or no room for one more.
        """
        if call.session_id is not None and call.model_seq_id is not None:
            checkpoint = self.files.find(call.path)
            if call.base_model is not None:
                self._require_base(call.base_model)

            def make(model: TrainedModel) -> AdapterState:
                model.passes = self._passes(checkpoint.lora)
                return self.files.load(
                    checkpoint,
                    model.passes.config,
                    self._policy.layout,
                    with_optimizer=call.optimizer,
                )

            return self._make(
                call.session_id, call.model_seq_id, call.user_metadata, "load_weights", make
            )
        if call.model_id is None or call.seq_id is None:
            raise CallRefusedError("load_weights needs a model, or a session and a number in it.")
        model = self.model(call.model_id)

        def load() -> CallResult:
            checkpoint = self.files.find(call.path)
            passes, _ = model.made
            if checkpoint.lora != passes.config.lora:
                raise CallRefusedError(
                    f"{call.path} has adapters of rank {checkpoint.lora.rank} for"
                    f" {','.join(checkpoint.lora.targets)}, and this model has others: use"
                    " create_training_client_from_state."
                )
            model.state = self.files.load(
                checkpoint, passes.config, self._policy.layout, with_optimizer=call.optimizer
            )
            model.gradient = model.spoiled = None
            return {"type": "load_weights", "path": call.path, "model_id": model.model_id}

        return self._accept(CallPlace(call.model_id, call.seq_id), "load_weights", load)

    def run_pass(self, request: wire.PassRequest) -> str:
        """Runs a forward pass, and unless it is all, a backward pass that adds to the gradient."""
        model = self.model(request.model_id)
        kind = "forward" if request.forward_only else "forward_backward"

        def run() -> CallResult:
            backward = not request.forward_only
            try:
                return self._pass(model, request, backward)
            except Exception as error:
                if backward:
                    model.spoiled = model.spoiled or f"{kind} {request.seq_id} failed: {error}"
                raise

        return self._accept(CallPlace(request.model_id, request.seq_id), kind, run)

    def step(self, call: calls.OptimizerStepCall) -> str:
        """Takes a step of the optimizer."""
        model = self.model(call.model_id)
        step = functools.partial(
            self._step, model, AdamRates(**dataclasses.asdict(call.adam_params))
        )
        return self._accept(CallPlace(call.model_id, call.seq_id), "optim_step", step)

    def save(self, call: calls.SaveCall) -> str:
        """Saves a model's adapters and optimizer."""
        model = self.model(call.model_id)

        def save() -> CallResult:
            address = self._saved(model, call, TRAINING, call.path, call.overwrite)
            return {"type": "save_weights", "path": address}

        return self._accept(CallPlace(call.model_id, call.seq_id), "save_weights", save)

    def save_for_sampler(self, call: calls.SaveForSamplerCall) -> str:
        """Saves a model's adapters, or takes a snapshot of them for a sampling session."""
        model = self.model(call.model_id)

        def save() -> CallResult:
            kind = "save_weights_for_sampler"
            if call.path is not None:
                return {"type": kind, "path": self._saved(model, call, SAMPLER, call.path, False)}
            passes, state = model.made
            sampler_id = f"{model.session_id}:sample:{call.sampling_session_seq_id}"
            weights = AdapterWeights(passes, state.adapters)
            self.sources.keep(sampler_id, SamplerSource(model.session_id, None, weights))
            return {"type": kind, "sampling_session_id": sampler_id}

        return self._accept(CallPlace(call.model_id, call.seq_id), "save_weights_for_sampler", save)

    def refuse_in_turn(self, place: CallPlace, kind: str, message: str) -> str:
        """Fails a call in its turn, so that the model's later calls do not wait for it."""

        def fail() -> CallResult:
            raise CallRefusedError(message)

        return self._accept(place, kind, fail)

    def sample(self, call: calls.SampleCall) -> str:
        """Samples completions.

        Raises:
          CallRefusedError: there is no such sampling session.
        """
        self.touch(self.sources.find(call.sampling_session_id).session_id)
        name = f"{call.sampling_session_id}:{call.seq_id}"
        begun = time.monotonic()

        def done(outcome: bytes | Exception) -> None:
            record = {"call": _SAMPLE, "of": call.sampling_session_id, "number": call.seq_id}
            self._record(record, begun, outcome if isinstance(outcome, Exception) else None)
            result = self.order.result(name)
            if isinstance(outcome, Exception):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)

        def begin() -> None:
            weights = self._weights(call.sampling_session_id)
            self._sampler.add(SampleOrder(call, weights, done))

        return self.order.begin(
            name, CallPlace(call.sampling_session_id, call.seq_id), _SAMPLE, begin
        )

    # The thread that computes, and one beside it that hands requests to samplers.

    def run(self, ended: threading.Event) -> None:
        """Does the calls, until the event is set.

        Raises:
          SamplersLostError: there are samplers of their own, and all were lost.
        """
        apart = {_SAMPLE} if self._sampler.is_apart else set()
        beside = threading.Thread(target=self._hand_over, args=(ended, apart), name="requests")
        beside.start()
        try:
            while not ended.is_set():
                timeout_secs = 0.0 if self._sampler.is_busy else _POLL_SECS
                while (
                    call := self.order.next(timeout_secs, lambda kind: kind not in apart)
                ) is not None:
                    self._do(call)
                    if call.kind != _SAMPLE:
                        break
                    timeout_secs = 0.0  # Requests that came together begin together.
                if self._sampler.is_busy:
                    self._sampler.step()
        finally:
            ended.set()
            self._sampler.close()
            beside.join()
            self.order.end()

    def _hand_over(self, ended: threading.Event, kinds: Collection[str]) -> None:
        """Does the calls of some kinds, which compute elsewhere."""
        while kinds and not ended.is_set():
            if (call := self.order.next(_POLL_SECS, kinds.__contains__)) is not None:
                self._do(call)

    def close(self) -> None:
        """Closes the records."""
        self._records.close()

    def _do(self, call: AcceptedCall) -> None:
        begun = time.monotonic()
        record = {"call": call.kind, "of": call.place.model_id, "number": call.place.seq_id}
        try:
            result = call.act()
        except Exception as error:
            if not isinstance(error, CallRefusedError):
                _log.exception("%s of %s failed", call.kind, call.place.model_id)
            self._record(record, begun, error)
            call.result.set_exception(error)
            return
        if result is not None:
            metrics = {} if isinstance(result, bytes) else result.get("metrics", {})
            self._record({**record, **metrics}, begun, None)
            call.result.set_result(result)

    def _record(self, record: Mapping[str, Any], begun: float, failure: Exception | None) -> None:
        ended = {"secs": round(time.monotonic() - begun, 4), "time": time.time()}
        error = {} if failure is None else {"error": str(failure)}
        self._records.write({**record, **ended, **error})

    def _pass(self, model: TrainedModel, request: wire.PassRequest, backward: bool) -> CallResult:
        passes, state = model.made
        loss_named(request.loss_fn)
        options = read_options(request.loss_fn, request)
        data = read_data(
            request,
            most_rows=self.bounds.rows,
            most_tokens=self.length,
            vocab_size=passes.config.vocab_size,
        )
        gradient, model.gradient = model.gradient, None  # It is donated.
        computed = passes.run(
            state.adapters,
            data,
            request.loss_fn,
            options,
            gradient if backward else None,
            backward=backward,
        )
        model.gradient = computed.gradient if backward else gradient
        return pass_result(data, computed.logprobs, computed.loss)

    def _step(self, model: TrainedModel, rates: AdamRates) -> CallResult:
        _, state = model.made
        gradient, spoiled = model.gradient, model.spoiled
        model.gradient = model.spoiled = None
        if spoiled is not None:
            raise CallRefusedError(
                f"No step was taken, and the gradient since the last one is dropped: {spoiled}"
            )
        if gradient is None:
            raise CallRefusedError("optim_step needs a gradient: call forward_backward before it.")
        after, norm = stepped(state, gradient, rates)
        if not math.isfinite(norm):
            raise CallRefusedError(
                f"The gradient's norm is {norm}, so no step was taken, and the gradient is dropped:"
                " lower the learning rate, or look at the data of the last passes."
            )
        model.state = after
        return {"metrics": {"gradient_norm": norm, "step": float(after.steps)}}

    def _saved(
        self,
        model: TrainedModel,
        call: calls.SaveCall | calls.SaveForSamplerCall,
        kind: str,
        name: str,
        overwrite: bool,
    ) -> str:
        passes, state = model.made
        return self.files.save(
            passes.config,
            state,
            model_id=model.model_id,
            kind=kind,
            name=name,
            overwrite=overwrite,
            user_metadata=call.user_metadata,
            model_metadata=model.user_metadata,
        )

    def _make(
        self,
        session_id: str,
        number: int,
        metadata: Mapping[str, Any] | None,
        kind: str,
        make: Any,
    ) -> str:
        self.touch(session_id)
        model_id = f"{session_id}:train:{number}"
        name = f"{model_id}:made"
        with self._lock:
            if model_id in self._models:
                return name
            self._make_room()
            model = self._models[model_id] = TrainedModel(model_id, session_id, metadata)
        self.order.open(model_id)

        def made() -> CallResult:
            try:
                model.state = make(model)
            except Exception:
                with self._lock:
                    self._models.pop(model_id, None)
                self.order.close(model_id)
                raise
            return {"type": kind, "model_id": model_id}

        return self.order.begin(name, CallPlace(model_id, 0), kind, made)

    def _make_room(self) -> None:
        """Ends sessions of silent clients if there is no room for one more model."""
        while len(self._models) >= self.bounds.models:
            of_models = {one.session_id for one in self._models.values()}
            if not (silent := self._silent() & of_models):
                raise CallRefusedError(
                    f"{len(self._models)} models are in use, as many as --models allows: close a"
                    " client (ServiceClient.close), or start the server with a larger number."
                )
            self.end_session(min(silent, key=lambda one: self._sessions[one].seen))

    def _silent(self) -> set[str]:
        """Returns the sessions whose clients have given no sign for too long."""
        latest = time.monotonic() - self.bounds.silent_secs
        return {name for name, one in self._sessions.items() if one.seen < latest}

    def _accept(self, place: CallPlace, kind: str, act: Any) -> str:
        self.touch(self.model(place.model_id).session_id)
        return self.order.accept(place, kind, act)

    def _weights(self, sampler_id: str) -> AdapterWeights:
        source = self.sources.find(sampler_id)
        if source.weights is not None:
            return source.weights
        if source.model_path is None:
            weights = self._base_weights
        else:
            checkpoint = self.files.find(source.model_path)
            passes = self._passes(checkpoint.lora)
            state = self.files.load(
                checkpoint, passes.config, self._policy.layout, with_optimizer=False
            )
            weights = AdapterWeights(passes, state.adapters)
            source.weights = weights
            self.sources.keep(sampler_id, source)
        return weights

    @functools.cached_property
    def _base_weights(self) -> AdapterWeights:
        return AdapterWeights(self._passes(None), {})

    def _passes(self, shape: Lora | None) -> AdapterPasses:
        return AdapterPasses.of_policy(self._policy, shape, self.bounds.batch_tokens)

    def _shape(self, choice: calls.LoraChoice) -> Lora:
        targets: tuple[LoraTarget, ...] = tuple(
            target
            for target in get_args(LoraTarget)
            if (choice.train_attn if target in ATTENTION_TARGETS else choice.train_mlp)
        )
        if not targets:
            raise CallRefusedError(
                "lora_config has neither train_attn nor train_mlp, and the output projection is not"
                " adapted here: set one of them."
            )
        shape = Lora(choice.rank, ALPHA, targets)
        try:
            dataclasses.replace(self._policy.model, lora=shape)
        except ValueError as error:
            raise CallRefusedError(str(error)) from error
        return shape

    def _require_base(self, name: str | None) -> None:
        if name not in (self.name, str(self.base)):
            raise CallRefusedError(
                f"The base model {name!r} is not served: this server has {self.name!r}."
            )
