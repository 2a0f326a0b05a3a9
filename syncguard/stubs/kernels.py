"""Kernels of the stub engine: what each derives from canonical weights, and how it computes.

A kernel serves the matrices of one layer: ``weight`` of a linear layer, ``w13_weight`` and
``w2_weight`` of experts, which are stacked [slots, rows, columns]. What it makes for itself goes
through `install`, which keeps storages, since captured graphs read them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from syncguard.grids import dequantize, swizzle, unswizzle
from syncguard.stubs.functions import on_grid
from syncguard.stubs.layouts import LAYOUTS, Layout, cached_order, inverse_order, true_order

__all__ = ["Mxfp8Kernel", "Operands", "PackedKernel", "PlainKernel"]

_BLOCK: Final = 32
_SCALE_BIAS: Final = 127

_Operands = Mapping[str, torch.Tensor]
_Orders = Callable[[str, int], torch.Tensor]


class Operands(dict[str, torch.Tensor]):
    """What a layer reads during one request, with the weights made of it so far.

    Between requests weights change; within one, a weight need be made from its operands once.
    """

    def __init__(self, operands: Mapping[str, torch.Tensor]) -> None:
        super().__init__(operands)
        self.made: dict[str, torch.Tensor] = {}


class PlainKernel:
    """Multiplies with weights in the model's dtype.

    Args:
        layout: Of its operands.
    """

    activations = "bf16"

    def __init__(self, layout: Layout = LAYOUTS["plain"]) -> None:
        self.layout = layout
        self.workspace = torch.zeros(1)

    @property
    def name(self) -> str:
        """Name of the kernel, for layer tables."""
        return f"{type(self).__name__}[{self.layout.name}]"

    def order(self, layer: Any, matrix: str) -> str:
        """Name of the order in which the layer's own parameters are kept, or empty."""
        return self._rows(layer, matrix) if self.layout.in_place else ""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Turn freshly loaded canonical parameters into what `compute` reads."""
        self._reorder(layer)
        for name, fresh in self._derived(layer, cached_order).items():
            self.install(layer, name, fresh)

    def derive(self, layer: Any) -> dict[str, torch.Tensor]:
        """What readable derived tensors must hold, from the parameters; changes nothing."""
        return self._derived(layer, true_order)

    def held(self, layer: Any) -> dict[str, torch.Tensor]:
        """The readable derived tensors as they are."""
        return {name: getattr(layer, name) for name in self.derive(layer) if hasattr(layer, name)}

    def canonical(self, layer: Any, matrix: str) -> dict[str, torch.Tensor]:
        """A matrix's own parameters with their rows in checkpoint order, by name."""
        order = self.order(layer, matrix)
        found = {name: getattr(layer, name).data for name in self._components(matrix)}
        if not order:
            return found
        return {
            name: tensor.index_select(-2, inverse_order(order, tensor.shape[-2]))
            for name, tensor in found.items()
        }

    def installed(self, layer: Any) -> list[str]:
        """Names under which `install` is called for the layer."""
        return list(self.held(layer))

    def rebuilt(self, layer: Any) -> list[torch.Tensor]:
        """All tensors that post-processing rebuilds, readable or not."""
        return list(self.held(layer).values())

    def install(self, layer: Any, name: str, fresh: torch.Tensor) -> None:
        """Keep a derived tensor: in place where one of its shape is held."""
        held = self._find(layer, name)
        if held is not None and held.shape == fresh.shape and held.dtype == fresh.dtype:
            held.copy_(fresh)
        else:
            self.hold(layer, name, fresh)

    def hold(self, layer: Any, name: str, fresh: torch.Tensor) -> None:
        """Bind a derived tensor that is new, or has another shape than the one before."""
        setattr(layer, name, fresh)

    def operands(self, layer: Any) -> dict[str, torch.Tensor]:
        """The tensors that `compute` reads, by what they are to it."""
        found = {"workspace": self.workspace}
        for matrix in layer.matrices:
            twin = bool(self._rows(layer, matrix)) and not self.layout.in_place
            found[matrix] = getattr(layer, f"{matrix}_twin" if twin else matrix).data
        return found

    def compute(
        self, operands: _Operands, layer: Any, matrix: str, x: torch.Tensor
    ) -> torch.Tensor:
        """``x @ weight.T``, rows of the weight in canonical order.

        Args:
            operands: As `operands` gives them, or gave them when a graph was captured.
            layer: For its shapes only.
            matrix: Which of the layer's matrices.
            x: [rows, K], or [slots, rows, K], in the model's dtype.

        Returns:
            float32 [rows, N] or [slots, rows, N].
        """
        made = operands.made if isinstance(operands, Operands) else {}
        if matrix not in made:
            made[matrix] = self.weight(operands, layer, matrix)
        return torch.matmul(self.rounded(x), made[matrix].mT) + operands["workspace"]

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """What the kernel makes of its activations, float32."""
        return x.float()

    def weight(self, operands: _Operands, layer: Any, matrix: str) -> torch.Tensor:
        """The weight that the kernel multiplies with, float32, rows in canonical order."""
        weight = self._stored(operands, layer, matrix)
        order = self._rows(layer, matrix)
        if not order:
            return weight
        return weight.index_select(-2, inverse_order(order, weight.shape[-2]))

    def _stored(self, operands: _Operands, layer: Any, matrix: str) -> torch.Tensor:
        """The weight in float32, rows as the kernel has them."""
        del layer
        return operands[matrix].float()

    def _rows(self, layer: Any, matrix: str) -> str:
        halves = self.layout.rows in ("swap", "interleave")
        return self.layout.rows if not halves or matrix in layer.halved else ""

    def _reorder(self, layer: Any) -> None:
        for matrix in layer.matrices:
            order = self.order(layer, matrix)
            for name in self._components(matrix) if order else ():
                parameter = getattr(layer, name).data
                index = cached_order(order, parameter.shape[-2])
                layer.rebind(name, parameter.index_select(-2, index))

    def _components(self, matrix: str) -> tuple[str, ...]:
        return (matrix,)

    def _find(self, layer: Any, name: str) -> torch.Tensor | None:
        held: torch.Tensor | None = getattr(layer, name, None)
        return held

    def _derived(self, layer: Any, orders: _Orders) -> dict[str, torch.Tensor]:
        """Derived tensors, from parameters that are in the kernel's order already."""
        found = {}
        for matrix in layer.matrices:
            order = self._rows(layer, matrix)
            if order and not self.layout.in_place:
                stored = getattr(layer, matrix).data
                found[f"{matrix}_twin"] = stored.index_select(-2, orders(order, stored.shape[-2]))
        return found


