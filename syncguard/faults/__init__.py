"""The fault library: deliberate violations that prove that the checks can fail."""

from syncguard.faults.registry import FAULTS, Fault, fault
from syncguard.faults.world import World

__all__ = ["FAULTS", "Fault", "World", "fault"]
