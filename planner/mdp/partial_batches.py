"""Leaving queries behind: batches smaller than the queue, and drops.

Taking b of n queries first makes the (b + 1)-th the head: its age, given that the head is u old and n - 1 came since,
is that of the b-th of n - 1 renewals in u, P(a) ~ gamma(u - a; b A) * P(n - 1 - b queries after it in a). Then tau
seconds pass from state (n - b, a), in which n' queries come. Ages are rounded up to the slack grid both times, so what
is expected is on the safe side.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from sluicegate.planner.mdp.kernel import Index, Kernel
from sluicegate.planner.mdp.mdp_model import Array


@dataclass(frozen=True)
class Partial:
    """Transitions of batches smaller than the queue. ``heads``: (n, b) -> (J, J) slack bin of the new head. ``come``:
    tau -> (N, J, most + 2) queries that come, the last entry any number more: the queue is full then.

    ``bin_after``: tau -> (J,) slack bin of a head that waited tau more.
    """

    kernel: Kernel
    heads: dict[tuple[int, int], Array]
    come: dict[int, Array]
    bin_after: dict[int, Index]

    def waited(self, tau: int, values: Array) -> Array:
        """(N, J): value of having waited ``tau`` in each state, from values (N, J) of states."""
        come, bins = self.come[tau], self.bin_after[tau]
        n = values.shape[0]
        later = values[:, bins]
        result = np.zeros_like(values)
        for more in range(come.shape[2]):
            stay = self._room(n, more, come)
            result[:stay] += come[:stay, :, more] * later[n - stay :]
            result[stay:] += come[stay:, :, more] * values[n - 1, 0]
        return result

    def spread(self, tau: int, mass: Array) -> Array:
        """(N, J): where probability (N, J) of states is after waiting ``tau``; the transpose of ``waited``."""
        come, bins = self.come[tau], self.bin_after[tau]
        starts = np.flatnonzero(np.diff(bins, prepend=-1))
        n = mass.shape[0]
        result = np.zeros_like(mass)
        for more in range(come.shape[2]):
            stay = self._room(n, more, come)
            moved = come[:, :, more] * mass
            result[n - stay :, bins[starts]] += np.add.reduceat(moved[:stay], starts, axis=1)
            result[n - 1, 0] += float(moved[stay:].sum())
        return result

    @staticmethod
    def _room(n: int, more: int, come: Array) -> int:
        """The longest queue to which ``more`` can come where n fill it."""
        return max(n - more, 0) if more < come.shape[2] - 1 else 0


def build_partial(kernel: Kernel, pairs: set[tuple[int, int]], taus: set[int]) -> Partial:
    """For (queued, batch) in ``pairs`` with batch < queued, and service times (indices) in ``taus``."""
    rows = kernel.matrix.tocsr()
    come: dict[int, Array] = {}
    bin_after: dict[int, Index] = {}
    for tau in sorted(taus):
        block = rows[tau * kernel.s_nodes : (tau + 1) * kernel.s_nodes]
        come[tau] = _arrivals_while(kernel, tau, block @ kernel.counts.T)
        slack = np.maximum(kernel.slacks - kernel.taus[tau], 0.0)
        bin_after[tau] = np.searchsorted(kernel.slacks, slack + 1e-12, side="right") - 1
    return Partial(kernel, _heads(kernel, pairs), come, bin_after)


def _arrivals_while(kernel: Kernel, tau: int, within: Array) -> Array:
    """(N, J, most + 2): P(n' queries come in tau | state), the last entry holding all the rest."""
    n, bins = kernel.levels, kernel.bins
    if kernel.taus[tau] == 0.0:
        return np.broadcast_to([1.0, 0.0], (n, bins, 2))
    some = np.clip(kernel.density @ within, 0.0, 1.0)
    most = int(np.flatnonzero(some.max(axis=(0, 1)) > 1e-15).max(initial=-1)) + 1
    come = np.zeros((n, bins, most + 2))
    come[:, :, 1 : most + 1] = some[:, :, :most]
    come[:, :, 0] = np.clip(1.0 - kernel.density @ kernel.arrival_within[tau], 0.0, 1.0)
    come[:, :, most + 1] = np.maximum(1.0 - come.sum(axis=2), 0.0)
    scaled: Array = come / come.sum(axis=2, keepdims=True)
    return scaled


def _heads(kernel: Kernel, pairs: set[tuple[int, int]]) -> dict[tuple[int, int], Array]:
    """(n, b) -> (J, J): P(slack bin of the (b + 1)-th query | slack bin of the first)."""
    a, rate = kernel.arrivals.shape, kernel.arrivals.stage_rate
    ages = kernel.model.slo - kernel.slacks
    inside = kernel.v_nodes < kernel.model.slo
    v, weights, bin_of = kernel.v_nodes[inside], kernel.v_weights[inside], kernel.bin_of[inside]
    starts = np.flatnonzero(np.diff(bin_of, prepend=-1))
    before = ages[:, None] - v[None, :]
    possible = before > 0.0
    log_before = np.log(np.where(possible, before, 1.0))
    with np.errstate(divide="ignore"):
        log_after = np.log(kernel.counts[:, inside])
    heads: dict[tuple[int, int], Array] = {}
    for n, b in sorted(pairs):
        log_p = (b * a - 1.0) * log_before - rate * before - gammaln(b * a) + log_after[n - 1 - b][None, :]
        log_p = np.where(possible, log_p, -np.inf)
        peak = log_p.max(axis=1, keepdims=True)
        reachable = np.isfinite(peak[:, 0])
        p = np.exp(log_p - np.where(reachable[:, None], peak, 0.0)) * weights
        binned = np.zeros((kernel.bins, kernel.bins))
        binned[:, bin_of[starts]] = np.add.reduceat(p, starts, axis=1)
        # States that no arrivals lead to: the new head as old as if arrivals had been evenly spaced.
        even = np.searchsorted(kernel.slacks, kernel.model.slo - ages * (1.0 - b / n) + 1e-12, side="right") - 1
        lost = np.flatnonzero(~reachable)
        binned[lost] = 0.0
        binned[lost, even[lost]] = 1.0
        heads[n, b] = binned / binned.sum(axis=1, keepdims=True)
    return heads
