"""A model runner of SGLang in this process: loader, method, session and forward are SGLang's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncguard.engines.ranks import LocalRank, Ranks
from syncguard.engines.sglang.launch import start_runner

__all__ = ["InProcess"]


class InProcess:
    """One model runner, its observer, and SGLang's own manager of sessions without a scheduler.

    Args:
        checkpoint: Folder of a checkpoint.
        quantization: One of `syncguard.engines.sglang.launch.QUANTIZATIONS`.
        exclude: Linear layers that are left unquantized.
        load_format: SGLang's.
        seed: Of SGLang.

    Attributes:
        model: The live model.
        session: Its weight updates.
        ranks: What can be asked of its one rank.
    """

    def __init__(
        self,
        checkpoint: Path,
        quantization: str,
        exclude: Sequence[str],
        load_format: str,
        seed: int,
    ) -> None:
        self._runner = start_runner(checkpoint, quantization, exclude, load_format, seed)
        from sglang.srt.runtime_context import get_parallel

        from syncguard.engines.sglang import compat
        from syncguard.engines.sglang.observer import Observer
        from syncguard.engines.sglang.session import Session

        self.model = self._runner.model
        self.ranks: Ranks = LocalRank(Observer(self._runner))
        self.session = Session(self._ask, lambda payload: [payload])
        group = get_parallel().tp_group.cpu_group
        scheduler = _Scheduler(self.session)
        self._manager: Any = compat.make_updater(_Worker(self._runner), scheduler, group)

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """See `syncguard.protocols.Engine`."""
        from syncguard.engines.sglang.generation import generate

        return generate(self._runner, prompts, tokens, seed)

    def close(self) -> None:
        """Nothing: SGLang's global state goes down with the process."""

    def _ask(self, method: str, request: Any) -> tuple[bool, str]:
        answer = getattr(self._manager, method)(request)
        return answer.success, answer.message


class _Scheduler:
    """The one thing that the manager tells its scheduler."""

    def __init__(self, session: Any) -> None:
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
