"""The stream of queries that one worker sees: renewals with Gamma gaps.

Round robin over K workers of an app whose gaps are Gamma(shape k) hands each worker every K-th query, so its gaps are
Gamma(k K): an Erlang-K for Poisson arrivals. The number of central arrivals since the worker's last one, the phase r in
0..K-1, is what makes the next gap predictable; a random dispatcher forgets it.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, betaln, gammainc, gammaincc, gammaln

from sluicegate.planner.mdp.mdp_model import Array, SelectionModel

_TINY = 1e-280
_SERIES_TERMS = 400
_MOST_STAGES = 4000
"""Gaps of more stages vary by less than 1.6 %: counting them all takes long, and changes nothing."""
_IDLE = 1e-9  # queries within a deadline that stand for none: keeps the algebra of zero load finite


@dataclass(frozen=True, slots=True)
class WorkerArrivals:
    """Gaps are Gamma(``shape``) with ``stage_rate`` stages a second; an integer shape is a count of stages (phases).

    ``share_error``: by how much the worker's share differs from one in a whole number, relative (weighted dispatch).
    """

    shape: float
    stage_rate: float
    share_error: float = 0.0

    @property
    def staged(self) -> bool:
        """Whether the stages can be counted (the shape is an integer)."""
        return self.shape == round(self.shape)

    @property
    def gap(self) -> float:
        """Mean seconds between the worker's queries."""
        return self.shape / self.stage_rate

    @property
    def spread(self) -> float:
        """Seconds over which densities of arrivals vary: one standard deviation of a gap, at most a mean gap."""
        return min(math.sqrt(self.shape), self.shape) / self.stage_rate

    def longest_gap(self, queries: int = 1) -> float:
        """Seconds that no gap, no sum of so many, exceeds but with probability 1e-16."""
        a = queries * self.shape
        return (a + 9.0 * math.sqrt(a) + 40.0) / self.stage_rate

    def counts(self, levels: Array, age: Array) -> Array:
        """P(level q | a query came ``age`` ago): shape (len(levels) - 1, len(age)).

        Level q means at least levels[q] and fewer than levels[q + 1] stages since; levels are ascending.
        """
        x = self.stage_rate * age
        with np.errstate(under="ignore"):
            reached = np.where(levels[:, None] > 0.0, gammainc(np.maximum(levels, 1e-300)[:, None], x), 1.0)
            missed = np.where(levels[:, None] > 0.0, gammaincc(np.maximum(levels, 1e-300)[:, None], x), 0.0)
        below = reached[:-1] - reached[1:]
        above = missed[1:] - missed[:-1]
        counts: Array = np.maximum(np.where(reached[:-1] < 0.5, below, above), 0.0)
        return counts

    def beyond(self, most: int, age: Array) -> Array:
        """Mean number of queries above k = 1..``most`` | a query came ``age`` ago, itself counted: (most, len(age))."""
        x = self.stage_rate * age
        full = self.stage_rate * self.longest_gap(most)
        counted = math.ceil((full + 9.0 * math.sqrt(full) + 40.0) / self.shape)
        later = np.arange(1, counted + 1, dtype=np.float64)[:, None] * self.shape
        with np.errstate(under="ignore"):
            reached = gammainc(later, np.minimum(x, full)[None, :])
        above = np.cumsum(reached[::-1], axis=0)[::-1][:most]
        above += np.maximum(x - full, 0.0) / self.shape
        return np.asarray(above, dtype=np.float64)

    def next_density(self, first: int, last: int, age: Array, seconds: Array) -> Array:
        """Density of the next query ``seconds`` from now: shape (len(age), len(seconds)), for an integer shape.

        Known: the head came ``age`` ago, and first..last - 1 stages passed since (first // shape queries after it).
        The phase has weights w(r) ~ Poisson(first + r; stage_rate * age), in log space.
        """
        stages = np.arange(first, last, dtype=np.float64)
        x = self.stage_rate * age
        log_x = np.log(np.where(x > 0.0, x, 1.0))
        log_w = log_x[:, None] * (stages - first) - gammaln(stages + 1.0)
        log_w[x == 0.0, 1:] = -np.inf
        log_w -= log_w.max(axis=1, keepdims=True)
        weights = np.exp(log_w)
        weights /= weights.sum(axis=1, keepdims=True)
        density: Array = weights @ self._stage_densities(stages, seconds)
        return density

    def _stage_densities(self, stages: Array, seconds: Array) -> Array:
        """Erlang densities of the gap left after r = stages mod shape of its stages."""
        left = self.shape - 1.0 - np.mod(stages, self.shape)
        x = self.stage_rate * seconds
        log_density = np.log(x)[None, :] * left[:, None] - x[None, :] - gammaln(left + 1.0)[:, None]
        density: Array = self.stage_rate * np.exp(log_density)
        return density

    def next_log_density(self, queries: int, age: Array, seconds: Array) -> Array:
        """Log density of the next query, up to a constant a row, for any shape: (len(age), len(seconds)).

        The head came ``age`` ago and ``queries`` - 1 queries after it. With y = age + s the joint density is
        gamma(y; n A) * I_{age/y}((n - 1) A, A): the n-th renewal at y, the one before it no later than now.
        """
        y = age[:, None] + seconds[None, :]
        a = self.shape
        log_density = (queries * a - 1.0) * np.log(y) - self.stage_rate * y
        if queries > 1:
            log_density = log_density + log_beta_ratio((queries - 1) * a, a, age[:, None] / y)
        just_arrived = age == 0.0
        log_density[just_arrived] = (a - 1.0) * np.log(seconds) - self.stage_rate * seconds
        return np.asarray(log_density, dtype=np.float64)


def log_beta_ratio(a: float, b: float, p: Array) -> Array:
    """log I_p(a, b), the regularised incomplete beta function, also where it underflows (by its series)."""
    with np.errstate(divide="ignore", under="ignore"):
        direct = np.asarray(betainc(a, b, p), dtype=np.float64)
        result: Array = np.log(direct)
    deep = (direct < _TINY) & (p > 0.0)
    if deep.any():
        x = p[deep]
        term = np.ones_like(x)
        total = np.ones_like(x)
        for i in range(_SERIES_TERMS):
            term *= x * (a + b + i) / (a + 1.0 + i)
            total += term
        result[deep] = a * np.log(x) + b * np.log1p(-x) - math.log(a) - betaln(a, b) + np.log(total)
    return result


def worker_arrivals(model: SelectionModel) -> WorkerArrivals:
    """What one worker of ``model`` sees.

    Random dispatch thins the stream: the gap is a geometric sum of central gaps, matched by the Gamma of equal mean and
    variance (exact for Poisson). A weighted share p is every round(1/p)-th query at the worker's own rate.
    """
    qps = max(model.qps, _IDLE / model.slo)
    rate = qps / model.workers
    shape = model.arrival_shape
    if model.dispatch == "random":
        variation = 1.0 / (shape * model.workers) + 1.0 - 1.0 / model.workers
        return WorkerArrivals(1.0 / variation, rate / variation)
    if model.dispatch == "weighted":
        assert model.share is not None  # the model was validated
        every = min(max(1, round(1.0 / model.share)), _MOST_STAGES)
        stages = min(shape * every, _MOST_STAGES)
        return WorkerArrivals(stages, stages * qps * model.share, model.share * every - 1.0)
    stages = min(shape * model.workers, _MOST_STAGES)
    return WorkerArrivals(stages, stages * rate)
