"""The joint program: how many GPUs of each geometry, and what their slices host, in one matrix.

Rules:
- Pools are slice profiles of a GPU type. Their units are not given but made: units hosting on a profile are at most
  sum over geometries of (slices of that profile in it) * (GPUs cut so). GPUs of a fleet have exactly one geometry each.
- Changes: r_g >= GPUs cut like g now - GPUs cut like g then; their sum is at most max(1, floor(0.3 n)), and each costs
  ``change_weight`` / n in whatever a step maximises, so that none is made for less.
- The chain of goals is that of the allocation: all demand, else fair, then most served, then accuracy.
- A relaxed answer becomes whole by moving GPUs one at a time from where there are too many to where there are too few,
  so that the limit on changes holds by construction.

After Proteus (section 4) and PROTEAN (section 4.3), joined: all undominated geometries instead of two.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from sluicegate.planner.allocation.linear import Goal, Matrix, Solved
from sluicegate.planner.allocation.program import Floats, Ints, Program
from sluicegate.planner.geometry.mig_tables import Geometry


@dataclass(frozen=True, slots=True)
class Fleet:
    """Interchangeable GPUs. ``pools``: index of the program's pool by slice profile; ``now``: GPUs by geometry.

    ``options``: geometries to choose from, those of ``now`` included. ``slots``: units that each slice is counted as.
    ``charged``: whether its changes cost anything. Fleets may share pools.
    """

    gpus: int
    options: tuple[Geometry, ...]
    now: Mapping[Geometry, int]
    pools: Mapping[str, int]
    max_changes: int
    slots: int
    charged: bool


class GeometryMatrix(Matrix):
    """The allocation's matrix with columns for GPUs by geometry and for changes."""

    def __init__(
        self, program: Program, fleets: Sequence[Fleet], *, change_weight: float, integer: bool = False
    ) -> None:
        super().__init__(program, integer=integer)
        self._fleets = tuple(fleets)
        self._change_weight = change_weight
        self._first = self._columns
        self._options = [(f, g) for f, fleet in enumerate(fleets) for g in fleet.options]
        self._change_first = self._first + len(self._options)
        self._columns = self._change_first + len(self._options)
        self.gpus_by_geometry: Floats = np.zeros(len(self._options))
        """GPUs of each option in the last answer, fleets and their options in order."""
        self._geometry_rows()

    def _geometry_rows(self) -> None:
        infinite = float("inf")
        for f, fleet in enumerate(self._fleets):
            columns = np.array([i for i, (of, _) in enumerate(self._options) if of == f], dtype=np.int64)
            for profile, pool in fleet.pools.items():
                self._rows[int(self._pool_rows[pool])] = (-infinite, 0.0)
                slices = np.array([fleet.slots * Counter(g)[profile] for g in fleet.options], dtype=np.float64)
                self._add(np.full(len(columns), self._pool_rows[pool]), self._first + columns, -slices)
            total = self._new_rows(1, float(fleet.gpus), float(fleet.gpus))
            self._add(np.repeat(total, len(columns)), self._first + columns, np.ones(len(columns)))
            now = np.array([fleet.now.get(g, 0) for g in fleet.options], dtype=np.float64)
            left = self._new_rows(len(columns), now, infinite)
            self._add(left, self._first + columns, np.ones(len(columns)))
            self._add(left, self._change_first + columns, np.ones(len(columns)))
            cap = self._new_rows(1, -infinite, float(fleet.max_changes))
            self._add(np.repeat(cap, len(columns)), self._change_first + columns, np.ones(len(columns)))

    @override
    def _objective(self, goal: Goal) -> Floats:
        coefficients = super()._objective(goal)
        gpus = max(1, sum(f.gpus for f in self._fleets))
        charged = np.array([self._fleets[f].charged for f, _ in self._options], dtype=np.float64)
        coefficients[self._change_first :] -= charged * self._change_weight / gpus
        return coefficients

    @override
    def _whole(self) -> Ints:
        return np.append(super()._whole(), np.arange(self._first, self._change_first))

    @override
    def _read(self, result: Any, duals: bool) -> Solved | None:
        solved = super()._read(result, duals)
        if solved is not None:
            values = result.solutions[0].primal_solution.variable_values.values
            self.gpus_by_geometry = np.array(values[self._first : self._change_first])
        return solved

    def by_fleet(self) -> list[Floats]:
        """GPUs by option, a fleet each, of the last answer."""
        found, at = [], 0
        for fleet in self._fleets:
            found.append(self.gpus_by_geometry[at : at + len(fleet.options)])
            at += len(fleet.options)
        return found


def whole_gpus(fleet: Fleet, relaxed: Floats) -> Ints:
    """Whole numbers of GPUs by option, near ``relaxed``, reached by at most ``max_changes`` changes from now."""
    now = np.array([fleet.now.get(g, 0) for g in fleet.options], dtype=np.int64)
    moved = now.copy()
    for _ in range(fleet.max_changes):
        lack = relaxed - moved
        giver, taker = int(np.argmin(np.where(moved > 0, lack, np.inf))), int(np.argmax(lack))
        # A move must bring both ends closer to what was asked for.
        if lack[taker] - lack[giver] <= 1.0 + 1e-9 or moved[giver] == 0:
            break
        moved[giver] -= 1
        moved[taker] += 1
    return moved


def units_of(fleets: Sequence[Fleet], gpus: Sequence[Ints], counts: Sequence[int]) -> tuple[int, ...]:
    """Units by pool once the fleets are cut so; pools of no fleet keep theirs."""
    units = list(counts)
    for pool in {pool for fleet in fleets for pool in fleet.pools.values()}:
        units[pool] = 0
    for fleet, chosen in zip(fleets, gpus, strict=True):
        for profile, pool in fleet.pools.items():
            slices = sum(Counter(g)[profile] * int(n) for g, n in zip(fleet.options, chosen, strict=True))
            units[pool] += fleet.slots * slices
    return tuple(units)
