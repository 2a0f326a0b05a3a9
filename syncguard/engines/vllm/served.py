"""A vLLM behind its own HTTP server, on this machine."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from syncguard.engines.carrying import to_bytes
from syncguard.engines.ranks import Ranks, Reply, checked
from syncguard.engines.vllm.client import Client, Refused
from syncguard.engines.vllm.exchange import FOLDER, Exchange
from syncguard.engines.vllm.launch import server_environment
from syncguard.engines.vllm.replica import Scored, sampling
from syncguard.engines.vllm.server import Server
from syncguard.errors import EngineLost, Unsupported

__all__ = ["ServedRanks", "ServedReplica", "scored"]

_TIMEOUT_S: Final = 120.0
_MARGIN_S: Final = 15.0
"""The server's own time limit is to be met first."""

_AT_A_TIME: Final = 8
_NO_NUMBER: Final = "Out of range float values"
"""Begins what it says if it cannot tell a prompt's: JSON has no NaN."""

_NOT_FINITE: Final = -9999.0
"""What the server says of a sampled token instead of NaN and minus infinity."""


class ServedRanks:
    """The ranks behind a server.

    Args:
        client: Asks the server.
        files: Where requests and answers are.
        count: How many ranks the server has.
        first: Number of the first one among those of all replicas.
        world: How many ranks all replicas have.
    """

    def __init__(
        self, client: Client, files: Exchange, *, count: int, first: int = 0, world: int = 1
    ) -> None:
        self._client = client
        self._files = files
        self._count, self._first, self._world = count, first, world
        self._requests = itertools.count(1)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """See `syncguard.engines.ranks.Ranks`.

        Raises:
            EngineLost: The server has ended.
            Unsupported: A rank fails, is silent, or answers another question.
        """
        request = next(self._requests)
        self._files.ask(request, self._first, self._world, name, to_bytes(arguments))
        call = {
            "method": "syncguard_observe_by_file",
            "args": [str(request)],
            "timeout": _TIMEOUT_S,
        }
        try:
            told = self._client.post("/collective_rpc", call, _TIMEOUT_S + _MARGIN_S)
            replies = [self._reply(request, one) for one in told["results"]]
        except EngineLost:
            raise
        except Exception as error:
            raise Unsupported(f"{name}: a rank does not answer: {error}") from error
        finally:
            self._files.forget(request)
        return checked(replies, request, self._count, name, self._first)

    def _reply(self, request: int, told: Mapping[str, int]) -> Reply:
        """What a rank answered to this request; if it speaks of another, that is its reply."""
        if told["request"] != request:
            return told["request"], told["rank"], b"", ""
        return self._files.take(request, told["rank"])


