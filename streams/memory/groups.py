"""Consumer groups of the memory broker: who reads what, told eagerly as Kafka's classic protocol does.

Rules. Any change of members starts one rebalance: every member is told to give all its partitions, then every member
is told what it has now; changes that come meanwhile start another. A static member that leaves keeps its partitions for
the session timeout and gets them back without a rebalance. The same static id joining twice ends the older consumer:
it reads and commits nothing more.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from sluicegate.streams.memory.sticky_assignor import assign
from sluicegate.streams.ports import MemberTakenError, TopicPartition

Partitions = frozenset[TopicPartition]


class Participant(Protocol):
    """What a group asks of a consumer that is its member."""

    async def revoke(self) -> None:
        """Give all partitions, after telling the listener."""
        ...

    async def grant(self, partitions: Partitions) -> None:
        """Take these partitions, then tell the listener."""
        ...

    def fence(self, error: Exception) -> None:
        """Another is this member now: give all partitions, and raise ``error`` at each read from now on."""
        ...


@dataclass(slots=True)
class _Member:
    topics: frozenset[str]
    static: bool
    participant: Participant | None
    holds: Partitions = frozenset()
    expiry: asyncio.TimerHandle | None = field(default=None)


class Group:
    """Members and their partitions. Lives in one event loop."""

    def __init__(self, name: str, partition_counts: Callable[[], Mapping[str, int]], session_timeout: float) -> None:
        self._name = name
        self._counts = partition_counts
        self._session_timeout = session_timeout
        self._members: dict[str, _Member] = {}
        self._ids = count()
        self._dirty = False
        self._exclusive = False
        self._task: asyncio.Task[None] | None = None

    async def join(
        self, participant: Participant, topics: frozenset[str], static_id: str | None, *, exclusive: bool = False
    ) -> str:
        """Become a member and wait for partitions; returns the member id."""
        self._exclusive = exclusive
        member_id = static_id if static_id is not None else f"~{next(self._ids):08d}"
        known = self._members.get(member_id)
        if known is not None:
            self._take_over(known, member_id)
        if known is not None and known.topics == topics:
            known.participant = participant
            if self._task is None:
                await participant.grant(known.holds)
                return member_id
        else:
            self._members[member_id] = _Member(topics, static_id is not None, participant)
        await self._rebalanced()
        return member_id

    async def change(self, member_id: str, topics: frozenset[str]) -> None:
        """Read other topics, as the member that one is, and wait for partitions."""
        self._members[member_id].topics = topics
        await self._rebalanced()

    def leave(self, member_id: str, participant: Participant) -> None:
        """Stop being a member. A static one's partitions wait for its return."""
        member = self._members.get(member_id)
        if member is None or member.participant is not participant:
            return
        member.participant = None
        if member.static:
            loop = asyncio.get_running_loop()
            member.expiry = loop.call_later(self._session_timeout, self._expire, member_id)
        else:
            del self._members[member_id]
            self._start_rebalance()

    async def close(self) -> None:
        """Forget all members and end what runs."""
        for member in self._members.values():
            if member.expiry is not None:
                member.expiry.cancel()
        self._members.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _take_over(self, member: _Member, member_id: str) -> None:
        if member.expiry is not None:
            member.expiry.cancel()
            member.expiry = None
        if member.participant is not None:
            member.participant.fence(MemberTakenError(member_id, self._name))

    def _expire(self, member_id: str) -> None:
        del self._members[member_id]
        self._start_rebalance()

    def _start_rebalance(self) -> None:
        self._dirty = True
        if self._task is None:
            self._task = asyncio.create_task(self._rebalance(), name=f"rebalance {self._name}")

    async def _rebalanced(self) -> None:
        self._start_rebalance()
        while self._task is not None:
            await asyncio.shield(self._task)

    async def _rebalance(self) -> None:
        try:
            while self._dirty:
                self._dirty = False
                present = [m.participant for m in self._members.values() if m.participant is not None]
                await asyncio.gather(*(p.revoke() for p in present))
                members = dict(self._members)
                given = assign(
                    {name: m.topics for name, m in members.items()},
                    self._counts(),
                    {name: m.holds for name, m in members.items()},
                    exclusive=self._exclusive,
                )
                grants = []
                for name, member in members.items():
                    member.holds = given[name]
                    if member.participant is not None:
                        grants.append(member.participant.grant(given[name]))
                await asyncio.gather(*grants)
        finally:
            self._task = None
