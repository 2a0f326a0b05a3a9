"""The seams of a live SGLang: the callables where a fault can be armed."""

from collections.abc import Callable, Iterator
from typing import Any

from sglang.srt.layers.quantization import fp8

from syncguard.engines.calls import SITE
from syncguard.engines.sglang.layers import experts_kernel_of, held_weights, kernel_of
from syncguard.engines.sglang.observe import derived_names
from syncguard.seams import Seam, Seams

__all__ = ["rank_seams", "session_seams"]


def rank_seams(model: Any) -> Seams:
    """Everything in the process of one rank that a fault can replace, without touching files."""
    seams: Seams = {"load": {SITE: Seam(model, "load_weights")}}
    modules = {held.path: held.module for held in held_weights(model)}
    if any(map(_quantizes, modules.values())):
        seams["quantizer"] = {SITE: Seam(fp8, "mxfp8_group_quantize")}
    for path, module in modules.items():
        for name, site, seam in _module_seams(path, module):
            seams.setdefault(name, {})[site] = seam
    return seams


def session_seams(session: Any) -> Seams:
    """The seams of a session of updates, in the process that opens it."""
    return {
        "flush": {SITE: Seam(session, "end")},
        "receive": {SITE: Seam(session, "update")},
        "version": {"commit": Seam(session, "commit")},
    }


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
