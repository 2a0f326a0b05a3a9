"""Speaks HTTP with vLLM's server."""

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final

from syncguard.engines.vllm.server import HOST, Server
from syncguard.errors import SyncguardError, Unsupported

__all__ = ["Client", "Refused"]

_SHOWN: Final = 500
_WRONG: Final = 400


class Refused(SyncguardError):
    """The server answered that it could not do what it was asked for."""


class Client:
    """Asks one server; each request has a connection of its own, so no answer is another's.

    Args:
        server: The server.
        timeout_s: Limit for each answer.
    """

    def __init__(self, server: Server, timeout_s: float = 300.0) -> None:
        self._server = server
        self._timeout_s = timeout_s

    def get(self, path: str) -> Any:
        """Ask for something; see `post`."""
        return self._ask("GET", path, None, self._timeout_s)

    def post(
        self, path: str, value: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> Any:
        """Send a JSON value, and give the one that is answered.

        Args:
            path: The endpoint.
            value: What to send.
            timeout_s: Limit for the answer, if not the usual one.

        Raises:
            EngineLost: The server has ended.
            Refused: It answered with an error; the text is its own.
            Unsupported: It did not answer in time, or not in JSON.
        """
        return self._ask("POST", path, value or {}, timeout_s or self._timeout_s)

    def _ask(self, method: str, path: str, value: Any, timeout_s: float) -> Any:
        self._server.require()
        connection = http.client.HTTPConnection(HOST, self._server.port, timeout=timeout_s)
        body = None if value is None else json.dumps(value)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text, status = answer.read().decode("utf-8", "replace"), answer.status
        except TimeoutError:
            raise Unsupported(f"{path}: the server did not answer within {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            self._server.require_soon()
            raise Unsupported(f"{path}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if status >= _WRONG:
            raise Refused(f"{path}: {status}: {_message(text)}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise Unsupported(f"{path}: no JSON: {text[:_SHOWN]}") from error


def _message(text: str) -> str:
    """What an error says: vLLM puts it into an object."""
    try:
        told = json.loads(text)
        told = told.get("error", told.get("detail", told))
        return str(told["message"] if isinstance(told, dict) else told)[:_SHOWN]
    except (AttributeError, KeyError, ValueError):
        return text[:_SHOWN]
