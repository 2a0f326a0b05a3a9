"""The table of vLLM on a CPU."""

from dataclasses import replace
from typing import Final

from syncguard.survey.cell import SurveyCell

__all__ = ["cells"]

_MODELS: Final = (
    "tiny-qwen3",
    "tiny-qwen3-tied",
    "tiny-llama",
    "tiny-qwen3-moe",
    "tiny-glm4-moe",
)
_WEIGHTS: Final = ("none", "mxfp8", "modelopt-mxfp8")
_PATHS: Final = ("transfer", "reload")
_FILES: Final = ("transfer", "extension")
"""Paths that lead to other processes."""

_CORE_AWAY: Final = {"process": "own"}
_CORE: Final = frozenset(
    {
        ("tiny-qwen3", "none", "transfer"),
        ("tiny-qwen3", "mxfp8", "transfer"),
        ("tiny-qwen3-tied", "none", "transfer"),
        ("tiny-qwen3-moe", "mxfp8", "transfer"),
        ("tiny-qwen3-moe", "none", "transfer"),
    }
)


def _finding(model: str, weights: str) -> str:
    if model.endswith("tied"):
        return "vllm_tied_head"
    return "vllm_bf16_experts" if model.endswith("moe") and weights == "none" else ""


_DENSE: Final = SurveyCell("vllm", "tiny-qwen3", "mxfp8", "transfer")
_MOE: Final = replace(_DENSE, model="tiny-qwen3-moe")
_ROUTERS_AS_IF_MIXED: Final = ("lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate")

_FREES_NOTHING: Final = "on a CPU vLLM takes no requests while it sleeps, and frees nothing"

_SPECIAL: Final = (
    replace(
        _DENSE,
        weights="modelopt-mxfp8",
        variant="router-exclusion",
        settings={"exclude": _ROUTERS_AS_IF_MIXED},
        finding="vllm_modelopt_exclusion",
        core=True,
    ),
    replace(
        _MOE,
        variant="router-quantized",
        settings={"exclude": ()},
        finding="vllm_router_quantized",
    ),
    replace(_DENSE, variant="unknown-name", scenario="unknown-name"),
    replace(_DENSE, variant="wrong-shape", scenario="wrong-shape", finding="vllm_wrong_shape"),
    replace(_DENSE, variant="cut-short", scenario="cut-short"),
    *(
        replace(cell, variant="asleep", scenario="asleep", note=_FREES_NOTHING)
        for cell in (_DENSE, _MOE, replace(_DENSE, process="server"))
    ),
)

_TWO: Final = replace(_DENSE, variant="replicas", settings={"replicas": 2})
_REPLICAS: Final = (
    _TWO,
    replace(_TWO, path="reload"),
    replace(_TWO, model="tiny-qwen3-moe"),
    replace(_TWO, process="server"),
    *(
        replace(
            _TWO,
            process=process,
            variant="replica-left-out",
            scenario="replica-left-out",
            finding="vllm_empty_update",
            core=process == "in",
        )
        for process in ("in", "server")
    ),
)

_DRAFTED: Final = replace(
    _DENSE,
    variant="draft",
    settings={"draft": "tiny-qwen3"},
    finding="vllm_drafted_sampling",
)
_DRAFTS: Final = (
    _DRAFTED,
    replace(_DRAFTED, path="reload"),
    replace(_DRAFTED, weights="none"),
    replace(_DRAFTED, process="server"),
    replace(_DRAFTED, compiled="compile"),
    replace(_DRAFTED, process="tp2", settings={**_DRAFTED.settings, "ranks": 2}),
    replace(_DRAFTED, model="tiny-glm4-moe", variant="mtp", settings={"draft": "tiny-glm4-moe"}),
)
"""A model of its own that drafts, and the layer for it that a model brings."""

_RANKS: Final = tuple(
    replace(
        _DENSE,
        model=model,
        weights=weights,
        process="tp2",
        settings={"ranks": 2},
        finding=_finding(model, weights),
    )
    for model, weights in (
        ("tiny-qwen3", "none"),
        ("tiny-qwen3", "mxfp8"),
        ("tiny-qwen3", "modelopt-mxfp8"),
        ("tiny-qwen3-tied", "none"),
        ("tiny-qwen3-moe", "none"),
        ("tiny-qwen3-moe", "mxfp8"),
        ("tiny-glm4-moe", "mxfp8"),
    )
)

_ELSEWHERE: Final = (
    replace(_DENSE, process="own"),
    *(replace(_DENSE, process="server", path=path) for path in _FILES),
    *(replace(_DENSE, process="server", weights=weights) for weights in ("none", "modelopt-mxfp8")),
    replace(_MOE, process="server"),
    *(replace(_DENSE, process="mp", settings=_CORE_AWAY, path=path) for path in _FILES),
    replace(_MOE, process="mp", settings=_CORE_AWAY),
    *(replace(model, path="extension") for model in (_DENSE, _MOE)),
    replace(_DENSE, path="extension", process="tp2", settings={"ranks": 2}),
    *(
        replace(model, weights=weights, compiled="compile")
        for model in (_DENSE, _MOE)
        for weights in ("mxfp8", "modelopt-mxfp8")
    ),
    replace(_DENSE, weights="none", compiled="compile"),
    replace(_DENSE, compiled="compile", variant="folded", settings={"folded": True}),
    replace(
        _DENSE,
        weights="none",
        process="own",
        compiled="compile",
        variant="folded",
        settings={"folded": True},
        finding="vllm_folded_handlers",
    ),
)

_INT8: Final = tuple(
    replace(_DENSE, model=model, weights="int8-w8a8", path=path, finding="vllm_int8_scales")
    for model in ("tiny-qwen3", "tiny-llama")
    for path in _PATHS
)


def cells() -> list[SurveyCell]:
    """Models, weights and paths in every combination; then what is special, and what is missing."""
    crossed = [
        SurveyCell(
            "vllm",
            model,
            weights,
            path,
            finding=_finding(model, weights),
            core=(model, weights, path) in _CORE,
        )
        for model in _MODELS
        for weights in _WEIGHTS
        for path in _PATHS
    ]
    return [
        *crossed,
        *_INT8,
        *_SPECIAL,
        *_REPLICAS,
        *_DRAFTS,
        *_RANKS,
        *_ELSEWHERE,
    ]
