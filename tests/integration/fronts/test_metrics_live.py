"""Metrics of a running system: what a scrape reads is what the audit counts from the topics."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluicegate.sluice.settings.endpoint_settings import MetricsSettings
from sluicegate.stages.telemetry import metrics_http
from sluicegate.stages.telemetry.metrics_http import MetricsStage
from sluicegate.streams import connect
from sluicegate.streams.memory.consumer import MemoryConsumer
from tests.harness import PATIENCE_S, ROLES, Running, running, settings_for


async def scraped(run: Running, token: str | None = None) -> tuple[int, dict[str, float]]:
    """Status, and the sums of all samples by name and outcome."""
    stage = next(s for s in run.stages if isinstance(s, MetricsStage))
    await stage.bound.wait()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(stage.address, headers=headers) as session:
        async with session.get("/healthz") as healthy:
            assert healthy.status == 200
        async with session.get("/metrics") as answer:
            text = await answer.text()
    found: dict[str, float] = {}
    if answer.status == 200:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = f"{sample.name} {sample.labels.get('outcome', '')}".strip()
                found[name] = found.get(name, 0.0) + sample.value
    return answer.status, found


async def test_a_scrape_counts_what_the_audit_counts(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path, metrics=MetricsSettings(port=0))
    async with running(settings, connect("memory://"), roles=ROLES) as run:
        await run.planned()
        for i in range(60):
            await run.ask(f"q{i}", parameters={"latency_ms": 0.001} if i % 6 == 0 else None)
        await run.ask("q1")  # seen before
        await run.send("toy", b"nonsense", key=b"k")
        report = await run.settled()
        async with asyncio.timeout(PATIENCE_S):  # the sink and the next heartbeat
            while True:
                _, found = await scraped(run)
                stored = found.get("sluice_outcomes_stored_total") == report.outcomes
                told = found.get("sluice_demand_rows_total") == 60  # admission tells from time to time
                loaded = found.get("sluice_variant_loaded", 0) >= 2  # what waits to be hosted as well
                if (
                    stored
                    and told
                    and loaded
                    and found["sluice_in_flight_records"] == found["sluice_unacknowledged_records"] == 0
                ):
                    break
                await asyncio.sleep(0.05)
        kinds = report.kinds
        answered = found.get("sluice_outcomes_total answered", 0) + found.get("sluice_outcomes_total late", 0)
        assert answered == kinds["answered"] > 0
        for kind in ("expired", "dropped", "rejected", "failed"):
            assert found.get(f"sluice_outcomes_total {kind}", 0) == kinds.get(kind, 0), kind
        assert kinds["answered"] < report.outcomes == 60
        assert found["sluice_dead_letters_total"] == report.dead_letters == 2
        assert found["sluice_query_seconds_count"] == kinds["answered"]
        assert found["sluice_batch_rows_sum"] == kinds["answered"]
        assert found["sluice_plan_term"] >= 1 and found["sluice_devices_planned"] >= 1
        assert found["sluice_variant_loaded"] >= 2 and found["sluice_variant_loads_total"] >= 2
        assert 0 < found["sluice_answers_accuracy_total"] <= found["sluice_answers_total"]
        assert found["process_resident_memory_bytes"] > 1e6


async def test_metrics_are_told_to_those_with_the_token_alone(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path, metrics=MetricsSettings(port=0, token="open sesame"))
    async with running(settings, connect("memory://"), roles=("sink",)) as run:
        assert (await scraped(run))[0] == 401
        status, found = await scraped(run, "open sesame")
        assert status == 200 and found["sluice_http_requests_total"] == 3


async def test_no_port_no_door(tmp_path: Path) -> None:
    async with running(settings_for("memory://", tmp_path), connect("memory://"), roles=("sink",)) as run:
        assert not [s for s in run.stages if s.name == "metrics"]


async def test_health_names_a_stage_whose_reading_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "_STANDS", 0.5)
    settings = settings_for("memory://", tmp_path, metrics=MetricsSettings(port=0))
    async with running(settings, connect("memory://"), roles=ROLES) as run:
        await run.planned()
        assert (await scraped(run))[0] == 200
        get_many, held = MemoryConsumer.get_many, asyncio.Event()

        async def standing(self: MemoryConsumer, **options: Any) -> Any:
            if any(partition.topic == run.topics.results("toy") for partition in self.assignment()):
                await held.wait()
            return await get_many(self, **options)

        monkeypatch.setattr(MemoryConsumer, "get_many", standing)
        async with asyncio.timeout(PATIENCE_S):
            while (health := await healthy(run))[0] == 200:
                await asyncio.sleep(0.05)
            assert health[0] == 503 and health[1].startswith("sink has read nothing for "), health
            held.set()
            while (await healthy(run))[0] != 200:
                await asyncio.sleep(0.05)


async def healthy(run: Running) -> tuple[int, str]:
    """What is told of the process."""
    stage = next(s for s in run.stages if isinstance(s, MetricsStage))
    async with aiohttp.ClientSession(stage.address) as session, session.get("/healthz") as answer:
        return answer.status, await answer.text()
