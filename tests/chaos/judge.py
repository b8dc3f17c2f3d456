"""What a cell's topics say: nothing lost, copies bounded, nothing late unmarked, promises kept or announced.

Rules. Only what the topics hold counts (``sluice.audit``), and the count of records that the broker acknowledged here.
Service is back after a fault once queries are answered as before it: in half-second bins of arrival time, the first one
from which on nine in ten are answered on time for two bins. Bins in which the broker itself was away have no queries.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from domain.outcome import Outcome, OutcomeKind
from sluice.audit import AuditReport

_BIN = 0.5
_SERVED = 0.9
_STEADY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One cell. ``queries``: acknowledged records; ``copies_allowed``: what may have been in flight, for each process
    that was killed or stood still."""

    cell: str
    seeds: int
    queries: int
    lost: int
    duplicates: int
    copies_allowed: int
    max_copies: int
    late_unmarked: int
    resume_s_max: float
    resume_s_allowed: float | None
    promises_broken: int
    on_time: float
    hits: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """What is not as promised; empty when all is."""
        found = [
            name
            for name, bad in (
                ("lost", self.lost),
                ("late_unmarked", self.late_unmarked),
                ("promises_broken", self.promises_broken),
                ("duplicates", self.duplicates > self.copies_allowed),
            )
            if bad
        ]
        if self.resume_s_allowed is not None and self.resume_s_max > self.resume_s_allowed:
            found.append("resume_s_max")
        return tuple(found)

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {**asdict(self), "faults": self.faults}


def resumed_after(outcomes: Iterable[Outcome], began: float, ended: float) -> float:
    """Seconds from ``began`` until queries that arrive are answered on time again, judged up to ``ended``."""
    asked: defaultdict[int, int] = defaultdict(int)
    served: defaultdict[int, int] = defaultdict(int)
    for outcome in outcomes:
        if began <= outcome.arrival < ended and outcome.kind is not OutcomeKind.REJECTED:
            place = int((outcome.arrival - began) / _BIN)
            asked[place] += 1
            served[place] += outcome.on_time
    bins = sorted(asked)
    good = [served[b] >= _SERVED * asked[b] for b in bins]
    bad_before = [i for i in range(len(bins)) if not good[i]]
    if not bad_before:
        return 0.0
    for i in range(bad_before[0], len(bins)):
        if all(good[i : i + _STEADY]) and len(good[i : i + _STEADY]) == _STEADY:
            return bins[i] * _BIN
    return ended - began


def judge(
    cell: str,
    report: AuditReport,
    outcomes: Sequence[Outcome],
    faults: Sequence[tuple[str, float, float]],
    *,
    acknowledged: int,
    kills: int,
    in_flight: int,
    resume_s_allowed: float | None,
) -> Verdict:
    """``faults``: (what was hit, when, until when its window lasts)."""
    resumed = [resumed_after(outcomes, began, until) for _, began, until in faults]
    return Verdict(
        cell=cell,
        seeds=len(faults),
        queries=acknowledged,
        lost=report.lost + max(0, acknowledged - report.queries),
        duplicates=report.duplicates,
        copies_allowed=kills * in_flight,
        max_copies=report.max_copies,
        late_unmarked=report.late_unmarked,
        resume_s_max=round(max(resumed, default=0.0), 2),
        resume_s_allowed=resume_s_allowed,
        promises_broken=report.promises_broken,
        on_time=sum(o.on_time for o in outcomes) / max(1, len(outcomes)),
        hits=tuple(hit for hit, _, _ in faults),
    )
