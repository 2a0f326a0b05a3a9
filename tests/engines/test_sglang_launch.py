"""What an engine of SGLang is refused before it starts."""

from pathlib import Path

import pytest

from syncguard.engines.sglang.launch import require_widths
from syncguard.engines.starting import one_core_each
from syncguard.errors import UsageError
from syncguard.models import resolve_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_ranks_that_would_hold_too_little_are_refused(models: Path) -> None:
    path = resolve_model("tiny-qwen3", models).path
    with pytest.raises(UsageError) as refused:
        require_widths(path, "mxfp8", 2)
    assert str(refused.value) == (
        "the MXFP8 kernels refuse what each of 2 ranks would hold of o_proj\n"
        "  expected: at least 128 columns\n"
        "  got: 64\n"
        "  what to do: take a wider model, such as tiny-qwen3-wide or tiny-qwen3-moe-wide, or "
        "fewer ranks"
    )


@pytest.mark.parametrize(
    ("model", "quantization", "ranks"),
    [
        ("tiny-qwen3", "none", 2),
        ("tiny-qwen3", "mxfp8", 1),
        ("tiny-qwen3-wide", "mxfp8", 2),
        ("tiny-qwen3-moe-wide", "mxfp8", 2),
    ],
)
def test_whatever_is_wide_enough_is_not(
    model: str, quantization: str, ranks: int, models: Path
) -> None:
    require_widths(resolve_model(model, models).path, quantization, ranks)


def test_ranks_have_a_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {7, 3, 5})
    assert one_core_each(2) == "3|5"
    with pytest.raises(UsageError, match="4 ranks need a core each, and this process may use 3"):
        one_core_each(4)
