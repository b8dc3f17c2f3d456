"""Traces across hops: one trace a query from the producer's context to its result, batches linked to their queries."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.system import process
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.stages.telemetry.tracing import tracing_with
from sluicegate.streams import connect
from sluicegate.streams.memory.archive import MANIFEST
from sluicegate.streams.records import codec
from tests.harness import ROLES, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual

exporters = pytest.importorskip(
    "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="needs the extra: pip install -e '.[otel]'"
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PRODUCER = "00f067aa0ba902b7"


@pytest.fixture
async def traced(tmp_path: Path) -> AsyncIterator[tuple[Running, Any]]:
    exporter = exporters.InMemorySpanExporter()
    tracing = tracing_with(exporter, sample=1.0, service="tested", at_once=True)

    def watched(system: Any) -> None:
        system.telemetry = Telemetry(tracing=tracing)

    settings = settings_for("memory://", tmp_path, devices=1)
    catalogue = toy_catalogue(slo=2.0)
    async with running(settings, connect("memory://"), catalogue=catalogue, roles=ROLES, change=watched) as run:
        await run.planned()
        yield run, exporter
    tracing.close()


async def ask(run: Running, query_id: str, traceparent: str | None) -> None:
    value = b'{"inputs":[{"name":"image","shape":[1,4],"datatype":"FP32","data":[0,0,0,0]}]}'
    headers = codec.query_headers(query_id, app="toy", source="t", now=run.system.clock.wall(), traceparent=traceparent)
    await run.send("toy", value, key=query_id.encode(), headers=headers)


def of_query(spans: Any, query_id: str) -> dict[str, Any]:
    return {s.name: s for s in spans if s.attributes.get("sluice.query_id") == query_id}


async def test_a_query_is_one_trace_from_its_producer_to_its_result(traced: tuple[Running, Any]) -> None:
    run, exporter = traced
    await ask(run, "mine", f"00-{TRACE}-{PRODUCER}-01")
    await run.settled()
    hops = of_query(exporter.get_finished_spans(), "mine")
    assert set(hops) == {"admit", "route", "serve"}
    assert {f"{s.context.trace_id:032x}" for s in hops.values()} == {TRACE}
    assert f"{hops['admit'].parent.span_id:016x}" == PRODUCER
    assert hops["route"].parent.span_id == hops["admit"].context.span_id
    assert hops["serve"].parent.span_id == hops["route"].context.span_id
    assert all(s.start_time <= s.end_time for s in hops.values())
    assert hops["serve"].attributes["sluice.outcome"] == "answered"
    assert hops["serve"].attributes["sluice.variant"].startswith("toy-v")
    results = [r async for r in read_results(run.broker, await result_topics(run.broker, run.topics), follow=False)]
    told = dict(results[0].headers)["traceparent"].decode()
    assert told == f"00-{TRACE}-{hops['serve'].context.span_id:016x}-01"


async def test_a_batch_is_linked_to_each_of_its_queries_and_they_to_it(traced: tuple[Running, Any]) -> None:
    run, exporter = traced
    ids = [f"q{i}" for i in range(12)]
    await asyncio.gather(*(ask(run, query_id, None) for query_id in ids))
    await run.settled()
    spans = exporter.get_finished_spans()
    batches = {s.context.span_id: s for s in spans if s.name == "batch"}
    assert len(batches) < len(ids)
    assert sum(len(batch.links) for batch in batches.values()) == len(ids)
    traces = set()
    for query_id in ids:
        hops = of_query(spans, query_id)
        batch = batches[hops["serve"].links[0].context.span_id]
        assert hops["route"].context.span_id in {link.context.span_id for link in batch.links}
        assert batch.parent is None and batch.context.trace_id != hops["serve"].context.trace_id
        traces.add(hops["serve"].context.trace_id)
    assert len(traces) == len(ids)


async def test_what_the_producer_does_not_sample_is_not_recorded(traced: tuple[Running, Any]) -> None:
    run, exporter = traced
    await ask(run, "quiet", f"00-{TRACE}-{PRODUCER}-00")
    await run.settled()
    assert not of_query(exporter.get_finished_spans(), "quiet")


async def test_without_tracing_the_context_travels_and_no_span_is_made(tmp_path: Path) -> None:
    async with running(settings_for("memory://", tmp_path), connect("memory://")) as run:
        await run.planned()
        await ask(run, "mine", f"00-{TRACE}-{PRODUCER}-01")
        await ask(run, "bare", None)
        await run.settled()
        results = [r async for r in read_results(run.broker, await result_topics(run.broker, run.topics), follow=False)]
        told = {codec.query_id_of(r): dict(r.headers).get("traceparent") for r in results}
        assert told == {"mine": f"00-{TRACE}-{PRODUCER}-01".encode(), "bare": None}


def test_what_is_never_ended_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.stages.telemetry.tracing._OPEN_LIMIT", 10)
    tracing = tracing_with(exporters.InMemorySpanExporter(), sample=1.0, service="tested", at_once=True)
    for i in range(100):
        tracing.arrived(f"q{i}", None)
    assert len(tracing._open) == 10
    tracing.close()


async def test_the_embedded_log_is_kept_before_a_collector_that_is_away_holds_up_the_end(tmp_path: Path) -> None:
    settings, folder = settings_for("memory://", tmp_path), tmp_path / "run"
    kept: list[bool] = []

    class Away(exporters.InMemorySpanExporter):  # type: ignore[name-defined, misc]
        def shutdown(self) -> None:
            kept.append((folder / MANIFEST).exists())

    traced = tracing_with(Away(), sample=1.0, service="tested")
    async with process.system(settings, toy_catalogue(), Path(), folder, traced=traced) as built:
        await (await built.producer.send(built.topics.queries("toy"), b"asked"))
        assert not (folder / MANIFEST).exists()
    assert kept == [True]
