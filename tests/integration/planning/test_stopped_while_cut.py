"""A worker that is stopped while its device is being cut cleans up all the same."""

import asyncio
from pathlib import Path

import pytest

from sluicegate.stages.worker.stage import WorkerStage
from sluicegate.streams import connect
from tests.harness import running, settings_for

pytestmark = pytest.mark.virtual


async def test_a_cut_that_does_not_end_leaves_the_worker_time_to_clean_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings_for("memory://", tmp_path, devices=2), connect("memory://")) as run:
        await run.planned()
        worker, other = (stage for stage in run.stages if isinstance(stage, WorkerStage))
        assert worker.runners and other.runners
        cutting = asyncio.create_task(asyncio.sleep(1000.0))
        monkeypatch.setattr(worker, "_cutting", cutting)
    assert not worker.runners and not other.runners
    assert "did not end in time" not in caplog.text
    cutting.cancel()
