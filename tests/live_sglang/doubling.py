"""A method of experts that serves other matrices than its parameters."""

from typing import Any

import pytest

__all__ = ["serve_doubled"]


def serve_doubled(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a quantization method of experts answer twice of what it should."""
    apply = method.apply

    def doubled(layer: Any, dispatched: Any) -> Any:
        answer = apply(layer, dispatched)
        return answer._replace(hidden_states=answer.hidden_states * 2)

    monkeypatch.setattr(method, "apply", doubled)
