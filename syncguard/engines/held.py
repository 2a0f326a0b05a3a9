"""The learner's weights inside the modules of an engine, fused parameters taken apart."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.observations import EngineLayer, Place

__all__ = [
    "EXPERT_MATRICES",
    "Held",
    "by_module",
    "by_product",
    "carried",
    "dtype_of",
    "grid_of",
    "held_experts",
    "held_weights",
    "layer_table",
]

_DTYPE_GRIDS: Final = MappingProxyType(
    {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
)

EXPERT_MATRICES: Final = ("w13_weight", "w2_weight")
"""The parameters of a module that stacks experts: gate and up of each, and down."""

_NO_WEIGHT: Final = re.compile("_scale|azp_adj")

Named = Iterable[tuple[str, torch.nn.Module]]


@dataclass(frozen=True, slots=True)
class Held:
    """One of the learner's weights inside a live module.

    Attributes:
        weight: The learner's name.
        module: The live module.
        path: Its path in the model.
        parameter: Name of the parameter that holds it, ``weight`` or ``bias`` and the like.
        rows: Its rows in that parameter.
        kind: ``linear``, ``embedding``, ``head``, ``expert`` or ``plain``.
        expert: Its place in a parameter that stacks experts, [experts, rows, columns]; else -1.
        sealed: Why its bytes cannot be read though there are some; empty if they can.
        packed: Why its elements cannot be read, though its scales can; empty if they can.
        place: The rectangle of the weight that this rank holds; none if it is all of it.
    """

    weight: str
    module: Any
    path: str
    parameter: str
    rows: slice
    kind: str
    expert: int = -1
    sealed: str = ""
    packed: str = ""
    place: Place | None = None

    @property
    def served_by(self) -> str:
        """Path of what multiplies with it: its module, or one of the matrices of experts."""
        return self.path if self.expert < 0 else f"{self.path}.{self.parameter}"


def held_weights(
    modules: Named,
    fused: Callable[[str], Sequence[str] | None],
    kind: Callable[[str, Any], str],
    packed: Callable[[Any], str] = lambda module: "",
) -> Iterator[Held]:
    """Every weight of the learner that the modules hold.

    Scales are no weights of their own: they belong to the weight that they scale. So do sums of
    elements that kernels for asymmetric activations add.

    Args:
        modules: The model's modules with their paths.
        fused: The parts of a module that holds several of the learner's, by its leaf name.
        kind: Tells a module's kind from its path and itself.
        packed: Tells of a module why the elements of its ``weight`` are read by its kernel only,
            whether or not a parameter is left of them; nothing if they are not.
    """
    for path, module in modules:
        why = packed(module)
        for parameter in sorted(module._parameters):
            own = why if parameter == "weight" else ""
            if (module._parameters[parameter] is None and not own) or _NO_WEIGHT.search(parameter):
                continue
            for name, rows in _parts(module, path, fused):
                weight = f"{name}.{parameter}".lstrip(".")
                yield Held(weight, module, path, parameter, rows, kind(path, module), packed=own)


def held_experts(
    path: str,
    module: Any,
    prefix: str,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    sealed: str = "",
    *,
    up_first: bool = False,
) -> Iterator[Held]:
    """The matrices of each expert of a module that stacks them.

    Args:
        path: The module's path.
        module: Has ``w13_weight`` [experts, 2 I, H], gate above up, and ``w2_weight``
            [experts, H, I].
        prefix: What the learner's names begin with, before the expert's number.
        names: The learner's, of gate, up and down.
        sealed: Why their bytes cannot be read; empty if they can. ``{parameter}`` is filled in.
        up_first: Whether up is above gate.
    """
    hidden, inner = module.w2_weight.shape[-2:]
    gate, up, down = names
    above, below = (up, gate) if up_first else (gate, up)
    parts = (
        (above, EXPERT_MATRICES[0], slice(0, inner)),
        (below, EXPERT_MATRICES[0], slice(inner, 2 * inner)),
        (down, EXPERT_MATRICES[1], slice(0, hidden)),
    )
    for expert in range(len(module.w13_weight)):
        for part, parameter, rows in parts:
            weight = f"{prefix}.{expert}.{part}.weight"
            why = sealed.format(parameter=parameter)
            yield Held(weight, module, path, parameter, rows, "expert", expert, why)


def by_module(held: Iterable[Held]) -> dict[str, list[Held]]:
    """The matrices that a module serves, by its path, in the order of its output rows.

    The experts of a layer are two modules here, one for each of their products.
    """
    groups: dict[str, list[Held]] = {}
    for one in held:
        if one.expert >= 0 or (one.kind != "plain" and one.parameter == "weight"):
            groups.setdefault(one.served_by, []).append(one)
    return groups


def by_product(held: Iterable[Held]) -> list[list[Held]]:
    """As `by_module`, but each expert's product on its own."""
    groups: dict[tuple[str, int], list[Held]] = {}
    for path, parts in by_module(held).items():
        for one in parts:
            groups.setdefault((path, one.expert), []).append(one)
    return list(groups.values())


def carried(
    model: torch.nn.Module, held: Iterable[Held], derived: Callable[[Any], Iterable[str]]
) -> set[int]:
    """Addresses of the storages that a sync fills: parameters, and what kernels derive.

    Args:
        model: The model.
        held: The learner's weights in it.
        derived: Names of a module's derived tensors.
    """
    tensors = [*model.parameters()]
    for parts in by_module(held).values():
        module = parts[0].module
        tensors += [getattr(module, name) for name in derived(module)]
    return {t.untyped_storage().data_ptr() for t in tensors if not t.is_meta}


def layer_table(
    held: Iterable[Held], describe: Callable[[Any], tuple[str, str, str]], rank: int = 0
) -> list[EngineLayer]:
    """The layer table: what the live quantization methods and kernels say.

    Args:
        held: The weights.
        describe: Gives the live kernel's name, or nothing, and the grids of weights and
            activations that a module computes with.
        rank: The rank that answers.
    """
    table = []
    for path, parts in by_module(held).items():
        module = parts[0].module
        kernel, grid, activations = describe(module)
        table.append(
            EngineLayer(
                module=path,
                parts=tuple(one.weight for one in parts),
                method=type(getattr(module, "quant_method", module)).__name__,
                kernel=kernel,
                grid=grid,
                activations=activations,
                rank=rank,
            )
        )
    return table


def dtype_of(module: Any) -> torch.dtype:
    """The dtype that a module computes in; modules that quantize tell it apart from their own."""
    dtype: torch.dtype = getattr(module, "params_dtype", None) or module.weight.dtype
    return dtype


def grid_of(dtype: torch.dtype) -> str:
    """The name of the grid without scales that a dtype is."""
    return _DTYPE_GRIDS.get(dtype, str(dtype).removeprefix("torch."))


def _parts(
    module: Any, path: str, fused: Callable[[str], Sequence[str] | None]
) -> Iterator[tuple[str, slice]]:
    parent, _, leaf = path.rpartition(".")
    sizes = getattr(module, "output_partition_sizes", None)
    names = fused(leaf)
    if names is None or sizes is None or len(names) != len(sizes):
        rows = getattr(module, "org_vocab_size", None)  # engines pad the vocabulary
        yield path, slice(0, rows)
        return
    start = 0
    for name, size in zip(names, sizes, strict=True):
        yield f"{parent}.{name}", slice(start, start + size)
        start += size