class ServedReplica:
    """vLLM's server, started on this machine with its endpoints for weights.

    Args:
        arguments: vLLM's, see `syncguard.engines.vllm.launch.engine_arguments`.
        folder: For its files; its user's own.
        sockets: For its sockets and other temporary files.
        first: Number of its first rank among those of all replicas.
        world: How many ranks all replicas have.
        folded: Whether the compiler folds weights into its code.

    Raises:
        UsageError: It did not start.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        folder: Path,
        sockets: Path,
        *,
        first: int,
        world: int,
        folded: bool = False,
    ) -> None:
        count = int(arguments["tensor_parallel_size"])
        compiled = not arguments["enforce_eager"]
        environment = server_environment(ranks=count, compiled=compiled, folded=folded)
        files = folder / f"server{first}"
        files.mkdir(mode=0o700)
        environment |= {FOLDER: str(files), "TMPDIR": str(sockets)}
        self._server = Server(arguments, environment, folder / f"server{first}.log")
        self._client = Client(self._server)
        self.ranks: Ranks = ServedRanks(
            self._client, Exchange(files), count=count, first=first, world=world
        )
        self._requests = itertools.count(1)
        self._client.post("/init_weight_transfer_engine", {"init_info": {}})

    def release(self) -> str:
        """See `syncguard.engines.vllm.replica.Replica`."""
        return str(self._client.get("/version")["version"])

    def start_update(self) -> None:
        """See `syncguard.engines.vllm.replica.Replica`."""
        self._client.post("/start_weight_update")

    def update(self, path: str, names: Sequence[str]) -> None:
        """See `syncguard.engines.vllm.replica.Replica`."""
        bucket = {"path": path, "names": list(names)}
        self._client.post("/update_weights", {"update_info": bucket})

    def finish_update(self, version: str | None = None) -> None:
        """See `syncguard.engines.vllm.replica.Replica`."""
        told = {} if version is None else {"weight_version": version}
        self._client.post("/finish_weight_update", told)

    def reload(self, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
        """See `syncguard.engines.vllm.replica.Replica`."""
        raise Unsupported(f"{len(weights)} tensors cannot be handed to a server")

    def reload_files(self, buckets: Sequence[tuple[str, Sequence[str]]]) -> None:
        """See `syncguard.engines.vllm.replica.Replica`."""
        call = {"method": "syncguard_reload_told", "args": [json.dumps(buckets)]}
        self._client.post("/collective_rpc", call)

    def publish(self, version: str) -> None:
        """See `syncguard.engines.vllm.replica.Replica`."""
        self._client.post("/update_weight_version", {"new_version": version})

    def version(self) -> str:
        """See `syncguard.engines.vllm.replica.Replica`."""
        return str(self._client.get("/weight_info")["weight_version"])

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> list[Scored]:
        """See `syncguard.engines.vllm.replica.Replica`."""
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            return list(pool.map(lambda prompt: self._generate(prompt, tokens, seed), prompts))

    def sleep(self, level: int) -> None:
        """See `syncguard.engines.vllm.replica.Replica`."""
        self._client.post(f"/sleep?level={level}")

    def wake(self) -> None:
        """See `syncguard.engines.vllm.replica.Replica`."""
        self._client.post("/wake_up")

    def close(self) -> None:
        """See `syncguard.engines.vllm.replica.Replica`."""
        self._server.close()

    def _generate(self, prompt: Sequence[int], tokens: int, seed: int) -> Scored:
        asked = sampling(tokens, seed)
        try:
            return scored(prompt, self._answer(prompt, asked))
        except Refused as error:
            if _NO_NUMBER not in str(error):
                raise
        # Log-probabilities of the prompt that are not finite have no way out of the server.
        plain = {name: value for name, value in asked.items() if "logprobs" not in name}
        sampled = self._answer(prompt, plain)["choices"][0]["token_ids"]
        return [*prompt, *sampled], np.full(len(prompt) + len(sampled) - 1, math.nan)

    def _answer(self, prompt: Sequence[int], asked: Mapping[str, Any]) -> Any:
        identity = f"syncguard-{next(self._requests)}"
        request = {"request_id": identity, "token_ids": list(prompt), "sampling_params": asked}
        answer = self._client.post("/inference/v1/generate", request)
        if not str(answer["request_id"]).endswith(identity):
            raise Unsupported(
                f"generate: request {identity} was answered as {answer['request_id']}"
            )
        return answer


def scored(prompt: Sequence[int], answer: Mapping[str, Any]) -> Scored:
    """The sequence of one answer, and the log-probability of each token after the first."""
    choice = answer["choices"][0]
    entries = [
        *((answer["prompt_logprobs"] or [])[1:]),
        *({str(one["token_id"]): one} for one in choice["logprobs"]["content"]),
    ]
    sequence = [*prompt, *choice["token_ids"]]
    scores = [
        _finite(entry[str(token)]["logprob"]) if str(token) in entry else math.nan
        for token, entry in zip(sequence[1:], entries, strict=True)
    ]
    return sequence, np.array(scores, np.float64)


def _finite(told: float) -> float:
    return told if told > _NOT_FINITE else math.nan
