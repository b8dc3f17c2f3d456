"""Which apps somebody routes, by what routers tell of themselves, and what becomes of queries that nobody would read.

A part of the admission core. Times are seconds of a clock that does not jump.

Rules.
- A router tells twice a second that it lives. An app none of whose routers was heard for ``SILENCE`` is not routed:
  that is announced once, as is that it is again.
- Queries go on to the routers of an app while one was heard within ``COMING_BACK``: one that died is started again, or
  another takes its partitions over, and what waits is answered or expires there.
- Otherwise nobody would ever end them: they are held, ``PATIENCE`` at most and never past their deadline, for a router
  that is just starting, in their order; then they are given up. No more than ``most`` are held of an app, so that one
  which nobody routes does not keep the door shut for the others.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from sluicegate.domain.actions import Announce
from sluicegate.domain.query import Query

SILENCE = 2.0
COMING_BACK = 30.0
PATIENCE = 2.0


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The end of holding ``query``. ``nobody``: its app is known to be unrouted; ``due``: its deadline has passed."""

    query: Query
    nobody: bool
    due: bool


@dataclass(slots=True)
class _Held:
    until: float
    query: Query
    due: bool
    """By then, not only held for long enough."""


@dataclass(slots=True)
class _App:
    since: float
    """Watched since then."""
    heard: float = -inf
    held: deque[_Held] = field(default_factory=deque)
    missing: bool = False

    @property
    def silent(self) -> float:
        """When it is to be said that nothing routes it; infinity where that was said."""
        return inf if self.missing else max(self.heard, self.since) + SILENCE


class RoutedApps:
    """The apps that somebody routes, and what waits for a router. ``most``: queries held of an app."""

    __slots__ = ("_apps", "_most")

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._apps: dict[str, _App] = {}

    @property
    def due(self) -> float:
        """When ``looked`` is to be called next; infinity where it need not be."""
        return min(
            (until for app in self._apps.values() for until in (app.silent, *(h.until for h in app.held))), default=inf
        )

    def watch(self, apps: Iterable[str], now: float) -> list[GivenUp]:
        """These from now on. What is held of others is given up."""
        kept = set(apps)
        gone = [self._apps.pop(app) for app in [app for app in self._apps if app not in kept]]
        for app in sorted(kept - self._apps.keys()):
            self._apps[app] = _App(now)
        return [_given_up(held, app, now) for app in gone for held in app.held]

    def reads(self, app: str, now: float) -> bool:
        """Whether somebody reads what goes on to the routers of ``app``, or will soon."""
        found = self._apps.get(app)
        return found is None or now - found.heard < COMING_BACK

    def hold(self, query: Query, now: float, wait: float) -> GivenUp | None:
        """Nobody reads ``query``, whose deadline is in ``wait`` seconds: it is held, or given up at once."""
        found = self._apps[query.app]
        held = _Held(now + min(wait, PATIENCE), query, due=wait <= PATIENCE)
        if len(found.held) >= self._most or wait <= 0.0:
            return _given_up(held, found, now)
        found.held.append(held)
        return None

    def heard(self, app: str, now: float) -> tuple[list[Query], list[Announce]]:
        """A router of ``app`` lives: what goes on now, and what is to be said."""
        found = self._apps.get(app)
        if found is None:
            return [], []
        found.heard = now
        released = [held.query for held in found.held]
        found.held.clear()
        said = [Announce(f"routing:{app}", "routed", f"a router of {app} lives")] if found.missing else []
        found.missing = False
        return released, said

    def looked(self, now: float) -> tuple[list[GivenUp], list[Announce]]:
        """Time passed: what was held for long enough, and what is to be said."""
        given_up, said = [], []
        for name, app in self._apps.items():
            if app.silent <= now:
                app.missing = True
                said.append(Announce(f"routing:{name}", "nothing_routes", advice(name)))
            if any(held.until <= now for held in app.held):
                given_up += [_given_up(held, app, now) for held in app.held if held.until <= now]
                app.held = deque(held for held in app.held if held.until > now)
        return given_up, said


def _given_up(held: _Held, app: _App, now: float) -> GivenUp:
    return GivenUp(held.query, nobody=app.missing, due=held.due and held.until <= now)


def advice(app: str) -> str:
    """What to do where nothing routes ``app``."""
    return f"nothing routes {app}: start `sluice up router`, without --app or with --app {app}"
