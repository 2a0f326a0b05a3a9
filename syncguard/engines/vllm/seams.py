"""The seams of one rank of a live vLLM: the callables where a fault can be armed."""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from vllm.model_executor.layers.quantization.online import mxfp8
from vllm.model_executor.model_loader.reload import layerwise

from syncguard.engines.calls import SITE
from syncguard.engines.vllm.kernel import kernel_of
from syncguard.engines.vllm.layers import held_weights
from syncguard.engines.vllm.observe import derived_names
from syncguard.seams import Seam, Seams

__all__ = ["rank_seams"]


def rank_seams(model: Any, worker: Any) -> Seams:
    """Everything in the process of one rank that a fault can replace, without touching files."""
    transfer = worker.weight_transfer_engine
    seams: Seams = {
        "flush": {SITE: Seam(transfer, "finish_weight_update")},
        "load": {SITE: Seam(model, "load_weights")},
        "receive": {SITE: Seam(transfer, "receive_weights")},
    }
    modules = {held.path: held.module for held in held_weights(model)}
    if any(map(_quantizes, modules.values())):
        seams["quantizer"] = {SITE: Seam(mxfp8, "mxfp8_e4m3_quantize")}
    for path, module in modules.items():
        for name, site, seam in _module_seams(path, module):
            seams.setdefault(name, {})[site] = seam
    return seams


def _quantizes(module: Any) -> bool:
    """Whether vLLM makes a module's elements and scales; serialized ones come made."""
    of = type(getattr(module, "quant_method", None)).__module__
    return of == str(mxfp8.__name__)


def _module_seams(path: str, module: Any) -> Iterator[tuple[str, str, Seam]]:
    yield "fold", path, Seam(layerwise, "_copy_and_restore_kernel_tensors", _first_is(module))
    yield from _loader_seams(path, module)
    method = getattr(module, "quant_method", None)
    if method is None:
        return
    yield "process", path, Seam(method, "process_weights_after_loading")
    kernel = kernel_of(module)
    if not hasattr(kernel, "apply_weights"):  # none, or that of experts, which syncs replace
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
            yield "loader", f"{path}.{name}", Seam(_Loader(recorded, module), "call")


class _Loader:
    """The innermost loader of one recorded parameter, as an attribute that can be replaced.

    vLLM wraps loaders in its own, which it takes off again to write, and it records a module's
    method bound to a placeholder, which it binds to the module when a reload begins. A replacement
    must pass for such a method.
    """

    def __init__(self, recorded: Any, module: Any) -> None:
        self._recorded, self._module = recorded, module
        held = vars(recorded)
        self._name = "_weight_loader" if "_weight_loader" in held else "weight_loader"
        self._outer: Any = None

    @property
    def call(self) -> Callable[..., Any]:
        """The loader, bound to the module where it is one of its methods."""
        innermost = _unwrapped(vars(self._recorded)[self._name])[-1]
        if isinstance(innermost, types.MethodType):
            return types.MethodType(innermost.__func__, self._module)
        loader: Callable[..., Any] = innermost
        return loader

    @call.setter
    def call(self, replacement: Callable[..., Any]) -> None:
        *_, innermost = chain = _unwrapped(vars(self._recorded)[self._name])
        passing: Any = replacement
        if isinstance(innermost, types.MethodType):
            passing = types.MethodType(_without_self(replacement), innermost.__self__)
        self._outer = chain[-2] if len(chain) > 1 else None
        self._kept = innermost
        if self._outer is not None:
            self._outer.__wrapped__ = passing
        else:
            vars(self._recorded)[self._name] = passing

    @call.deleter
    def call(self) -> None:
        if self._outer is not None:
            self._outer.__wrapped__ = self._kept
        else:
            vars(self._recorded)[self._name] = self._kept


def _unwrapped(loader: Any) -> list[Any]:
    """A loader and what it wraps, vLLM's own wrappers taken off one by one."""
    chain = [loader]
    while getattr(chain[-1], "__name__", "") == "online_process_loader":
        chain.append(chain[-1].__wrapped__)
    return chain


def _without_self(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: object, *args: Any, **kwargs: Any) -> Any:
        del self
        return function(*args, **kwargs)

    # As of a method: what looks for its parameters must not find those of a plain function.
    original = inspect.unwrap(function)
    vars(method).pop("__wrapped__")
    vars(method)["__signature__"] = inspect.signature(getattr(original, "__func__", original))
    return method


def _first_is(wanted: object) -> Callable[..., bool]:
    return lambda first, *_: first is wanted


def _second_is(wanted: object) -> Callable[..., bool]:
    return lambda _, second, *__: bool(second == wanted)
