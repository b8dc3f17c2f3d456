"""Which apps somebody routes, by what routers tell of themselves, and what becomes of queries that nobody would read.

Pure: times are seconds of one clock that does not jump.

Rules.
- A router tells twice a second that it lives. An app none of whose routers was heard for ``SILENCE`` is not routed:
  that is announced once, as is that it is again.
- Queries go on to the routers of an app while one was heard within ``COMING_BACK``: one that died is started again, or
  another takes its partitions over, and what waits is answered or expires there.
- Otherwise nobody would ever end them: they are held, ``PATIENCE`` at most and never past their deadline, for a router
  that is just starting, in their order; then they are given up, and told whether the app was known to be unrouted by
  then. No more than ``limit`` are held, so that an app which nobody routes does not keep the door shut for the others.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sluicegate.domain.actions import Announce

SILENCE = 2.0
COMING_BACK = 30.0
PATIENCE = 2.0


@dataclass(slots=True)
class _Held:
    until: float
    go: Callable[[], None]
    give_up: Callable[[bool], None]


@dataclass(slots=True)
class _App:
    since: float
    """Watched since then."""
    heard: float = float("-inf")
    held: deque[_Held] = field(default_factory=deque)
    missing: bool = False


class RoutedApps:
    """Of ``apps``, watched from ``now`` on."""

    def __init__(self, apps: Iterable[str], now: float, *, limit: int = 1000) -> None:
        self._limit = limit
        self._apps = {app: _App(now) for app in apps}

    def watch(self, apps: Iterable[str], now: float) -> None:
        """These from now on. What is held of others is given up."""
        kept = set(apps)
        for app in [app for app in self._apps if app not in kept]:
            self._end(self._apps.pop(app))
        for app in kept - self._apps.keys():
            self._apps[app] = _App(now)

    def heard(self, app: str, now: float) -> None:
        """A router of ``app`` lives. What is held goes on."""
        found = self._apps.get(app)
        if found is None:
            return
        found.heard = now
        while found.held:
            found.held.popleft().go()

    def offer(self, app: str, now: float, wait: float, go: Callable[[], None], give_up: Callable[[bool], None]) -> None:
        """A query of ``app`` came, ``wait`` seconds before its deadline: one of ``go`` and ``give_up`` is called.

        ``give_up`` is told whether the app is known to be routed by nobody: false while a router may just be starting.
        """
        found = self._apps.get(app)
        if found is None or now - found.heard < COMING_BACK:
            go()
        elif len(found.held) >= self._limit or wait <= 0.0:
            give_up(found.missing)
        else:
            found.held.append(_Held(now + min(wait, PATIENCE), go, give_up))

    def looked(self, now: float) -> list[Announce]:
        """Time passed: what is to be said. What was held for long enough is given up."""
        said = []
        for name, app in self._apps.items():
            missing = now - max(app.heard, app.since) >= SILENCE
            due = [held for held in app.held if held.until <= now]
            app.held = deque(held for held in app.held if held.until > now)
            for held in due:
                held.give_up(missing)
            if missing is not app.missing:
                app.missing = missing
                said.append(
                    Announce(f"routing:{name}", "nothing_routes", advice(name))
                    if missing
                    else Announce(f"routing:{name}", "routed", f"a router of {name} lives")
                )
        return said

    @staticmethod
    def _end(app: _App) -> None:
        for held in app.held:
            held.give_up(app.missing)


def advice(app: str) -> str:
    """What to do where nothing routes ``app``."""
    return f"nothing routes {app}: start `sluice up router`, without --app or with --app {app}"
