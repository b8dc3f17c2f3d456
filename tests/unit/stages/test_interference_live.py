"""Batches that take longer than profiled are noticed by the worker that runs them, slice by slice."""

import logging

import pytest

from sluicegate.domain.events import LatencyMeasured
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.stages.telemetry.metrics import Meters
from sluicegate.stages.worker.instance_writer import InstanceWriter
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.topics import Topics
from tests.harness import toy_catalogue


def test_a_slice_on_which_batches_take_too_long_is_told_until_they_do_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meters, catalogue, broker = Meters(), toy_catalogue(), MemoryBroker()
    writer = InstanceWriter(
        "gpu0",
        broker=broker,
        topics=Topics("t"),
        clock=SystemClock(),
        catalogue=catalogue,
        outbox=Outbox(broker.producer()),
        meters=meters,
    )
    profiled = catalogue.profiles["toy-v0", "cpu"].points[0].median

    def run(part: str, times: float, batches: int) -> None:
        for _ in range(batches):
            writer.measured(part, [LatencyMeasured("toy-v0", "cpu", 1, times * profiled, 1)])

    with caplog.at_level(logging.INFO):
        run("3g.4", 1.0, 5)
        assert meters.value("sluice_slice_interference", "gpu0", "3g.4") == 0.0
        run("3g.4", 2.0, 10)
        run("4g.0", 1.0, 10)
        assert meters.value("sluice_slice_interference", "gpu0", "3g.4") > 1.25
        assert meters.value("sluice_slice_interference", "gpu0", "4g.0") == 0.0
        run("3g.4", 1.0, 30)
        assert meters.value("sluice_slice_interference", "gpu0", "3g.4") == 0.0
    assert [r.getMessage().split(" (")[0] for r in caplog.records if "gpu0" in r.getMessage()][-1].endswith("profiles")
