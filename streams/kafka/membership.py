"""How a consumer of Apache Kafka is a member of a group: who assigns, who is told, and what is left when it goes.

Assignment is ``sluicegate.streams.memory.sticky_assignor``, sticky and deterministic: the client's own sticky assignor
shares its state between the consumers of one process and tells no generation.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import orjson
from aiokafka import ConsumerRebalanceListener
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from sluicegate.streams.memory.sticky_assignor import assign
from sluicegate.streams.ports import TopicPartition


class StickyAssignor:
    """Our sticky assignment as aiokafka wants it. ``sluicegate.streams.memory.sticky_assignor`` as a client-side
    assignor; one a consumer. Members tell what they hold as user data."""

    name = "sluice-sticky"

    def __init__(self, *, exclusive: bool = False) -> None:
        self._held: list[TopicPartition] = []
        self._exclusive = exclusive

    def metadata(self, topics: Iterable[str]) -> Any:
        """What this member tells the leader."""
        return ConsumerProtocolMemberMetadata(0, sorted(topics), orjson.dumps([tuple(tp) for tp in self._held]))

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        """Called in the leader."""
        topics = {member: frozenset(told.subscription) for member, told in members.items()}
        counts = {t: len(cluster.partitions_for_topic(t) or ()) for t in frozenset().union(*topics.values())}
        held = {member: _held(told.user_data) for member, told in members.items()}
        given = assign(topics, counts, held, exclusive=self._exclusive)
        return {member: _assignment(partitions) for member, partitions in given.items()}

    def on_assignment(self, assignment: Any) -> None:
        """What this member holds from now on."""
        self._held = [TopicPartition(*tp) for tp in assignment.partitions()]


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Hands what the client tells to the consumer."""

    def __init__(
        self, revoked: Callable[[], Awaitable[None]], assigned: Callable[[Iterable[Any]], Awaitable[None]]
    ) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """The client's name for it."""
        del revoked  # what the client names is what we hold
        await self._revoked()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        """The client's name for it."""
        await self._assigned(assigned)


def _held(user_data: bytes | None) -> frozenset[TopicPartition]:
    try:
        return frozenset(TopicPartition(str(topic), int(p)) for topic, p in orjson.loads(user_data or b"[]"))
    except (ValueError, TypeError):
        return frozenset()


def _assignment(partitions: Iterable[TopicPartition]) -> Any:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return ConsumerProtocolMemberAssignment(0, list(by_topic.items()), b"")
