"""Transitions of the selection process, factored so that they are never written out.

State (q, j): level q of the queue (n = queries queued, and the phase where it is told apart), slack bin j of the head.
An action runs all n queries for tau seconds. What follows depends on one number, the age v that the first query to
come has reached when the batch ends:

    P(q', j' | q, j, tau) = integral over v in bin j' of  f_qj(tau - v) * P(level q' | age v)  dv

with f_qj the density of the next arrival. If none comes the next decision is at the next arrival: (one query, full
slack). More queries than N count as N with no slack. This is the published chain (EuroSys 2024, section 4.3) with the
sum over the phase r done first: rows are functions of v, so a sweep of value iteration costs one product with f and one
with a sparse matrix, whatever the number of workers.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import bsr_array

from sluicegate.domain.errors import InvalidInputError
from sluicegate.planner.mdp.arrival_process import WorkerArrivals, worker_arrivals
from sluicegate.planner.mdp.mdp_model import Array, SelectionModel
from sluicegate.planner.mdp.quadrature import Grid, cells, convolution, panels

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Kernel:
    """Shapes: Q levels, J slack bins (edges), S nodes of s, C nodes of v, T service times.

    ``density``: (Q, J, S); ``counts``: (Q, C); ``bin_of``: (C,) slack bin of a node; ``matrix``: (T * S, C), product
    integrals for ``taus`` (T,); ``queued``: (Q,) queries at a level; ``full``: the level taken for more than N.
    """

    model: SelectionModel
    arrivals: WorkerArrivals
    slacks: Array
    queued: Index
    full: int
    density: Array
    counts: Array
    overflow: Array
    bin_of: Index
    v_nodes: Array
    v_weights: Array
    taus: Array
    matrix: bsr_array

    @property
    def levels(self) -> int:
        """Q."""
        return len(self.queued)

    @property
    def bins(self) -> int:
        """J."""
        return len(self.slacks)

    @property
    def s_nodes(self) -> int:
        """S."""
        return int(self.density.shape[2])

    @cached_property
    def transposed(self) -> bsr_array:
        """``matrix``, turned over: for distributions instead of values."""
        return self.matrix.T.tobsr()

    @cached_property
    def arrival_within(self) -> Array:
        """(T, S): integrates f up to tau, so ``density @ arrival_within[t]`` = P(an arrival during tau)."""
        ones: Array = self.matrix @ np.ones(self.matrix.shape[1])
        return ones.reshape(len(self.taus), self.s_nodes)

    def left_with(self, values: Array) -> Array:
        """(C,): value of ending a batch with a head of age v, from values (Q, J) of states."""
        z: Array = np.einsum("qc,qc->c", self.counts, values[:, self.bin_of])
        z += self.overflow * values[self.full, 0]
        return z

    def ahead(self, values: Array) -> Array:
        """(T, S): what ``density`` is to be multiplied by for the expected value after each service time."""
        ahead: Array = np.reshape(self.matrix @ self.left_with(values), (len(self.taus), self.s_nodes))
        return ahead

    def arrive_at(self, flow: Array) -> Array:
        """(Q, J): where probability goes that left states as ``flow`` (T, S) over the time of the next arrival."""
        ages: Array = self.transposed @ flow.ravel()
        placed = np.zeros((self.bins, self.levels))
        np.add.at(
            placed, self.bin_of[self._bin_starts], np.add.reduceat((self.counts * ages).T, self._bin_starts, axis=0)
        )
        placed[0, self.full] += float(self.overflow @ ages)
        return placed.T

    @cached_property
    def _bin_starts(self) -> Index:
        return np.flatnonzero(np.diff(self.bin_of, prepend=-1))


def build_kernel(model: SelectionModel, taus: Array) -> Kernel:
    """Everything of the chain that does not depend on values; ``taus``: service times that may be chosen, seconds."""
    arrivals = worker_arrivals(model)
    check_phases(model, arrivals.shape)
    slacks = model.slacks()
    ages = model.slo - slacks
    ages[-1] = 0.0
    longest = max(float(taus.max()), model.slo) if len(taus) else model.slo
    graded = not arrivals.staged and arrivals.shape < 4.0
    full = arrivals.longest_gap(model.longest)
    v_grid, interval = cells(ages[::-1], longest, arrivals.spread, full, graded=graded)
    bin_of = np.repeat(len(ages) - 2 - interval, v_grid.nodes.shape[1])
    support = arrivals.longest_gap() if not arrivals.staged else min(arrivals.longest_gap(), longest)
    s_grid = panels(arrivals.stage_rate, support, graded=graded)
    levels, queued = _levels(model, arrivals)
    counts = arrivals.counts(levels, v_grid.nodes.ravel())
    return Kernel(
        model=model,
        arrivals=arrivals,
        slacks=slacks,
        queued=queued,
        full=len(queued) - model.phases,
        density=_densities(arrivals, levels, queued, ages, s_grid),
        counts=counts,
        overflow=np.maximum(1.0 - counts.sum(axis=0), 0.0),
        bin_of=bin_of,
        v_nodes=v_grid.nodes.ravel(),
        v_weights=v_grid.weights.ravel(),
        taus=taus,
        matrix=convolution(taus, s_grid, v_grid),
    )


def check_phases(model: SelectionModel, shape: float) -> None:
    """The phase can be told apart only where stages are whole, and no finer than there are stages."""
    if model.phases > 1 and (shape != round(shape) or model.phases > shape):
        raise InvalidInputError(
            "phases", f"{model.phases} of them with {shape:g} stages between queries; at most one a whole stage"
        )


def _levels(model: SelectionModel, arrivals: WorkerArrivals) -> tuple[Array, Index]:
    """Stages at which levels begin (Q + 1,), and queries queued at each level (Q,): a query, then its phases."""
    n = model.longest
    starts: Array = np.arange(n + 1, dtype=np.float64) * arrivals.shape
    if model.phases == 1:
        return starts, np.arange(1, n + 1, dtype=np.int64)
    steps = np.floor(np.arange(model.phases) * arrivals.shape / model.phases)
    levels = np.append((starts[:-1, None] + steps[None, :]).ravel(), starts[-1])
    return levels, np.repeat(np.arange(1, n + 1, dtype=np.int64), model.phases)


def _densities(arrivals: WorkerArrivals, levels: Array, queued: Index, ages: Array, s_grid: Grid) -> Array:
    """f at the nodes of s: (Q, J, S)."""
    seconds = s_grid.nodes.ravel()
    density = np.empty((len(queued), len(ages), len(seconds)))
    for q in range(len(queued)):
        if arrivals.staged:
            density[q] = arrivals.next_density(int(levels[q]), int(levels[q + 1]), ages, seconds)
            continue
        log_density = arrivals.next_log_density(int(queued[q]), ages, seconds)
        scaled = np.exp(log_density - log_density.max(axis=1, keepdims=True))
        density[q] = scaled / (scaled @ s_grid.weights.ravel())[:, None]
    if not math.isfinite(float(density.sum())):
        raise FloatingPointError("density of arrivals overflowed")
    return density
