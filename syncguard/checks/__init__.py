"""The checks: pure judgements on observations, one module a condition."""

from syncguard.checks import (
    atomicity,
    block_probe,
    cache_coherence,
    canary,
    cold_warm,
    completeness,
    derived_state,
    destinations,
    freshness,
    layer_set,
    output_sanity,
    placement,
    preserved_state,
    published,
    ranks,
    sampled_tokens,
    source_truth,
    storage_identity,
    use,
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
    destinations,
    output_sanity,
    sampled_tokens,
    ranks,
    freshness,
    use,
    cache_coherence,
    preserved_state,
    atomicity,
    source_truth,
    placement,
    published,
)
