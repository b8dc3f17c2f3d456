"""What a cell's topics say: nothing lost, copies bounded, nothing late unmarked, promises kept or announced.

Rules. Only what the topics hold counts (``sluicegate.sluice.audit.topic_audit``), and the count of records that the
broker acknowledged here. Service is back after a fault once queries are answered as before it: in half-second bins of
arrival time, the first one from which on nine in ten are answered on time for two bins. A bin without queries is not
served: load never ceases. Service may be away more than once (a process that comes back moves partitions and plans):
the first time counts from the fault, however late it is felt (unless the fault comes in steps), any later time from its
own beginning, and the longest is told. What was asked within an SLO of the next fault is not counted: it suffers from
that one. While the broker itself is away nothing is due. How long service was away is always told, and judged where
``JUDGED`` seeds were played on a machine that answered on time while nothing was broken: else it says as much of the
machine. Copies, where any are allowed, are counted on such a machine alone: on another, processes stand still that
nobody stopped.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.sluice.audit.fault_windows import WindowReport
from sluicegate.sluice.audit.topic_audit import AuditReport

_BIN = 0.5
SERVED = 0.9
_STEADY = 2
JUDGED = 10
"""Seeds from which on it is judged how soon service is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One seed: what was hit, when, until when it is judged, and from when on service is due (``began`` unless it takes
    its time to mend). Wall clock."""

    hit: str
    began: float
    due: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One cell in one mode of delivery.

    ``rate``: queries a second; ``queries``: acknowledged records; ``copies_allowed``: what may have been in flight, for
    each process that was killed or stood still; ``resume_s_max``: from when service was due; ``outage_s_max``: from the
    fault.
    ``promises_broken``: without safe mode having been announced; ``promises_announced``: windows of K with too many
    misses while it was. ``added_p99_ms_…``: from arrival to outcome less execution, of queries that arrived before
    anything was broken and of those that arrived in the windows.
    """

    cell: str
    delivery: str
    rate: float
    seeds: int
    queries: int
    lost: int
    duplicates: int
    copies_allowed: int
    max_copies: int
    late_unmarked: int
    resume_s_max: float
    resume_s_allowed: float | None
    outage_s_max: float
    promises_broken: int
    promises_announced: int
    on_time: float
    calm_on_time: float
    added_p99_ms_before: float
    added_p99_ms_during: float
    hits: tuple[str, ...] = ()
    windows: tuple[WindowReport, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether the machine did not keep up before anything was broken."""
        return self.calm_on_time < SERVED

    @property
    def due_s(self) -> float | None:
        """Within which service must be back; None where that is not judged."""
        return self.resume_s_allowed if self.seeds >= JUDGED and not self.busy else None

    @property
    def faults(self) -> tuple[str, ...]:
        """What is not as promised; empty when all is."""
        return tuple(
            name
            for name, bad in (
                ("lost", self.lost),
                ("late_unmarked", self.late_unmarked),
                ("promises_broken", self.promises_broken),
                ("duplicates", self.duplicates > self.copies_allowed and not (self.busy and self.copies_allowed)),
                ("resume_s_max", self.due_s is not None and self.resume_s_max > self.due_s),
            )
            if bad
        )

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {**asdict(self), "busy": self.busy, "faults": self.faults}

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> "Verdict":
        """What ``as_json`` gave."""
        plain = {name: value for name, value in held.items() if name not in {"busy", "faults"}}
        windows = tuple(WindowReport(**window) for window in held["windows"])
        return cls(**{**plain, "hits": tuple(held["hits"]), "windows": windows})


def resumed_after(outcomes: Iterable[Outcome], due: float, until: float, *, steps: bool = False) -> float:
    """Seconds from ``due`` until queries that arrive are answered on time again, judged up to ``until``.

    Where they cease to be once more: the seconds that that took, if those are more. ``steps``: the first time, too,
    counts from its own beginning.
    """
    asked: defaultdict[int, int] = defaultdict(int)
    served: defaultdict[int, int] = defaultdict(int)
    for outcome in outcomes:
        if due <= outcome.arrival < until and outcome.kind is not OutcomeKind.REJECTED:
            place = int((outcome.arrival - due) / _BIN)
            asked[place] += 1
            served[place] += outcome.on_time
    bins = int((until - due) / _BIN)
    good = [asked[b] > 0 and served[b] >= SERVED * asked[b] for b in range(bins)]
    longest, place = 0.0, 0
    while place < bins:
        if good[place]:
            place += 1
            continue
        away = place * _BIN if longest or steps else 0.0
        steady = (first for first in range(place, bins - _STEADY + 1) if all(good[first : first + _STEADY]))
        end = next(steady, bins)
        longest = max(longest, end * _BIN - away)
        place = end
    return longest


def judge(
    cell: str,
    delivery: str,
    report: AuditReport,
    outcomes: Sequence[Outcome],
    faults: Sequence[Fault],
    *,
    calm: tuple[float, float],
    rate: float,
    slo: float,
    acknowledged: int,
    copies_allowed: int,
    resume_s_allowed: float | None,
    steps: bool,
) -> Verdict:
    """``calm``: from when to when load ran with nothing broken. ``steps``: a fault is one thing after another."""
    resumed = [resumed_after(_within(outcomes, f.due, f.until), f.due, f.until - slo, steps=steps) for f in faults]
    outages = [resume + f.due - f.began if resume else 0.0 for resume, f in zip(resumed, faults, strict=True)]
    before = [o for o in _within(outcomes, *calm) if o.kind is not OutcomeKind.REJECTED]
    during = [o for f in faults for o in _within(outcomes, f.began, f.until) if o.kind is not OutcomeKind.REJECTED]
    return Verdict(
        cell=cell,
        delivery=delivery,
        rate=rate,
        seeds=len(faults),
        queries=acknowledged,
        lost=report.lost + max(0, acknowledged - report.queries),
        duplicates=report.duplicates,
        copies_allowed=copies_allowed,
        max_copies=report.max_copies,
        late_unmarked=report.late_unmarked,
        resume_s_max=round(max(resumed, default=0.0), 2),
        resume_s_allowed=resume_s_allowed,
        outage_s_max=round(max(outages, default=0.0), 2),
        promises_broken=report.promises_unannounced,
        promises_announced=sum(stream.broken - stream.unannounced for stream in report.promises),
        on_time=sum(o.on_time for o in outcomes) / max(1, len(outcomes)),
        calm_on_time=sum(o.on_time for o in before) / max(1, len(before)),
        added_p99_ms_before=_added_p99_ms(before),
        added_p99_ms_during=_added_p99_ms(during),
        hits=tuple(f.hit for f in faults),
        windows=report.windows,
    )


def _within(outcomes: Iterable[Outcome], began: float, until: float) -> list[Outcome]:
    return [o for o in outcomes if began <= o.arrival < until]


def _added_p99_ms(outcomes: Sequence[Outcome]) -> float:
    added = sorted(o.at - o.arrival - o.execution_s for o in outcomes)
    return round(1e3 * added[min(len(added) - 1, int(0.99 * len(added)))], 1) if added else 0.0
