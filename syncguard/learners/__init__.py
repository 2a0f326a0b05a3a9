"""Learners: the trainer's side of a sync."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from syncguard.learners.transformers import TransformersLearner

__all__ = ["TransformersLearner"]


def __getattr__(name: str) -> object:
    if name == "TransformersLearner":
        from syncguard.learners.transformers import TransformersLearner

        return TransformersLearner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
