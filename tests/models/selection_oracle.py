"""The selection chain written out literally from the paper's formulas: slow, and independent of the planner's own.

H(r, n', j) = sum over phases x at the earliest arrival of Pois(x - r) * W(x; u_j), rows by differences over slack bins,
folded with the phase weights; expected values and long-run shares by plain iteration.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc, gammaln

Array = NDArray[np.float64]


def poisson(k: NDArray[np.int64], mean: float) -> Array:
    """P(Poisson(mean) = k), 0 for negative k."""
    known = np.maximum(k, 0).astype(float)
    if mean <= 0.0:
        return np.where(k == 0, 1.0, 0.0)
    return np.where(k < 0, 0.0, np.exp(known * np.log(mean) - mean - gammaln(known + 1.0)))


@dataclass(frozen=True)
class Oracle:
    """One worker of ``workers``, ``rate`` queries a second in all, D equal slack bins up to ``slo``, N queries."""

    workers: int
    rate: float
    slo: float
    bins: int
    longest: int

    def ages(self) -> Array:
        """u_j."""
        return self.slo * (1.0 - np.arange(self.bins + 1) / self.bins)

    def counted(self, seconds: float) -> Array:
        """W[x, n'] = P(floor((x + Poisson) / K) = n'), x = 0..K - 1."""
        k = self.workers
        x = np.arange(k)
        reach = np.stack([(n + 1) * k - 1 - x for n in range(self.longest + 1)])
        mean = self.rate * seconds
        below = gammaincc(reach + 1.0, mean) if mean > 0.0 else np.ones(reach.shape)
        return np.diff(below, axis=0, prepend=0.0).T

    def phase(self, n: int, j: int) -> Array:
        """w(r | n, j)."""
        mean = self.rate * self.ages()[j]
        if j == self.bins:
            return (np.arange(self.workers) == 0).astype(float)
        stages = (n - 1) * self.workers + np.arange(self.workers)
        log_w = stages * np.log(mean) - gammaln(stages + 1.0)
        w = np.exp(log_w - log_w.max())
        return w / w.sum()

    @cache  # noqa: B019  # an oracle lives as long as its test
    def from_phase(self, tau: float) -> Array:
        """P(n', slack bin | r, tau): (K, N + 1, D + 1)."""
        k, ages = self.workers, self.ages()
        r = np.arange(k)
        h = np.zeros((k, self.longest + 1, self.bins + 2))
        for j in range(self.bins + 1):
            first = 0.0 if j == 0 else max(0.0, tau - ages[j])
            if first > 0.0:
                h[:, :, j] = poisson(r[None, :] - r[:, None], self.rate * first) @ self.counted(ages[j])
            else:
                h[:, :, j] = self.counted(tau)
        return h[:, :, :-1] - h[:, :, 1:]

    def row(self, n: int, j: int, tau: float) -> Array:
        """P(next state | n, j, tau): (N, D + 1), overflow in [-1, 0], an empty queue in [0, -1]."""
        folded = np.tensordot(self.phase(n, j), self.from_phase(tau), 1)
        row = folded[1:].copy()
        row[0, -1] += folded[0].sum()
        row[-1, 0] += max(0.0, 1.0 - row.sum())
        return row
