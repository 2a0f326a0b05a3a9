"""Faults that break C4: captured graphs and kernels read other storage than the sync writes."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import fault, fault_table
from syncguard.faults.world import World

__all__ = ["constants_made_again", "parameters_rebound", "workspace_made_again"]

_MOVED: Final = "storage-identity"
_SCALES: Final = ("_scale", "_scale_inv")
_EXPERTS: Final = {"layers": 1, "experts": 4}


_REBOUND: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "derived-tensor-rebound": {
            "what": "Post-processing makes a new derived tensor and binds it in the old one's "
            "place.",
            "shows": "A captured graph goes on reading the old one: the old policy answers. Copy "
            "into the old storage.",
            "sites": lambda site: not site.startswith("lm_head"),
            "met": "F6",
        },
        "absorbed-product-rebound": {
            "what": "The absorbed products of latent attention are assigned instead of copied.",
            "shows": "``contiguous()`` gives a new address at each update, and the graph reads "
            "the first. The old policy answers.",
            "topology": {"attention": "mla", "kv_heads": 4},
            "sites": lambda site: site.endswith(("w_kc", "w_vc")),
            "met": "F6 W07 W08",
            "links": (
                "https://github.com/sgl-project/sglang/pull/4961",
                "https://github.com/vllm-project/vllm-ascend/pull/7473",
            ),
        },
    }
)


def _derived_rebound(world: World, site: str) -> Iterator[None]:
    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def bind(layer: Any, name: str, fresh: torch.Tensor) -> None:
            held = getattr(layer, name, None)
            world.fire(held is not None)
            if held is None:
                original(layer, name, fresh)
            elif isinstance(held, torch.nn.Parameter):
                setattr(layer, name, torch.nn.Parameter(fresh, requires_grad=False))
            else:
                setattr(layer, name, fresh)

        return bind

    with world.wrap("storage", site, wrapper):
        yield


fault_table(_REBOUND, lambda: _derived_rebound, breaks="C4", claimed_by=_MOVED, seam="storage")


def _holding(world: World, seam: str, name: str) -> list[str]:
    """The sites of a seam whose layer holds a tensor of some name."""
    paths = {row.path for row in world.engine.storage()}
    return [site for site in world.seams()[seam] if f"{site}.{name}" in paths]


def parameters_rebound(world: World, site: str) -> Iterator[None]:
    """Leave a layer's parameters in new storage after they were folded."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def rebind(layer: Any, *rest: Any) -> None:
            original(layer, *rest)
            for name, held in list(layer._parameters.items()):
                if held is not None and held.numel():
                    fresh = torch.nn.Parameter(held.data.clone(), requires_grad=False)
                    vars(fresh).update(vars(held))
                    layer._parameters[name] = fresh
                    world.fire()

        return rebind

    with world.wrap("fold", site, wrapper):
        yield


_PARAMETERS: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "parameters-rebound": {
            "what": "After a sync the layer holds new parameters, not the old ones refilled.",
            "shows": "Captured graphs go on reading the old storage. Fold new values back into it.",
            "sites": lambda site: site.endswith(("_proj", "layernorm", "embed_tokens")),
            "met": "F6",
        },
        "expert-weights-rebound": {
            "what": "Shuffling the experts' weights assigns new tensors.",
            "shows": "Graphs keep the old ones: random text after waking and loading.",
            "topology": _EXPERTS,
            "sites": lambda site: site.endswith(".experts"),
            "met": "W88",
            "links": (
                "https://github.com/ROCm/vllm/pull/849",
                "https://github.com/vllm-project/vllm/pull/31258",
            ),
        },
    }
)


fault_table(_PARAMETERS, lambda: parameters_rebound, breaks="C4", claimed_by=_MOVED, seam="fold")


@fault(
    "alias-broken",
    breaks="C4 C3",
    claimed_by=f"{_MOVED} alias-graph",
    seam="fold",
    met="W25",
    links=(
        "https://github.com/vllm-project/vllm/pull/42481",
        "https://github.com/vllm-project/vllm/pull/48284",
    ),
    at=lambda world: _holding(world, "fold", "kernel_weight"),
)
def alias_broken(world: World, site: str) -> Iterator[None]:
    """Two names of one tensor, a parameter and what the kernel reads, become two tensors.

    The copy-back takes them for two. From the next sync on the kernel reads old values; the same
    weights loaded again change the output. Compare which tensors share storage before and after.
    """

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def separate(layer: Any, *rest: Any) -> None:
            original(layer, *rest)
            layer.kernel_weight = layer.kernel_weight.clone()
            world.fire()

        return separate

    with world.wrap("fold", site, wrapper):
        yield


@fault(
    "workspace-made-again",
    breaks="C4",
    claimed_by=_MOVED,
    seam="process",
    met="W10",
    links=(
        "https://github.com/vllm-project/vllm/pull/48438",
        "https://github.com/vllm-project/vllm/issues/48312",
    ),
    at=lambda world: _holding(world, "process", "quant_method.kernel.workspace"),
    sites=lambda site: site.endswith("_proj"),
)
def workspace_made_again(world: World, site: str) -> Iterator[None]:
    """Each post-processing makes a new workspace on the kernel object.

    No parameter and no buffer of the layer, so outside of what is copied back; the graph reads
    storage that is abandoned. Walk kernel objects, closures and partials too.
    """

    def wrapper(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def make_again(layer: Any) -> None:
            original(layer)
            kernel = layer.quant_method.kernel
            kernel.workspace = torch.zeros_like(kernel.workspace)
            world.fire()

        return make_again

    with world.wrap("process", site, wrapper):
        yield


@fault(
    "expert-constants-made-again",
    breaks="C4",
    claimed_by=_MOVED,
    seam="process",
    topology={"expert_kernel": "swapped", **_EXPERTS},
    met="W11",
    links=("https://github.com/vllm-project/vllm/pull/50521",),
    sites=lambda site: site.endswith(".experts"),
)
def constants_made_again(world: World, site: str) -> Iterator[None]:
    """Each post-processing makes the object again that holds the experts' constants.

    Met with 72 of 72 pointers of a graph moved. Fill the old tensors in place.
    """

    def wrapper(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def make_again(layer: Any) -> None:
            original(layer)
            layer.constants = type(layer.constants)()
            world.fire()

        return make_again

    with world.wrap("process", site, wrapper):
        yield


@fault(
    "scales-padded-in-place",
    breaks="C3 C5",
    claimed_by="destinations",
    seam="post_process",
    sites=lambda site: site.endswith("_proj"),
    met="W29",
    links=("https://github.com/sgl-project/sglang/pull/22484",),
    silent=False,
)
def scales_padded_in_place(world: World, site: str) -> Iterator[None]:
    """A swizzle that pads is stored under the name of the primary scales.

    The next update does not fit. Freeze a table of shapes and dtypes at start, and compare before
    each sync.
    """

    def wrapper(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def pad(layer: Any) -> None:
            original(layer)
            for name in [name for name in layer._parameters if name.endswith(_SCALES)]:
                held = getattr(layer, name).data
                flat = torch.zeros(-(-held.numel() // 512) * 512 + 512, dtype=held.dtype)
                flat[: held.numel()] = held.reshape(-1)
                layer._parameters[name] = torch.nn.Parameter(flat, requires_grad=False)
                world.fire()

        return pad

    with world.wrap("post_process", site, wrapper):
        yield
