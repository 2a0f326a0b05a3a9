"""Weight updates through SGLang's sessions, whoever passes the requests on."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from syncguard.engines.sglang import compat

__all__ = ["Refused", "Session"]

Bucket = Sequence[tuple[str, torch.Tensor]]

Ask = Callable[[str, Any], tuple[bool, str]]
"""Passes a request on to SGLang's method of a name: whether it was carried out, and its answer."""


class Refused(RuntimeError):
    """SGLang answered an update with a failure."""


class Session:
    """Opens, fills and closes updates of one engine.

    Args:
        ask: Passes requests on.
        pack: Makes what a request carries of tensors.

    Attributes:
        version: The version of the weights that SGLang has recorded.
    """

    def __init__(self, ask: Ask, pack: Callable[[Any], list[Any]]) -> None:
        from sglang.srt.managers import io_struct

        self._requests = io_struct
        self._ask = ask
        self._pack = pack
        self.version = ""

    def commit(self, version: str) -> None:
        """Record a version, when SGLang says so."""
        self.version = version

    def begin(self) -> None:
        """Open a session, where this version has them."""
        if compat.has_sessions():
            self._request("begin_weight_update", self._requests.BeginWeightUpdateReqInput())

    def update(self, payload: Any, load_format: str | None, version: str) -> None:
        """Load one bucket; SGLang records the version with each."""
        request = self._requests.UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=self._pack(payload),
            load_format=load_format,
            weight_version=version,
        )
        self._request("update_weights_from_tensor", request)

    def end(self) -> None:
        """Close the session: SGLang post-processes every layer."""
        if compat.has_sessions():
            self._request("end_weight_update", self._requests.EndWeightUpdateReqInput())

    def load_from_disk(self, folder: str, version: str) -> None:
        """Load a folder of safetensors and post-process."""
        request = self._requests.UpdateWeightFromDiskReqInput(
            model_path=folder, load_format="safetensors", weight_version=version
        )
        self._request("update_weights_from_disk", request)

    def _request(self, method: str, request: Any) -> None:
        success, message = self._ask(method, request)
        if not success:
            raise Refused(f"SGLang refused {method}: {message}")
