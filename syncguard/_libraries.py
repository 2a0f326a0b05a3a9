"""Import and use transformers and torchao offline, and without their harmless noise."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from syncguard.errors import UsageError

__all__ = ["import_torchao", "import_transformers", "quiet"]

_NOISY = {
    # CUDA libraries of a build for another machine; the emulated recipe needs none of them.
    "torchao": "Failed to load",
    # Kernels for other devices, which nothing here asks for.
    "torchao.kernel.intmm": "Detected no triton",
    "torch._library.triton": "Triton not available",
    # torchao registers enums in a way that recent torch calls deprecated.
    "torch.utils._pytree": "is an Enum subclass",
}


class _Drop(logging.Filter):
    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def filter(self, record: logging.LogRecord) -> bool:
        return self._text not in record.getMessage()


@contextmanager
def quiet() -> Iterator[None]:
    """Drop the log lines, import warnings and progress bars that tell the user nothing."""
    added = [(logging.getLogger(name), _Drop(text)) for name, text in _NOISY.items()]
    for logger, drop in added:
        logger.addFilter(drop)
    try:
        with warnings.catch_warnings(), _without_progress_bars():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, drop in added:
            logger.removeFilter(drop)


def import_transformers() -> Any:
    """Import transformers so that it neither goes to the network nor counts its uses.

    Raises:
        UsageError: It is not installed.
    """
    for switch in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(switch, "1")
    try:
        with quiet():
            import transformers
    except ImportError as error:
        raise UsageError(_missing("transformers", error)) from error
    return transformers


def import_torchao() -> tuple[Any, Any]:
    """Import what MXFP8 training needs of torchao.

    Returns:
        ``quantize_`` and the configuration of the emulated round-up recipe.

    Raises:
        UsageError: torchao, or this part of it, is not installed.
    """
    try:
        with quiet():
            from torchao.prototype.moe_training.config import (
                MXFP8TrainingOpConfig,
                MXFP8TrainingRecipe,
            )
            from torchao.quantization import quantize_
    except ImportError as error:
        raise UsageError(_missing("torchao", error)) from error
    recipe = MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_EMULATED_RCEIL)
    return quantize_, recipe


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    try:
        from transformers.utils import logging as progress
    except ImportError:
        yield
        return
    shown = progress.is_progress_bar_enabled()
    if shown:
        progress.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            progress.enable_progress_bar()


def _missing(library: str, error: ImportError) -> str:
    return (
        f"the learner needs {library}, whose import failed: {error}. Install it with "
        f"`pip install syncguard[torchao]`"
    )
