"""What a run computed with, for its report."""

import pytest

from syncguard._version import __version__
from syncguard.plugin.options import Options
from syncguard.protocols import Engine, Learner
from syncguard.report import Environment

__all__ = ["environment"]


def environment(learner: Learner, engine: Engine, options: Options) -> Environment:
    """Versions, names and options of a run's two sides."""
    import torch

    return {
        "syncguard": __version__,
        "torch": torch.__version__,
        "pytest": pytest.__version__,
        "model": options.model or "default",
        "seed": str(options.seed),
        "learner": learner.environment(),
        "engine": engine.environment(),
    }
