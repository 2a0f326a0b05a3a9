"""The fault library: deliberate violations that prove that the checks can fail."""

from syncguard.faults import (
    atomicity,
    bucketing,
    caches,
    completeness,
    derived_state,
    freshness,
    layer_set,
    loading,
    observability,
    output,
    placement,
    preserved,
    repacking,
    rounding,
    source,
    storage,
    weight_grid,
)
from syncguard.faults.registry import FAULTS, NOT_REENACTED, Fault, fault
from syncguard.faults.world import World

__all__ = ["FAULTS", "NOT_REENACTED", "Fault", "World", "fault"]

_MODULES = (
    layer_set,
    weight_grid,
    rounding,
    derived_state,
    repacking,
    storage,
    completeness,
    bucketing,
    loading,
    output,
    observability,
    freshness,
    caches,
    preserved,
    atomicity,
    source,
    placement,
)
