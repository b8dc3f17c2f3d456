"""Which apps have topics here: a record between stages that names any other was written by a stranger.

Its outcome would have nowhere to go. An app's topics are there before anybody is told of it, so that one without any,
looked up after a record of it was read, is no app.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator

from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.streams.ports import Broker
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_AGAIN = 0.5


class ServedApps:
    """The apps known to have topics. ``apps``: of the catalogue, whose topics are there."""

    def __init__(self, broker: Broker, topics: Topics, apps: Iterable[str]) -> None:
        self._broker = broker
        self._topics = topics
        self._known = set(apps)

    def __contains__(self, app: str) -> bool:
        return app in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._known))

    def registered(self, apps: Iterable[str]) -> None:
        """These are served too; queries of retired ones may still be on their way."""
        self._known.update(apps)

    async def strangers(self, apps: Iterable[str], *, anew: bool = False) -> frozenset[str]:
        """Those of ``apps`` that have no topics: looked up where not known, or ``anew``, as those of a retired app may
        have been deleted. Waits for a broker that is away."""
        if anew:
            self._known.difference_update(apps)
        asked = {app: topic for app in set(apps) - self._known if (topic := self._results(app)) is not None}
        there = await self._there(asked.values()) if asked else frozenset()
        self._known.update(app for app, topic in asked.items() if topic in there)
        return frozenset(set(apps) - self._known)

    def _results(self, app: str) -> str | None:
        try:
            return self._topics.results(app)
        except InvalidInputError:
            return None

    async def _there(self, topics: Iterable[str]) -> frozenset[str]:
        while True:
            try:
                return frozenset(await self._broker.admin().partitions(list(topics)))
            except SluiceError as error:
                log.warning("topics of apps cannot be looked up (%s)", error)
                await asyncio.sleep(_AGAIN)


def not_served(app: str) -> InvalidInputError:
    """Why a record that names ``app`` leads to nothing."""
    return InvalidInputError("app", f"{app!r:.100} has no topics here; only stages write here, producers query topics")
