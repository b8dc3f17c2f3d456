"""The registry topic on both brokers: one record an app, tombstones, read-your-writes, nothing written twice."""

import uuid
from collections.abc import AsyncIterator

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.formats.catalogue_json import fingerprint
from sluicegate.sluice.registration.registry_topic import (
    app_record,
    await_served,
    check_served,
    publish_catalogue,
    read_catalogue,
    served_apps,
)
from sluicegate.streams import connect
from sluicegate.streams.ports import Broker, Producer
from sluicegate.streams.topics import Topics
from tests.harness import toy_catalogue

System = tuple[Broker, Producer, Topics]


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
async def system(request: pytest.FixtureRequest) -> AsyncIterator[System]:
    url = "memory://" if request.param == "memory" else str(request.getfixturevalue("kafka_url"))
    broker, topics = connect(url), Topics(f"r{uuid.uuid4().hex[:8]}")
    producer = broker.producer()
    await producer.start()
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"], partitions=1))
    yield broker, producer, topics
    await producer.stop()
    await broker.close()


async def test_what_was_published_is_rebuilt_and_nothing_is_written_twice(system: System) -> None:
    broker, producer, topics = system
    catalogue = toy_catalogue(("one", "two"))
    assert await publish_catalogue(broker, producer, topics, catalogue) == 2
    assert fingerprint(await read_catalogue(broker, topics)) == fingerprint(catalogue)
    assert await publish_catalogue(broker, producer, topics, catalogue) == 2


async def test_what_is_retired_is_gone_and_one_app_is_changed_alone(system: System) -> None:
    broker, producer, topics = system
    await publish_catalogue(broker, producer, topics, toy_catalogue(("one", "two")))
    assert await publish_catalogue(broker, producer, topics, toy_catalogue(("three",)), only="three") == 3
    assert set((await read_catalogue(broker, topics)).apps) == {"one", "two", "three"}
    assert await publish_catalogue(broker, producer, topics, Catalogue.of((), (), ()), only="two") == 4
    assert set((await read_catalogue(broker, topics)).apps) == {"one", "three"}
    await publish_catalogue(broker, producer, topics, toy_catalogue(("one",)))
    assert set((await read_catalogue(broker, topics)).apps) == {"one"}


async def test_a_record_of_another_app_or_of_nonsense_is_an_error_that_names_it(system: System) -> None:
    broker, producer, topics = system
    record = app_record(toy_catalogue(("one",)), "one")
    await (await producer.send(topics.registry, record, key=b"two"))
    with pytest.raises(InvalidInputError, match=r"registry\.two"):
        await read_catalogue(broker, topics)
    await (await producer.send(topics.registry, b"{", key=b"two"))
    with pytest.raises(InvalidInputError, match=r"registry\.two"):
        await read_catalogue(broker, topics)


async def test_what_a_stranger_wrote_hides_nothing_from_commands(system: System) -> None:
    broker, producer, topics = system
    catalogue = toy_catalogue(("one",))
    await publish_catalogue(broker, producer, topics, catalogue)
    for key, value in ((b"one", b"{"), (b"two", b"["), (b"\xff", b"{}")):
        await (await producer.send(topics.registry, value, key=key, partition=0))
    served = await await_served(broker, topics, ["one"], within=0.0, say=pytest.fail)
    assert served is not None and fingerprint(served) == fingerprint(catalogue)
    assert list(await served_apps(broker, topics)) == ["one"]
    assert await check_served(broker, topics, ["one"])


async def test_who_is_for_other_apps_than_are_served_is_told_once_it_is_known_what_is(system: System) -> None:
    broker, producer, topics = system
    assert not await check_served(broker, topics, ["mine"])
    await publish_catalogue(broker, producer, topics, toy_catalogue(("one", "two")))
    assert await check_served(broker, topics, ["two"])
    with pytest.raises(InvalidInputError, match="--app: mine: not served by this system, which serves one, two; "):
        await check_served(broker, topics, ["one", "mine"])
