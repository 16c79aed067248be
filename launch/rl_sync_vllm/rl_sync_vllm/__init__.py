"""Weight transfer from rl_sync's explorers to vLLM."""

import contextlib


def register() -> None:
    """Registers the backend `rl_sync`; vLLM calls it in each of its processes."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    with contextlib.suppress(ValueError):  # It was called before in this process.
        WeightTransferEngineFactory.register_engine(
            "rl_sync", "rl_sync_vllm.delta_engine", "DeltaWeightTransferEngine"
        )
