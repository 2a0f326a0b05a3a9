"""Every tensor that can be reached from an object, whatever holds it.

Captured graphs and kernels read tensors that are neither parameters nor buffers: plain
attributes, fields of kernel objects, items of containers, cells of closures, arguments of
partials, caches in module globals. This walk finds them all and names how it found them.
"""

import functools
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from syncguard.fingerprint import fingerprint
from syncguard.observations import StoredTensor

__all__ = ["StorageReads", "reachable_tensors", "state_of", "storage_of"]

_ATOMS: Final = (str, bytes, int, float, complex, bool, type(None), type, torch.dtype, torch.device)
_OPAQUE_PACKAGES: Final = ("torch.", "threading", "logging", "concurrent.", "asyncio", "numpy")


def reachable_tensors(
    root: torch.nn.Module, caches: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Walk everything that can be reached from a model.

    Args:
        root: The model.
        caches: Package prefixes; module globals of classes from these packages that hold tensors
            are walked too.

    Yields:
        Path, kind (``parameter``, ``buffer``, ``attribute`` or ``closure``) and tensor. A tensor
        that is held in several places is given once for each.
    """
    walk = _Walk(caches)
    yield from walk.value(root, "", "attribute")
    yield from walk.globals()


def storage_of(root: torch.nn.Module, caches: tuple[str, ...] = ()) -> list[StoredTensor]:
    """The storage table of everything that can be reached from a model."""
    return [
        StoredTensor(
            path=path,
            kind=kind,
            storage=tensor.untyped_storage().data_ptr(),
            offset=int(tensor.storage_offset()) * tensor.element_size(),
            nbytes=tensor.numel() * tensor.element_size(),
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            stride=tuple(tensor.stride()),
        )
        for path, kind, tensor in reachable_tensors(root, caches)
        if tensor.device.type != "meta"
    ]


def state_of(
    root: torch.nn.Module, caches: tuple[str, ...] = (), requests: Collection[int] = ()
) -> dict[str, int]:
    """A fingerprint of every tensor that can be reached from a model, by path.

    Args:
        root: The model.
        caches: As in `reachable_tensors`.
        requests: Addresses of storages that hold the state of requests, such as the KV cache;
            they are left out.
    """
    return {
        path: fingerprint(tensor)
        for path, kind, tensor in reachable_tensors(root, caches)
        if tensor.numel()
        and tensor.device.type != "meta"
        and kind != "closure"
        and tensor.untyped_storage().data_ptr() not in requests
    }


class StorageReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, collects the addresses of all storages that operators read.

    Attributes:
        addresses: Storage addresses of tensor arguments, results of earlier operators included.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.addresses: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the storages of the arguments and run the operator."""
        for value in tree_leaves((args, kwargs or {})):
            if isinstance(value, torch.Tensor) and value.device.type != "meta":
                self.addresses.add(value.untyped_storage().data_ptr())
        return func(*args, **(kwargs or {}))

    def paths(self, table: Iterable[StoredTensor]) -> frozenset[str]:
        """The paths of a storage table whose storages were read."""
        return frozenset(row.path for row in table if row.storage in self.addresses)


class _Walk:
    def __init__(self, caches: tuple[str, ...]) -> None:
        self._caches = caches
        self._seen: set[int] = set()
        self._keep: list[object] = []
        self._modules: set[str] = set()

    def value(self, value: object, path: str, kind: str) -> Iterator[tuple[str, str, torch.Tensor]]:
        if isinstance(value, torch.Tensor):
            yield path, kind, value
            extra = {k: v for k, v in vars(value).items() if isinstance(v, torch.Tensor)}
            yield from self._mapping(extra, path, "attribute", ".{}")
            return
        if isinstance(value, _ATOMS) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._keep.append(value)  # ids stay unique only while objects live
        if isinstance(value, torch.nn.Module):
            yield from self._module(value, path)
        elif isinstance(value, Mapping):
            items = {str(key): item for key, item in value.items()}
            yield from self._mapping(items, path, kind, "[{}]")
        elif isinstance(value, list | tuple | set | frozenset):
            items = {str(index): item for index, item in enumerate(value)}
            yield from self._mapping(items, path, kind, "[{}]")
        elif isinstance(value, functools.partial):
            yield from self.value(value.func, f"{path}<func>", "closure")
            yield from self.value(value.args, f"{path}<args>", "closure")
            yield from self.value(value.keywords, f"{path}<keywords>", "closure")
        elif isinstance(value, types.MethodType):
            yield from self.value(value.__func__, path, "closure")
            yield from self.value(value.__self__, f"{path}<self>", kind)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value, path)
        else:
            yield from self._object(value, path, kind)

    def _mapping(
        self, items: Mapping[str, object], path: str, kind: str, form: str
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        for key in sorted(items):
            yield from self.value(items[key], path + form.format(key), kind)

    def _module(
        self, module: torch.nn.Module, path: str
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        prefix = f"{path}." if path else ""
        special = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "attribute"}
        for store, kind in special.items():
            held: dict[str, Any] = module.__dict__[store]
            yield from self._mapping(held, prefix, kind, "{}")
        plain = {k: v for k, v in vars(module).items() if k not in special}
        yield from self._mapping(plain, prefix, "attribute", "{}")
        self._remember(type(module))

    def _function(
        self, function: types.FunctionType, path: str
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # a cell that is not filled yet holds nothing
                continue
            yield from self.value(content, f"{path}<{name}>", "closure")
        yield from self.value(function.__defaults__, f"{path}<defaults>", "closure")

    def _object(
        self, value: object, path: str, kind: str
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        owner = type(value).__module__
        if isinstance(value, types.ModuleType) or owner.startswith(_OPAQUE_PACKAGES):
            return
        self._remember(type(value))
        fields = dict(getattr(value, "__dict__", {}))
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, slot):
                    fields[slot] = getattr(value, slot)
        yield from self._mapping(fields, path, kind, ".{}")

    def _remember(self, cls: type) -> None:
        if self._caches and cls.__module__.startswith(self._caches):
            self._modules.add(cls.__module__)

    def globals(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Tensors in the globals of modules whose classes were met."""
        for name in sorted(self._modules):
            held = {
                key: item
                for key, item in vars(sys.modules[name]).items()
                if isinstance(item, torch.Tensor | dict | list) and not key.startswith("__")
            }
            yield from self._mapping(held, f"{name}:", "attribute", "{}")
