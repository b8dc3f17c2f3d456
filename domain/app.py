"""An application: what it asks of the system (latency, accuracy, class) and what it was promised."""

from dataclasses import dataclass
from enum import StrEnum

from domain.tensor import TensorSpec


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


NO_PROMISE = Promise()


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A stream of queries that any of its variants can answer.

    ``slo``: seconds from arrival to answer unless the query says otherwise. ``min_accuracy``: native metric, 0..1.
    ``max_rows``: rows one query may carry.
    """

    name: str
    slo: float
    query_class: QueryClass = QueryClass.STRICT
    min_accuracy: float = 0.0
    promise: Promise = NO_PROMISE
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_rows: int = 16
