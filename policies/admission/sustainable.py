"""Admits what the promise of an app can bear in any window, counted in rows, shared fairly between clients.

Rules.
- First the deadline (``DeadlineAdmission``), then the window (every stamp is kept: exact, never twice the bound).
  Windows are of arrival times, on which deadlines rest, not of the times at which a busy door gets to them.
- ``enforce`` rejects what is over the bound (OVER_SUSTAINABLE_RATE). ``degrade`` announces "degrade", so that planner
  and workers choose faster variants, and rejects only what is over what those sustain (``degraded``). ``observe``
  accepts everything and announces only.
- Going over the bound is announced once (state "over_sustainable_rate" or "degrade"), and "within_sustainable_rate"
  once ``calm`` consecutive queries fitted: hysteresis.
- A bound is of queries that ask for the SLO of their app, or more. One that asks for less would have to be served
  before those that the bound was made for: unless all is let in it is rejected (INFEASIBLE).
- Who asks and which stream it is for share the window fairly (``sluicegate.policies.admission.fair_window``).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, get_args

from sluicegate.domain.actions import Accept, AdmissionAction, Announce, Reject
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.outcome import Reason
from sluicegate.policies.admission.deadline_feasibility import MAX_HORIZON_S, DeadlineAdmission
from sluicegate.policies.admission.fair_window import FairWindow
from sluicegate.policies.admission.rows_taken import Taken
from sluicegate.policies.promises.safe_mode import SafeModeSwitch
from sluicegate.policies.promises.window_limiter import Place, PlaceLimit, WindowLimiter

Mode = Literal["enforce", "degrade", "observe"]
_WHOLE = 0.99
"""Of its app's SLO, what a query must ask for: clocks are read twice. What is less counts as part of the hop."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an app sustains in any window of ``window_s`` seconds; ``degraded``: on the faster variants, in
    ``degraded_s``.

    ``place_of``: where the queries of a stream go that is not the app's own; None: it counts as one. ``slo``: seconds
    that a query must ask for.
    """

    places: tuple[PlaceLimit, ...]
    window_s: float
    degraded: tuple[PlaceLimit, ...]
    degraded_s: float
    place_of: Callable[[str], Place | None] = field(default=lambda _stream: None, compare=False)
    slo: float = 0.0

    def part(self, share: float) -> "Limits":
        """What one of several may let in who share it."""
        places, degraded = (
            tuple([replace(place, batch=int(place.batch * share + 1e-9)) for place in each])
            for each in (self.places, self.degraded)
        )
        return replace(self, places=places, degraded=degraded)

    def beside(self, other: "Limits") -> "Limits":
        """What both sustain. Streams go where ``other`` has them; what a place begins to serve may not be missed there,
        since its past counts as missed."""
        window_s = max(self.window_s, other.window_s)
        degraded_s = max(self.degraded_s, other.degraded_s)
        places, degraded = (
            tuple(dict.fromkeys((*old, *_begun(new, old))))
            for old, new in ((self.places, other.places), (self.degraded, other.degraded))
        )
        return Limits(places, window_s, degraded, degraded_s, other.place_of, other.slo)


def _begun(places: Iterable[PlaceLimit], before: Iterable[PlaceLimit]) -> list[PlaceLimit]:
    """``places``, without misses where they were not served so before."""
    known = {(one.place, one.pairs, one.turns) for one in before}
    return [one if (one.place, one.pairs, one.turns) in known else replace(one, pairs=()) for one in places]


class _AppWindow:
    """What one app was admitted, and whether it is announced to be over its rate."""

    __slots__ = ("_set_back", "degraded", "fair", "latest", "least", "limits", "switch")

    def __init__(self, limits: Limits, calm: int, weights: Mapping[str, float]) -> None:
        self.fair = FairWindow(WindowLimiter(limits.places, limits.window_s), weights)
        self.degraded = FairWindow(WindowLimiter(limits.degraded, limits.degraded_s), weights)
        self.limits = limits
        self.least = _WHOLE * limits.slo
        self.switch = SafeModeSwitch(calm)
        self.latest = -inf
        self._set_back = 0.0  # by so much the clock was, in all

    def time_of(self, arrival: float, now: float) -> float:
        """When a query that arrived then counts: never before the last, however far the clock is set back."""
        if now + self._set_back < self.latest - self.limits.window_s:
            self._set_back = self.latest - now
        self.latest = max(self.latest, min(arrival, now) + self._set_back)
        return self.latest

    def resize(self, limits: Limits) -> None:
        self.fair.resize(limits.places, limits.window_s)
        self.degraded.resize(limits.degraded, limits.degraded_s)
        self.limits = limits
        self.least = _WHOLE * limits.slo


class SustainableAdmission:
    """See the module's rules. ``bound``: rows of each app in any ``window_s`` seconds.

    ``bound`` None: nothing is limited until ``resize`` is called for an app (before a plan is ready nothing is known).
    ``degraded_bound``: rows a window that the fastest variants sustain (None: twice the bound). ``weights``: of sources
    that have other than 1.
    """

    name = "sustainable"
    __slots__ = ("_apps", "_calm", "_deadline", "_limits", "_weights", "mode")

    def __init__(
        self,
        *,
        bound: int | None = 1,
        window_s: float = 1.0,
        mode: Mode = "enforce",
        degraded_bound: int | None = None,
        calm: int = 200,
        max_horizon_s: float = MAX_HORIZON_S,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigurationError(f"admission mode {mode!r} is unknown; choose one of {', '.join(get_args(Mode))}")
        if (
            (bound is not None and bound < 0)
            or not window_s > 0.0
            or calm < 1
            or (degraded_bound is not None and degraded_bound < (bound or 0))
        ):
            raise ConfigurationError(
                f"sustainable admission: bound {bound}, window_s {window_s}, degraded_bound {degraded_bound}, "
                f"calm {calm}: give bound >= 0, window_s > 0, degraded_bound >= bound, calm >= 1"
            )
        for source, weight in (weights or {}).items():
            if not 0.0 < weight < inf:
                raise ConfigurationError(f"sustainable admission: weights: {weight} for {source!r}; give one above 0")
        self.mode: Mode = mode
        self._deadline = DeadlineAdmission(max_horizon_s=max_horizon_s)
        self._calm = calm
        self._weights = weights or {}
        self._limits: Limits | None = None
        if bound is not None:
            degraded = 2 * bound if degraded_bound is None else degraded_bound
            self._limits = Limits((PlaceLimit(bound),), window_s, (PlaceLimit(degraded),), window_s)
        self._apps: dict[str, _AppWindow] = {}

    def over(self, app: str) -> bool:
        """Whether arrivals of ``app`` are above its sustainable rate, as announced."""
        window = self._of(app)
        return window is not None and window.switch.active

    def limits_of(self, app: str) -> Limits | None:
        """What ``app`` is kept to; None: nothing."""
        window = self._apps.get(app)
        return self._limits if window is None else window.limits

    def bound_of(self, app: str, rows: int) -> tuple[int, float] | None:
        """Queries of ``rows`` rows that are let in, in so many seconds; None: any number."""
        window = self._of(app)
        return None if window is None else (window.fair.bound_of(rows), window.limits.window_s)

    def taken(self, app: str, most: int) -> Taken | None:
        """The largest queries of ``app``, up to ``most`` rows, that any window lets in; None: all are."""
        limits = self.limits_of(app)
        if limits is None or self.mode == "observe":
            return None
        places, window_s = limits.places, limits.window_s
        if self.mode == "degrade":
            places, window_s = limits.degraded, limits.degraded_s
        rows = min([most, *(place.batch for place in places)])
        return Taken(rows, min([place.bound(rows) for place in places], default=0) if rows else 0, window_s)

    def resize(self, app: str, limits: Limits) -> None:
        """Other limits for ``app``, when a plan changes what is hosted; what was admitted counts."""
        window = self._apps.get(app)
        if window is None:
            self._apps[app] = _AppWindow(limits, self._calm, self._weights)
        elif window.limits != limits:
            window.resize(limits)

    def handle(self, event: Arrived, now: float) -> list[AdmissionAction]:
        """Decide."""
        (first,) = self._deadline.handle(event, now)
        if not isinstance(first, Accept):
            return [first]
        query = event.query
        window = self._of(query.app)
        if window is None or query.query_class is not QueryClass.STRICT:
            return [first]
        if query.deadline - query.arrival < window.least and self.mode != "observe":
            asked, slo = 1e3 * (query.deadline - query.arrival), 1e3 * window.limits.slo
            told = f"asks for {asked:g} ms, and its promise is kept within {slo:g} ms; ask for that, or as best effort"
            return [Reject(query, Reason.INFEASIBLE, told)]
        at = window.time_of(query.arrival, now)
        stream = query.stream
        place = window.limits.place_of(stream) if stream and stream != query.app else None
        fits = window.fair.admit(query.source, stream, at, query.rows, place)
        if fits and self.mode == "enforce" and not window.switch.active:
            return [first]
        within = self.mode == "degrade" and window.degraded.admit(query.source, stream, at, query.rows, place)
        actions = self._said(query.app, window, fits)
        if fits or self.mode == "observe" or (self.mode == "degrade" and within):
            return [*actions, first]
        bound = window.fair.bound_of(query.rows)
        detail = f"more than {bound} queries of {query.rows} rows within {1e3 * window.limits.window_s:g} ms"
        return [*actions, Reject(query, Reason.OVER_SUSTAINABLE_RATE, detail)]

    def _of(self, app: str) -> _AppWindow | None:
        window = self._apps.get(app)
        if window is None and self._limits is not None:
            window = self._apps[app] = _AppWindow(self._limits, self._calm, self._weights)
        return window

    def _said(self, app: str, window: _AppWindow, fits: bool) -> list[AdmissionAction]:
        switch = window.switch
        data = {"bound": float(window.fair.bound), "window_s": window.limits.window_s}
        if fits and switch.calm_for(1):
            return [Announce(f"app:{app}", "within_sustainable_rate", "arrivals fit again", data)]
        if not fits and switch.trouble():
            state = "degrade" if self.mode == "degrade" else "over_sustainable_rate"
            return [Announce(f"app:{app}", state, "more queries a window than are sustained", data)]
        return []
