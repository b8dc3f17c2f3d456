"""A client that asks for twenty times what there is, over topics or a front: all others are served on."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.fronts import front_desk
from sluicegate.stages.fronts.front_desk import MOST_WAITING, FrontDesk
from sluicegate.stages.fronts.front_error import FrontError
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams import connect
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics
from tests.harness import PIXELS, Running, running, settings_for, toy_catalogue

pytestmark = [pytest.mark.virtual, pytest.mark.timeout(400)]
CAPACITY = 70.0
"""Queries a second of both devices, by the fastest variant, in the largest batches."""
FLOOD = 20 * CAPACITY
INNOCENT = 5.0
SECONDS = 5.0
ASKED = {"priority": 2**31 - 1, "latency_ms": 2000}


def slow_catalogue() -> Catalogue:
    """As the harness' two apps, a hundredth as fast: so few queries are a flood."""
    toys = toy_catalogue(("toy", "other"), slo=2.0)
    profiles = []
    for (variant, kind), profile in toys.profiles.items():
        points = tuple(BatchLatency(p.batch, 50 * p.median, 50 * p.p95) for p in profile.points)
        profiles.append(Profile(variant=variant, device_type=kind, points=points, load=0.05))
    return Catalogue.of(list(toys.apps.values()), list(toys.variants.values()), profiles)


async def ask_on(run: Running, qps: float, seconds: float, *, source: str, app: str = "toy") -> list[str]:
    asked = []
    for _ in range(round(qps * seconds)):
        name = f"{source}-{app}-{uuid.uuid4().hex}"
        asked.append(await run.ask(name, app=app, source=source, parameters=ASKED))
        await asyncio.sleep(1 / qps)
    return asked


def on_time(ends: dict[str, Outcome], asked: list[str]) -> float:
    return sum(ends[one].kind is OutcomeKind.ANSWERED and not ends[one].late for one in asked) / len(asked)


@pytest.mark.thorough
async def test_a_flood_costs_another_client_little_and_another_app_less(
    tmp_path: Path, measured: Callable[[str, str], None]
) -> None:
    settings = settings_for("memory://", tmp_path, partitions=1)
    async with running(settings, connect("memory://"), catalogue=slow_catalogue()) as run:
        await run.planned()

        async def innocent(seconds: float) -> tuple[list[str], list[str]]:
            same, other = await asyncio.gather(
                ask_on(run, INNOCENT, seconds, source="nice"), ask_on(run, INNOCENT, seconds, source="far", app="other")
            )
            return same, other

        before = await innocent(SECONDS)
        (same, other), greedy = await asyncio.gather(innocent(SECONDS), ask_on(run, FLOOD, SECONDS, source="greedy"))
        report = await run.settled()
        assert (report.lost, report.duplicates) == (0, 0)
        ends = await run.outcomes()
        quiet = [on_time(ends, asked) for asked in before]
        flooded = [on_time(ends, asked) for asked in (same, other)]
        told = (quiet, flooded, on_time(ends, greedy))
        figures = "; ".join(
            f"{of}: {100 * a:.0f} % before, {100 * b:.0f} % under it"
            for of, a, b in zip(("another on its app", "on another app"), quiet, flooded, strict=True)
        )
        measured("a client at 20 times capacity", f"{figures} (on time)")
        assert flooded[0] >= quiet[0] - 0.10, told
        assert flooded[1] >= quiet[1] - 0.02, told
        assert sum(ends[one].reason == Reason.OVER_SHARE for one in greedy) > 0.5 * len(greedy), told
        assert all(ends[one].reason != Reason.OVER_SHARE for one in other), told
        assert on_time(ends, greedy) * FLOOD > 0.2 * CAPACITY, told  # one of two devices is its app's


@pytest.mark.thorough
async def test_a_flood_costs_another_client_of_an_app_with_a_promise_little(
    tmp_path: Path, measured: Callable[[str, str], None]
) -> None:
    settings = settings_for(
        "memory://",
        tmp_path,
        partitions=1,
        promises={"toy": {"weakly_hard": [[1, 10]]}},
        admission={"policy": "sustainable"},
        worker={"executor": "emulated", "batching": "adaptive"},
    )
    async with running(settings, connect("memory://"), catalogue=slow_catalogue()) as run:
        await run.planned()
        await asyncio.sleep(5.0)  # until the plan before counts no more
        quiet = await ask_on(run, INNOCENT, SECONDS, source="nice")
        flooded, greedy = await asyncio.gather(
            ask_on(run, INNOCENT, SECONDS, source="nice"), ask_on(run, FLOOD, SECONDS, source="greedy")
        )
        report = await run.settled()
        assert (report.lost, report.duplicates) == (0, 0)
        assert [stream.broken for stream in report.promises] == [0]
        ends = await run.outcomes()
        refused = [sum(ends[one].kind is OutcomeKind.REJECTED for one in asked) for asked in (quiet, flooded, greedy)]
        told = [f"{100 * on_time(ends, asked):.0f} %" for asked in (quiet, flooded)]
        measured("a flood on an app with a promise", f"another: {told[0]} on time before, {told[1]} under it")
        assert refused[1] <= refused[0] + 0.1 * len(flooded), refused
        assert on_time(ends, flooded) >= on_time(ends, quiet) - 0.10
        assert refused[2] > 0.5 * len(greedy)
        assert on_time(ends, greedy) > 0.0


