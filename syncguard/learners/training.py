"""A training step's loss, and what the step changed in the grid."""

from collections.abc import Callable, Mapping
from typing import Final

import torch

from syncguard.learners.observing import UsedGrid
from syncguard.learners.scoring import token_logprobs

__all__ = ["policy_gradient", "shares_changed"]

_SEQUENCES: Final = 4
_TOKENS: Final = 16  # MXFP8 gradients of weights have blocks of 32 over the tokens of a batch


def policy_gradient(
    forward: Callable[[torch.Tensor], torch.Tensor], vocabulary: int, seed: int
) -> torch.Tensor:
    """The policy-gradient loss of random sequences with random advantages.

    Args:
        forward: Takes int64 [batch, length], gives logits [batch, length, vocabulary].
        vocabulary: How many tokens there are.
        seed: Of the tokens and advantages.

    Returns:
        A float32 scalar: minus the mean over tokens of advantage x log-probability.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (_SEQUENCES, _TOKENS), generator=generator)
    advantages = torch.randn(_SEQUENCES, 1, generator=generator)
    logprobs = token_logprobs(forward(tokens).float(), tokens)
    return -(advantages * logprobs).mean()


def shares_changed(
    before: Mapping[str, UsedGrid], after: Mapping[str, UsedGrid]
) -> tuple[float, float]:
    """Compare the grids of two forwards.

    Returns:
        The share of elements that differ, and of scales; 0 if there are none.
    """
    shares = []
    for component in ("elements", "scales"):
        changed = total = 0
        for name in before.keys() & after.keys():
            old, new = getattr(before[name], component), getattr(after[name], component)
            changed += int((_bits(old) != _bits(new)).sum())
            total += old.numel()
        shares.append(changed / max(1, total))
    return shares[0], shares[1]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32 if tensor.itemsize == 4 else torch.uint8)
