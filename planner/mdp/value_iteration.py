"""Relative value iteration, and Dinkelbach's method for the ratio of accuracy to queries.

``decision`` (as published) maximises accuracy * [deadline met] a decision; ``query`` maximises the same a query, with
violations priced: E[b * (accuracy * met - c * missed)] / E[b] over batches of b. Rewards b * (... - g) have gain 0
exactly at the best ratio g, which a few rounds find (Dinkelbach 1967). Accuracy times b a decision, without g, would be
wrong: it rewards letting the queue grow.
"""

from dataclasses import dataclass

import numpy as np

from sluicegate.planner.mdp.anderson import Mixer
from sluicegate.planner.mdp.kernel import Index
from sluicegate.planner.mdp.mdp_model import Array
from sluicegate.planner.mdp.operators import Chain

_SPAN = 1e-8
_COARSE = 1e-2
_SETTLED = 1e-13
_MAX_SWEEPS = 3000
_MAX_ROUNDS = 30
_MAX_STEPS = 20_000


@dataclass(frozen=True)
class Solution:
    """A solved decision process. ``choice`` (Q, J) indexes options; ``stationary`` (Q, J) is where it leads; ``values``
    warm the next solve."""

    choice: Index
    stationary: Array
    values: Array
    sweeps: int
    span: float


def solve(chain: Chain, values: Array | None = None) -> Solution:
    """The best policy. ``values``: of a similar chain, to start from."""
    v = np.zeros(chain.shape) if values is None or values.shape != chain.shape else values
    if chain.model.criterion == "decision":
        choice, v, sweeps, span = _iterate(chain, _rewards(chain, 0.0), v)
        return Solution(choice, stationary(chain, choice), v, sweeps, span)
    return _best_ratio(chain, v)


def _best_ratio(chain: Chain, v: Array) -> Solution:
    """Rounds begin coarse: the ratio only needs to be as exact as the policy that it came from."""
    ratio = max(m.accuracy for m in chain.model.variants)
    total = 0
    pi = None
    accuracy = _COARSE
    for _ in range(_MAX_ROUNDS):
        choice, v, sweeps, span = _iterate(chain, _rewards(chain, ratio), v, accuracy)
        total += sweeps
        pi = stationary(chain, choice, pi, max(_SETTLED, 1e-3 * accuracy))
        improved = _ratio_of(chain, choice, pi)
        done = accuracy <= _SPAN and abs(improved - ratio) < 1e-8
        accuracy = max(_SPAN, min(accuracy * 1e-2, 1e-1 * abs(improved - ratio)))
        ratio = improved
        if done:
            break
    assert pi is not None  # at least one round ran
    return Solution(choice, stationary(chain, choice, pi), v, total, span)


def _rewards(chain: Chain, ratio: float) -> Array:
    """(Q, O, J); minus infinity where invalid, and where a level has fewer options."""
    price = chain.model.violation_price
    rewards = np.full((len(chain.options), chain.widest, chain.shape[1]), -np.inf)
    for own, o in zip(rewards, chain.options, strict=True):
        met = o.accuracy[None, :] * o.satisfied
        if chain.model.criterion == "query":
            met = o.batch[None, :] * (met - price * ~o.satisfied - ratio)
        own[: len(o)] = np.where(o.valid, met, -np.inf).T
    rewards = rewards[chain.kernel.queued - 1]
    # Without it a queue that overflows would be rid of its queries at no cost.
    if chain.lost is not None and chain.model.criterion == "query":
        rewards -= (price + ratio) * chain.lost
    return rewards


def _iterate(chain: Chain, rewards: Array, v: Array, accuracy: float = _SPAN) -> tuple[Index, Array, int, float]:
    """Sweeps until the span of the change is below ``accuracy``; returns the greedy choice, values, sweeps and span."""
    mixer = Mixer()
    sweeps = 0
    while True:
        sweeps += 1
        q = rewards + chain.expected(v)
        improved: Array = q.max(axis=1)
        change = improved - v
        span = float(change.max() - change.min())
        improved -= improved[0, -1]
        if span < accuracy or sweeps == _MAX_SWEEPS:
            break
        v = mixer.next(v, improved)
    return q.argmax(axis=1), improved, sweeps, span


def stationary(chain: Chain, choice: Index, start: Array | None = None, settled: float = _SETTLED) -> Array:
    """(Q, J): long-run share of decisions made in each state under ``choice``."""
    if start is None:
        start = np.zeros(chain.shape)
        start[0, -1] = 1.0
    pi = start
    mixer = Mixer()
    for _ in range(_MAX_STEPS):
        after = chain.step(pi, choice)
        after /= after.sum()
        change = float(np.abs(after - pi).sum())
        if change < settled:
            break
        pi = np.maximum(mixer.next(pi, after), 0.0)
        pi /= pi.sum()
    return after


def _ratio_of(chain: Chain, choice: Index, pi: Array) -> float:
    """Reward a query."""
    gained = served = 0.0
    for level, p in enumerate(pi):
        o = chain.options_at(level)
        batch = o.batch[choice[level]]
        met = o.satisfied[np.arange(len(p)), choice[level]]
        reward = o.accuracy[choice[level]] * met - chain.model.violation_price * ~met
        gained += float(p @ (batch * reward))
        served += float(p @ batch)
    lost = chain.never_queued(choice, pi)
    return (gained - chain.model.violation_price * lost) / (served + lost)
