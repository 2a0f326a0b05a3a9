"""Every tensor that can be reached from an object, whatever holds it.

Captured graphs and kernels read tensors that are neither parameters nor buffers: plain
attributes, fields of kernel objects, items of containers, cells of closures, arguments of
partials, caches in module globals and classes. This walk finds them all and names how it found
them. What only compiled code holds is out of its reach, and so are the results that
``functools.cache`` keeps, which come and go with the arguments of calls.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from syncguard.engines.walking import Walk
from syncguard.fingerprint import fingerprint
from syncguard.observations import StoredTensor

__all__ = ["StorageReads", "reachable_tensors", "state_of", "storage_of"]


def reachable_tensors(
    root: torch.nn.Module, caches: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Walk everything that can be reached from a model.

    Args:
        root: The model.
        caches: Package prefixes; module globals and class attributes of these packages that hold
            tensors are walked too, where a class or function of the module was met.

    Yields:
        Path, kind (``parameter``, ``buffer``, ``attribute`` or ``closure``) and tensor. A tensor
        that is held in several places is given once for each; what holds tensors, a module or a
        container, is entered once, under the first path that leads to it.
    """
    yield from Walk(caches).tensors(root)


def storage_of(root: torch.nn.Module, caches: tuple[str, ...] = ()) -> list[StoredTensor]:
    """The storage table of everything that can be reached from a model."""
    return [
        StoredTensor(
            path=path,
            kind=kind,
            storage=_address(tensor),
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
    root: torch.nn.Module, caches: tuple[str, ...] = (), left_out: Collection[int] = ()
) -> dict[str, int]:
    """A fingerprint of every tensor that can be reached from a model, by path.

    Args:
        root: The model.
        caches: As in `reachable_tensors`.
        left_out: Addresses of storages to leave out, such as those with the state of requests.
    """
    return {
        path: fingerprint(tensor if tensor.layout == torch.strided else tensor.to_dense())
        for path, kind, tensor in reachable_tensors(root, caches)
        if tensor.numel()
        and tensor.device.type != "meta"
        and kind != "closure"
        and not _is_wrapper(tensor)
        and _address(tensor) not in left_out
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
        kwargs = kwargs or {}
        for tensor in _tensors((*args, *kwargs.values())):
            self.note(tensor)
        return func(*args, **kwargs)

    def note(self, tensor: torch.Tensor) -> None:
        """Note one tensor that is read in another way than by an operator."""
        if tensor.device.type != "meta":
            self.addresses.update(map(_address, _parts(tensor)))

    def paths(self, table: Iterable[StoredTensor]) -> frozenset[str]:
        """The paths of a storage table whose storages were read; what is empty is not read."""
        return frozenset(row.path for row in table if row.nbytes and row.storage in self.addresses)


def _tensors(arguments: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among an operator's arguments, and in the lists among them."""
    for value in arguments:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    """A tensor and, if it is a wrapper, the tensors inside, which its operators read."""
    yield tensor
    if _is_wrapper(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds others instead of bytes, as those of torchao do."""
    return hasattr(tensor, "__tensor_flatten__")


def _address(tensor: torch.Tensor) -> int:
    """Where a tensor's storage is; of one without storage (packed, sparse, a wrapper) its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return id(tensor)