class Mxfp8Kernel(PlainKernel):
    """W8A8: both operands on the MXFP8 grid, float32 accumulation.

    Args:
        layout: Of its operands.
    """

    activations = "mxfp8"

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.caches: dict[str, torch.Tensor] = {}
        self.levels: dict[str, torch.Tensor] = {}

    def process_weights_after_loading(self, layer: Any) -> None:
        """Turn freshly loaded canonical parameters into what `compute` reads."""
        self._reorder(layer)
        levels = self.take_levels(layer)
        for name, fresh in self._derived(layer, cached_order, levels).items():
            self.install(layer, name, fresh)

    def take_levels(self, layer: Any) -> dict[str, torch.Tensor]:
        """Read the second-level scales off freshly loaded ones, into those held before.

        Returns:
            Matrix to uint8 [..., halves], for the factor that products are multiplied with; empty
            if the layout has none.
        """
        for matrix, fresh in self._levels(layer).items():
            self.levels.setdefault(matrix, torch.empty_like(fresh)).copy_(fresh)
        return self.levels

    def held(self, layer: Any) -> dict[str, torch.Tensor]:
        """The readable derived tensors as they are."""
        caches = {f"kernel.{matrix}": cache for matrix, cache in self.caches.items()}
        return super().held(layer) | caches

    def rebuilt(self, layer: Any) -> list[torch.Tensor]:
        """All tensors that post-processing rebuilds, readable or not."""
        return [*super().rebuilt(layer), *self.levels.values()]

    def hold(self, layer: Any, name: str, fresh: torch.Tensor) -> None:
        """Bind a derived tensor that is new, or has another shape than the one before."""
        if name.startswith("kernel."):
            self.caches[name.removeprefix("kernel.")] = fresh
        else:
            setattr(layer, name, fresh)

    def operands(self, layer: Any) -> dict[str, torch.Tensor]:
        """The tensors that `compute` reads, by what they are to it."""
        if self.layout.cached:
            for matrix in layer.matrices:
                if matrix not in self.caches:
                    self.hold(layer, f"kernel.{matrix}", _dequantized(layer, matrix))
            return {"workspace": self.workspace, **self.caches}
        found = super().operands(layer)
        for matrix in layer.matrices:
            scales = f"{matrix}_scale"
            suffix = "_swizzled" if self.layout.swizzled else ""
            if self.layout.two_level:
                suffix = "_relative"
                found[f"{scales}_level"] = getattr(layer, f"{scales}_level")
            found[scales] = getattr(layer, f"{scales}{suffix}").data
        return found

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """What the kernel makes of its activations, float32."""
        return on_grid(x)

    def _stored(self, operands: _Operands, layer: Any, matrix: str) -> torch.Tensor:
        elements = operands[matrix]
        if self.layout.cached:
            return elements.float()
        scales = operands[f"{matrix}_scale"]
        if self.layout.swizzled:
            scales = _unswizzled(scales, elements.shape)
        weight = dequantize(elements, scales, torch.float32)
        if self.layout.two_level:
            level = operands[f"{matrix}_scale_level"]
            parts = torch.unflatten(weight, -2, (level.shape[-1], -1))
            weight = (parts * level[..., None, None]).view(weight.shape)
        return weight

    def _components(self, matrix: str) -> tuple[str, ...]:
        return (matrix, f"{matrix}_scale")

    def _find(self, layer: Any, name: str) -> torch.Tensor | None:
        if name.startswith("kernel."):
            return self.caches.get(name.removeprefix("kernel."))
        return super()._find(layer, name)

    def derive(self, layer: Any) -> dict[str, torch.Tensor]:
        """What readable derived tensors must hold, from the parameters; changes nothing."""
        return self._derived(layer, true_order)

    def _derived(
        self, layer: Any, orders: _Orders, levels: _Operands | None = None
    ) -> dict[str, torch.Tensor]:
        found, fresh = super()._derived(layer, orders), self._levels(layer)
        for matrix in layer.matrices:
            scales = getattr(layer, f"{matrix}_scale").data
            if self.layout.swizzled:
                if f"{matrix}_twin" in found:
                    index = orders(self.layout.rows, scales.shape[-2])
                    scales = scales.index_select(-2, index)
                found[f"{matrix}_scale_swizzled"] = _swizzled(scales)
            if self.layout.two_level:
                level = fresh[matrix]
                wide = torch.unflatten(scales.int(), -2, (level.shape[-1], -1))
                relative = (wide - level.int()[..., None, None] + _SCALE_BIAS).clamp(0, 254)
                found[f"{matrix}_scale_relative"] = relative.to(torch.uint8).view(scales.shape)
                used = level if levels is None else levels[matrix]
                found[f"{matrix}_scale_level"] = torch.exp2(used.float() - _SCALE_BIAS)
            if self.layout.cached and matrix in self.caches:
                found[f"kernel.{matrix}"] = _dequantized(layer, matrix)
        return found

    def _levels(self, layer: Any) -> dict[str, torch.Tensor]:
        """The largest scale byte of each half of the rows of each matrix, uint8 [..., halves]."""
        if not self.layout.two_level:
            return {}
        found = {}
        for matrix in layer.matrices:
            scales = getattr(layer, f"{matrix}_scale").data
            parts = 2 if matrix in layer.halved else 1
            found[matrix] = torch.unflatten(scales, -2, (parts, -1)).amax((-2, -1))
        return found


