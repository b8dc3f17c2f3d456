"""What is asked of a solver and what it answers: limits, goals, answers, and trouble."""

from dataclasses import dataclass, replace

from sluicegate.domain.errors import SluiceError
from sluicegate.planner.allocation.program import Floats

_COMMON = 100
_FEWEST = 20


class SolverError(SluiceError):
    """The solver is missing or failed; says how."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When an integer search ends: absolute gap (objective units), nodes, and seconds as a safety stop.

    ``nodes`` holds up to a hundred ways to serve; a node of a larger program costs more, and it gets fewer.
    """

    gap: float = 5e-4
    nodes: int = 2000
    seconds: float = 20.0

    def of_size(self, serves: int) -> "Limits":
        """Limits for a program with so many ways to serve."""
        if serves <= _COMMON:
            return self
        return replace(self, nodes=max(min(_FEWEST, self.nodes), int(self.nodes * (_COMMON / serves) ** 2.5)))


@dataclass(frozen=True, slots=True)
class Solved:
    """A feasible answer. ``shares`` by serve, ``units`` by host, ``served`` by demand; ``bound`` on the objective."""

    value: float
    bound: float
    shares: Floats
    units: Floats
    served: Floats
    phi: float
    nodes: int = 0
    pool_duals: Floats | None = None
    demand_duals: Floats | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """What to maximise: coefficients by serve, by demand, of phi, and of loads and money by host (subtracted)."""

    shares: Floats | None = None
    served: Floats | None = None
    phi: float = 0.0
    prices: bool = False
