"""The process that makes variants: its end is one's own to see."""

import asyncio
import os
import sys
import threading

import pytest

from sluicegate.executors.onnx.variant_builder import _end


async def test_one_that_ends_as_it_is_ended_is_reaped_by_the_event_loop_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held, reap = threading.Event(), os.waitpid

    def late(pid: int, options: int) -> tuple[int, int]:
        """As on a machine where who waits for it comes to run only after it was killed."""
        held.wait(10.0)
        return reap(pid, options)

    monkeypatch.setattr(os, "waitpid", late)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(3)")
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.returncode is None
    threading.Timer(0.3, held.set).start()
    await _end(process)
    assert process.returncode == 3
    assert caplog.records == []
