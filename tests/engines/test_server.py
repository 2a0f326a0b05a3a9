"""vLLM's server as a process, and what is asked of it, with another server in its place."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from syncguard.engines.vllm.client import Client, Refused
from syncguard.engines.vllm.server import Server, command_line
from syncguard.errors import EngineLost, Unsupported, UsageError
from tests.engines import standin_server
from tests.engines.test_supervising import ends


@contextmanager
def serving(folder: Path, *words: str, timeout_s: float = 30.0) -> Iterator[Server]:
    def command(port: int) -> list[str]:
        return [sys.executable, standin_server.__file__, str(port), *words]

    server = Server({}, {}, folder / "log", timeout_s, command)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


def test_arguments_become_words() -> None:
    arguments = {
        "model": "m",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "max_model_len": 8,
        "weight_transfer_config": {"backend": "b"},
    }
    assert command_line(arguments)[:7] == [
        *("--model", "m", "--enforce-eager", "--no-enable-prefix-caching", "--max-model-len", "8"),
        "--weight-transfer-config",
    ]
    assert command_line(arguments)[7] == '{"backend": "b"}'
    assert "--enable-scale-out" in command_line(arguments)


def test_values_go_and_come(server: Server) -> None:
    assert Client(server).post("/echo", {"a": [1, "b"]}) == {"a": [1, "b"]}
    assert Client(server).get("/version") == {"version": "1"}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"status": 500, "text": '{"error": {"message": "no such weight"}}'},
            "500: no such weight",
        ),
        ({"status": 400, "text": '{"detail": "not an object"}'}, "400: not an object"),
        ({"status": 404, "text": "Not Found"}, "404: Not Found"),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(
    asked: dict[str, Any], told: str, server: Server
) -> None:
    with pytest.raises(Refused, match=f"^/answer: {told}$"):
        Client(server).post("/answer", asked)


def test_no_json_is_no_answer(server: Server) -> None:
    with pytest.raises(Unsupported, match="/answer: no JSON: hello"):
        Client(server).post("/answer", {"status": 200, "text": "hello"})


def test_a_late_answer_is_not_waited_for(server: Server) -> None:
    client = Client(server)
    with pytest.raises(Unsupported, match=r"/slow: the server did not answer within 0\.2 s"):
        client.post("/slow", {"seconds": 1.0, "number": 1}, timeout_s=0.2)
    assert client.post("/slow", {"seconds": 0.0, "number": 2}) == {"seconds": 0.0, "number": 2}


def test_a_server_that_ends_is_lost(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = Client(server)
        with pytest.raises(EngineLost, match=r"(?s)exit code 3; it wrote: .*going down"):
            client.post("/end", {"code": 3})
        with pytest.raises(EngineLost, match="the engine is gone: its process ended"):
            client.get("/version")


def test_a_server_that_does_not_start_tells_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told, serving(tmp_path, "broken"):
        pass
    assert "vLLM's server did not start" in str(told.value)
    assert "ended with exit code 1; it wrote: " in str(told.value)
    assert "ValueError: no such model" in str(told.value)
    assert "what to do: run the same with --process own" in str(told.value)


def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    text = r"did not answer within 0\.5 s"
    with pytest.raises(UsageError, match=text), serving(tmp_path, "mute", timeout_s=0.5):
        pass
    assert time.monotonic() - began < 15


def test_what_a_killed_supervisor_leaves_is_ended(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = Client(server)
        child = client.get("/child")["pid"]
        os.kill(server._process.pid, signal.SIGKILL)
        server._process.wait(10)
        with pytest.raises(EngineLost, match="killed by SIGKILL"):
            client.get("/version")
    assert ends(child)


def test_close_ends_it_and_may_be_called_again(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = Client(server)
        server.close()
        with pytest.raises(EngineLost):
            client.get("/version")
