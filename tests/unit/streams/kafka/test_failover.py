"""Clients of a cluster go to another broker where one is gone, and do not believe one that may lead no more."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    NodeNotReadyError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from sluicegate.streams.kafka.failover import answered, controller_answers
from sluicegate.streams.kafka.stale_leaders import DOUBT_S, doubt_stale_leaders

pytestmark = pytest.mark.virtual

GONE, ASK, GOOD = OffsetOutOfRangeError.errno, NotLeaderForPartitionError.errno, 0
FETCH = FetchRequest(100, 1, 1, 1, [])


class Cluster:
    """Stands for the client: ``reached``: whether any broker tells what there is; ``ready``: nodes that answer."""

    def __init__(self, *, reached: bool = True, ready: tuple[int, ...] = (), controllers: tuple[int, ...] = ()) -> None:
        self.reached = reached
        self._ready = ready
        self._controllers = list(controllers)
        self.updates = 0
        self._client = self
        self.cluster = self
        self.controller: Cluster | None = None
        self.nodeId = -1

    async def force_metadata_update(self) -> bool:
        self.updates += 1
        if self._controllers:
            self.controller = self
            self.nodeId = self._controllers.pop(0)
        return self.reached

    async def ready(self, node: int) -> bool:
        return node in self._ready


async def test_what_a_dead_broker_does_not_answer_another_is_asked() -> None:
    cluster = Cluster()
    gone = [NodeNotReadyError("1"), KafkaConnectionError("2")]

    async def ask() -> str:
        if gone:
            raise gone.pop()
        return "here"

    assert await answered(cluster, ask, within=5.0) == "here"
    assert cluster.updates == 2


async def test_where_no_broker_answers_it_ends_at_once() -> None:
    cluster = Cluster(reached=False)

    async def ask() -> str:
        raise NodeNotReadyError("all gone")

    with pytest.raises(NodeNotReadyError, match="all gone"):
        await answered(cluster, ask, within=1e6)
    assert cluster.updates == 1


async def test_it_ends_after_its_time_and_what_no_other_broker_would_say_otherwise_is_not_asked_again() -> None:
    cluster = Cluster()

    async def ask() -> str:
        raise NodeNotReadyError("still gone")

    with pytest.raises(NodeNotReadyError):
        await answered(cluster, ask, within=2.0)
    assert cluster.updates > 3

    async def forbidden() -> str:
        raise TopicAuthorizationFailedError("t")

    cluster.updates = 0
    with pytest.raises(TopicAuthorizationFailedError):
        await answered(cluster, forbidden, within=2.0)
    assert cluster.updates == 0


async def test_changes_are_asked_of_a_broker_that_answers() -> None:
    cluster = Cluster(ready=(2, 3), controllers=(1, 3))

    async def change() -> int:
        await controller_answers(cluster)
        return cluster.nodeId

    assert await answered(cluster, change, within=5.0) == 3


class Client:
    """Answers a fetch as it is told to: what each partition of ``t`` and ``u`` is said to be."""

    def __init__(self) -> None:
        self.says: dict[tuple[str, int], int] = {}
        self.cluster = "metadata"
        self.asked: list[int] = []

    async def send(self, node: int, request: Any) -> Any:
        self.asked.append(node)
        topics = [(t, [(n, code, 7, b"records") for (u, n), code in self.says.items() if u == t]) for t in ("t", "u")]
        return SimpleNamespace(topics=topics)


async def test_an_offset_is_out_of_range_once_that_was_said_for_a_while() -> None:
    client, now = Client(), [1.7e9]
    consumer = SimpleNamespace(_fetcher=SimpleNamespace(_client=client))
    doubt_stale_leaders(consumer, lambda: now[0])
    doubt_stale_leaders(consumer, lambda: now[0])  # once is enough
    doubting = consumer._fetcher._client
    assert doubting.cluster == "metadata" and doubting._client is client

    async def said(node: int = 2) -> dict[tuple[str, int], int]:
        response = await doubting.send(node, FETCH)
        assert all(rest == [7, b"records"] for _, ps in response.topics for _, _, *rest in ps)
        return {(topic, number): code for topic, ps in response.topics for number, code, *_ in ps}

    client.says = {("t", 0): GONE, ("t", 1): GOOD, ("u", 0): GOOD}
    assert await said() == {("t", 0): ASK, ("t", 1): GOOD, ("u", 0): GOOD}
    now[0] += DOUBT_S - 1.0
    assert (await said())["t", 0] == ASK
    client.says["t", 0] = GOOD  # who leads it knows better
    assert (await said(3))["t", 0] == GOOD
    now[0] += 2.0
    client.says = {("t", 0): GONE, ("u", 0): GONE}
    assert await said() == {("t", 0): ASK, ("u", 0): ASK}
    now[0] += DOUBT_S
    client.says["u", 1] = GONE
    assert await said() == {("t", 0): GONE, ("u", 0): GONE, ("u", 1): ASK}
    assert (await said())["t", 0] == ASK  # and from the beginning another time
    assert client.asked == [2, 2, 3, 2, 2, 2]


async def test_other_questions_pass_as_they_are() -> None:
    client = Client()
    consumer = SimpleNamespace(_fetcher=SimpleNamespace(_client=client))
    doubt_stale_leaders(consumer)
    client.says = {("t", 0): GONE}
    response = await consumer._fetcher._client.send(1, MetadataRequest([]))
    assert response.topics[0][1][0][1] == GONE
