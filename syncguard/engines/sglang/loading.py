"""A custom weight loader, which SGLang calls once for each bucket."""

from typing import Any

import torch

__all__ = ["load"]


def load(model: Any, named_tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Load one bucket as a load from disk does, which renames scales; processes nothing."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    DefaultModelLoader.load_weights_only(model, named_tensors, torch.device("cpu"))
