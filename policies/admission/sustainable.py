"""Admits what the promise of an app can bear: at most ``bound`` queries in any window, shared fairly between clients.

Rules.
- First the deadline (``DeadlineAdmission``), then the window (a ring of stamps: exact, never twice the bound). Windows
  are of arrival times, on which deadlines rest, not of the times at which a busy door gets to them.
- ``enforce`` rejects what is over the bound (OVER_SUSTAINABLE_RATE). ``degrade`` announces "degrade", so that planner
  and workers choose faster variants, and rejects only what is over ``degraded_bound``, what those sustain. ``observe``
  accepts everything and announces only.
- Going over the bound is announced once (state "over_sustainable_rate" or "degrade"), and "within_sustainable_rate"
  once ``calm`` consecutive queries fitted: hysteresis.
- A client is a stream. Clients that asked within the last window share the bound equally; who is above its share gets
  only what the others leave. Rejected queries count for nobody.
"""

from collections import deque
from math import inf
from typing import Literal, get_args

from sluicegate.domain.actions import Accept, AdmissionAction, Announce, Reject
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived
from sluicegate.domain.outcome import Reason
from sluicegate.policies.admission.deadline_feasibility import MAX_HORIZON_S, DeadlineAdmission
from sluicegate.policies.promises.safe_mode import SafeModeSwitch
from sluicegate.policies.promises.window_limiter import WindowLimiter

Mode = Literal["enforce", "degrade", "observe"]
_CLIENTS = 1024
"""Clients told apart; further ones share one place, so that keys from outside cost no memory."""


class FairWindow:
    """A WindowLimiter whose places clients share. ``bound`` 0 admits nothing."""

    __slots__ = ("_asked", "_limiter", "_stamps", "_swept")

    def __init__(self, bound: int, window_s: float) -> None:
        self._limiter = WindowLimiter(bound, window_s)
        self._stamps: dict[str, deque[float]] = {}
        self._asked: dict[str, float] = {}
        self._swept = -inf

    @property
    def bound(self) -> int:
        """Queries a window."""
        return self._limiter.bound

    def admit(self, client: str, now: float) -> bool:
        """Count a query of ``client`` where it fits, and say whether it did."""
        window_s = self._limiter.window_s
        since = now - window_s
        if self._swept <= now - window_s / 8:
            self._forget(since)
            self._swept = now
        if client not in self._asked and len(self._asked) >= _CLIENTS:
            client = ""
        self._asked[client] = now
        own = self._stamps.setdefault(client, deque())
        while own and own[0] <= since:
            own.popleft()
        if len(self._asked) > 1 and self._beyond_share(own):
            return False
        if not self._limiter.admit(now):
            return False
        own.append(now)
        return True

    def resize(self, bound: int, window_s: float) -> None:
        """Other limits from now on; what was admitted counts."""
        self._limiter = self._limiter.resized(bound, window_s)

    def _beyond_share(self, own: deque[float]) -> bool:
        share = self._limiter.bound // len(self._asked)
        if len(own) < max(1, share):
            return False
        used = sum(len(stamps) for stamps in self._stamps.values())
        kept_for_others = sum(max(0, share - len(self._stamps.get(client, ()))) for client in self._asked)
        return used + kept_for_others >= self._limiter.bound

    def _forget(self, since: float) -> None:
        for client in [c for c, at in self._asked.items() if at <= since]:
            del self._asked[client]
        for client, stamps in list(self._stamps.items()):
            while stamps and stamps[0] <= since:
                stamps.popleft()
            if not stamps and client not in self._asked:
                del self._stamps[client]


class _AppWindow:
    """What one app was admitted, and whether it is announced to be over its rate."""

    __slots__ = ("degraded", "fair", "latest", "switch", "window_s")

    def __init__(self, bound: int, window_s: float, degraded_bound: int, calm: int) -> None:
        self.fair = FairWindow(bound, window_s)
        self.degraded = WindowLimiter(degraded_bound, window_s)
        self.window_s = window_s
        self.switch = SafeModeSwitch(calm)
        self.latest = -inf

    def resize(self, bound: int, window_s: float, degraded_bound: int) -> None:
        self.fair.resize(bound, window_s)
        self.degraded = self.degraded.resized(degraded_bound, window_s)
        self.window_s = window_s


class SustainableAdmission:
    """See the module's rules. ``bound`` and ``window_s``: as ``max_rate`` of
    sluicegate.policies.promises.sustainable_rate says, of each app.

    ``bound`` None: nothing is limited until ``resize`` is called for an app (before a plan is ready nothing is known).
    ``degraded_bound``: queries a window that the fastest variants sustain (None: twice the bound).
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
        self._limits = None if bound is None else (bound, window_s, _degraded(bound, degraded_bound))
        self._apps: dict[str, _AppWindow] = {}

    def over(self, app: str) -> bool:
        """Whether arrivals of ``app`` are above its sustainable rate, as announced."""
        window = self._of(app)
        return window is not None and window.switch.active

    def resize(self, app: str, bound: int, window_s: float, degraded_bound: int | None = None) -> None:
        """Other limits for ``app``, when a plan changes what is hosted; what was admitted counts."""
        limits = (bound, window_s, _degraded(bound, degraded_bound))
        window = self._apps.get(app)
        if window is None:
            self._apps[app] = _AppWindow(*limits, self._calm)
        else:
            window.resize(*limits)

    def handle(self, event: Arrived, now: float) -> list[AdmissionAction]:
        """Decide."""
        (first,) = self._deadline.handle(event, now)
        if not isinstance(first, Accept):
            return [first]
        query = event.query
        window = self._of(query.app)
        if window is None:
            return [first]
        at = window.latest = max(window.latest, min(query.arrival, now))
        fits = window.fair.admit(query.stream, at)
        within = window.degraded.admit(at) if fits or self.mode == "degrade" else False
        actions = self._said(query.app, window, fits)
        if fits or self.mode == "observe" or (self.mode == "degrade" and within):
            return [*actions, first]
        detail = f"more than {window.fair.bound} queries within {1e3 * window.window_s:g} ms"
        return [*actions, Reject(query, Reason.OVER_SUSTAINABLE_RATE, detail)]

    def _of(self, app: str) -> _AppWindow | None:
        window = self._apps.get(app)
        if window is None and self._limits is not None:
            window = self._apps[app] = _AppWindow(*self._limits, self._calm)
        return window

    def _said(self, app: str, window: _AppWindow, fits: bool) -> list[AdmissionAction]:
        data = {"bound": float(window.fair.bound), "window_s": window.window_s}
        if fits and window.switch.calm_for(1):
            return [Announce(f"app:{app}", "within_sustainable_rate", "arrivals fit again", data)]
        if not fits and window.switch.trouble():
            state = "degrade" if self.mode == "degrade" else "over_sustainable_rate"
            return [Announce(f"app:{app}", state, "more queries a window than are sustained", data)]
        return []


def _degraded(bound: int, degraded_bound: int | None) -> int:
    return 2 * bound if degraded_bound is None else degraded_bound
