"""The aggregated allocation program and its pipeline: prune, LP chain, round up, polish, keep the assignment."""

from planner.allocation.pipeline import AllocationPlanner

__all__ = ["AllocationPlanner"]
