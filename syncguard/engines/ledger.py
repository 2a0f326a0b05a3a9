"""A ledger of what an engine's loader wrote, kept by following the stream and the loaders.

An engine that counts elements takes a shard that came twice for one that never came. This ledger
records each write with the name on the wire that caused it.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from syncguard.observations import Loaded

__all__ = ["Ledger"]


class Ledger:
    """Follows `load_weights` of one model while a sync is open.

    Args:
        model: The live model.
        default_loader: What the engine loads a parameter with that has no loader of its own.
        wire_name: Gives the name on the wire of a name that ``load_weights`` was given.
        rank: The rank that loads.

    Attributes:
        buckets: Names per call of ``load_weights``, in the order of arrival.
        loaded: Writes that loaders made.
    """

    def __init__(
        self,
        model: Any,
        default_loader: Callable[..., Any],
        wire_name: Callable[[str], str] = str,
        rank: int = 0,
    ) -> None:
        self._model = model
        self._default_loader = default_loader
        self._wire_name = wire_name
        self._rank = rank
        self._current = ""
        self._hidden: Any = None
        self._restore: list[tuple[Any, Any]] = []
        self.buckets: list[tuple[str, ...]] = []
        self.loaded: list[Loaded] = []

    def open(self) -> None:
        """Follow the model's ``load_weights`` from now on."""
        original = self._model.load_weights
        self._hidden = self._model.__dict__.get("load_weights")

        @functools.wraps(original)
        def load_weights(weights: Iterable[tuple[str, torch.Tensor]], *args: Any, **kw: Any) -> Any:
            self._follow_loaders()
            names: list[str] = []
            try:
                return original(self._follow(weights, names), *args, **kw)
            finally:
                self.buckets.append(tuple(names))
                self._current = ""

        self._model.load_weights = load_weights

    def close(self) -> None:
        """Stop following and leave the model as it was found; safe to call again."""
        self._model.__dict__.pop("load_weights", None)
        if self._hidden is not None:
            self._model.load_weights, self._hidden = self._hidden, None
        for parameter, loader in self._restore:
            if loader is None:
                del parameter.weight_loader
            else:
                setattr(parameter, _attribute(parameter), loader)
        self._restore.clear()

    def unfolded(self) -> list[str]:
        """Modules for which data has been staged that is not folded back yet."""
        return []

    def _follow(
        self, weights: Iterable[tuple[str, torch.Tensor]], names: list[str]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self._current = self._wire_name(name)
            names.append(self._current)
            yield name, tensor

    def _follow_loaders(self) -> None:
        for path, module in self._model.named_modules():
            for store in (module._parameters, module._buffers):
                for name, tensor in store.items():
                    if tensor is None:
                        continue
                    held = getattr(tensor, "weight_loader", None)
                    if getattr(held, "syncguard_ledger", None) is self:
                        continue
                    spy = self._spy(held or self._default_loader, f"{path}.{name}".lstrip("."))
                    setattr(tensor, _attribute(tensor), spy)
                    self._restore.append((tensor, held))

    def _spy(self, loader: Callable[..., Any], parameter: str) -> Callable[..., Any]:
        signature = inspect.signature(inspect.unwrap(loader))

        # wraps() keeps the loader's name and links to it, so that vLLM, which unwraps its own
        # loaders by name, unwraps this one too.
        @functools.wraps(loader)
        def spy(*args: Any, **kwargs: Any) -> Any:
            result = loader(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            tensor = given.get("loaded_weight")
            expert = given.get("expert_id")
            shard = next((given[k] for k in ("loaded_shard_id", "shard_id") if k in given), None)
            self.loaded.append(
                Loaded(
                    weight=self._current,
                    parameter=parameter,
                    shard="" if shard is None else str(shard),
                    expert=-1 if expert is None else int(expert),
                    numel=tensor.numel() if isinstance(tensor, torch.Tensor) else 0,
                    bucket=len(self.buckets),
                    rank=self._rank,
                )
            )
            return result

        spy.syncguard_ledger = self  # type: ignore[attr-defined]
        return spy


def _attribute(tensor: Any) -> str:
    """Where a tensor keeps its loader: some parameter classes only offer it to be read."""
    shown = getattr(type(tensor), "weight_loader", None)
    readonly = isinstance(shown, property) and shown.fset is None
    return "_weight_loader" if readonly else "weight_loader"
