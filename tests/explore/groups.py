"""The coordinator of a group, as Kafka's classic protocol has it. See ``cluster`` for the rules."""

import asyncio
import contextvars
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluicegate.streams.memory.sticky_assignor import assign
from sluicegate.streams.ports import TopicPartition

if TYPE_CHECKING:
    from tests.explore.cluster import Cluster

SESSION = 2.0
REBALANCE = 3.0

Partitions = frozenset[TopicPartition]


@dataclass(slots=True)
class _Member:
    topics: frozenset[str]
    static: bool
    holds: Partitions
    seen: float
    waits: "asyncio.Future[tuple[int, Partitions]] | None" = None


class Group:
    """The coordinator of a group, as Kafka's classic protocol has it."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._loop = cluster.loop
        self._members: dict[str, _Member] = {}
        self._names = 0
        self._preparing = False
        self._exclusive = False
        self.generation = 0
        self._looking: asyncio.TimerHandle | None = None

    async def join(
        self, name: str | None, static: bool, topics: frozenset[str], holds: Partitions, exclusive: bool
    ) -> tuple[str, int, Partitions]:
        """Be a member; returns once the group has agreed."""
        self._exclusive = exclusive
        if name is None or (name not in self._members and not static):
            self._names += 1
            name = f"m{self._names}"
        known = self._members.get(name)
        now = self._loop.time()
        if known is not None and static and not self._preparing and known.topics == topics and known.waits is None:
            known.seen = now
            return name, self.generation, known.holds
        if known is not None and known.waits is not None and not known.waits.done():
            known.waits.cancel()
        held = known.holds if known is not None and static and not holds else holds
        agreed: asyncio.Future[tuple[int, Partitions]] = self._loop.create_future()
        self._members[name] = _Member(topics, static, held, now, agreed)
        self._prepare()
        generation, given = await agreed
        return name, generation, given

    def heartbeat(self, name: str, generation: int) -> str:
        """What a member is told: "ok", "rebalance" or "unknown"."""
        member = self._members.get(name)
        if member is None or (generation != self.generation and not self._preparing):
            return "unknown"
        member.seen = self._loop.time()
        return "rebalance" if self._preparing else "ok"

    def leave(self, name: str) -> None:
        """A member goes; a static one may come back."""
        member = self._members.get(name)
        if member is not None and not member.static:
            del self._members[name]
            if self._members:
                self._prepare()
                self._look()

    def unsettle(self) -> None:
        """Somebody makes the group agree anew."""
        if self._members:
            self._prepare()

    def may_commit(self, name: str | None, generation: int) -> bool:
        """Whether a member of that generation may."""
        return name in self._members and generation == self.generation

    def _prepare(self) -> None:
        if not self._preparing:
            self._preparing = True
            self._after(REBALANCE, self._give_up_on_absent)
        self._agree()
        self._watch()

    def _agree(self) -> None:
        if self._members and all(m.waits is not None for m in self._members.values()):
            self._settle()

    def _give_up_on_absent(self) -> None:
        if not self._preparing:
            return
        for name in [n for n, m in self._members.items() if m.waits is None]:
            del self._members[name]
        if self._members:
            self._settle()
        else:
            self._preparing = False

    def _settle(self) -> None:
        self._preparing = False
        self.generation += 1
        given = assign(
            {n: m.topics for n, m in self._members.items()},
            self._cluster.store.partition_counts(),
            {n: m.holds for n, m in self._members.items()},
            exclusive=self._exclusive,
        )
        now = self._loop.time()
        for name, member in self._members.items():
            member.holds, member.seen = given[name], now
            waits, member.waits = member.waits, None
            if waits is not None and not waits.done():
                waits.set_result((self.generation, given[name]))

    def _look(self) -> None:
        """Take out who is silent."""
        now = self._loop.time()
        silent = [n for n, m in self._members.items() if m.waits is None and now - m.seen > SESSION]
        for name in silent:
            del self._members[name]
        if silent and self._members:
            self._prepare()
        self._watch()

    def _watch(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._members:
            self._looking = self._after(SESSION / 4, self._look)

    def _after(self, seconds: float, what: object) -> asyncio.TimerHandle:
        return self._loop.call_at(self._loop.time() + seconds, what, context=contextvars.Context())
