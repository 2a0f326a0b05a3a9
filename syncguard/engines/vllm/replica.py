"""One vLLM, wherever it runs: what the adapter asks of it."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.engines.ranks import LocalRank, Ranks
from syncguard.engines.vllm.ranks import WorkerRanks
from syncguard.errors import Unsupported

__all__ = ["LibraryReplica", "Replica", "Scored", "sampling"]

Scored = tuple[list[int], NDArray[np.float64]]
"""A whole sequence, and the log-probability of each token after the first."""

_ALIVE: Final[list[Any]] = []
"""An engine that is collected tears down the process groups of all others in the process."""


def sampling(tokens: int, seed: int) -> dict[str, Any]:
    """Parameters of vLLM for a request that samples tokens and scores the prompt too."""
    return {
        "max_tokens": tokens,
        "temperature": 1.0,
        "seed": seed,
        "ignore_eos": True,
        "detokenize": False,
        "logprobs": 0,
        "prompt_logprobs": 0,
    }


class Replica(Protocol):
    """One vLLM, with all of its ranks.

    Attributes:
        ranks: Where it is observed.
    """

    ranks: Ranks

    def release(self) -> str:
        """The version of vLLM."""

    def start_update(self) -> None:
        """Open a session of weight updates."""

    def update(self, path: str, names: Sequence[str]) -> None:
        """Load one bucket; see `syncguard.engines.buckets.write_bucket`."""

    def finish_update(self, version: str | None = None) -> None:
        """Close the session, and serve the version from then on."""

    def reload(self, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Reload all weights at once.

        Raises:
            Unsupported: Tensors do not get there.
        """

    def reload_files(self, buckets: Sequence[tuple[str, Sequence[str]]]) -> None:
        """The same, from files that the workers read."""

    def publish(self, version: str) -> None:
        """Serve a version from now on."""

    def version(self) -> str:
        """The version that it says it serves."""

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[Scored]:
        """See `syncguard.protocols.Engine`."""

    def sleep(self, level: int) -> None:
        """Take no requests, and give memory up if it can."""

    def wake(self) -> None:
        """Take requests again."""

    def close(self) -> None:
        """End its processes."""


class LibraryReplica:
    """A vLLM that this process has started as a library.

    Args:
        llm: vLLM's ``LLM``.
        away: Whether its model is in another process.
        count: How many ranks it has.
        first: Number of the first one among those of all replicas.
        world: How many ranks all replicas have.
    """

    def __init__(self, llm: Any, *, away: bool, count: int, first: int, world: int) -> None:
        _ALIVE.append(llm)
        self.llm = llm
        self._away = away
        self._broken = ""
        self.ranks: Ranks
        if away:
            self.ranks = WorkerRanks(llm, count, first, world)
        else:
            self.worker = llm.llm_engine.model_executor.driver_worker.worker
            from syncguard.engines.vllm.observer import Observer  # and with it vLLM

            self.ranks = LocalRank(Observer(self.worker, world, first))

    def release(self) -> str:
        """See `Replica`."""
        import vllm

        return str(vllm.__version__)

    def start_update(self) -> None:
        """See `Replica`."""
        self.llm.start_weight_update()

    def update(self, path: str, names: Sequence[str]) -> None:
        """See `Replica`."""
        self.llm.update_weights({"update_info": {"path": path, "names": list(names)}})

    def finish_update(self, version: str | None = None) -> None:
        """See `Replica`."""
        self.llm.finish_weight_update(weight_version=version)

    def reload(self, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
        """See `Replica`."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})

    def reload_files(self, buckets: Sequence[tuple[str, Sequence[str]]]) -> None:
        """See `Replica`."""
        self.llm.collective_rpc("syncguard_reload", args=(list(buckets),))

    def publish(self, version: str) -> None:
        """See `Replica`."""
        self.llm.update_weight_version(version)

    def version(self) -> str:
        """See `Replica`."""
        return str(self.llm.get_weight_version())

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[Scored]:
        """See `Replica`."""
        from vllm import SamplingParams

        if self._broken:
            raise Unsupported(self._broken)
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        params = SamplingParams(**sampling(tokens, seed))
        try:
            answers = self.llm.generate(requests, params, use_tqdm=False)
        except BaseException as error:
            # Its scheduler keeps the failed requests and runs them again without end.
            self._broken = (
                "an earlier request ended in an error, after which an engine in process does not "
                f"answer any more ({type(error).__name__}: {error})"
            )
            raise
        return [_scored(answer) for answer in answers]

    def sleep(self, level: int) -> None:
        """See `Replica`."""
        self.llm.sleep(level)

    def wake(self) -> None:
        """See `Replica`."""
        self.llm.wake_up()

    def close(self) -> None:
        """See `Replica`; in this process nothing is ended."""
        if self._away:
            with contextlib.suppress(Exception):  # some may have died already
                self.llm.llm_engine.engine_core.shutdown()


def _scored(answer: Any) -> Scored:
    sampled = answer.outputs[0]
    sequence = [*answer.prompt_token_ids, *sampled.token_ids]
    given: list[Mapping[int, Any]] = [
        *(answer.prompt_logprobs or [])[1:],
        *(sampled.logprobs or []),
    ]
    scores = [
        entry[token].logprob if token in entry else math.nan
        for token, entry in zip(sequence[1:], given, strict=True)
    ]
    return sequence, np.array(scores, np.float64)
