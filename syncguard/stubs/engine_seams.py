"""The seams of the stub engine, by name and site.

Sites are paths in the model, with the rank in front where there are several; parts of a parameter
and derived tensors follow their path. The signatures of the callables are those of the methods
that are named here.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from syncguard.seams import Seam, Seams
from syncguard.stubs.experts import ExpertLayer

__all__ = ["engine_seams"]

_OBSERVATIONS: Final = (
    "environment",
    "fetch_rows",
    "graph_reads",
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


def engine_seams(engine: Any) -> Seams:
    """Everything on a stub engine that a fault can replace; made anew after a restart."""
    seams: Seams = {
        "backend": {_SITE: Seam(engine.config, "choose_layout", build=True)},
        "exclusion": {_SITE: Seam(engine.config, "is_excluded", build=True)},
        "graph": {_SITE: Seam(engine, "capture")},
        "observe": {name: Seam(engine, name) for name in _OBSERVATIONS},
        "version": {name: Seam(engine, name) for name in ("commit", "version")},
    }
    for name in ("admit", "begin", "finish", "flush", "generate", "send", "sleep", "wake"):
        seams[name] = {_SITE: Seam(engine, name)}
    seams["backup"] = {_SITE: Seam(engine.memory, "keeps")} | {
        path: Seam(engine.memory, "keeps", _first_is(path)) for path in engine.memory.lasting()
    }
    seams["cache"] = {
        f"replica{number} {kind}.{method}": Seam(cache, method)
        for number, server in enumerate(engine.servers)
        for kind, cache in (("prefix", server.prefixes), ("encoder", server.encoded))
        for method in ("find", "keep", "reset")
    }
    for receiver in engine.receivers:
        for method in ("load", "receive", "route"):
            seams.setdefault(method, {})[f"rank{receiver.rank.number}"] = Seam(receiver, method)
    for rank in engine.ranks:
        for layer in rank.stub_layers:
            for name, site, seam in _layer_seams(layer):
                seams.setdefault(name, {})[f"{engine.prefix(rank)}{site}"] = seam
    return seams


def _layer_seams(layer: Any) -> Iterator[tuple[str, str, Seam]]:
    path = layer.path
    if layer.shards:
        yield "stage", path, Seam(layer.reload, "stage")
        yield "fold", path, Seam(layer.reload, "fold")
    for shard in layer.shards:
        loader = layer.loaders[shard.parameter]
        parts = [shard.shard, str(shard.slot) if shard.slot >= 0 else ""]
        label = ",".join(part for part in parts if part)
        site = f"{path}.{shard.parameter}" + (f"[{label}]" if label else "")
        yield "loader", site, Seam(loader, "write", _third_is(shard))
    if isinstance(layer, ExpertLayer):
        yield "placement", path, Seam(layer, "slots_of")
    if layer.quant_method is not None:
        yield from _kernel_seams(layer, path)


def _kernel_seams(layer: Any, path: str) -> Iterator[tuple[str, str, Seam]]:
    if layer.shards:
        yield "process", path, Seam(layer.quant_method, "process_weights_after_loading")
    if hasattr(layer.quant_method, "quantize"):
        yield "quantizer", path, Seam(layer.quant_method, "quantize")
    reordered = any(layer.kernel.order(layer, matrix) for matrix in layer.matrices)
    if reordered or layer.kernel.installed(layer):
        yield "post_process", path, Seam(layer.kernel, "process_weights_after_loading")
    if layer.kind == "embedding":
        yield "kernel", path, Seam(layer, "lookup")
    elif layer.matrices:
        yield "kernel", path, Seam(layer.kernel, "compute")
    if hasattr(layer.kernel, "take_levels") and layer.kernel.layout.two_level:
        yield "level", path, Seam(layer.kernel, "take_levels")
    for name in layer.kernel.installed(layer):
        yield "storage", f"{path}.{name}", Seam(layer.kernel, "install", _second_is(name))


def _first_is(wanted: object) -> Callable[..., bool]:
    return lambda first, *_: bool(first == wanted)


def _second_is(wanted: object) -> Callable[..., bool]:
    return lambda _, second, *__: bool(second == wanted)


def _third_is(wanted: object) -> Callable[..., bool]:
    return lambda _, __, third: third is wanted
