"""syncguard's transport for vLLM's weight-update lifecycle: one file per bucket.

A file reaches every worker process of a machine, whatever the executor; its bytes are mapped, not
copied. vLLM's own transports need CUDA.
"""

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from syncguard.engines.buckets import read_bucket

__all__ = ["FileTransferEngine"]


@dataclass
class FileInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing is needed to begin."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket.

    Attributes:
        path: The safetensors file; its tensors are named by their position, from 0.
        names: The weights' names by position. A name may come twice, as on any wire.
    """

    path: str
    names: list[str]


class FileTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """Receives buckets as safetensors files and loads them by vLLM's layer-wise reload."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: Any) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Prepare every layer for a reload."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Load one bucket, in the order in which it was sent."""
        self.model.load_weights(read_bucket(update_info.path, update_info.names))

    def finish_weight_update(self) -> None:
        """Process what is left and put the kernels' tensors back."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held."""
