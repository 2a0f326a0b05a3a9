"""The layers of the stub engine: parameters with loaders, fused from the learner's weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from syncguard.stubs.loader import LayerReload, ShardLoader
from syncguard.stubs.methods import UnquantizedMethod
from syncguard.stubs.shards import Shard

__all__ = ["Held", "StubLayer"]

_BLOCK: Final = 32


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter or persistent buffer of a layer, as it is loaded.

    Attributes:
        name: In the layer.
        shape: On this rank.
        dtype: In which it is loaded.
        buffer: Whether it is a buffer.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.bfloat16
    buffer: bool = False


class StubLayer(torch.nn.Module):
    """One layer of the engine on one rank.

    Args:
        path: In the model.
        kind: ``linear``, ``embedding``, ``head``, ``experts``, ``router``, ``norm`` or
            ``attention``.
        held: What it holds, as it is loaded.
        shards: Which of the learner's weights go where.
        method: How its matrices are treated; none for a layer without.
        matrices: Names of the parameters that products are made with.
        halved: Those of them whose rows are two halves, gate and up.

    Attributes:
        parts: The shards that it holds; also those that another layer loads, for a tied head.
        first_row: Of the rank's part of a vocabulary.
    """

    def __init__(
        self,
        path: str,
        kind: str,
        held: Sequence[Held],
        shards: Sequence[Shard],
        method: UnquantizedMethod | None = None,
        matrices: tuple[str, ...] = (),
        halved: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.path, self.kind = path, kind
        self.matrices, self.halved = matrices, halved
        self.quant_method = method
        self.shards = self.parts = list(shards)
        self.load_format = {row.name: row for row in held}
        self.others = tuple(row.name for row in held if row.name not in matrices)
        self.loaders: dict[str, ShardLoader] = {}
        for row in held:
            self._hold(row.name, torch.empty(row.shape, dtype=row.dtype), row.buffer)
        if method is not None and method.grid == "mxfp8":
            self._prepare_scales(method.serialized)
        self.first_row = 0
        self.reload = LayerReload(self)

    @property
    def kernel(self) -> Any:
        """The kernel of the layer's method; none for a layer without matrices."""
        return self.quant_method.kernel if self.quant_method is not None else None

    def rebind(self, name: str, tensor: torch.Tensor) -> None:
        """Put a new tensor in place of a parameter or buffer; it inherits the loader."""
        old = self._parameters.get(name, self._buffers.get(name))
        fresh: torch.Tensor = tensor
        if name in self._parameters:
            fresh = torch.nn.Parameter(tensor, requires_grad=False)
        if old is not None:
            vars(fresh).update(vars(old))
        self.put(name, fresh)

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Bind a parameter or buffer as it is."""
        store: dict[str, Any] = self._parameters if name in self._parameters else self._buffers
        store[name] = tensor

    def loadable(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers, those included that post-processing makes."""
        buffers = {
            name: buffer
            for name, buffer in self._buffers.items()
            if name not in self._non_persistent_buffers_set and buffer is not None
        }
        return {**{n: p for n, p in self._parameters.items() if p is not None}, **buffers}

    def operands(self) -> dict[str, torch.Tensor]:
        """Every tensor that the layer's computation reads."""
        found: dict[str, torch.Tensor] = {}
        if self.kernel is not None:
            found.update(self.kernel.operands(self))
        for name in self.others:
            found[name] = getattr(self, name).data
        return found

    def absorbed_by(self) -> Any:
        """The attention layer that computes with this layer's weight in its place, if any."""
        attention = (other for other in self.reload.dependents if other.kind == "attention")
        return next(attention, None)

    def derives_from(self) -> Any:
        """The layer whose parameters the kernel derives its tensors from."""
        return self

    def lookup(self, operands: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The matrix of an embedding, float32."""
        weight: torch.Tensor = self.kernel.weight(operands, self, "weight")
        return weight

    def product(
        self, operands: Mapping[str, torch.Tensor], x: torch.Tensor, matrix: str = "weight"
    ) -> torch.Tensor:
        """The kernel's product, with a bias if there is one; float32."""
        out: torch.Tensor = self.kernel.compute(operands, self, matrix, x)
        return out + operands["bias"].float() if "bias" in operands else out

    def _hold(self, name: str, tensor: torch.Tensor, buffer: bool) -> None:
        if buffer:
            self.register_buffer(name, tensor)
        else:
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        self.loaders[name] = loader = ShardLoader(f"{self.path}.{name}")
        getattr(self, name).weight_loader = loader

    def _prepare_scales(self, serialized: bool) -> None:
        for matrix in self.matrices:
            shape = self.load_format[matrix].shape
            scales = Held(f"{matrix}_scale", (*shape[:-1], shape[-1] // _BLOCK), torch.uint8)
            self._hold(scales.name, torch.empty(scales.shape, dtype=scales.dtype), buffer=False)
            if serialized:
                self.load_format[matrix] = Held(matrix, shape, torch.float8_e4m3fn)
                self.load_format[scales.name] = scales
