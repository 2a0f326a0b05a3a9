"""The table of SGLang on a CPU."""

from dataclasses import replace
from typing import Final

from syncguard.survey.cell import SurveyCell

__all__ = ["cells"]

_MODELS: Final = ("tiny-qwen3", "tiny-qwen3-tied", "tiny-llama")
_WEIGHTS: Final = ("none", "mxfp8", "mxfp8-online", "mxfp8-trtllm")
_PATHS: Final = ("session", "flattened", "loader", "disk")
_CORE: Final = frozenset(
    {
        ("tiny-qwen3", "mxfp8", "session"),
        ("tiny-qwen3-tied", "none", "session"),
        ("tiny-llama", "mxfp8", "session"),
    }
)

_DENSE: Final = SurveyCell("sglang", "tiny-qwen3", "mxfp8", "session")
_SHUFFLED: Final = replace(_DENSE, weights="mxfp8-trtllm")
_EXPERTS: Final = replace(_DENSE, model="tiny-qwen3-moe-wide")
_AGAIN: Final = "sglang_trtllm_partial_session"

_SPECIAL: Final = (
    *(
        replace(cell, variant=scenario, scenario=scenario)
        for cell in (_DENSE, _SHUFFLED)
        for scenario in ("one-bucket", "many-buckets")
    ),
    *(
        replace(cell, variant=scenario, scenario=scenario, finding=finding, core=bool(finding))
        for cell, finding in ((_DENSE, ""), (_SHUFFLED, _AGAIN))
        for scenario in ("empty-session", "some-layers")
    ),
    replace(
        _DENSE, model="tiny-qwen3-moe", weights="none", finding="sglang_qwen3_moe_dense_layers"
    ),
    replace(_DENSE, process="own"),
    replace(_DENSE, weights="none", process="own"),
    replace(_EXPERTS, process="own"),
    *(
        replace(_EXPERTS, weights=weights, path=path, core=(weights, path) == ("mxfp8", "session"))
        for weights in ("none", "mxfp8")
        for path in _PATHS
    ),
    *(replace(_DENSE, model="tiny-glm4-moe", weights="none", path=path) for path in _PATHS),
    *(
        replace(_DENSE, model=model, weights=weights, process="tp2", settings={"ranks": 2})
        for model, weights in (
            ("tiny-qwen3", "none"),
            ("tiny-qwen3-tied", "none"),
            ("tiny-qwen3-wide", "mxfp8"),
            ("tiny-qwen3-wide", "mxfp8-trtllm"),
            ("tiny-qwen3-moe-wide", "none"),
            ("tiny-qwen3-moe-wide", "mxfp8"),
        )
    ),
)

_NOT_YET: Final = (
    *(
        (
            replace(_DENSE, model=model),
            "SGLang pads experts of width 192 for its kernel, and a probe would see the padding",
        )
        for model in ("tiny-qwen3-moe", "tiny-glm4-moe")
    ),
    (replace(_DENSE, process="server"), "the adapter has no client for the HTTP server"),
    (replace(_DENSE, path="distributed"), "the adapter joins no process group of the learner"),
)


def cells() -> list[SurveyCell]:
    """Models, weights and paths in every combination; then what is special, and what is missing."""
    crossed = [
        SurveyCell(
            "sglang",
            model,
            weights,
            path,
            finding=_finding(model, weights),
            missing=_missing(model, weights),
            core=(model, weights, path) in _CORE,
        )
        for model in _MODELS
        for weights in _WEIGHTS
        for path in _PATHS
    ]
    return [*crossed, *_SPECIAL, *(replace(cell, missing=why) for cell, why in _NOT_YET)]


def _missing(model: str, weights: str) -> str:
    narrow = model.endswith("llama") and weights == "mxfp8-trtllm"
    return "TRT-LLM's scales come in groups of 128 columns, and it has 96" if narrow else ""


def _finding(model: str, weights: str) -> str:
    if weights == "mxfp8-online":
        return "sglang_online_mxfp8"
    return "sglang_llama_block_scales" if (model, weights) == ("tiny-llama", "mxfp8") else ""
