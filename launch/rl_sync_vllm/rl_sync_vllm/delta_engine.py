"""The backend `rl_sync`: fetches verified weights while vLLM generates, and loads them later."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from rl_sync_vllm.fetching import FetchError, HeldTensor, fetch, report

_logger = init_logger("vllm.rl_sync")


@dataclasses.dataclass
class FetchOrder(WeightTransferInitInfo):
    """An order to fetch a checkpoint.

    Attributes:
      url: address of the explorer's desk, with its secret.
      key: name of the checkpoint there.
    """

    url: str
    key: str


@dataclasses.dataclass
class LoadOrder(WeightTransferUpdateInfo):
    """An order to load a checkpoint that was fetched.

    Attributes:
      key: its name.
    """

    key: str


class DeltaWeightTransferEngine(WeightTransferEngine[FetchOrder, LoadOrder]):
    """Keeps the tensors of the newest checkpoint in the host's memory, to apply differences to."""

    init_info_cls = FetchOrder
    update_info_cls = LoadOrder
    supports_draft_weight_update = False

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self._held: dict[str, HeldTensor] = {}
        self._order: FetchOrder | None = None
        self._fetched: dict[str, HeldTensor] | None = None
        self._thread: threading.Thread | None = None

    def init_transfer_engine(self, init_info: FetchOrder) -> None:
        """Begins to fetch a checkpoint; the explorer's desk hears when it is there.

        The same order again does nothing while it is carried out.
        """
        if self._thread is not None and self._thread.is_alive() and self._order == init_info:
            return
        if self._order != init_info:
            self._order, self._fetched = init_info, None
        self._thread = threading.Thread(target=self._fetch, args=(init_info,), daemon=True)
        self._thread.start()

    def _fetch(self, order: FetchOrder) -> None:
        error = ""
        try:
            if self._fetched is None:
                fetched = fetch(order.url, order.key, self._held)
                if self._order == order:
                    self._fetched = fetched
        except Exception as failure:  # The desk hears of it, whatever it is.
            _logger.exception("rl_sync: the weights of %s could not be fetched", order.key)
            error = f"{type(failure).__name__}: {failure}"
        group = torch.distributed
        worker, workers = 0, 1
        if group.is_initialized():
            worker, workers = group.get_rank(), group.get_world_size()
        try:
            report(order.url, order.key, worker, workers, error)
        except OSError:  # It is gone, or will ask again.
            _logger.warning("rl_sync: nobody hears that the weights of %s are here", order.key)

    def start_weight_update(self) -> None:
        """Does nothing: no weight changes before all are verified."""

    def receive_weights(self, update_info: LoadOrder) -> None:
        """Loads a fetched checkpoint into the model.

        Raises:
          FetchError: it was not fetched. The model is as it was.
        """
        if self._order is None or self._order.key != update_info.key or self._fetched is None:
            raise FetchError(f"The weights of {update_info.key} are not here.")
        initialize_layerwise_reload(self.model)
        self.model.load_weights(_tensors(self._fetched))
        finalize_layerwise_reload(self.model, self.model_config)
        self._pack_embeddings()
        self._held = self._fetched

    def _pack_embeddings(self) -> None:
        """Renews what CPUs pack of an output projection that is the embedding; vLLM does not."""
        if not current_platform.is_cpu():
            return
        for module in self.model.modules():
            if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)

    def finish_weight_update(self) -> None:
        """Does nothing: the weights were loaded at once."""

    def shutdown(self) -> None:
        """Lets go of the copies in the host's memory."""
        self._held, self._fetched, self._order = {}, None, None


def _tensors(held: Mapping[str, HeldTensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, one in held.items():
        plain = torch.from_numpy(one.content).view(getattr(torch, one.dtype))
        yield name, plain.reshape(one.shape)
