"""Apps that are registered, changed and retired while a system runs, by the registry topic alone."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ClientSession

from sluicegate.domain.errors import SluiceError
from sluicegate.domain.models.app import App, Promise, WeaklyHard
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.policies.serving.router import RouterEvent
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.registration import publish_registration
from sluicegate.sluice.registration.publish_registration import announce
from sluicegate.sluice.registration.registry_topic import app_record, publish_catalogue
from sluicegate.sluice.system.system import System
from sluicegate.stages.following.registry_follower import RegistryStage
from sluicegate.stages.router import RouterStage
from sluicegate.stages.runtime.decision_log import replay
from sluicegate.streams import connect
from sluicegate.streams.ports import BrokerError
from tests.harness import PATIENCE_S, ROLES, Running, running, settings_for, toy_catalogue

NONE = Catalogue.of((), (), ())


async def tell(run: Running, catalogue: Catalogue, app: str) -> None:
    """What `sluice register` does once an app is ready."""
    topics, producer = run.topics, run.producer
    await publish_catalogue(run.broker, producer, topics, catalogue, only=app)


async def caught_up(run: Running) -> None:
    (registry,) = [stage for stage in run.stages if isinstance(stage, RegistryStage)]
    async with asyncio.timeout(PATIENCE_S):
        await registry.catch_up()


async def ended(run: Running, query_id: str) -> tuple[OutcomeKind, str | None, str | None]:
    async with asyncio.timeout(PATIENCE_S):
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


async def test_an_app_is_served_changed_and_retired_while_everything_runs(broker_url: str, tmp_path: Path) -> None:
    settings = settings_for(broker_url, tmp_path, http={"port": 0}, planner={"period_s": 60.0})
    async with running(settings, connect(broker_url), roles=(*ROLES, "http")) as run, ClientSession() as http:
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
        async with asyncio.timeout(PATIENCE_S):
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


async def test_slo_and_least_accuracy_of_an_app_are_changed_while_it_is_served(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path, planner={"period_s": 60.0})
    async with running(settings, connect("memory://")) as run:
        await run.planned()
        before = await run.ask(parameters={"class": "best_effort"})
        await run.settled()
        known = toy_catalogue()
        terms = replace(known.apps["toy"], slo=7.5, min_accuracy=0.85, weight=2.0)
        await tell(run, replace(known, apps={"toy": terms}), "toy")
        await caught_up(run)
        await run.planned()
        after = await run.ask(parameters={"class": "best_effort"})
        await run.settled()
        outcomes = await run.outcomes()
        slos = [outcomes[i].deadline - outcomes[i].arrival for i in (before, after)]
        assert slos == [pytest.approx(0.25, abs=0.01), pytest.approx(7.5, abs=0.01)]
        async with asyncio.timeout(PATIENCE_S):  # until the plan that the registration asked for is in force
            while (await last(run)).variant != "toy-v2":
                pass


async def test_other_terms_are_in_force_from_a_plan_that_came_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each device goes on hosting what it hosts."""

    async def stays_open() -> None: ...

    settings = settings_for("memory://", tmp_path, planner={"period_s": 60.0})
    async with running(settings, connect("memory://")) as run:
        await run.planned()
        one = await last(run)
        elsewhere = settings.model_copy(update={"broker": "kafka://there"})
        with monkeypatch.context() as patch:
            patch.setattr(run.broker, "close", stays_open)
            patch.setattr(publish_registration, "connected", lambda *_: run.broker)
            plans = [one.epoch]
            for weight in (2.0, 3.0, 3.0):
                known = toy_catalogue()
                held = replace(known, apps={"toy": replace(known.apps["toy"], weight=weight)})
                told = await announce(elsewhere, "toy", wait=PATIENCE_S, held=held)
                assert told is not None and told.place is not None
                plans.append(told.plan)
        began, first, second, said_already = plans
        assert began is not None and first is not None and second is not None
        assert said_already is not None
        assert began < first < second <= said_already
        assert (await last(run)).variant == one.variant


async def last(run: Running) -> Outcome:
    query = await run.ask()
    await run.settled()
    return (await run.outcomes())[query]


def promised(app: str, catalogue: Catalogue, m: int = 1, k: int = 5) -> Catalogue:
    """The same with a promise to ``app``."""
    told = replace(catalogue.apps[app], promise=Promise(weakly_hard=(WeaklyHard(m, k),)))
    return replace(catalogue, apps={app: told})


async def test_promises_of_an_app_registered_while_everything_runs_are_kept_and_counted(tmp_path: Path) -> None:
    worker = {"executor": "emulated", "batching": "adaptive"}
    settings = settings_for("memory://", tmp_path, partitions=1, worker=worker, planner={"period_s": 60.0}, record=True)
    async with running(settings, connect("memory://")) as run:
        await run.planned()
        await tell(run, promised("late", toy_catalogue(("late",))), "late")
        await caught_up(run)
        outcome = await until_promised(run, Promise(weakly_hard=(WeaklyHard(1, 5),)))
        assert outcome.kind is OutcomeKind.ANSWERED
        late = await run.ask(app="late", parameters={"latency_ms": 0.001})
        await run.settled()
        outcome = (await run.outcomes())[late]
        assert outcome.miss
        assert outcome.promise is not None  # its stream's misses are counted by the worker
        assert outcome.promise.misses == 1

        await tell(run, promised("late", version_two("late"), 2, 7), "late")
        await caught_up(run)
        await until_promised(run, Promise(weakly_hard=(WeaklyHard(2, 7),)))

        await tell(run, toy_catalogue(("late",)), "late")
        await caught_up(run)
        await until_promised(run, None)
        report = await run.audit()
        assert not report.lost and not report.promises_unannounced, report.examples
        folder = run.system.run_folder / "decisions"
    router = run.fresh_router("late", promised("late", toy_catalogue(("late",))))
    assert replay(folder / "router-late.jsonl", router.handle, RouterEvent) == []
    assert router.policy.name == "slack-blend"
    other = run.fresh_router("late", toy_catalogue(("late",)))
    assert replay(folder / "router-late.jsonl", other.handle, RouterEvent)


