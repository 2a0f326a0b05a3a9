"""What a vLLM behind its server answers belongs to what it was asked."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syncguard.engines.carrying import from_bytes, to_bytes
from syncguard.engines.vllm.client import Refused
from syncguard.engines.vllm.exchange import FOLDER, Exchange
from syncguard.engines.vllm.launch import server_environment
from syncguard.engines.vllm.served import ServedRanks, ServedReplica, scored
from syncguard.errors import EngineLost, Unsupported

Worker = Callable[[Exchange, int], dict[str, int]]


class Told:
    """A client whose workers answer as they are told to."""

    def __init__(self, files: Exchange, *workers: Worker) -> None:
        self.files, self.workers = files, workers
        self.calls: list[Any] = []

    def post(self, path: str, value: Any, timeout_s: float) -> Any:
        self.calls.append((path, value))
        (number,) = value["args"]
        return {"results": [worker(self.files, int(number)) for worker in self.workers]}


def rank(number: int) -> Worker:
    """A rank that answers with what it is asked."""

    def answering(files: Exchange, request: int) -> dict[str, int]:
        first, world, name, arguments = files.request(request)
        answer = (first, world, name, from_bytes(arguments))
        files.answer((request, number, to_bytes(answer), ""))
        return {"request": request, "rank": number}

    return answering


def failing(files: Exchange, request: int) -> dict[str, int]:
    files.answer((request, 1, b"", "RuntimeError: out of memory"))
    return {"request": request, "rank": 1}


def late(files: Exchange, request: int) -> dict[str, int]:
    """Still answers the question before."""
    files.answer((request - 1, 1, to_bytes("old"), ""))
    return {"request": request - 1, "rank": 1}


def mute(files: Exchange, request: int) -> dict[str, int]:
    """Says that it has answered, and has not."""
    return {"request": request, "rank": 1}


def ranks(folder: Path, *workers: Worker) -> ServedRanks:
    files = Exchange(folder)
    client: Any = Told(files, *workers)
    return ServedRanks(client, files, count=2, first=2, world=4)


def test_requests_and_answers_are_files_and_only_a_number_travels(tmp_path: Path) -> None:
    files = Exchange(tmp_path)
    client: Any = Told(files, rank(1), rank(0))
    asked = ServedRanks(client, files, count=2, first=2, world=4)
    assert asked.ask("fetch_rows", "q", [1, 2]) == [(2, 4, "fetch_rows", ("q", [1, 2]))] * 2
    asked.ask("layers")
    assert [call["args"] for _, call in client.calls] == [["1"], ["2"]]
    assert client.calls[0][0] == "/collective_rpc"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        ((rank(0), failing), "layers: rank 3: RuntimeError: out of memory"),
        ((rank(0), late), "layers: rank 3 answered request 0, not 1"),
        ((rank(0), mute), "layers: a rank does not answer: .*1.1.reply"),
        ((rank(0),), "layers: no answer from rank 3"),
    ],
)
def test_nobody_answers_for_another(workers: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=told):
        ranks(tmp_path, *workers).ask("layers")


def test_a_server_that_is_gone_is_no_rank_that_is_silent(tmp_path: Path) -> None:
    def gone(files: Exchange, request: int) -> dict[str, int]:
        raise EngineLost("the engine is gone")

    with pytest.raises(EngineLost):
        ranks(tmp_path, gone).ask("layers")


def test_the_folder_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    Exchange(tmp_path).ask(5, 0, 1, "layers", b"x")
    assert Exchange.of_environment().request(5) == (0, 1, "layers", b"x")
    monkeypatch.delenv(FOLDER)
    with pytest.raises(KeyError, match=FOLDER):
        Exchange.of_environment()


def answer(*, prompt: list[Any] | None, sampled: list[tuple[int, float]]) -> dict[str, Any]:
    content = [{"token_id": token, "logprob": value} for token, value in sampled]
    tokens = [token for token, _ in sampled]
    return {
        "prompt_logprobs": prompt,
        "choices": [{"token_ids": tokens, "logprobs": {"content": content}}],
    }


def test_prompt_and_continuation_are_scored_together() -> None:
    told = answer(
        prompt=[None, {"6": {"logprob": -1.5}}, {"9": {"logprob": -2.0}, "7": {"logprob": -0.5}}],
        sampled=[(8, -0.25)],
    )
    sequence, scores = scored([5, 6, 7], told)
    assert sequence == [5, 6, 7, 8]
    assert scores.tolist() == [-1.5, -0.5, -0.25]


def test_what_the_server_clamps_is_not_finite() -> None:
    told = answer(prompt=[None, {"9": {"logprob": -1.0}}], sampled=[(8, -9999.0), (3, -9998.0)])
    _, scores = scored([5, 6], told)
    assert [math.isnan(score) for score in scores] == [True, True, False]


class Generating:
    """A client of a server that generates, as far as it can."""

    def __init__(self, *, refusal: str = "", identity: str = "") -> None:
        self.refusal, self.identity = refusal, identity

    def post(self, path: str, asked: Any) -> Any:
        assert path == "/inference/v1/generate"
        if self.refusal and "prompt_logprobs" in asked["sampling_params"]:
            raise Refused(f"{path}: 400: {self.refusal}")
        told = answer(prompt=[None, {"6": {"logprob": -1.5}}], sampled=[(8, -0.5)])
        return told | {"request_id": f"generate-tokens-{self.identity or asked['request_id']}"}


def generated(client: Any) -> Any:
    replica = object.__new__(ServedReplica)
    vars(replica).update(_client=client, _requests=itertools.count(1))
    return replica.generate([[5, 6]], 1, 0)[0]


def test_an_answer_to_another_request_is_none() -> None:
    assert generated(Generating())[1].tolist() == [-1.5, -0.5]
    with pytest.raises(Unsupported, match="syncguard-1 was answered as generate-tokens-other"):
        generated(Generating(identity="other"))


def test_log_probabilities_that_json_cannot_hold_are_not_finite() -> None:
    sequence, scores = generated(Generating(refusal="Out of range float values are not JSON"))
    assert sequence == [5, 6, 8]
    assert [math.isnan(score) for score in scores] == [True, True]
    with pytest.raises(Refused, match="400: too long"):
        generated(Generating(refusal="too long"))


def test_a_server_is_not_told_what_this_process_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setenv("KEPT", "1")
    eager, compiled = server_environment(), server_environment(compiled=True)
    assert eager["VLLM_SERVER_DEV_MODE"] == eager["KEPT"] == eager["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in compiled
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in eager
