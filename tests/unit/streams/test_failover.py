"""A question to a cluster goes to another broker where the one asked is gone, and ends where none answers."""

import pytest
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError, TopicAuthorizationFailedError

from sluicegate.streams.kafka.failover import answered, controller_answers

pytestmark = pytest.mark.virtual


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