@pytest.mark.thorough
async def test_a_flood_through_a_front_costs_who_asks_there_from_elsewhere_little(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path, partitions=1)
    async with running(settings, connect("memory://"), catalogue=slow_catalogue()) as run:
        await run.planned()
        desk = FrontDesk("http", run.system.connections, run.system.apps)
        app = run.system.apps["toy"]
        await desk.open()
        await desk.listen()
        body = codec.encode_query(
            "any", (pixels(),), app="toy", now=0.0, parameters={"latency_ms": 2000}, binary=False
        ).value

        seen: list[str] = []

        async def ask_from(address: str, qps: float, seconds: float) -> float:
            """Share that was answered in time."""
            client = desk.client_of(address)
            asked = []
            for _ in range(round(qps * seconds)):
                asked.append(asyncio.create_task(desk.ask(app, body, None, (), client)))
                await asyncio.sleep(1 / qps)
            ended = await asyncio.gather(*asked, return_exceptions=True)
            seen.extend(map(repr, ended))
            return sum(isinstance(one, codec.OutcomeMessage) and one.outcome.on_time for one in ended) / len(asked)

        quiet = await ask_from("10.0.0.1", INNOCENT, SECONDS)
        flooded, _ = await asyncio.gather(ask_from("10.0.0.1", INNOCENT, SECONDS), ask_from("10.0.0.2", FLOOD, SECONDS))
        assert quiet == 1.0, seen[:2]
        assert flooded >= quiet - 0.10
        await desk.close()


async def test_who_asks_in_anothers_name_takes_nothing_of_its_share(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("/nice the-key-of-nice-alone\n/http the-key-of-fronts\n")
    settings = settings_for(
        "memory://",
        tmp_path,
        partitions=1,
        admission={"source_keys_file": tmp_path / "keys", "priorities": {"/nice": 3}},
    )
    keys = settings.admission.source_keys()
    assert keys is not None
    async with running(settings, connect("memory://"), catalogue=slow_catalogue()) as run:
        await run.planned()
        desk = FrontDesk("http", run.system.connections, run.system.apps, sources=keys)
        await desk.open()
        await desk.listen()
        topic, app = run.topics.queries("toy"), run.system.apps["toy"]
        plain = codec.encode_query("any", (pixels(),), app="toy", now=0.0, parameters=ASKED, binary=False)

        async def write(query_id: str, *, own: bool) -> None:
            now = run.system.clock.wall()
            made = codec.encode_query(query_id, (pixels(),), app="toy", now=now, source="nice", parameters=ASKED)
            assert made.value is not None
            proof = keys.proof(topic, "/nice", query_id, made.value, now) if own else ()
            await run.send("toy", made.value, key=made.key, headers=made.headers + proof, timestamp=now)

        for number in range(20):
            await write(f"nice-{number}", own=False)  # who uses up its ids, and its share
        for number in range(20):
            await write(f"nice-{number}", own=True)
            await asyncio.sleep(0.05)
        assert plain.value is not None
        told = await desk.ask(app, plain.value, None, (), desk.client_of("10.0.0.1", "billing"))
        assert [tensor.name for tensor in told.outputs()] == ["scores", "label"]
        run.sent += 1
        report = await run.settled()
        ends = await run.ends()
        await desk.close()
    assert (report.lost, report.duplicates, report.dead_letters) == (0, 0, 20)
    assert {(key.source, end.kind) for key, end in ends.items()} == {
        ("/nice", OutcomeKind.ANSWERED),
        ("/http/billing", OutcomeKind.ANSWERED),
    }


def test_a_front_keeps_room_for_others_than_who_fills_it(tmp_path: Path) -> None:
    broker = connect("memory://")
    desk = FrontDesk(
        "http",
        Connections(broker=broker, producer=broker.producer(), topics=Topics("x"), clock=SystemClock()),
        toy_catalogue().apps,
    )
    app = toy_catalogue().apps["toy"]
    greedy, nice = desk.client_of("10.0.0.2"), desk.client_of("10.0.0.1")
    assert greedy != nice and greedy.startswith("http/") and "10.0" not in greedy
    desk._asking[greedy] = MOST_WAITING // 2
    with pytest.raises(FrontError, match="of your requests"):
        desk.check_room(app, greedy)
    desk.check_room(app, nice)


class Away:
    """A producer whose broker does not answer."""

    def try_send(self, *_: object, **__: object) -> None:
        return None

    async def send(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()


async def test_who_leaves_while_the_broker_is_away_leaves_no_room_to_others_beyond_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(front_desk, "MOST_WAITING", 6)
    away: Any = Away()
    desk = FrontDesk(
        "grpc",
        Connections(broker=connect("memory://"), producer=away, topics=Topics("x"), clock=SystemClock()),
        toy_catalogue().apps,
    )
    app = toy_catalogue().apps["toy"]
    for i in range(6):
        client = desk.client_of(f"10.0.0.{i}")
        desk.check_room(app, client)
        asking = asyncio.create_task(desk.ask(app, b"{}", None, (), client))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert not desk._waiting
    with pytest.raises(FrontError, match="too many requests wait"):
        desk.check_room(app, client)


def pixels() -> Tensor:
    return Tensor("image", "FP32", (1, PIXELS), bytes(4 * PIXELS))
