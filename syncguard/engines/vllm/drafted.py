"""The model that drafts tokens beside the main one, which no sync of the main one brings.

What the two share, as MTP layers and EAGLE heads do embedding and head, is the main one's.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from syncguard.engines.held import Held
from syncguard.engines.reachable import state_of, storage_of
from syncguard.engines.vllm import observe
from syncguard.engines.vllm.layers import held_weights
from syncguard.fingerprint import fingerprint
from syncguard.observations import StoredTensor, WeightPrint

__all__ = ["preserved_in", "storage_in"]


def preserved_in(draft: Any, model: Any, left_out: AbstractSet[int]) -> dict[str, int]:
    """A fingerprint of every tensor of a draft model, and of what its kernels compute with.

    A kernel on a CPU may have packed a matrix so that no tensor is left of it.

    Args:
        draft: The draft model.
        model: The main model.
        left_out: Addresses of storages to leave out: the main model's, and those of requests.
    """
    found = state_of(draft, left_out=left_out | observe.handles(draft))
    reader = replace(observe.reader(draft), held=tuple(_own(draft, model)))
    served = {
        f"{weight}<served>": _told(answer)
        for weight, answer in reader.probe_exact().items()
        if isinstance(answer, WeightPrint)
    }
    return {f"draft.{path}": print_ for path, print_ in (found | served).items()}


def storage_in(draft: Any, left_out: AbstractSet[int]) -> list[StoredTensor]:
    """The storage table of a draft model.

    Args:
        draft: The draft model.
        left_out: Addresses of the main model's storages.
    """
    without = left_out | observe.handles(draft)
    rows = storage_of(draft)
    return [replace(row, path=f"draft.{row.path}") for row in rows if row.storage not in without]


def _own(draft: Any, model: Any) -> Iterator[Held]:
    """The weights in modules that the main model has not too."""
    shared = {id(module) for module in model.modules()}
    return (held for held in held_weights(draft) if id(held.module) not in shared)


def _told(answer: WeightPrint) -> int:
    """One number for the prints of all rows."""
    rows = np.concatenate([answer.rows[part] for part in sorted(answer.rows)])
    return fingerprint(torch.from_numpy(rows.view(np.int64)))
