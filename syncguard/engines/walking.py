"""Walks objects to the tensors that they hold; see `syncguard.engines.reachable`."""

import collections
import enum
import functools
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch

from syncguard.seams import STAND_IN

__all__ = ["Walk"]

_ATOMS: Final = (
    *(str, bytes, int, float, complex, type(None), type, enum.Enum),
    *(torch.dtype, torch.device, types.ModuleType, types.CodeType),
)
_PLAIN: Final = frozenset(
    {str, bytes, int, bool, float, complex, type(None), torch.dtype, torch.device, torch.Size}
)
"""Types of most of what objects hold; told here by a lookup, since a walk meets thousands."""

_HOOKS: Final = collections.OrderedDict
"""What a module keeps its hooks in, mostly empty."""

_OPAQUE: Final = frozenset({"torch", "threading", "logging", "concurrent", "asyncio", "numpy"})
"""Packages whose objects hold no state of a model."""

_SEQUENCES: Final = (list, tuple, collections.deque, set, frozenset)
_STORES: Final = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "attribute"}


class _Place(NamedTuple):
    value: object
    path: str
    kind: str


class Walk:
    """One walk; nothing is entered twice.

    Modules come first, by their children, so that each has the path that it is known by; whatever
    is held in other ways follows. Places wait on a stack, so any depth can be walked.

    Args:
        caches: See `syncguard.engines.reachable.reachable_tensors`.
    """

    def __init__(self, caches: tuple[str, ...]) -> None:
        self._caches = caches
        self._seen: set[int] = set()
        self._keep: list[object] = []
        self._later: collections.deque[_Place] = collections.deque()
        self._modules: dict[str, None] = {}
        self._classes: dict[type, None] = {}

    def tensors(self, root: object) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Path, kind and tensor of everything below a root, then of what caches hold."""
        self._later.append(_Place(root, "", "attribute"))
        yield from self._drained()
        while self._modules or self._classes:
            modules, classes = sorted(self._modules), sorted(self._classes, key=_qualified)
            self._modules, self._classes = {}, {}
            for name in modules:
                self._later.extend(self._globals(f"{name}:", vars(sys.modules[name])))
            for cls in classes:
                self._later.extend(self._globals(f"{_qualified(cls)}.", vars(cls)))
            yield from self._drained()

    def _drained(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        stack: list[_Place] = []
        while stack or self._later:
            place = stack.pop() if stack else self._later.popleft()
            if type(place.value) in weakref.ProxyTypes:  # its object may be gone
                continue
            if isinstance(place.value, torch.Tensor):
                yield place.path, place.kind, place.value
            if self._is_new(place.value):
                stack.extend(reversed(list(self._entered(place))))

    def _is_new(self, value: object) -> bool:
        if isinstance(value, _ATOMS) or id(value) in self._seen:
            return False
        self._seen.add(id(value))
        self._keep.append(value)  # ids stay unique only while objects live
        return True

    def _entered(self, place: _Place) -> Iterable[_Place]:
        value, path, kind = place
        if isinstance(value, torch.nn.Module):
            return self._module(value, path)
        if isinstance(value, torch.Tensor):
            self._later.extend(_fields(path, "attribute", vars(value)))
            return ()
        if isinstance(value, dict | types.MappingProxyType):
            own = _fields(path, kind, getattr(value, "__dict__", {}))
            return [*_items(path, kind, _labelled(value)), *own]
        if isinstance(value, _SEQUENCES):
            own = _fields(path, kind, getattr(value, "__dict__", {}))
            return [*_items(path, kind, _numbered(value)), *own]
        if callable(value) and (found := self._callable(value, path, kind)) is not None:
            return found
        return self._object(value, path, kind)

    def _module(self, module: torch.nn.Module, path: str) -> Iterator[_Place]:
        prefix = f"{path}." if path else ""
        held = vars(module)
        self._remember(type(module))
        plain = [
            (name, value)
            for name, value in held.items()
            if _may_hold(value) and name not in _STORES
        ]
        self._later.extend(
            _Place(v, f"{prefix}{n}", "attribute") for n, v in sorted(plain, key=_label)
        )
        for store, kind in _STORES.items():
            for name, value in sorted(held.get(store, {}).items()):
                yield _Place(value, f"{prefix}{name}", kind)

    def _callable(self, value: Any, path: str, kind: str) -> Iterable[_Place] | None:
        """What a callable holds; none if it is an object like any other."""
        if STAND_IN in getattr(value, "__dict__", ()):
            return ()
        if isinstance(value, types.FunctionType):
            self._remember_module(value.__module__)
            return _function(value, path)
        if isinstance(value, functools.partial):
            parts = ("func", "args", "keywords")
            return [_Place(getattr(value, n), f"{path}<{n}>", "closure") for n in parts]
        if isinstance(value, types.MethodType):
            return [
                _Place(value.__func__, path, "closure"),
                _Place(value.__self__, f"{path}<self>", kind),
            ]
        if isinstance(value, types.BuiltinMethodType):
            return [_Place(value.__self__, f"{path}<self>", kind)]
        return None

    def _object(self, value: object, path: str, kind: str) -> Iterable[_Place]:
        if type(value).__module__.partition(".")[0] in _OPAQUE:
            return ()
        self._remember(type(value))
        fields = dict(getattr(value, "__dict__", {}))
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                own = f"_{cls.__name__.lstrip('_')}{slot}"
                name = own if slot.startswith("__") and not slot.endswith("__") else slot
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    fields[name] = getattr(value, name)
        return _fields(path, kind, fields)

    def _globals(self, prefix: str, held: Mapping[str, object]) -> Iterator[_Place]:
        """Tensors in a namespace, and what may hold some; not the code in it."""
        kinds = (torch.Tensor, dict, *_SEQUENCES)
        for name, value in sorted(held.items()):
            if isinstance(value, kinds) and not name.startswith("__"):
                yield _Place(value, f"{prefix}{name}", "attribute")

    def _remember(self, cls: type) -> None:
        for base in cls.__mro__:
            if self._is_cache(base.__module__) and self._is_new_class(base):
                self._classes[base] = None
                self._remember_module(base.__module__)

    def _remember_module(self, name: str | None) -> None:
        module = sys.modules.get(name or "")
        if name and module is not None and self._is_cache(name) and id(module) not in self._seen:
            self._seen.add(id(module))
            self._modules[name] = None

    def _is_cache(self, module: str) -> bool:
        return bool(self._caches) and module.startswith(self._caches)

    def _is_new_class(self, cls: type) -> bool:
        new = id(cls) not in self._seen
        self._seen.add(id(cls))
        return new


def _function(function: types.FunctionType, path: str) -> Iterator[_Place]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # a cell that is not filled yet holds nothing
            continue
        yield _Place(content, f"{path}<{name}>", "closure")
    yield _Place(function.__defaults__, f"{path}<defaults>", "closure")
    yield _Place(function.__kwdefaults__, f"{path}<defaults>", "closure")
    yield from _fields(path, "closure", vars(function))


def _fields(path: str, kind: str, fields: Mapping[str, object]) -> Iterator[_Place]:
    for name, value in sorted(fields.items()):
        if _may_hold(value):
            yield _Place(value, f"{path}.{name}", kind)


def _items(path: str, kind: str, items: Iterable[tuple[str, object]]) -> Iterator[_Place]:
    for label, value in items:
        if _may_hold(value):
            yield _Place(value, f"{path}[{label}]", kind)


def _numbered(values: Iterable[object]) -> Iterator[tuple[str, object]]:
    return ((str(number), value) for number, value in enumerate(values))


def _labelled(mapping: Mapping[Any, object]) -> list[tuple[str, object]]:
    """Items by labels that are the same in every process; equal ones are numbered."""
    counts: collections.Counter[str] = collections.Counter()
    labelled = []
    for key, value in mapping.items():
        parts = key if isinstance(key, tuple) else (key,)
        plain = all(isinstance(part, _ATOMS) for part in parts)
        label = str(key) if plain else type(key).__name__
        counts[label] += 1
        labelled.append((label if counts[label] == 1 else f"{label}#{counts[label]}", value))
    return sorted(labelled, key=_label)


def _label(item: tuple[str, object]) -> str:
    return item[0]


def _may_hold(value: object) -> bool:
    """Whether a value can lead to a tensor; no, if it is plain or an empty container of hooks."""
    kind = type(value)
    return kind not in _PLAIN and (kind is not _HOOKS or bool(value) or bool(vars(value)))


def _qualified(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
