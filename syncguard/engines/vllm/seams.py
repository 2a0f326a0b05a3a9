"""The seams of a live vLLM engine: the callables where a fault can be armed."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from vllm.model_executor.layers.quantization.online import mxfp8
from vllm.model_executor.model_loader.reload import layerwise

from syncguard.engines.vllm.kernel import kernel_of
from syncguard.engines.vllm.layers import held_weights
from syncguard.engines.vllm.observe import derived_names
from syncguard.seams import Seam, Seams

__all__ = ["engine_seams"]

_OBSERVATIONS: Final = (
    "layers",
    "poison",
    "probe_exact",
    "probe_random",
    "rederive",
    "state",
    "storage",
    "weight_prints",
)
_SITE: Final = "engine"


def engine_seams(engine: Any, model: Any, worker: Any) -> Seams:
    """Everything on a live engine that a fault can replace, without touching vLLM's files."""
    transfer = worker.weight_transfer_engine
    seams: Seams = {
        "flush": {_SITE: Seam(transfer, "finish_weight_update")},
        "load": {_SITE: Seam(model, "load_weights")},
        "observe": {name: Seam(engine, name) for name in _OBSERVATIONS},
        "quantizer": {_SITE: Seam(mxfp8, "mxfp8_e4m3_quantize")},
        "receive": {_SITE: Seam(transfer, "receive_weights")},
        "version": {"version": Seam(engine, "version")},
    }
    for name in ("begin", "finish", "generate", "send"):
        seams[name] = {_SITE: Seam(engine, name)}
    modules = {held.path: held.module for held in held_weights(model)}
    for path, module in modules.items():
        for name, site, seam in _module_seams(path, module):
            seams.setdefault(name, {})[site] = seam
    return seams


def _module_seams(path: str, module: Any) -> Iterator[tuple[str, str, Seam]]:
    yield "fold", path, Seam(layerwise, "_copy_and_restore_kernel_tensors", _first_is(module))
    yield from _loader_seams(path, module)
    method = getattr(module, "quant_method", None)
    if method is None:
        return
    yield "process", path, Seam(method, "process_weights_after_loading")
    kernel = kernel_of(module)
    if kernel is None:
        yield "kernel", path, Seam(method, "apply")
        return
    yield "kernel", path, Seam(kernel, "apply_weights")
    yield "post_process", path, Seam(kernel, "process_weights_after_loading")
    for name in derived_names(module):
        yield "storage", f"{path}.{name}", Seam(kernel, "install", _second_is(name))


def _loader_seams(path: str, module: Any) -> Iterator[tuple[str, str, Seam]]:
    """A reload takes each loader from the metadata that was recorded at start."""
    parameters, _ = layerwise.get_layerwise_info(module).restore_metadata
    for name, recorded in parameters.items():
        if getattr(recorded, "weight_loader", None) is not None:
            yield "loader", f"{path}.{name}", Seam(recorded, "weight_loader")


def _first_is(wanted: object) -> Callable[..., bool]:
    return lambda first, *_: first is wanted


def _second_is(wanted: object) -> Callable[..., bool]:
    return lambda _, second, *__: bool(second == wanted)
