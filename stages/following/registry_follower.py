"""Follows the registry: apps that are registered, changed or retired while a system runs are served without a restart.

Rules.
- An app's record is whole: a reader sees it as it was or as it is. What stands at the start is folded before any of it
  is applied, so that no older version is served for a moment.
- ``apply`` gets what changed (None: retired) and returns stages that are to run from then on beside the others, until
  this one stops. Where it fails (the broker is away, topics cannot be made) each app is applied by itself, those that
  are retired first, and what fails is tried again with what is newest: no app waits for another's topics.
- A record that is no catalogue of one app is logged and skipped: what was served before goes on being served.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.formats.catalogue_json import decode, from_document
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.runtime.supervisor import Stage, ended_early
from sluicegate.streams.ports import Broker, Record
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_AGAIN = 0.5
"""Seconds before what could not be applied is tried again."""

Changes = Mapping[str, Catalogue | None]
"""App -> its catalogue; None where it is retired."""


def part_of(app: str, data: bytes) -> Catalogue:
    """The record of ``app``. Raises InvalidInputError for what is no catalogue of it alone."""
    part = from_document(decode(data, f"registry.{app[:80]}"))
    if tuple(part.apps) != (app,):
        raise InvalidInputError(f"registry.{app[:80]}", "is about another app than its key says; register it again")
    return part


@runtime_checkable
class FollowsRegistry(Protocol):
    """A stage that is told of changes."""

    @property
    def name(self) -> str:
        """Of the stage."""
        ...

    async def registered(self, served: Catalogue) -> None:
        """These apps, and no others, are served from now on."""
        ...


class RegistryStage:
    """Follows the registry topic. ``follows``: whether an app is to be served here. ``apply``: makes it so."""

    name = "registry"

    def __init__(
        self,
        *,
        broker: Broker,
        topics: Topics,
        follows: Callable[[str], bool],
        apply: Callable[[Changes], Awaitable[Sequence[Stage]]],
    ) -> None:
        self._follows = follows
        self._apply = apply
        self._follower = Follower(broker, topics.registry, self._read)
        self._changes: dict[str, Catalogue | None] = {}
        self._changed = asyncio.Event()
        self._applied = asyncio.Event()
        self._applied.set()
        self._stops: list[asyncio.Event] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until ``stop``, then stop what was started. A defect of one is the end of all, as of other stages."""
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(work) for work in (self._follower.run(stop), self._keep_up(group))]
                await stop.wait()
                for task in helpers:
                    task.cancel()
                for one in self._stops:
                    one.set()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed

    async def catch_up(self) -> None:
        """Wait until everything that is on the topic now is served here, or cannot be yet."""
        await self._follower.catch_up()
        await self._applied.wait()

    def _read(self, record: Record) -> None:
        app = (record.key or b"").decode(errors="replace")
        if not app or not self._follows(app):
            return
        self._changes[app] = part_of(app, record.value) if record.value else None
        self._applied.clear()
        self._changed.set()

    async def _keep_up(self, group: asyncio.TaskGroup) -> None:
        await self._follower.ready.wait()
        while True:
            await self._changed.wait()
            self._changed.clear()
            changes, self._changes = self._changes, {}
            failed: Changes = {}
            try:
                self._start(group, await self._apply(changes))
            except SluiceError as error:
                failed = await self._one_by_one(group, changes, error)
            if not self._changes:
                self._applied.set()
            if failed:
                self._changes = {**failed, **self._changes}
                await asyncio.sleep(_AGAIN)
                self._changed.set()

    async def _one_by_one(self, group: asyncio.TaskGroup, changes: Changes, error: SluiceError) -> Changes:
        """Apply each of ``changes``, which failed together by ``error``; those that failed again."""
        retired: Changes = {app: None for app, part in changes.items() if part is None}
        parts: list[Changes] = [retired, *({app: changes[app]} for app in sorted(changes.keys() - retired.keys()))]
        failed: dict[str, Catalogue | None] = {}
        for part in filter(None, parts):
            try:
                if part != changes:
                    self._start(group, await self._apply(part))
                    continue
            except SluiceError as again:
                error = again
            log.warning("%s cannot be served yet (%s); trying again", ", ".join(sorted(part)), error)
            failed.update(part)
            if part is retired:  # others may take their variants' names
                return {**changes}
        return failed

    def _start(self, group: asyncio.TaskGroup, started: Sequence[Stage]) -> None:
        for stage in started:
            self._stops.append(asyncio.Event())
            group.create_task(_run(stage, self._stops[-1]), name=stage.name)


async def _run(stage: Stage, stop: asyncio.Event) -> None:
    await stage.run(stop)
    if not stop.is_set():
        raise ended_early([stage.name])
