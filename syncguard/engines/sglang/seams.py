"""The seams of a live SGLang engine: the callables where a fault can be armed."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from sglang.srt.layers.quantization import fp8

from syncguard.engines.sglang.layers import experts_kernel_of, held_weights, kernel_of
from syncguard.engines.sglang.observe import derived_names
from syncguard.seams import Seam, Seams

__all__ = ["engine_seams"]

_OBSERVATIONS: Final = (
    "layers",
    "poison",
    "probe_blocks",
    "probe_exact",
    "probe_random",
    "rederive",
    "state",
    "storage",
    "weight_prints",
)
_SITE: Final = "engine"


def engine_seams(engine: Any, model: Any, session: Any) -> Seams:
    """Everything on a live engine that a fault can replace, without touching SGLang's files."""
    seams: Seams = {
        "flush": {_SITE: Seam(session, "end")},
        "load": {_SITE: Seam(model, "load_weights")},
        "observe": {name: Seam(engine, name) for name in _OBSERVATIONS},
        "receive": {_SITE: Seam(session, "update")},
        "version": {
            "commit": Seam(session, "commit"),
            "version": Seam(engine, "version"),
        },
    }
    for name in ("begin", "finish", "generate", "send"):
        seams[name] = {_SITE: Seam(engine, name)}
    modules = {held.path: held.module for held in held_weights(model)}
    if any(map(_quantizes, modules.values())):
        seams["quantizer"] = {_SITE: Seam(fp8, "mxfp8_group_quantize")}
    for path, module in modules.items():
        for name, site, seam in _module_seams(path, module):
            seams.setdefault(name, {})[site] = seam
    return seams


def _module_seams(path: str, module: Any) -> Iterator[tuple[str, str, Seam]]:
    for name, parameter in module._parameters.items():
        private = parameter is not None and hasattr(parameter, "_weight_loader")
        if private or getattr(parameter, "weight_loader", None) is not None:
            attribute = "_weight_loader" if private else "weight_loader"
            yield "loader", f"{path}.{name}", Seam(parameter, attribute)
    method = getattr(module, "quant_method", None)
    if method is None:
        return
    yield "kernel", path, Seam(method, "apply")
    yield "process", path, Seam(method, "process_weights_after_loading")
    if experts_kernel_of(module) is not None:
        yield "post_process", path, Seam(method, "_process_mxfp8_moe_weights")
    if kernel_of(module) is None:
        return
    yield "post_process", path, Seam(method, "_process_mxfp8_linear_weight_scale")
    for name in derived_names(module):
        yield "storage", f"{path}.{name}", Seam(fp8, "copy_or_rebind_param", _is(module, name))


def _quantizes(module: Any) -> bool:
    """Whether SGLang makes the layer's elements and scales; serialized ones come made."""
    return kernel_of(module) is not None and not module.quant_method.is_checkpoint_fp8_serialized


def _is(wanted: object, name: str) -> Callable[..., bool]:
    return lambda module, held, *_: module is wanted and held == name
