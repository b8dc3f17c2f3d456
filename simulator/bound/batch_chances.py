"""Batches that may answer a query in time: with what chance, and how long they take the slice for each of their rows.

Rules.
- Service times as profiled: batches that take no longer than the query may wait, for certain.
- Drawn ones: any batch has some chance. What it takes counts up to as long again as the query may wait, in the mean:
  prices beyond are not looked at. Lognormal or exponential as the simulator draws them, slow batches among them.
"""

from math import exp, log

from scipy.special import ndtr

from sluicegate.domain.models.profile import Z95, Profile
from sluicegate.simulator.engine.system_model import SystemModel


def chances_of(
    system: SystemModel, profile: Profile, length: int, window: float, factor: float, *, certain: bool
) -> list[tuple[float, float]]:
    """(chance to end within ``window`` seconds, seconds a row) by batch size, of rows padded to ``length`` at least.

    ``factor``: of a device that is faster than profiled for a while.
    """
    curve = profile.curve("p95" if system.service == "p95" else "median")
    seconds = [factor * curve.at(rows, length) for rows in range(1, curve.max_batch + 1)]
    if certain:
        return [(1.0, s / rows) for rows, s in enumerate(seconds, 1) if s <= window]
    p95 = profile.curve("p95")
    found = []
    for rows, median in enumerate(seconds, 1):
        sigma = log(p95(rows) / curve(rows)) / Z95 if system.service == "sampled" else 0.0
        drawn = [(1.0 - system.slow_probability, 1.0), (system.slow_probability, system.slow_factor)]
        chance = sum(p * _within(system, f * median, sigma, window) for p, f in drawn)
        taken = sum(p * _mean_up_to(system, f * median, sigma, window) for p, f in drawn)
        if chance > 0.0:
            found.append((chance, taken / rows))
    return found


def _within(system: SystemModel, seconds: float, sigma: float, limit: float) -> float:
    """Chance to take at most ``limit``; ``seconds``: the median of a lognormal, or the mean of an exponential."""
    if system.service == "exponential":
        return 1.0 - exp(-limit / seconds)
    if sigma <= 0.0:
        return float(seconds <= limit)
    return float(ndtr(log(limit / seconds) / sigma))


def _mean_up_to(system: SystemModel, seconds: float, sigma: float, limit: float) -> float:
    """Mean of the smaller of what it takes and ``limit``."""
    if system.service == "exponential":
        return seconds * (1.0 - exp(-limit / seconds))
    if sigma <= 0.0:
        return min(seconds, limit)
    z = log(limit / seconds) / sigma
    below = seconds * exp(0.5 * sigma * sigma) * float(ndtr(z - sigma))
    return below + limit * (1.0 - float(ndtr(z)))
