"""Apps that are registered, changed and retired while a system runs, by the registry topic alone."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ClientSession

from domain.outcome import OutcomeKind, Reason
from profiles.catalogue import Catalogue
from sluice.registry_topic import publish_catalogue
from stages.registry import RegistryStage
from streams import connect
from tests.harness import ROLES, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.timeout(120)

NONE = Catalogue.of((), (), ())


async def tell(run: Running, catalogue: Catalogue, app: str) -> None:
    """What `sluice register` does once an app is ready."""
    topics, producer = run.topics, run.producer
    await publish_catalogue(run.broker, producer, topics, catalogue, only=app)


async def caught_up(run: Running) -> None:
    (registry,) = [stage for stage in run.stages if isinstance(stage, RegistryStage)]
    async with asyncio.timeout(20.0):
        await registry.catch_up()


async def ended(run: Running, query_id: str) -> tuple[OutcomeKind, str | None, str | None]:
    async with asyncio.timeout(20.0):
        while True:
            outcome = (await run.outcomes()).get(query_id)
            if outcome is not None:
                return outcome.kind, outcome.variant, outcome.reason
            await asyncio.sleep(0.05)


def version_two(app: str) -> Catalogue:
    """Other variants of the same app, as another version has."""
    first = toy_catalogue((app,))
    names = {name: f"{name}-v2" for name in first.variants}
    return Catalogue.of(
        first.apps.values(),
        [replace(v, name=names[v.name]) for v in first.variants.values()],
        [replace(p, variant=names[p.variant]) for p in first.profiles.values()],
    )


@pytest.mark.parametrize("url", ["memory://", pytest.param("kafka", marks=pytest.mark.kafka)])
async def test_an_app_is_served_changed_and_retired_while_everything_runs(
    url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(request.getfixturevalue("kafka_url")) if url == "kafka" else url
    settings = settings_for(url, tmp_path, http={"port": 0}, planner={"period_s": 60.0})
    async with running(settings, connect(url), roles=(*ROLES, "http")) as run, ClientSession() as http:
        (front,) = [stage for stage in run.stages if stage.name == "http"]
        await front.bound.wait()  # type: ignore[attr-defined]
        address = f"{front.address}/v2/models/late"  # type: ignore[attr-defined]
        body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}]}
        body["parameters"] = {"latency_ms": 20_000}  # type: ignore[assignment]
        async with http.post(f"{address}/infer", json=body) as answer:
            assert answer.status == 404
        await run.planned()
        stop = asyncio.Event()
        others = asyncio.create_task(keep_asking(run, stop))

        await tell(run, toy_catalogue(("late",)), "late")
        async with http.post(f"{address}/infer", json=body) as answer:  # its own write, without a pause
            assert answer.status == 200, await answer.text()
        kind, variant, _ = await ended(run, await run.ask(app="late", parameters={"latency_ms": 20_000}))
        assert (kind, (variant or "")[:6]) == (OutcomeKind.ANSWERED, "late-v")

        await tell(run, version_two("late"), "late")
        await caught_up(run)
        async with http.get(address) as answer:
            assert set((await answer.json())["versions"]) == set(version_two("late").variants)
        async with asyncio.timeout(20.0):
            while True:
                kind, variant, _ = await ended(run, await run.ask(app="late", parameters={"latency_ms": 20_000}))
                assert kind is OutcomeKind.ANSWERED  # by either version: none is lost in between
                if (variant or "").endswith("-v2"):
                    break

        await tell(run, NONE, "late")
        await caught_up(run)
        async with http.post(f"{address}/infer", json=body) as answer:
            assert answer.status == 404
        kind, _, reason = await ended(run, await run.ask(app="late"))
        assert (kind, reason) == (OutcomeKind.REJECTED, Reason.UNKNOWN_APP)

        await tell(run, toy_catalogue(("late",)), "late")
        await caught_up(run)
        kind, variant, _ = await ended(run, await run.ask(app="late", parameters={"latency_ms": 20_000}))
        assert (kind, (variant or "")[:6]) == (OutcomeKind.ANSWERED, "late-v")

        stop.set()
        asked = await others
        report = await run.audit()
        assert not report.lost and not report.duplicates, report.examples
        outcomes = await run.outcomes()
        assert all(outcomes[i].kind is OutcomeKind.ANSWERED for i in asked)  # the app that was there felt nothing


async def keep_asking(run: Running, stop: asyncio.Event) -> list[str]:
    asked = []
    while not stop.is_set():
        asked.append(await run.ask(parameters={"latency_ms": 20_000}))
        await asyncio.sleep(0.02)
    for query_id in asked[-1:]:
        await ended(run, query_id)
    return asked
