"""Serving what is registered while a system runs: the composition root's side of following the registry.

Rules.
- Followed are the apps that a process serves: all, or those that its settings or command name. A catalogue named in the
  settings is the whole of it: then nothing is followed.
- Topics first, then those who run and route, then the front, which answers for an app only once everything behind it
  does. A stage that could not be told is told again.
- A promise rests on a batching rule that keeps it, and a variant is one app's. Where the rule does not, or a record
  names a variant as another app's is named, it is not taken up, and what was served before goes on.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.system.roles.router import router_stage
from sluicegate.sluice.system.system import System
from sluicegate.stages.following.registry_follower import Changes, FollowsRegistry, RegistryStage
from sluicegate.stages.runtime.supervisor import Stage

log = logging.getLogger(__name__)


class LiveRegistry:
    """For one process, its ``roles``, and of ``only`` these apps where named."""

    def __init__(self, system: System, *, roles: Sequence[str], only: Sequence[str]) -> None:
        self._system = system
        self._roles = frozenset(roles)
        self._only = frozenset(only or system.settings.apps)
        self._told = system.catalogue
        self._stages: list[Stage] = []
        self._routed = set(only or system.apps)

    @property
    def needed(self) -> bool:
        """Whether anything here follows the registry."""
        return self._system.settings.catalogue is None and bool(self._roles - {"demand"})

    def tell(self, stages: Sequence[Stage]) -> None:
        """These are to be told."""
        self._stages += stages

    def stage(self) -> RegistryStage:
        """The follower."""
        system = self._system
        return RegistryStage(
            broker=system.broker,
            topics=system.topics,
            follows=lambda app: not self._only or app in self._only,
            apply=self._apply,
        )

    async def _apply(self, changes: Changes) -> Sequence[Stage]:
        served = await self._with(changes)
        if served == self._told:
            return ()
        system = self._system
        await system.create_topics(served.apps)
        system.serve(served)
        whole = system.catalogue
        asked = whole.only(self._only) if self._only else whole
        behind, fronts = self._followers()
        await asyncio.gather(*(stage.registered(whole if _whole(stage) else asked) for stage in behind))
        await asyncio.gather(*(stage.registered(asked) for stage in fronts))
        log.info(
            "serving %s", ", ".join(f"{app} ({len(asked.of_app(app))} variants)" for app in asked.apps) or "nothing"
        )
        self._told = served
        return self._routers(asked)

    async def _with(self, changes: Changes) -> Catalogue:
        """What is served after ``changes``."""
        system = self._system
        served = self._told
        for app, part in sorted(changes.items(), key=lambda change: (change[1] is not None, change[0])):
            if part is not None:
                part = replace(part, apps={app: system.settings.as_set(part.apps[app])})
                if why := _taken(app, part, served) or self._unkept(app, part, served):
                    log.error("%s is not served as it was registered: %s", app, why)
                    continue
            if part != (served.only({app}) if app in served.apps else None):
                served = served.replacing(app, part)
        return served

    def _unkept(self, app: str, part: Catalogue, served: Catalogue) -> str:
        """Why a promise to ``app`` could not be kept here; empty where it can."""
        if not part.apps[app].promise.active:
            return ""
        try:
            self._system.check_keeps([app], served.replacing(app, part))
        except ConfigurationError as error:
            return str(error)
        return ""

    def _followers(self) -> tuple[list[FollowsRegistry], list[FollowsRegistry]]:
        found: list[FollowsRegistry] = [stage for stage in self._stages if isinstance(stage, FollowsRegistry)]
        fronts = [stage for stage in found if stage.name in {"http", "grpc"}]
        return [stage for stage in found if stage not in fronts], fronts

    def _routers(self, asked: Catalogue) -> list[Stage]:
        if "router" not in self._roles:
            return []
        new = sorted(asked.apps.keys() - self._routed)
        self._routed.update(new)
        routers: list[Stage] = [router_stage(self._system, app) for app in new]
        self._stages += routers
        return routers


def _taken(app: str, part: Catalogue, served: Catalogue) -> str:
    """Which variant of ``part`` is named as one of another app; empty where none is."""
    for name in part.variants:
        if name in served.variants and (other := served.variants[name].app) != app:
            return f"variants.{name}: is {other}'s already; register it by another name"
    return ""


def _whole(stage: FollowsRegistry) -> bool:
    """Who serves every app of the system, whatever the others of its process were asked for, or chooses by itself."""
    return stage.name in {"admission", "planner", "scaler"} or stage.name.startswith("worker ")
