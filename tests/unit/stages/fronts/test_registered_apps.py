"""What a front and the live page read once other apps are served."""

import asyncio

import pytest

from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.fronts.front_desk import FrontDesk
from sluicegate.stages.fronts.http_auth import Access
from sluicegate.stages.fronts.live.live_page import WebStage
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams import connect
from sluicegate.streams.topics import Topics
from tests.harness import toy_catalogue

pytestmark = pytest.mark.virtual


@pytest.mark.parametrize("what", ["front", "page"])
async def test_results_of_an_app_that_is_served_no_more_are_read_no_more(what: str) -> None:
    broker, topics, served = connect("memory://"), Topics("x"), toy_catalogue()
    await broker.admin().create_topics(topics.specs(["toy"]))
    connections = Connections(broker=broker, producer=broker.producer(), topics=topics, clock=SystemClock())
    stage = (
        FrontDesk("http", connections, {})
        if what == "front"
        else WebStage(connections, {}, served=served, devices=(), access=Access())
    )
    results = stage._results
    await stage.registered(served)
    assert results._apps == {"toy"} and len(results._tasks) == 1
    await stage.registered(Catalogue({}, {}, {}))
    await asyncio.sleep(1.0)
    assert not results._apps and not results._tasks
    await results.close()
    await broker.close()
