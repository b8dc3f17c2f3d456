"""Which inputs are known to end executors, so that the same one that comes again ends none.

Rules.
- What queries hold is known by a digest, which is told only while that may matter: from the first end of an executor
  until ``_WATCHED`` seconds after the last.
- What ended an executor when it ran alone is refused for ``REMEMBERED`` seconds: the same content for the same app. No
  more than ``_MOST`` are remembered, the newest.
"""

from collections import OrderedDict

from sluicegate.domain.query import Query, QueryKey

REMEMBERED = 600.0
REFUSED = "the same input has ended the process that runs models, a short while ago"
_WATCHED = 60.0
_MOST = 64
_HELD = 10_000


class KnownPoison:
    """Of one device. ``watching``: contents are to be told; ``fresh``: queries were named since that was last reset."""

    __slots__ = ("_contents", "_named", "_until", "fresh", "watching")

    def __init__(self) -> None:
        self.watching = False
        self.fresh: list[Query] = []
        self._until = 0.0
        self._contents: OrderedDict[QueryKey, str] = OrderedDict()
        self._named: OrderedDict[tuple[str, str], float] = OrderedDict()

    def watch(self, now: float) -> None:
        """An executor has ended."""
        self.watching = True
        self._until = max(self._until, now + _WATCHED)

    def told(self, query: QueryKey, content: str) -> None:
        """What ``query`` holds."""
        self._contents[query] = content
        if len(self._contents) > _HELD:
            self._contents.popitem(last=False)

    def name(self, query: Query, now: float) -> None:
        """It ended a process, alone."""
        content = self._contents.get(query.key)
        if content is None:
            return
        place = (query.app, content)
        if place not in self._named:
            self.fresh.append(query)
        self._named[place] = self._until = now + REMEMBERED
        self._named.move_to_end(place)
        if len(self._named) > _MOST:
            self._named.popitem(last=False)

    def refuses(self, query: Query, now: float) -> bool:
        """Whether it holds what ended a process before."""
        if not self._named:
            return False
        content = self._contents.get(query.key)
        return content is not None and now < self._named.get((query.app, content), 0.0)

    def all(self, now: float) -> tuple[tuple[str, str], ...]:
        """(app, digest) of what is refused; what was for long enough is forgotten."""
        if not self.watching:
            return ()
        while self._named and next(iter(self._named.values())) <= now:
            self._named.popitem(last=False)
        if now >= self._until:
            self.watching = False
            self._contents.clear()
        return tuple(self._named)
