"""Turns of an app's own stream over unequal places: each gets as many of a cycle's turns as it is to serve.

Rules. A cycle has at most 16 turns for each place. They are dealt out evenly (smooth weighted round robin), so that in
any stretch of the stream a place gets hardly more than its part; how many at most is counted, not estimated. What is
promised of the whole stream, (m, K), a place keeps as (m_i, K_i): K_i is the most turns that it gets among any K, and
the m_i add up to m at most.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluicegate.domain.models.app import Promise

_TURNS = 16
_EQUAL = 1.02


@dataclass(frozen=True, slots=True)
class Turns:
    """Which turns of each cycle are one place's. ``mine``: True for those; at least one."""

    mine: tuple[bool, ...]
    _most: tuple[int, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        size = len(self.mine)
        places = [at for at, mine in enumerate(self.mine * 2) if mine]
        count = len(places) // 2
        most = [0] * size
        for k in range(1, count + 1):
            least = 1 + min(places[j + k - 1] - places[j] for j in range(count))  # successive turns with k of them
            most[least:] = [k] * (size - least)
        object.__setattr__(self, "_most", tuple(most))

    def most(self, count: int) -> int:
        """The most of any ``count`` successive turns that are this place's."""
        cycles, rest = divmod(count, len(self.mine))
        return cycles * sum(self.mine) + self._most[rest]

    def within(self, here: int) -> int:
        """The most successive turns of which no more than ``here`` are ever this place's."""
        cycles, left = divmod(here, sum(self.mine))
        return cycles * len(self.mine) + bisect_right(self._most, left) - 1


ALONE = Turns((True,))


def dealt(weights: Sequence[float]) -> tuple[int, ...]:
    """The place of each turn of a cycle, for places that are to serve so much each; each gets one turn at least."""
    counts = _counts(weights)
    total = sum(counts)
    credit = [0] * len(counts)
    cycle = []
    for _ in range(total):
        credit = [c + count for c, count in zip(credit, counts, strict=True)]
        chosen = max(range(len(counts)), key=lambda i: (credit[i], -i))
        credit[chosen] -= total
        cycle.append(chosen)
    return tuple(cycle)


def turns_of(cycle: Sequence[int], place: int) -> Turns:
    """The turns of ``place``."""
    return Turns(tuple(turn == place for turn in cycle))


def part_of(promise: Promise, cycle: Sequence[int], place: int) -> Promise:
    """What ``place`` must keep of ``promise``."""
    counts = [cycle.count(i) for i in range(max(cycle) + 1)]
    if len(set(counts)) == 1:
        return promise.over(len(counts))
    turns = turns_of(cycle, place)
    found = [(_of_misses(m, counts)[place], turns.most(k)) for m, k in promise.constraints]
    return Promise.keeping((m, k) for m, k in found if m < k)


def _of_misses(m: int, counts: Sequence[int]) -> list[int]:
    """``m`` misses, by turns; what is left over to those that have most."""
    total = sum(counts)
    each = [m * count // total for count in counts]
    order = sorted(range(len(counts)), key=lambda i: (-(m * counts[i] % total), i))
    for i in order[: m - sum(each)]:
        each[i] += 1
    return each


def _counts(weights: Sequence[float]) -> tuple[int, ...]:
    """Turns of a cycle: the shortest of the cycles that burden no place by much more than its part."""
    top, total = max(weights), sum(weights)
    if top <= _EQUAL * min(weights):
        return (1,) * len(weights)
    best: tuple[float, tuple[int, ...]] | None = None
    for turns in range(len(weights), _TURNS * len(weights) + 1):
        counts = tuple(max(1, round(turns * weight / total)) for weight in weights)
        size = sum(counts)
        over = max(count * total / (size * weight) for count, weight in zip(counts, weights, strict=True))
        if best is None or over < best[0] - 0.01:
            best = (over, counts)
    assert best is not None
    return best[1]
