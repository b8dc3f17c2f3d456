"""Which apps are served is said in one place: what is registered, and whether the demo's are."""

import asyncio
from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.events import PlanAcknowledged
from sluicegate.domain.plan import STANDS_IN, Epoch, Placement, Plan
from sluicegate.executors.demo_catalogue import demo_folder
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.profiles.demo.build_models import DEFAULT
from sluicegate.sluice.catalogue import run_folders
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue, wanted_apps
from sluicegate.sluice.catalogue.run_folders import awaited_url
from sluicegate.sluice.registration import publish_registration, registry_topic
from sluicegate.sluice.registration.publish_registration import await_loaded
from sluicegate.sluice.registration.registry_topic import check_served, publish_catalogue
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams import connect
from sluicegate.streams.records import control
from sluicegate.streams.topics import Topics
from tests.harness import toy_catalogue
from tests.models.text_models import write_words


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


@pytest.mark.parametrize(("said", "asked", "field"), [((), ("wrods",), "--app"), (("words", "wrods"), (), "apps")])
def test_an_app_that_nobody_has_is_refused_before_the_demos_models_are_made(
    said: tuple[str, ...], asked: tuple[str, ...], field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    write_words(tmp_path / "registered")
    told = f"^{field}: 'wrods' is not one of words, digits, signals; `sluice register` makes an app of your models$"
    with pytest.raises(InvalidInputError, match=told):
        open_catalogue(Settings(apps=said), asked)
    assert not demo_folder(tmp_path).exists()


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
    await publish_catalogue(broker, producer, topics, Catalogue.of((), (), ()))
    with pytest.raises(InvalidInputError, match="no app is served on memory://: register one"):
        await registry_topic.await_served(broker, topics, ["mine"], within=0.5, say=said.append)
    await producer.stop()
    await broker.close()


async def test_a_question_waits_until_a_worker_has_loaded_what_the_newest_plan_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish_registration, "SAID_AFTER", 0.1)
    broker, topics = connect("memory://"), Topics()
    producer = broker.producer()
    await producer.start()
    await broker.admin().create_topics(topics.specs(["mine", "yours"]))
    said: list[str] = []

    async def planned(number: int, *placed: tuple[str, str], reason: str = "period") -> None:
        placements = tuple(Placement(device, app, (f"{app}-a",), 1.0, 8) for app, device in placed)
        plan = Plan(epoch=Epoch(1, number), created=0.0, placements=placements, reason=reason)
        await (await producer.send(topics.plan, control.encode_plan(plan), key=b"plan"))

    async def loaded(number: int, device: str, *variants: str) -> None:
        told = PlanAcknowledged(device=device, epoch=Epoch(1, number), variants=variants)
        await (await producer.send(topics.acks, control.encode_acknowledged(told), key=device.encode()))

    def asking(*apps: str) -> asyncio.Task[None]:
        return asyncio.create_task(await_loaded(broker, topics, apps, within=30.0, say=said.append))

    await planned(1, ("mine", "cpu0"), ("yours", "cpu1"))
    await loaded(1, "cpu0", "mine-a")
    await asyncio.wait_for(asking("mine"), 20.0)
    assert said == []
    both = asking("mine", "yours")
    while not said:
        await asyncio.sleep(0.01)
    assert "mine, yours" in said[0] and not both.done(), "one of them is not loaded"
    await planned(2, ("mine", "cpu1"), reason=f"cpu1 joined; the planner is late, {STANDS_IN}")
    yours = asking("yours")
    await asyncio.sleep(0.3)
    assert not yours.done(), "a plan that only stands in hosts nothing of it"
    await planned(3, ("mine", "cpu1"))
    await asyncio.wait_for(yours, 20.0)  # nothing hosts it: the answer says so
    await loaded(1, "cpu1", "mine-a")
    said.clear()
    await await_loaded(broker, topics, ["mine"], within=0.3, say=said.append)
    assert len(said) == 1, "that was loaded for the plan before"
    await loaded(3, "cpu1", "mine-a")
    await asyncio.wait_for(both, 20.0)
    await await_loaded(broker, Topics("other"), ["mine"], within=0.3, say=said.append)
    await producer.stop()
    await broker.close()


def test_a_system_that_starts_beside_the_question_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folders, "SAID_AFTER", 0.0)
    answers = iter([None, None, "http://127.0.0.1:8080"])
    monkeypatch.setattr(run_folders, "live_server", lambda settings: next(answers, None))
    said: list[str] = []
    settings = Settings()
    assert awaited_url(settings, "kafka://b:9", "it", within=5.0, say=said.append) == "kafka://b:9"
    assert awaited_url(settings, None, "it", within=5.0, say=said.append) == "memory+http://127.0.0.1:8080"
    assert said == ["waiting: it"], "once"
    with pytest.raises(ConfigurationError, match="start it"):
        awaited_url(settings, None, "start it", within=0.3, say=said.append)
