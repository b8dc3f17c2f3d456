"""What a system is told of an app is what is kept of it last, whoever else changes it meanwhile."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.registration import publish_registration
from sluicegate.sluice.registration.publish_registration import announce
from sluicegate.sluice.registration.registry_topic import publish_catalogue, read_catalogue
from sluicegate.sluice.settings.settings import Settings
from sluicegate.sluice.system.process import serve, system
from sluicegate.streams import connect
from sluicegate.streams.ports import Broker
from sluicegate.streams.topics import Topics
from tests.harness import settings_for, toy_catalogue


@pytest.fixture(autouse=True)
def home_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's would win."""
    monkeypatch.delenv("SLUICE_HOME", raising=False)


@pytest.fixture
def registered(tmp_path: Path) -> Registered:
    found = Registered(tmp_path / "home")
    save_catalogue(found.folder, toy_catalogue(("mine", "yours")), {})
    return found


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Of a system that runs."""

    async def stays_open() -> None: ...

    found = connect("memory://")
    monkeypatch.setattr(found, "close", stays_open)
    monkeypatch.setattr(publish_registration, "connected", lambda *_: found)
    return found


@pytest.mark.parametrize("change", ["retire", "change"])
async def test_an_announcement_that_another_overtakes_leaves_what_the_other_said(
    change: str, registered: Registered, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=registered.folder.parent, broker="kafka://there")
    await broker.admin().create_topics(Topics().specs([], [], partitions=1))

    async def overtaken(*arguments: Any, **named: Any) -> int:
        monkeypatch.setattr(publish_registration, "publish_catalogue", publish_catalogue)
        registered.retire("mine") if change == "retire" else registered.change("mine", slo=0.08)
        assert await announce(settings, "mine", wait=0.0) is not None
        return await publish_catalogue(*arguments, **named)

    monkeypatch.setattr(publish_registration, "publish_catalogue", overtaken)
    told = await announce(settings, "mine", wait=0.0)
    assert told is not None and told.why == ""
    kept = registered.catalogue(verify=False)
    assert kept is not None
    assert await read_catalogue(broker, Topics()) == kept.only({"mine"} & kept.apps.keys())


async def test_a_system_that_starts_serves_what_was_registered_while_it_began(
    registered: Registered, tmp_path: Path
) -> None:
    class Planner:
        name = "planner"

        async def run(self, stop: asyncio.Event) -> None:
            await stop.wait()

    settings = settings_for("memory://", tmp_path, slo_s={"mine": 0.5})
    known = registered.catalogue(verify=False)
    assert known is not None
    async with system(settings, known, registered.folder, tmp_path / "run", connect=False) as built:
        registered.change("mine", weight=3.0)
        registered.retire("yours")
        late = toy_catalogue(("late",))
        now = registered.catalogue(verify=False)
        assert now is not None
        save_catalogue(registered.folder, now.replacing("late", late), {})
        started = asyncio.Event()
        serving = asyncio.create_task(serve(built, [Planner()], started.set))
        await started.wait()
        said = await read_catalogue(built.broker, built.topics)
        assert built.topics.queries("late") in await built.broker.admin().topics()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert said.apps == {
        "late": late.apps["late"],
        "mine": replace(known.apps["mine"], weight=3.0, slo=0.5),
    }
