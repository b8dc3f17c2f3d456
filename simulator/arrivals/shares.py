"""How the queries of one trace are divided among apps."""

from collections.abc import Mapping, Sequence

import numpy as np

from sluicegate.domain.errors import InvalidInputError
from sluicegate.simulator.arrivals.rates import Floats


def zipf_shares(apps: int, exponent: float = 1.001) -> Floats:
    """Share of the k-th app proportional to k**-exponent (k from 1), summing to 1; exponent 0 is equal shares."""
    if apps < 1:
        raise InvalidInputError("shares", "need one app at least")
    if not 0.0 <= exponent <= 50.0:
        raise InvalidInputError("shares.zipf", f"{exponent} is not within 0..50")
    weights = np.arange(1, apps + 1, dtype=np.float64) ** -exponent
    shares: Floats = weights / weights.sum()
    return shares


def named_shares(apps: Sequence[str], weights: Mapping[str, float]) -> Floats:
    """Shares in the order of ``apps`` from weights by name; an app without a weight gets none."""
    unknown = sorted(set(weights) - set(apps))
    if unknown:
        raise InvalidInputError(f"shares.{unknown[0]}", f"no such app; there are {', '.join(apps)}")
    values = np.array([weights.get(app, 0.0) for app in apps], dtype=np.float64)
    if not np.isfinite(values).all() or (values < 0.0).any() or values.sum() <= 0.0:
        raise InvalidInputError("shares", "weights must be finite, not negative, and not all zero")
    shares: Floats = values / values.sum()
    return shares
