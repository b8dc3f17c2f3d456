"""Which apps are served is said in one place: what is registered, and whether the demo's are."""

import asyncio
from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.profiles.demo.build_models import DEFAULT
from sluicegate.sluice.catalogue.open_catalogue import wanted_apps
from sluicegate.sluice.registration import registry_topic
from sluicegate.sluice.registration.registry_topic import check_served, publish_catalogue
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams import connect
from sluicegate.streams.topics import Topics
from tests.harness import toy_catalogue


def test_the_demos_apps_are_served_as_somebody_has_said_and_else_while_nothing_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings = Settings()
    registered = Registered(tmp_path)
    mine = toy_catalogue(("mine",))
    assert registered.demo is None
    assert wanted_apps(settings, (), None) == ()
    assert wanted_apps(settings, (), mine) == ("mine",)
    registered.serve_demo(True)
    assert Registered(tmp_path).demo is True
    assert wanted_apps(settings, (), mine) == ("mine", *DEFAULT)
    assert wanted_apps(settings, ("other",), mine) == ("other",), "who asks by name is asked for that alone"
    assert wanted_apps(Settings(apps=("digits",)), (), mine) == ("digits",)
    registered.serve_demo(False)
    assert wanted_apps(settings, (), mine) == ("mine",)
    with pytest.raises(ConfigurationError, match="demo-apps on"):
        wanted_apps(settings, (), None)


async def test_an_app_that_is_not_served_is_refused_with_those_that_are_and_the_remedy() -> None:
    broker, topics = connect("memory://"), Topics()
    producer = broker.producer()
    await producer.start()
    await broker.admin().create_topics(topics.specs(["mine", "yours"]))
    await publish_catalogue(broker, producer, topics, toy_catalogue(("mine", "yours")))
    assert await check_served(broker, topics, ["mine"])
    for app, remedy in (("digits", "sluice demo-apps on"), ("strange", "sluice register")):
        with pytest.raises(InvalidInputError, match=f"{app}: not served .* serves mine, yours.*{remedy}"):
            await check_served(broker, topics, [app])
    await producer.stop()
    await broker.close()


async def test_a_system_that_has_said_nothing_yet_is_waited_for_and_soon_it_is_said_what_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_topic, "SAID_AFTER", 0.3)
    broker, topics = connect("memory://"), Topics()
    producer = broker.producer()
    await producer.start()
    said: list[str] = []

    async def starts() -> None:
        while not said:
            await asyncio.sleep(0.05)
        await broker.admin().create_topics(topics.specs(["mine"]))
        await publish_catalogue(broker, producer, topics, toy_catalogue(("mine",)))

    starting = asyncio.create_task(starts())
    found = await registry_topic.await_served(broker, topics, ["mine"], within=10.0, say=said.append)
    await starting
    assert found is not None and list(found.apps) == ["mine"]
    assert len(said) == 1 and "sluice up planner" in said[0]
    with pytest.raises(InvalidInputError, match=r"digits: not served .* serves mine"):
        await registry_topic.await_served(broker, topics, ["digits"], within=10.0, say=said.append)
    with pytest.raises(InvalidInputError, match="sluice up planner"):
        await registry_topic.await_served(broker, Topics("other"), ["mine"], within=0.5, say=said.append)
    await producer.stop()
    await broker.close()
