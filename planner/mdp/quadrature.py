"""Product integration of f(s) * Z(tau - s) over s in [0, tau], for all service times tau at once.

f, the density of the worker's next arrival, is smooth: a polynomial on each *panel* of s. Z, the value of being left
with a head of age v, is smooth within a slack bin and jumps between bins: a polynomial on each *cell* of v. Panels and
cells are cut against each other once for each tau, and the integrals of basis products stored as dense blocks of a
sparse matrix, so that any integral is ``f_nodes @ (matrix @ Z_nodes)``. Neither the number of workers nor of variants
enters the size of f or Z.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import bsr_array

from sluicegate.planner.mdp.mdp_model import Array

PANEL_NODES = 12
CELL_NODES = 8
_PANEL_WIDTH = 0.75
_CELL_WIDTH = 1.0
_FULL_CELLS = 200
_GRADED = 24


@dataclass(frozen=True, slots=True)
class Grid:
    """Intervals between ascending ``edges``, each with Gauss-Legendre nodes: (intervals, nodes each)."""

    edges: Array
    nodes: Array
    weights: Array
    basis: Array

    @property
    def intervals(self) -> int:
        """How many."""
        return len(self.edges) - 1

    def values(self, interval: NDArray[np.int64], x: Array) -> Array:
        """Each Lagrange polynomial of the interval at points x (m, q): (m, q, nodes)."""
        low, high = self.edges[interval], self.edges[interval + 1]
        local = (2.0 * x - (low + high)[:, None]) / (high - low)[:, None]
        values: Array = np.polynomial.legendre.legvander(local, self.basis.shape[0] - 1) @ self.basis
        return values


def gauss(edges: Array, count: int) -> Grid:
    """Gauss-Legendre nodes on each interval of ``edges``."""
    x, w = np.polynomial.legendre.leggauss(count)
    half = np.diff(edges)[:, None] / 2.0
    nodes = (edges[:-1, None] + edges[1:, None]) / 2.0 + half * x[None, :]
    basis: Array = np.linalg.inv(np.polynomial.legendre.legvander(x, count - 1)).astype(np.float64)
    return Grid(edges, nodes, half * w[None, :], basis)


def panels(stage_rate: float, longest: float, *, graded: bool) -> Grid:
    """Panels of [0, longest]: widths grow with sqrt(s), as the spread of a sum of stages does.

    ``graded``: densities may be singular at 0 (shapes that are no integer): halve the first panel again and again.
    """
    count = max(2, math.ceil(math.sqrt(stage_rate * longest) / _PANEL_WIDTH))
    edges = longest * (np.arange(count + 1) / count) ** 2
    if graded:
        edges = np.concatenate(([0.0], edges[1] * 0.5 ** np.arange(2 * _GRADED, 0, -1), edges[1:]))
    return gauss(edges, PANEL_NODES)


def cells(ages: Array, longest: float, spread: float, full: float, *, graded: bool) -> tuple[Grid, NDArray[np.int64]]:
    """Cells of the head's age v in [0, longest], none wider than ``spread`` or across an edge of ``ages``.

    From ``full`` on the queue is full whatever v, so that values hardly vary: cells are no more than so many there,
    whatever the rate of arrivals.

    ``ages``: ascending, from 0 to the SLO. Returns the grid and, for each cell, the interval of ``ages`` that it lies
    in (the last one also for v beyond the SLO).
    """
    top = ages[-1]
    stops = np.append(ages, longest) if longest > top * (1.0 + 1e-12) else ages
    if full < stops[-1]:
        stops = np.union1d(stops, full)
    widths = np.diff(stops)
    widest = np.where(stops[:-1] < full, _CELL_WIDTH * spread, max(_CELL_WIDTH * spread, longest / _FULL_CELLS))
    parts = np.maximum(1, np.ceil(widths / widest)).astype(np.int64)
    edges = [stops[:1]]
    for low, width, n in zip(stops[:-1], widths, parts, strict=True):
        edges.append(low + width * np.arange(1, n + 1) / n)
    flat = np.concatenate(edges)
    if graded:
        flat = np.concatenate(([0.0], flat[1] * 0.5 ** np.arange(_GRADED, 0, -1), flat[1:]))
    middles = (flat[:-1] + flat[1:]) / 2.0
    inside = np.clip(np.searchsorted(ages, middles, side="right") - 1, 0, len(ages) - 2)
    return gauss(flat, CELL_NODES), inside.astype(np.int64)


def convolution(taus: Array, s_grid: Grid, v_grid: Grid) -> bsr_array:
    """The matrix of product integrals: row (tau, panel, node), column (cell, node).

    Entry = integral over s in [0, tau] of panel-basis(s) * cell-basis(tau - s). Shape (len(taus) * panels * nodes,
    cells * nodes), stored as blocks (panel nodes, cell nodes).
    """
    row, low, high = _intervals(taus, s_grid.edges, v_grid.edges)
    middle = (low + high) / 2.0
    panel = np.clip(np.searchsorted(s_grid.edges, middle, side="right") - 1, 0, s_grid.intervals - 1)
    cell = np.clip(np.searchsorted(v_grid.edges, taus[row] - middle, side="right") - 1, 0, v_grid.intervals - 1)
    x, w = np.polynomial.legendre.leggauss((PANEL_NODES + CELL_NODES) // 2)
    half = (high - low) / 2.0
    s = middle[:, None] + half[:, None] * x[None, :]
    f_basis = s_grid.values(panel, s)
    z_basis = v_grid.values(cell, taus[row][:, None] - s) * (half[:, None] * w[None, :])[:, :, None]
    blocks = np.matmul(f_basis.transpose(0, 2, 1), z_basis)
    block_row = row * s_grid.intervals + panel
    starts = np.searchsorted(block_row, np.arange(len(taus) * s_grid.intervals + 1))
    shape = (len(taus) * s_grid.intervals * PANEL_NODES, v_grid.intervals * CELL_NODES)
    return bsr_array((blocks, cell.astype(np.int32), starts.astype(np.int32)), shape=shape)


def _intervals(taus: Array, s_edges: Array, v_edges: Array) -> tuple[NDArray[np.int64], Array, Array]:
    """Pieces of [0, tau] on which both bases are polynomials, in order of (tau, s): row of tau, low, high."""
    ends = np.minimum(taus, s_edges[-1])[:, None]
    cuts = np.concatenate([np.broadcast_to(s_edges, (len(taus), len(s_edges))), taus[:, None] - v_edges], axis=1)
    cuts = np.sort(np.clip(cuts, 0.0, ends), axis=1)
    keep = np.diff(cuts, axis=1) > 1e-15 * ends
    rows = np.broadcast_to(np.arange(len(taus))[:, None], keep.shape)[keep]
    return rows, cuts[:, :-1][keep], cuts[:, 1:][keep]
