"""How well any policy could have done that knew all arrivals beforehand."""

from sluicegate.simulator.bound.clairvoyant import Bound, clairvoyant_bound

__all__ = ["Bound", "clairvoyant_bound"]
