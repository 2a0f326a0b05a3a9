"""A ledger of what the loader wrote, kept by following the stream and the parameters' loaders.

vLLM's layer-wise reload counts elements, so a shard that came twice hides one that never came.
This ledger records each write with the name on the wire that caused it.
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

    Attributes:
        buckets: Names per call of ``load_weights``, in the order of arrival.
        loaded: Writes that loaders made.
    """

    def __init__(self, model: Any, rank: int = 0) -> None:
        self._model = model
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
        """Stop following and leave the model as it was found."""
        self._model.__dict__.pop("load_weights", None)
        if self._hidden is not None:
            self._model.load_weights = self._hidden
        for parameter, loader in self._restore:
            if loader is None:
                del parameter.weight_loader
            else:
                parameter.weight_loader = loader
        self._restore.clear()

    def unfolded(self) -> list[str]:
        """Modules for which data has been staged that is not folded back yet."""
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        def staged(module: torch.nn.Module) -> bool:
            info = get_layerwise_info(module)
            total = info.load_numel_total or 0
            return bool(info.can_load() and 0 < info.load_numel < total)

        return [path for path, module in self._model.named_modules() if staged(module)]

    def _follow(
        self, weights: Iterable[tuple[str, torch.Tensor]], names: list[str]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self._current = name
            names.append(name)
            yield name, tensor

    def _follow_loaders(self) -> None:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        for path, module in self._model.named_modules():
            for store in (module._parameters, module._buffers):
                for name, tensor in store.items():
                    if tensor is None:
                        continue
                    held = getattr(tensor, "weight_loader", None)
                    if getattr(held, "syncguard_ledger", None) is self:
                        continue
                    loader = held or default_weight_loader
                    tensor.weight_loader = self._spy(loader, f"{path}.{name}".lstrip("."))
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
