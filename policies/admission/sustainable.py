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
- A client is a stream. Clients that asked within the last window share the bound equally; who is above its share gets
  only what the others leave. Rejected queries count for nobody.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, get_args

from sluicegate.domain.actions import Accept, AdmissionAction, Announce, Reject
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.outcome import Reason
from sluicegate.policies.admission.deadline_feasibility import MAX_HORIZON_S, DeadlineAdmission
from sluicegate.policies.promises.safe_mode import SafeModeSwitch
from sluicegate.policies.promises.window_limiter import Place, PlaceLimit, WindowLimiter

Mode = Literal["enforce", "degrade", "observe"]
_WHOLE = 0.99
"""Of its app's SLO, what a query must ask for: clocks are read twice. What is less counts as part of the hop."""
_CLIENTS = 1024
"""Clients told apart; further ones share one place, so that keys from outside cost no memory."""


class FairWindow:
    """A WindowLimiter whose rows clients share."""

    __slots__ = ("_asked", "_limiter", "_stamps", "_swept")

    def __init__(self, limiter: WindowLimiter) -> None:
        self._limiter = limiter
        self._stamps: dict[str, deque[tuple[float, int]]] = {}
        self._asked: dict[str, float] = {}
        self._swept = -inf

    @property
    def bound(self) -> int:
        """Queries of one row a window."""
        return self._limiter.bound

    def bound_of(self, rows: int) -> int:
        """Queries of ``rows`` rows a window."""
        return self._limiter.bound_of(rows)

    def admit(self, client: str, now: float, rows: int = 1, place: Place | None = None) -> bool:
        """Count a query of ``client`` where it fits, and say whether it did."""
        window_s = self._limiter.window_s
        since = now - window_s
        if self._swept <= now - window_s / 8:
            self._forget(since)
            self._swept = now
        if client not in self._asked and len(self._asked) >= _CLIENTS:
            client = ""
        self._asked[client] = now
        own = self._stamps.get(client)
        if own is None:
            own = self._stamps[client] = deque()
        while own and own[0][0] <= since:
            own.popleft()
        if len(self._asked) > 1 and self._beyond_share(own, rows):
            return False
        if not self._limiter.admit(now, rows, place):
            return False
        own.append((now, rows))
        return True

    def resize(self, limits: Sequence[PlaceLimit], window_s: float) -> None:
        """Other limits from now on; what was admitted counts."""
        self._limiter = self._limiter.resized(limits, window_s)

    def _beyond_share(self, own: deque[tuple[float, int]], rows: int) -> bool:
        share = self._limiter.bound // len(self._asked)
        if _rows(own) + rows <= max(1, share) or not own:
            return False
        used = {client: _rows(stamps) for client, stamps in self._stamps.items()}
        kept_for_others = sum(max(0, share - used.get(client, 0)) for client in self._asked)
        return sum(used.values()) + rows + kept_for_others > self._limiter.bound

    def _forget(self, since: float) -> None:
        for client in [c for c, at in self._asked.items() if at <= since]:
            del self._asked[client]
        for client, stamps in list(self._stamps.items()):
            while stamps and stamps[0][0] <= since:
                stamps.popleft()
            if not stamps:
                del self._stamps[client]


def _rows(stamps: Iterable[tuple[float, int]]) -> int:
    return sum([rows for _, rows in stamps])


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

    __slots__ = ("degraded", "fair", "latest", "least", "limits", "switch")

    def __init__(self, limits: Limits, calm: int) -> None:
        self.fair = FairWindow(WindowLimiter(limits.places, limits.window_s))
        self.degraded = WindowLimiter(limits.degraded, limits.degraded_s)
        self.limits = limits
        self.least = _WHOLE * limits.slo
        self.switch = SafeModeSwitch(calm)
        self.latest = -inf

    def resize(self, limits: Limits) -> None:
        self.fair.resize(limits.places, limits.window_s)
        self.degraded = self.degraded.resized(limits.degraded, limits.degraded_s)
        self.limits = limits
        self.least = _WHOLE * limits.slo


class SustainableAdmission:
    """See the module's rules. ``bound``: rows of each app in any ``window_s`` seconds.

    ``bound`` None: nothing is limited until ``resize`` is called for an app (before a plan is ready nothing is known).
    ``degraded_bound``: rows a window that the fastest variants sustain (None: twice the bound).
    """

    name = "sustainable"
    __slots__ = ("_apps", "_calm", "_deadline", "_limits", "mode")

    def __init__(
        self,
        *,
        bound: int | None = 1,
        window_s: float = 1.0,
        mode: Mode = "enforce",
        degraded_bound: int | None = None,
        calm: int = 200,
        max_horizon_s: float = MAX_HORIZON_S,
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
        self.mode: Mode = mode
        self._deadline = DeadlineAdmission(max_horizon_s=max_horizon_s)
        self._calm = calm
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

    def resize(self, app: str, limits: Limits) -> None:
        """Other limits for ``app``, when a plan changes what is hosted; what was admitted counts."""
        window = self._apps.get(app)
        if window is None:
            self._apps[app] = _AppWindow(limits, self._calm)
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
        at = window.latest = max(window.latest, min(query.arrival, now))
        stream = query.stream
        place = window.limits.place_of(stream) if stream and stream != query.app else None
        fits = window.fair.admit(stream, at, query.rows, place)
        if fits and self.mode == "enforce" and not window.switch.active:
            return [first]
        within = window.degraded.admit(at, query.rows, place) if self.mode == "degrade" else False
        actions = self._said(query.app, window, fits)
        if fits or self.mode == "observe" or (self.mode == "degrade" and within):
            return [*actions, first]
        bound = window.fair.bound_of(query.rows)
        detail = f"more than {bound} queries of {query.rows} rows within {1e3 * window.limits.window_s:g} ms"
        return [*actions, Reject(query, Reason.OVER_SUSTAINABLE_RATE, detail)]

    def _of(self, app: str) -> _AppWindow | None:
        window = self._apps.get(app)
        if window is None and self._limits is not None:
            window = self._apps[app] = _AppWindow(self._limits, self._calm)
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
