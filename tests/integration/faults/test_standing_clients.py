"""The client of a stage gives no answer any more: another reads in its place, and every query ends once."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.outcome import OutcomeKind
from sluicegate.streams import connect
from sluicegate.streams.memory.consumer import MemoryConsumer
from sluicegate.streams.ports import Record
from tests.harness import Running, running, settings_for

pytestmark = pytest.mark.virtual

REPAIRED = 3.0


async def ask_for(run: Running, seconds: float) -> list[str]:
    asked = []
    for _ in range(round(20 * seconds)):
        asked.append(await run.ask(f"q{run.sent}", parameters={"latency_ms": 3000}))
        await asyncio.sleep(0.05)
    return asked


@pytest.mark.parametrize("of", ["queries", "admitted", "work", "results"])
async def test_a_stage_whose_client_stands_reads_on_by_another(
    tmp_path: Path, of: str, monkeypatch: pytest.MonkeyPatch, measured: Callable[[str, str], None]
) -> None:
    settings = settings_for("memory://", tmp_path, worker={"executor": "emulated"})
    async with running(settings, connect("memory://")) as run:
        await run.planned()
        topics = {
            "queries": run.topics.queries("toy"),
            "admitted": run.topics.admitted("toy"),
            "work": run.topics.work("d0"),
            "results": run.topics.results("toy"),
        }
        get_many: Any = MemoryConsumer.get_many
        stood: list[MemoryConsumer] = []

        async def standing(self: MemoryConsumer, **options: Any) -> Sequence[Record]:
            reads = any(partition.topic == topics[of] for partition in self.assignment())
            if not stood and reads and self._reads.group is not None:
                stood.append(self)
            if stood and self is stood[0]:
                await asyncio.Event().wait()
            found: Sequence[Record] = await get_many(self, **options)
            return found

        before = await ask_for(run, 1.0)
        monkeypatch.setattr(MemoryConsumer, "get_many", standing)
        during = await ask_for(run, REPAIRED)
        after = await ask_for(run, 2.0)
        report = await run.settled()
        assert stood, "nobody reads that topic"
        assert (report.lost, report.duplicates) == (0, 0)
        ends = await run.outcomes()

        def on_time(asked: list[str]) -> float:
            return sum(ends[one].kind is OutcomeKind.ANSWERED and not ends[one].late for one in asked) / len(asked)

        parts = [on_time(asked) for asked in (before, during, after)]
        measured(
            f"the client that reads {of} stands", f"{100 * parts[1]:.0f} % on time, of queries that may wait for 3 s"
        )
        assert parts == [1.0, 1.0, 1.0]
