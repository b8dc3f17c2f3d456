"""Any record on any control, metrics or result topic: whoever reads it goes on, and queries are answered.

Anybody who may write to these topics can stop nothing by it: what cannot be is refused by its field, what can be and is
a stranger's is overruled by the planner that leads.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import DeviceSeen, LatencyMeasured, PlanAcknowledged, TurnsTold
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.lease import Lease
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import MAX_TERM, Epoch, Placement, Plan
from sluicegate.sluice.settings.endpoint_settings import WebSettings
from sluicegate.stages.fronts.live.live_page import WebStage
from sluicegate.streams import connect
from sluicegate.streams.records import codec, control
from sluicegate.streams.records.instances import encode_instance
from sluicegate.streams.topics import Topics
from tests.harness import PATIENCE_S, ROLES, Running, running, settings_for

pytestmark = pytest.mark.virtual
PATIENT = {"latency_ms": 30_000}
HUGE = b"1" + b"0" * 400


def one(value: Any, name: str, number: bytes) -> bytes:
    """JSON of ``value`` with the field ``name`` (its number, or first number inside) replaced as text."""
    return orjson.dumps(value).replace(f'"{name}":0'.encode(), f'"{name}":'.encode() + number)


def hostile(plan: Plan, at: float) -> Iterator[tuple[str, str, bytes, bytes]]:
    """(name, kind of topic, key, value) of records, made around the plan in force."""
    told = orjson.loads(control.encode_plan(plan))
    term, number = plan.epoch
    yield "epoch of 401 digits", "plan", b"plan", one({**told, "epoch": 0}, "epoch", b"[" + HUGE + b",1]")
    yield "number of 401 digits", "plan", b"plan", one({**told, "epoch": 0}, "epoch", b"[1," + HUGE + b"]")
    for name, epoch in (
        ("the highest term", Epoch(MAX_TERM, 1)),
        ("the highest number", Epoch(term, 2**53 - 1)),
        ("a term beyond the highest", Epoch(MAX_TERM + 1, 1)),
        ("a term of 63 bits", Epoch(2**63 - 1, 1)),
    ):
        yield name, "plan", b"plan", control.encode_plan(replace(plan, epoch=epoch))
        yield f"{name}, acknowledged", "acks", b"d0", control.encode_acknowledged(PlanAcknowledged("d0", epoch, ()))
    for number_of in (b"NaN", b"Infinity", b'"nan"', b"-1", HUGE, b"1e999"):
        placed = {**told, "placements": [{**told["placements"][0], "share": 0}], "epoch": [term, number + 1]}
        yield f"a share of {number_of[:9]!r}", "plan", b"plan", one(placed, "share", number_of)
        for field in ("created", "objective", "solve_s"):
            yield f"{field} {number_of[:9]!r}", "plan", b"plan", one({**told, field: 0}, field, number_of)
    for fence in (10**18, 10**30):
        fenced = {**told, "epoch": [term, number + 1], "fences": {"d0": 0, "d1": 0}}
        value = one(fenced, "d0", str(fence).encode())
        yield f"fence {fence:g}", "plan", b"plan", one(orjson.loads(value) if fence < 2**63 else fenced, "d1", b"7")
        yield f"fence {fence:g} alone", "plan", b"plan", value
    ghost = Placement("ghost", "toy", ("toy-v0",), 1.0, 8)
    for name, epoch in (("this term", Epoch(term, number + 7)), ("the next term", Epoch(term + 1, 1))):
        yield (
            f"a plan on a ghost in {name}",
            "plan",
            b"x",
            control.encode_plan(replace(plan, epoch=epoch, placements=(ghost,))),
        )
    count = {"app": "toy", "count": 0, "window": 0.5, "classes": [], "source": "x", "at": at}
    for digits in (b"9" * 400, b"9" * 5000, b"-3", b"1000000001", b"NaN", b"1000000000"):
        yield f"demand of {digits[:12]!r}", "demand", b"toy", one(count, "count", digits)
    yield "demand in no time", "demand", b"toy", one({**count, "window": 0}, "window", b"1e-999")
    seen = DeviceSeen("d0", "cpu", "i1")
    ghostly = control.Heartbeat(seen=replace(seen, device="ghost"), at=at, slices=(control.SliceState("whole", 0),))
    yield "a ghost's heartbeat", "devices_metrics", b"ghost", control.encode_heartbeat(ghostly)
    named = control.Heartbeat(seen=replace(seen, device="../d0 ghost"), at=at)
    yield "a heartbeat of no name", "devices_metrics", b"ghost", control.encode_heartbeat(named)
    measured = (LatencyMeasured("toy-v0", "cpu", 1, 0.25),)
    beat = orjson.loads(
        control.encode_heartbeat(control.Heartbeat(seen=replace(seen, device="ghost"), at=at, measured=measured))
    )
    for field in ("at", "queued", "utilisation", "epoch"):
        yield f"heartbeat's {field}", "devices_metrics", b"d0", one({**beat, field: 0}, field, HUGE)
        yield f"heartbeat's {field} nan", "devices_metrics", b"d0", one({**beat, field: 0}, field, b'"nan"')
    for held in (2**53 - 1, MAX_TERM, MAX_TERM + 1, term + 3 * 10**6):
        for lease in (Lease(term=held, holder="x", renewals=3), Lease(term=held, holder="x", released=True)):
            yield f"lease {held} {lease.released}", "status", control.LEASE_KEY, control.encode_lease(lease)
    said = {"subject": "app:toy", "state": "safe", "detail": "", "data": {"x": 0}}
    for number_of in (HUGE, b"NaN", b"1e999", b"[[]]"):
        yield f"status {number_of[:9]!r}", "status", b"app:toy", one(said, "x", number_of)
        turns = {"app": "toy", "slo": 0.25, "count": 0, "at": at}
        yield f"turns {number_of[:9]!r}", "turns", b"toy", one(turns, "count", number_of)
        note = {"device": "d0", "by": "x", "withdrawn": False, "price": 0}
        yield f"note {number_of[:9]!r}", "devices", b"d0@x", one(note, "price", number_of)
        halves = {"app": "toy", "halves": [{"start": 0, "rows": 1, "classes": []}], "at": at}
        yield f"windows {number_of[:9]!r}", "demand_windows", b"toy", one(halves, "start", number_of)
    made = Instance(app="toy", variant="toy-v0", device="d0", expires=at + 60)
    instance = {**orjson.loads(encode_instance(made)), "qps": 0}
    yield "instance", "instances", made.key.encode(), one(instance, "qps", HUGE)
    yield "turns at the end of time", "turns", b"toy", control.encode_turns(TurnsTold("toy", 0.25, 2**53 - 1, 2e11))
    for field, number_of in (
        ("at", b'"nan"'),
        ("at", b'"inf"'),
        ("arrival", HUGE),
        ("deadline", b"1e999"),
        ("at", b"null"),
    ):
        yield f"outcome's {field} {number_of[:9]!r}", "results", b"q", outcome(field, number_of)
    yield "no JSON", "registry", b"toy", b"\xff\x00\x80"
    yield "a list", "registry", b"toy", b"[[],[]]"
    yield "nested deeply", "registry", b"toy", b"[" * 5_000
    yield "nothing", "registry", b"stranger", b"{}"


def outcome(field: str, number: bytes) -> bytes:
    ended = Outcome(query_id="q", app="toy", kind=OutcomeKind.ANSWERED, arrival=1.0, deadline=2.0, at=1.5)
    whole = orjson.loads(codec.encode_outcome(ended, ()).value or b"")
    whole["parameters"][field] = 0
    return one(whole, field, number)


def topics_of(run: Running) -> dict[str, str]:
    t = run.topics
    names = ("plan", "policies", "registry", "devices", "instances", "acks", "status")
    more = ("demand", "devices_metrics", "demand_windows", "turns")
    return {**{name: getattr(t, name) for name in (*names, *more)}, "results": t.results("toy")}


async def answered(run: Running, after: str) -> None:
    """Somebody asks, and is answered."""
    found = await ended(run, after)
    assert found.kind is OutcomeKind.ANSWERED, (after, found)


async def ended(run: Running, after: str) -> Outcome:
    query_id = await run.ask(parameters=PATIENT)
    async with asyncio.timeout(PATIENCE_S):
        while (found := (await run.outcomes()).get(query_id)) is None:
            assert not run.task.done(), f"ended after: {after}"
            await asyncio.sleep(0.05)
    return found


async def plan_in_force(run: Running) -> Plan:
    """The newest that a leader may have written."""
    plans = [control.decode_plan(r.value) for r in await run._control(run.topics.plan) if r.value]
    return max((plan for plan in plans if len(plan.incarnations) == 2), key=lambda plan: plan.epoch)


async def test_no_record_of_a_control_topic_stops_the_service_nor_does_it_after_a_restart(
    broker_url: str, tmp_path: Path
) -> None:
    settings = settings_for(broker_url, tmp_path, partitions=1, web=WebSettings(port=0))
    broker = connect(broker_url)
    roles = (*ROLES, "web")
    async with running(settings, broker, roles=roles, close=False) as run:
        await run.planned()
        plan = await plan_in_force(run)
        page = next(stage for stage in run.stages if isinstance(stage, WebStage))
        everywhere = topics_of(run)
        asked = 0
        for name, topic, key, value in hostile(plan, run.system.clock.wall()):
            for target in dict.fromkeys((everywhere[topic], *everywhere.values())):
                await (await run.producer.send(target, value, key=key))
            await answered(run, name)
            asked += 1
        report = await run.settled()
        assert (report.lost, report.duplicates, report.outcomes - report.unknown) == (0, 0, asked)
        async with asyncio.timeout(PATIENCE_S):
            while page.view.snapshot(run.system.clock.wall())["totals"].get("good", 0) < asked:
                await asyncio.sleep(0.1)
        assert [d["name"] for d in page.view.snapshot(0.0)["devices"] if d["alive"]]
    async with running(settings, broker, roles=roles) as run:
        async with asyncio.timeout(
            PATIENCE_S
        ):  # what is asked before there is a plan may be dropped for want of capacity
            while (await ended(run, "a restart")).kind is not OutcomeKind.ANSWERED:
                await asyncio.sleep(0.1)
        newest = [control.decode_plan(r.value) for r in await run._control(run.topics.plan) if readable(r.value)]
        assert newest[-1].epoch.term < plan.epoch.term + 100


def readable(value: bytes | None) -> bool:
    try:
        return bool(value) and control.decode_plan(value or b"").epoch.term < MAX_TERM
    except InvalidInputError:
        return False


@pytest.mark.parametrize("fence", [10**18, 5])
async def test_a_fence_beyond_what_is_done_is_not_heeded_nor_carried_on(
    broker_url: str, tmp_path: Path, fence: int
) -> None:
    settings = settings_for(broker_url, tmp_path, partitions=1)
    broker = connect(broker_url)
    fenced = Plan(epoch=Epoch(3, 1), created=1.0, fences={"d0": fence, "d1": fence})
    topics = Topics(settings.prefix)
    partitions = settings.partitions_of(["toy"], set())
    await broker.admin().create_topics(topics.specs(["toy"], ["d0", "d1"], partitions=partitions))
    producer = broker.producer()
    await producer.start()
    await (await producer.send(topics.plan, control.encode_plan(fenced), key=b"plan"))
    await producer.stop()
    async with running(settings, broker) as run:
        await run.planned()
        for _ in range(8):
            await answered(run, "a fence that was carried on")
        plan = await plan_in_force(run)
        assert plan.epoch.term == 4
        assert set(plan.fences.values()) <= {0}, "those of sweeps at the start"