async def until_promised(run: Running, promise: Promise | None) -> Outcome:
    """The outcome of a query of "late" once outcomes carry how ``promise`` stands."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            asked = await run.ask(app="late", parameters={"latency_ms": 20_000})
            await ended(run, asked)
            outcome = (await run.outcomes())[asked]
            told = outcome.promise
            if told is None if promise is None else told is not None and told.weakly_hard == pairs(promise):
                return outcome


def pairs(promise: Promise) -> tuple[tuple[int, int], ...]:
    return tuple((w.m, w.k) for w in promise.weakly_hard)


async def test_a_promise_that_cannot_be_kept_is_not_taken_up_and_what_was_served_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for("memory://", tmp_path, worker={"executor": "emulated", "batching": "eager"})
    async with running(settings, connect("memory://")) as run:
        await run.planned()
        await tell(run, promised("toy", version_two("toy")), "toy")
        await caught_up(run)
        assert "keeps no" in caplog.text
        kind, variant, _ = await ended(run, await run.ask(parameters={"latency_ms": 20_000}))
        assert kind is OutcomeKind.ANSWERED
        assert variant in toy_catalogue().variants


async def test_an_app_whose_variants_are_named_as_another_apps_takes_none_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    late = toy_catalogue(("late",))
    names = {name: name.replace("late", "toy") for name in late.variants}
    named_alike = Catalogue.of(
        late.apps.values(),
        [replace(v, name=names[v.name]) for v in late.variants.values()],
        [replace(p, variant=names[p.variant]) for p in late.profiles.values()],
    )
    async with running(settings_for("memory://", tmp_path), connect("memory://")) as run:
        await run.planned()
        await tell(run, named_alike, "late")
        await tell(run, toy_catalogue(("other",)), "other")
        await caught_up(run)
        assert "late is not served as it was registered: variants.toy-v0: is toy's already" in caplog.text
        assert sorted(run.system.apps) == ["other", "toy"]
        kind, variant, _ = await ended(run, await run.ask(parameters={"latency_ms": 20_000}))
        assert (kind, variant in toy_catalogue().variants) == (OutcomeKind.ANSWERED, True)

        freed = [(b"late", app_record(named_alike, "late")), (b"toy", None)]  # in one look, in whatever order
        for key, record in freed:
            await run.producer.send(run.topics.registry, record, key=key)
        await caught_up(run)
        assert sorted(run.system.apps) == ["late", "other"]


async def test_an_app_whose_topics_cannot_be_made_keeps_no_other_from_being_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, full = System.create_topics, True

    async def created(system: System, apps: Mapping[str, App] | None = None) -> None:
        if full and "late" in (apps or {}):
            raise BrokerError("no room for the topics of late")
        await create(system, apps)

    monkeypatch.setattr(System, "create_topics", created)
    async with running(settings_for("memory://", tmp_path), connect("memory://")) as run:
        await run.planned()
        await tell(run, toy_catalogue(("late",)), "late")
        await tell(run, toy_catalogue(("other",)), "other")
        async with asyncio.timeout(PATIENCE_S):
            while "other" not in run.system.apps:
                await asyncio.sleep(0.05)
        assert sorted(run.system.apps) == ["other", "toy"]
        kind, variant, _ = await ended(run, await run.ask(app="other", parameters={"latency_ms": 20_000}))
        assert (kind, (variant or "")[:7]) == (OutcomeKind.ANSWERED, "other-v")
        assert "late cannot be served yet (no room for the topics of late)" in caplog.text
        await caught_up(run)  # nobody waits for what cannot be served yet
        assert sorted(run.system.apps) == ["other", "toy"]
        full = False
        async with asyncio.timeout(PATIENCE_S):
            while "late" not in run.system.apps:
                await asyncio.sleep(0.05)


async def keep_asking(run: Running, stop: asyncio.Event) -> list[str]:
    asked = []
    while not stop.is_set():
        asked.append(await run.ask(parameters={"latency_ms": 20_000}))
        await asyncio.sleep(0.02)
    for query_id in asked[-1:]:
        await ended(run, query_id)
    return asked


async def test_a_router_that_ends_by_itself_is_told_of_though_its_app_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an app that was served from the start: nobody would route the app's queries, and nobody know."""
    with pytest.raises(SluiceError, match="stage router late ended, though nothing told it to"):
        async with running(settings_for("memory://", tmp_path), connect("memory://")) as run:
            await run.planned()

            async def ends(*_: object) -> None:
                await asyncio.sleep(0.1)

            monkeypatch.setattr(RouterStage, "run", ends)
            await tell(run, toy_catalogue(("late",)), "late")
            async with asyncio.timeout(PATIENCE_S):
                await run.task
