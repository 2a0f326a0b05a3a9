"""The checks: pure judgements on observations, one module a condition."""

from syncguard.checks import (
    block_probe,
    canary,
    cold_warm,
    completeness,
    derived_state,
    freshness,
    layer_set,
    output_sanity,
    published,
    storage_identity,
    weight_grid,
)
from syncguard.checks.judgement import Judgement
from syncguard.checks.registry import CHECKS, Check, check

__all__ = ["CHECKS", "Check", "Judgement", "check"]

_MODULES = (
    layer_set,
    weight_grid,
    canary,
    cold_warm,
    derived_state,
    block_probe,
    storage_identity,
    completeness,
    output_sanity,
    freshness,
    published,
)
