"""A whole engine of SGLang: its own scheduler processes, its requests, its update sessions.

What is observed is observed in the schedulers, one for each tensor-parallel rank.
"""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncguard._libraries import quiet
from syncguard.engines.ranks import Ranks
from syncguard.engines.sglang.fakes import importing
from syncguard.engines.sglang.launch import (
    engine_arguments,
    has_experts,
    require_engine,
    require_widths,
)
from syncguard.engines.sglang.ranks import SchedulerRanks, call_through
from syncguard.engines.sglang.session import Session
from syncguard.engines.starting import one_core_each

__all__ = ["Served"]


class Served:
    """One engine with its processes.

    Args:
        checkpoint: Folder of a checkpoint.
        quantization: One of `syncguard.engines.sglang.launch.QUANTIZATIONS`.
        exclude: Linear layers that are left unquantized.
        load_format: SGLang's.
        seed: Of SGLang.
        ranks: Tensor-parallel ranks, each in a scheduler process of its own.

    Attributes:
        model: None: it is not in this process.
        session: Its weight updates.
        ranks: What can be asked of its ranks.
    """

    model = None

    def __init__(
        self,
        checkpoint: Path,
        quantization: str,
        exclude: Sequence[str],
        load_format: str,
        seed: int,
        ranks: int = 1,
    ) -> None:
        require_widths(checkpoint, quantization, ranks)
        if ranks > 1:
            os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = one_core_each(ranks)
        require_engine()
        told = engine_arguments(checkpoint, quantization, exclude, load_format, seed)
        self._count = ranks
        with quiet(), importing():
            from sglang.srt.entrypoints.engine import Engine

            from syncguard.engines.sglang import workers

            class Observed(Engine):  # type: ignore[misc]
                run_scheduler_process_func = staticmethod(
                    functools.partial(
                        workers.run_scheduler,
                        quantization=quantization,
                        experts=has_experts(checkpoint),
                    )
                )
                run_detokenizer_process_func = staticmethod(workers.run_detokenizer)

            self._engine = Observed(**told, tp_size=ranks)
        self.session = Session(self._ask, self._pack)
        self.ranks: Ranks = SchedulerRanks(call_through(self._engine), self._engine.loop, ranks)

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """See `syncguard.protocols.Engine`; SGLang's sampler takes no seed for a request."""
        del seed
        answers = self._engine.generate(
            input_ids=[list(map(int, prompt)) for prompt in prompts],
            sampling_params={"temperature": 1.0, "max_new_tokens": tokens, "ignore_eos": True},
            return_logprob=True,
            logprob_start_len=0,
        )
        told = [answer["meta_info"] for answer in answers]
        return [_scored(ids, each) for ids, each in zip(prompts, told, strict=True)]

    def close(self) -> None:
        """End the engine's processes."""
        self._engine.shutdown()

    def _ask(self, method: str, request: Any) -> tuple[bool, str]:
        manager = self._engine.tokenizer_manager
        success, message = self._engine.loop.run_until_complete(
            getattr(manager, method)(request, None)
        )[:2]
        if success and getattr(request, "weight_version", None) is not None:
            self.session.commit(self._engine.get_model_info()["weight_version"])
        return success, message

    def _pack(self, payload: Any) -> list[Any]:
        from sglang.srt.utils import MultiprocessingSerializer

        return [MultiprocessingSerializer.serialize(payload) for _ in range(self._count)]


def _scored(prompt: Sequence[int], told: Any) -> tuple[list[int], NDArray[np.float64]]:
    """A sequence, and the scores of all but its first token.

    SGLang gives the prompt's tokens back too, but the last of the vocabulary as token 0.
    """
    sampled = told["output_token_logprobs"]
    sequence = [*map(int, prompt), *(token for _, token, _ in sampled)]
    scores = [score for score, _, _ in (*told["input_token_logprobs"][1:], *sampled)]
    return sequence, np.array(scores, np.float64)
