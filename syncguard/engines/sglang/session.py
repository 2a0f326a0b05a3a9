"""Weight updates through SGLang's own manager of sessions, without a scheduler around it."""

from collections.abc import Sequence
from typing import Any

import torch

from syncguard.engines.sglang import compat

__all__ = ["Refused", "Session"]

Bucket = Sequence[tuple[str, torch.Tensor]]


class Refused(RuntimeError):
    """SGLang answered an update with a failure."""


class Session:
    """Opens, fills and closes updates of one runner.

    Args:
        runner: The model runner.

    Attributes:
        manager: SGLang's.
        version: The version of the weights that SGLang has recorded.
    """

    def __init__(self, runner: Any) -> None:
        from sglang.srt.managers import io_struct
        from sglang.srt.runtime_context import get_parallel

        self._requests = io_struct
        self.version = ""
        group = get_parallel().tp_group.cpu_group
        self.manager: Any = compat.make_updater(_Worker(runner), _Scheduler(self), group)

    def commit(self, version: str) -> None:
        """Record a version, when the manager says so."""
        self.version = version

    def begin(self) -> None:
        """Open a session, where this version has them."""
        if compat.has_sessions():
            request = self._requests.BeginWeightUpdateReqInput()
            _accepted("begin_weight_update", self.manager.begin_weight_update(request))

    def update(self, payload: Any, load_format: str | None, version: str) -> None:
        """Load one bucket; SGLang records the version with each."""
        request = self._requests.UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=[payload], load_format=load_format, weight_version=version
        )
        _accepted("update_weights_from_tensor", self.manager.update_weights_from_tensor(request))

    def end(self) -> None:
        """Close the session: SGLang post-processes every layer."""
        if compat.has_sessions():
            request = self._requests.EndWeightUpdateReqInput()
            _accepted("end_weight_update", self.manager.end_weight_update(request))

    def load_from_disk(self, folder: str, version: str) -> None:
        """Load a folder of safetensors and post-process."""
        request = self._requests.UpdateWeightFromDiskReqInput(
            model_path=folder, load_format="safetensors", weight_version=version
        )
        _accepted("update_weights_from_disk", self.manager.update_weights_from_disk(request))


class _Scheduler:
    """The one thing that the manager tells its scheduler."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def record_weight_version_change(self, new_version: str | None) -> None:
        if new_version is not None:
            self._session.commit(new_version)


class _Worker:
    """The runner as the manager sees it through a worker; payloads stay in this process."""

    def __init__(self, runner: Any) -> None:
        self.model_runner = runner

    def weight_update_runners(self) -> list[tuple[str, Any]]:
        return [("target", self.model_runner)]

    def deserialize_own_rank(self, payloads: Sequence[Any]) -> Any:
        return payloads[0]

    # Until 0.5.20 the manager asked the worker to update.

    def update_weights_from_tensor(self, request: Any) -> tuple[bool, str]:
        answer: tuple[bool, str] = self.model_runner.weight_updater.update_weights_from_tensor(
            named_tensors=self.deserialize_own_rank(request.serialized_named_tensors),
            load_format=request.load_format,
        )
        return answer

    def update_weights_from_disk(self, request: Any) -> tuple[bool, str]:
        answer: tuple[bool, str] = self.model_runner.weight_updater.update_weights_from_disk(
            request.model_path, request.load_format
        )
        return answer


def _accepted(what: str, answer: Any) -> None:
    if not answer.success:
        raise Refused(f"SGLang refused {what}: {answer.message}")
