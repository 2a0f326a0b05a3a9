"""Watch a forward: which weights it really used, and in which grid.

Two modes of torch are stacked. The outer one sees calls that name a weight, such as
``linear(x, weight)``; the inner one sees the products that such a call ends in. A product whose
right operand is a block-scaled tensor ran in low precision, and the operand's elements and scales
are the grid that the forward computed with: nothing is quantized again to observe them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from syncguard.errors import Unsupported

__all__ = ["UsedGrid", "watch"]

_PRODUCTS: Final = ("aten.mm.default", "aten.addmm.default")


@dataclass(frozen=True, slots=True, eq=False)
class UsedGrid:
    """The scaled operand of one weight's product.

    Attributes:
        elements: float8_e4m3fn [N, K], as in checkpoint layout; int8 for INT8.
        scales: uint8 [N, K // 32]; float32 [N, 1] for INT8.
    """

    elements: torch.Tensor
    scales: torch.Tensor


@contextmanager
def watch(weights: Mapping[str, torch.Tensor]) -> Iterator[Mapping[str, UsedGrid]]:
    """Record which weights run in low precision while the context is open.

    Args:
        weights: The parameters to look for, as the model's modules hold them. A call counts if
            it names the parameter itself, as ``torch.nn.Linear`` does, not a view of it.

    Yields:
        A mapping that fills as weights are used: name to the operand of its product. A weight
        that is used as it is does not appear.
    """
    used: dict[str, UsedGrid] = {}
    products = _Products()
    with products, _Calls({id(tensor): name for name, tensor in weights.items()}, products, used):
        yield used


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the block-scaled right operands of products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operands: list[torch.Tensor] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if str(func) in _PRODUCTS and hasattr(args[-1], "qdata"):
            self.operands.append(args[-1])
        return func(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    """Attributes the products to the weight that was named in the call."""

    def __init__(
        self,
        names: Mapping[int, str],
        products: _Products,
        used: dict[str, UsedGrid],
    ) -> None:
        super().__init__()
        self._names = names
        self._products = products
        self._used = used

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = (*args, *(kwargs or {}).values())
        named = [self._names[id(value)] for value in given if id(value) in self._names]
        self._products.operands.clear()
        result = func(*args, **(kwargs or {}))
        for name in named:
            for operand in self._products.operands:
                self._used[name] = _used_grid(name, operand)
        return result


def _used_grid(name: str, operand: torch.Tensor) -> UsedGrid:
    """Turn the operand of ``x @ weight.t()``, [K, N], back into checkpoint layout."""
    elements: torch.Tensor = operand.qdata.t().contiguous()  # type: ignore[attr-defined]
    scales: torch.Tensor = operand.scale.t().contiguous()  # type: ignore[attr-defined]
    rows, columns = elements.shape
    if elements.dtype != torch.float8_e4m3fn or scales.shape != (rows, columns // 32):
        raise Unsupported(
            f"weight {name!r}: the forward used {elements.dtype} elements {list(elements.shape)} "
            f"with scales {list(scales.shape)}; expected float8_e4m3fn with one scale per 32 of "
            f"its columns. syncguard reads MXFP8 only"
        )
    return UsedGrid(elements, scales.view(torch.uint8))
