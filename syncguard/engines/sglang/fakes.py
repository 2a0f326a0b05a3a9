"""Fakes of packages that SGLang imports and that a CPU has no use for.

torchvision, sgl_kernel and triton come as builds for CUDA; IPython is for notebooks. SGLang only
names them while it is imported. So they are there only then, and what they give out is good for
nothing but being named: a fake that is called raises. What decorates a kernel is the exception,
as long as imports last: the kernel it makes raises when it is launched.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any, Final

__all__ = ["FAKED", "FakeCalled", "importing"]

FAKED: Final = ("IPython", "sgl_kernel", "torchvision", "triton")
"""The packages that are faked where they are not installed."""

_DECORATORS: Final = ("Config", "autotune", "constexpr", "heuristics", "jit")
"""What SGLang calls of triton while its modules are imported."""


class FakeCalled(RuntimeError):
    """Something called what is only faked on this machine."""


class _Fake:
    """Good for being named, subclassed and put in an annotation; raises when it is called."""

    _name: str
    _module: "_FakeModule"
    _inert: bool

    def __init__(self, name: str, module: "_FakeModule", *, inert: bool = False) -> None:
        self.__dict__.update(_name=name, _module=module, _inert=inert, __name__=name)

    def __getattr__(self, name: str) -> "_Fake":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Fake(f"{self._name}.{name}", self._module)

    def __call__(self, *args: Any, **kwargs: Any) -> "_Fake":
        decorates = self._inert or self._name.rpartition(".")[2] in _DECORATORS
        if self._module.finder.open and decorates:
            return _Fake(f"{self._name}()", self._module, inert=not self._inert)
        raise FakeCalled(
            f"{self._name} was called, but {self._name.partition('.')[0]} is only faked here\n"
            "  likely cause: SGLang took a path that a CPU does not have\n"
            "  what to do: report this with the engine's options; nothing it computed is valid"
        )

    def __getitem__(self, key: Any) -> "_Fake":
        return _Fake(f"{self._name}[]", self._module)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[()]:
        return ()

    def __or__(self, other: Any) -> "_Fake":
        return self

    __ror__ = __or__


class _FakeModule(types.ModuleType):
    __version__ = "0"

    def __init__(self, name: str, finder: "_Finder") -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.finder = finder

    def __getattr__(self, name: str) -> _Fake:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Fake(f"{self.__name__}.{name}", self)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the fakes, after everything that is really there."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages
        self.open = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _FakeModule(spec.name, self)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: a fake has no code."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """While SGLang is imported, fake what is not installed; afterwards it is absent again."""
    _settle()
    finder = _Finder(tuple(name for name in FAKED if importlib.util.find_spec(name) is None))
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        finder.open = False
        sys.meta_path.remove(finder)
        for name in [name for name, held in sys.modules.items() if isinstance(held, _FakeModule)]:
            del sys.modules[name]


def _settle() -> None:
    """Let libraries find out what is installed before anything is faked: they remember it."""
    for name in ("torch._inductor.compile_fx", "torch.utils.flop_counter"):
        importlib.import_module(name)

    from syncguard._libraries import import_transformers

    library = import_transformers().utils.import_utils
    for package in FAKED:
        getattr(library, f"is_{package}_available", bool)()
    with contextlib.suppress(ImportError):
        import torchao  # noqa: F401
