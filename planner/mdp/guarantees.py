"""What a policy promises, from the long-run mix of its decisions, weighted by queries."""

import numpy as np

from sluicegate.domain.table import Expectations, Spread
from sluicegate.planner.mdp.mdp_model import Array
from sluicegate.planner.mdp.operators import Chain
from sluicegate.planner.mdp.value_iteration import Solution

_NONE = 1e-9
"""A share of queries that is none."""


def expectations(chain: Chain, solution: Solution) -> Expectations:
    """Accuracy and violation by state, as in EuroSys 2024 section 5.1, and the spread over states."""
    choice, pi = solution.choice, solution.stationary
    ages = chain.model.slo - chain.kernel.slacks
    batch, seconds, accuracy, met = (np.empty(chain.shape) for _ in range(4))
    for level in range(chain.shape[0]):
        o, picked = chain.options_at(level), choice[level]
        batch[level] = o.batch[picked]
        seconds[level] = chain.kernel.taus[o.tau[picked]]
        accuracy[level] = o.accuracy[picked]
        met[level] = o.satisfied[np.arange(len(picked)), picked]
    weight = pi * batch
    served = float(weight.sum())
    on_time = weight * met
    mean_batch = served / float(pi.sum())
    busy = float((pi * seconds).sum()) / float(pi.sum())
    rate = chain.arrivals_per_second
    lost = chain.never_queued(choice, pi)
    return Expectations(
        accuracy=min(_accuracy(on_time, accuracy, served), float(accuracy.max())),
        violation=max(0.0, (float((weight * (1.0 - met)).sum()) + lost) / (served + lost)),
        mean_batch=mean_batch,
        utilisation=min(1.0, busy * rate / (mean_batch + lost / float(pi.sum()))),
        accuracy_spread=_spread(accuracy * met, weight, worst_low=True),
        batch_spread=_spread(batch, weight, worst_low=False),
        response_spread=_spread(ages[None, :] + seconds, weight, worst_low=False),
    )


def _accuracy(on_time: Array, accuracy: Array, served: float) -> float:
    """Of the queries in time; 0 where so few of them are that rounding decides which."""
    whole = float(on_time.sum())
    return float((on_time * accuracy).sum()) / whole if whole > _NONE * served else 0.0


def _spread(values: Array, weight: Array, *, worst_low: bool) -> Spread:
    flat, mass = values.ravel(), weight.ravel() / weight.sum()
    order = np.argsort(flat)
    cumulative = np.cumsum(mass[order])

    def quantile(q: float) -> float:
        at = min(int(np.searchsorted(cumulative, q - 1e-12)), len(order) - 1)
        return float(flat[order[at]])

    return Spread(float(flat @ mass), quantile(0.5), quantile(0.01 if worst_low else 0.99))
