"""A selection table: for each queue length and slack, which variant runs how many queries, and what that promises.

Computed by the planner for one load, published, and looked up by workers at every batch. Slack is rounded down to the
table's grid, so that a table never assumes more time than there is.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

DROP = 255
"""The action code that gives the head of the queue up."""

CLOCK = 1e-6
"""Seconds that slacks, differences of times of day as floats, are off: a head that just came has all its slack."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a figure over the long-run mix of decisions, each weighted by its queries.

    ``p99``: the value that 99 % of queries do no worse than.
    """

    mean: float
    median: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """What a table promises if arrivals and latencies are as assumed. Ratios 0..1.

    ``accuracy``: per query answered in time, a lower bound below saturation; ``violation``: share of queries not
    answered in time, an upper bound; ``mean_batch``: queries a batch; ``utilisation``: share of time busy.
    ``accuracy_spread``, ``batch_spread``, ``response_spread`` (seconds until the head of a batch is answered).
    """

    accuracy: float
    violation: float
    mean_batch: float
    utilisation: float
    accuracy_spread: Spread
    batch_spread: Spread
    response_spread: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionTable:
    """What to do with ``n`` queries queued, 1..``longest``, and a head that has ``slack`` seconds left.

    ``qps``: load of the whole app that it is for, ``workers`` sharing it. ``slacks``: ascending, from 0 to the SLO.
    ``actions[((n - 1) * phases + phase) * len(slacks) + j]``: index into ``variants``, or DROP; ``batches``: queries to
    run, laid out in the same way, empty where every batch takes all n. ``phases``: groups of central arrivals since
    this worker's last one that are told apart. ``assumptions``: how it was made. ``fingerprint``: of profile and
    assumptions.
    """

    app: str
    worker_class: str
    variants: tuple[str, ...]
    slo: float
    qps: float
    workers: int
    slacks: tuple[float, ...]
    actions: bytes
    batches: bytes = b""
    phases: int = 1
    expected: Expectations
    assumptions: Mapping[str, str | float] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def longest(self) -> int:
        """Longest queue told apart; longer ones are served as this."""
        return len(self.actions) // (len(self.slacks) * self.phases)

    @property
    def share(self) -> float:
        """Of the app's queries that one worker gets, 0..1."""
        return float(self.assumptions.get("share", 0.0)) or 1.0 / self.workers

    @property
    def slo_class(self) -> float:
        """The SLO that its queries ask for, seconds: what the table plans with, and what hops take beside it."""
        return float(self.assumptions.get("slo_class", self.slo))

    def phase_of(self, elsewhere: int) -> int:
        """The group of ``elsewhere`` central arrivals since the worker's last one, of which each worker's turn has K.

        The inverse of the generator's grouping: group g begins at floor(g K / phases), K = round(1 / share).
        """
        turns = round(1.0 / self.share)
        within = min(max(elsewhere, 0), turns - 1)
        group = within * self.phases // turns
        while (group + 1) * turns // self.phases <= within:
            group += 1
        return group

    def lookup(self, queued: int, slack: float, phase: int = 0) -> tuple[int, int]:
        """(index of the variant or DROP, queries to run) for at least one query queued."""
        n = min(queued, self.longest)
        j = max(bisect_right(self.slacks, slack + CLOCK) - 1, 0)
        at = ((n - 1) * self.phases + phase) * len(self.slacks) + j
        return self.actions[at], self.batches[at] if self.batches else n


@dataclass(frozen=True, slots=True, kw_only=True)
class TableObserved:
    """What one worker saw while one table was in force, since it last told: sums, so that any number add up.

    ``qps``: the table's; ``share``: the worker's of the app's queries. ``seconds``: time in force. ``queries``: that
    ended, in rows, of them ``on_time``; ``accuracy_sum``, ``accuracy_squares`` over the latter. ``delayed``: rows that
    came with less slack than the table assumes, the overhead of hops. ``gaps``: between arrivals, their sum and squares
    in seconds. ``ratios``: of batches, seconds taken over seconds profiled (p95).
    """

    app: str
    worker_class: str
    slo: float
    fingerprint: str
    qps: float
    share: float
    seconds: float = 0.0
    arrivals: int = 0
    queries: int = 0
    on_time: int = 0
    accuracy_sum: float = 0.0
    accuracy_squares: float = 0.0
    delayed: int = 0
    gaps: int = 0
    gap_sum: float = 0.0
    gap_squares: float = 0.0
    ratios: tuple[float, ...] = ()

    def plus(self, other: "TableObserved") -> "TableObserved":
        """Both, of the same table."""
        return TableObserved(
            app=self.app,
            worker_class=self.worker_class,
            slo=self.slo,
            fingerprint=self.fingerprint,
            qps=self.qps,
            share=self.share,
            seconds=self.seconds + other.seconds,
            arrivals=self.arrivals + other.arrivals,
            queries=self.queries + other.queries,
            on_time=self.on_time + other.on_time,
            accuracy_sum=math.fsum((self.accuracy_sum, other.accuracy_sum)),
            accuracy_squares=math.fsum((self.accuracy_squares, other.accuracy_squares)),
            delayed=self.delayed + other.delayed,
            gaps=self.gaps + other.gaps,
            gap_sum=self.gap_sum + other.gap_sum,
            gap_squares=self.gap_squares + other.gap_squares,
            ratios=self.ratios + other.ratios,
        )


@dataclass(frozen=True, slots=True)
class TablesChanged:
    """From now on these are the tables of ``app`` here, of any loads; () is none. Sent to policies that use tables."""

    app: str
    tables: tuple[SelectionTable, ...]