class PackedKernel(PlainKernel):
    """Multiplies with a copy that only a closure on the layer holds.

    Args:
        frees: Whether the parameter is given up once it is packed.
    """

    def __init__(self, *, frees: bool) -> None:
        super().__init__(Layout("freed" if frees else "packed"))
        self.frees = frees

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the parameter, into the old copy where there is one."""
        self.install(layer, "packed", layer.weight.data.t())
        if self.frees:
            layer.rebind("weight", torch.empty(0, dtype=layer.weight.dtype))

    def rebuilt(self, layer: Any) -> list[torch.Tensor]:
        """All tensors that post-processing rebuilds, readable or not."""
        return [_packed(layer)]

    def installed(self, layer: Any) -> list[str]:
        """Names under which `install` is called for the layer."""
        del layer
        return ["packed"]

    def hold(self, layer: Any, name: str, fresh: torch.Tensor) -> None:
        """Bind a closure over a new copy."""
        del name
        packed = fresh.clone(memory_format=torch.contiguous_format)

        def packed_product(x: torch.Tensor) -> torch.Tensor:
            return torch.matmul(x.float(), packed.float())

        layer.packed_product = packed_product

    def operands(self, layer: Any) -> dict[str, torch.Tensor]:
        """The tensors that `compute` reads, by what they are to it."""
        return {"workspace": self.workspace, "weight": _packed(layer)}

    def _stored(self, operands: _Operands, layer: Any, matrix: str) -> torch.Tensor:
        return operands[matrix].float().t()

    def _find(self, layer: Any, name: str) -> torch.Tensor | None:
        del name
        return _packed(layer) if hasattr(layer, "packed_product") else None


def _packed(layer: Any) -> torch.Tensor:
    product = layer.packed_product
    cells = dict(zip(product.__code__.co_freevars, product.__closure__, strict=True))
    packed: torch.Tensor = cells["packed"].cell_contents
    return packed


def _dequantized(layer: Any, matrix: str) -> torch.Tensor:
    return dequantize(getattr(layer, matrix).data, getattr(layer, f"{matrix}_scale").data)


def _swizzled(scales: torch.Tensor) -> torch.Tensor:
    if scales.ndim == 2:
        return swizzle(scales)
    return torch.stack([swizzle(part) for part in scales])


def _unswizzled(flat: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    rows, blocks = shape[-2], shape[-1] // _BLOCK
    if len(shape) == 2:
        return unswizzle(flat, rows, blocks)
    return torch.stack([unswizzle(part, rows, blocks) for part in flat])
