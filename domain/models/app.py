"""An application: what it asks of the system (latency, accuracy, class) and what it was promised."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluicegate.domain.models.tensor import TensorSpec


class QueryClass(StrEnum):
    """Strict queries have a deadline that counts; best-effort ones take what is left."""

    STRICT = "strict"
    BEST_EFFORT = "best_effort"


@dataclass(frozen=True, slots=True)
class WeaklyHard:
    """(m, K): at most ``m`` misses among any ``K`` consecutive queries of a stream."""

    m: int
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a stream was promised: at most ``max_consecutive`` misses in a row, and each (m, K)."""

    max_consecutive: int | None = None
    weakly_hard: tuple[WeaklyHard, ...] = ()

    @property
    def active(self) -> bool:
        """Whether anything was promised."""
        return self.max_consecutive is not None or bool(self.weakly_hard)

    @property
    def constraints(self) -> tuple[tuple[int, int], ...]:
        """All of it as (m, K) pairs, 0 <= m < K, ascending. "At most M misses in a row" is (M, M + 1)."""
        pairs = {(w.m, w.k) for w in self.weakly_hard if w.m < w.k}
        if self.max_consecutive is not None:
            pairs.add((self.max_consecutive, self.max_consecutive + 1))
        return tuple(sorted(pairs))

    @staticmethod
    def keeping(constraints: Iterable[tuple[int, int]]) -> "Promise":
        """The promise to keep each of these (m, K) pairs."""
        return Promise(weakly_hard=tuple(WeaklyHard(m, k) for k, m in sorted({(k, m) for m, k in constraints})))

    def over(self, turns: int) -> "Promise":
        """What each of ``turns`` slices must keep when a stream goes to them in strict turns.

        Among any K queries in a row each slice gets at most ceil(K / turns), of which it may miss floor(m / turns).
        """
        if turns <= 1 or not self.active:
            return self
        return Promise.keeping((m // turns, -(-k // turns)) for m, k in self.constraints)

    def among(self, slices: int) -> "Promise":
        """What each of ``slices`` slices must keep while any of them may get any of the stream's queries.

        Where each of D slices misses at most d = floor(m / D) in any k of its own, it misses at most d ceil(n / k) of
        n; however K queries in a row fall to them, all miss d (D + floor((K - D) / k)) at most. k is the least with
        which that is no more than m.
        """
        if slices <= 1 or not self.active:
            return self
        return Promise.keeping(
            (each, (k - slices) // (m // each - slices + 1) + 1) if (each := m // slices) else (0, 1)
            for m, k in self.constraints
        )


NO_PROMISE = Promise()
HOP_PART = 0.1
"""Of its SLO that a query with a promise is on its way to a slice at most, where nothing else is said."""


def slo_class(classes: Sequence[float], slo: float) -> float:
    """The largest of ``classes`` (ascending, not empty) within ``slo``; where even the smallest is not, that one."""
    return next((c for c in reversed(classes) if c <= slo * (1.0 + 1e-6)), classes[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A stream of queries that any of its variants can answer.

    ``slo``: seconds from arrival to answer unless the query says otherwise. ``min_accuracy``: native metric, 0..1.
    ``weight``: what one of its answers counts beside one of other apps, in plans (1: as much as any).
    ``max_rows``: rows one query may carry. ``slo_classes``: SLOs that are served by workers of their own, ascending.
    """

    name: str
    slo: float
    query_class: QueryClass = QueryClass.STRICT
    min_accuracy: float = 0.0
    weight: float = 1.0
    promise: Promise = NO_PROMISE
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_rows: int = 16
    slo_classes: tuple[float, ...] = ()
