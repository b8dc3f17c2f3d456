"""A plan: which device hosts which variants, for which share of each app's demand, in which epoch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sluicegate.domain.fleet.device import WHOLE, Slice


class Epoch(NamedTuple):
    """(term, number): terms grow with each new leader, numbers within a term. Ordered."""

    term: int
    number: int


NO_EPOCH = Epoch(0, 0)
MAX_TERM = 10**9
"""The highest term there is: that of a leader every three seconds for 95 years."""
FAR = 10**6
"""Terms, or numbers within a term, that nobody who leads by the rules skips."""
_BELOW = FAR // 2
STANDS_IN = "greedy-fill stands in"
"""Ends the reason of a plan that a heuristic made while the planner's own was awaited."""


def term_follows(term: int, newest: int) -> bool:
    """Whether what is of ``term`` takes the place of what is of another, the newest that was seen.

    Terms grow by ones. One that is FAR ahead was written by nobody who leads, or the next terms could never follow; one
    that is half as far below shows that the newest was not. It is half, so that whatever two terms strangers may have
    written, of a lease and of a plan, there is one that follows both: behind the higher, or behind the lower.
    """
    return newest < term <= newest + FAR or term < newest - _BELOW


def follows(epoch: Epoch, newest: Epoch) -> bool:
    """Whether a plan of ``epoch`` takes the place of the newest one that was seen (NO_EPOCH: none was).

    Numbers grow by ones within a term, and one that is FAR ahead was not written by a leader either.
    """
    if newest == NO_EPOCH:
        return epoch > newest
    if epoch.term == newest.term:
        return 0 < epoch.number - newest.number <= FAR
    return term_follows(epoch.term, newest.term)


@dataclass(frozen=True, slots=True)
class Placement:
    """What one slice hosts for one app. ``variants`` hosted on one slice for one app, taking ``share`` (0..1) of the
    app's demand.

    ``max_batch``: rows allowed in a batch there (latency within half the SLO, and memory). ``slo``: what it is for, in
    seconds, where that is not the app's SLO or others are for other ones: queries go to the largest that is within
    theirs; 0: all of the app's.
    """

    device: str
    app: str
    variants: tuple[str, ...]
    share: float
    max_batch: int
    slice: str = WHOLE
    slo: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An epoch's whole decision.

    ``demand``: rows/s planned for, by app (a query of r rows is r). ``served``: the fraction of it that can be served.
    ``objective``: mean over served queries of accuracy over that of the app's best variant (0..1), ``bound`` the LP's
    upper bound on it.
    ``fences``: first offset of a device's work topic that its worker may serve.
    ``incarnations``: the start of each device's worker that this plan counts on; a worker of another incarnation was
    declared dead, its queries were moved to others, and it may answer nothing any more.
    ``geometries``: slices by device, of every GPU whose cut is the planner's to choose. One whose slices are others is
    to be cut so: it has no placement here, finishes what it has, is cut, and states its new slices in heartbeats, upon
    which a later plan places on it again. One with placements here has these slices already.
    ``reason``: what triggered it. ``solve_s``: seconds it took to make.
    """

    epoch: Epoch
    created: float
    placements: tuple[Placement, ...] = ()
    demand: Mapping[str, float] = field(default_factory=dict)
    served: Mapping[str, float] = field(default_factory=dict)
    objective: float = 0.0
    bound: float = 0.0
    fences: Mapping[str, int] = field(default_factory=dict)
    incarnations: Mapping[str, str] = field(default_factory=dict)
    geometries: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    reason: str = ""
    solve_s: float = 0.0
    nondeterministic: bool = False

    def of_app(self, app: str) -> tuple[Placement, ...]:
        """Placements that serve ``app``."""
        return tuple(p for p in self.placements if p.app == app)

    def of_device(self, device: str) -> tuple[Placement, ...]:
        """Placements on ``device``."""
        return tuple(p for p in self.placements if p.device == device)
