"""The metric catalogue: counted as listed, told as Prometheus reads it, documented as it is."""

import logging
import math
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.stages.telemetry.metric_catalogue import BY_NAME, CATALOGUE, Kind, as_markdown
from sluicegate.stages.telemetry.metrics import Meters, Told
from sluicegate.stages.telemetry.process_notices import Notices
from sluicegate.stages.telemetry.telemetry import SafeModes, buried
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Record, Unreadable
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

ROOT = Path(__file__).resolve().parents[3]


def told(meters: Meters) -> dict[tuple[str, tuple[str, ...]], float]:
    """(sample, values of its labels in their names' order) -> value, as a scrape reads it."""
    registry = CollectorRegistry()
    registry.register(Told(meters))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_record_that_readers_pass_over_is_counted_once_a_process() -> None:
    broker, topics, meters = MemoryBroker(), Topics("t"), Meters()
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    producer = broker.producer()
    await producer.start()
    notices = Notices(producer, topics, SystemClock(), meters)
    await notices.start()
    for offset in (7, 8, 7):
        notices.unreadable(Unreadable.at(topics.status, 0, offset, 1.7e9, "cut off"))
    await notices.stop()
    assert meters.values("sluice_dead_letters") == {("reader", "unreadable"): 2.0}
    await producer.stop()
    await broker.close()


def outcome(kind: OutcomeKind, at: float, **why: object) -> Outcome:
    return Outcome(query_id="q", app="toy", kind=kind, arrival=10.0, deadline=10.5, at=at, **why)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "problem", "reason"),
    [
        (Record("t.work", 3, 7, b"k", b"v", (), 1.7e9), "is no query", "invalid"),
        (Record("t.work", 3, 7, b"k", b"v", (), 1.7e9), "duplicate_id 'q'", "duplicate_id"),
        (Unreadable.at("t.work", 3, 7, 1.7e9, "cut off"), "cut off", "unreadable"),
    ],
)
def test_a_record_that_is_not_understood_is_counted_logged_and_told_with_one_reason(
    record: Record, problem: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    topics, meters = Topics("t"), Meters()
    with caplog.at_level(logging.INFO):
        letter = buried(
            record, InvalidInputError("x", problem), stage="sink", now=1.7e9 + 5.0, topics=topics, meters=meters
        )
    assert meters.values("sluice_dead_letters") == {("sink", reason): 1.0}
    assert [line.getMessage() for line in caplog.records] == [f"dead letter of sink ({reason}): x: {problem}"]
    read = Record(letter.topic, 0, 0, letter.key, letter.value, letter.headers, 1.7e9)
    assert read.topic == topics.dead_letters
    assert codec.dead_letter_origin(read) == ("t.work", 3, 7) and codec.dead_letter_reason(read) == reason
    assert dict(read.headers)["__dlq.errors.stage"] == b"sink"


def test_each_metric_is_listed_once_with_everything_an_operator_needs() -> None:
    assert len(BY_NAME) == len(CATALOGUE)
    for metric in CATALOGUE:
        assert re.fullmatch(r"sluice_[a-z][a-z_]*[a-z]", metric.name)
        assert not metric.name.endswith("_total")
        assert metric.unit and metric.told_by
        assert metric.meaning.endswith(".") and metric.remedy.endswith(".")
        assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(metric.buckets)
        assert "query_id" not in metric.labels


def test_the_reference_page_is_written_from_the_catalogue() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert page == as_markdown(), "write it again: sluice describe metrics --markdown > docs/reference/metrics.md"


def test_every_metric_of_the_catalogue_is_counted_somewhere_and_nothing_else() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "stages").rglob("*.py") if path.name != "metric_catalogue.py")
    used = set(re.findall(r'"(sluice_[a-z_]+)"', code))
    assert used == set(BY_NAME)


def test_outcomes_are_told_by_how_they_ended() -> None:
    meters = Meters()
    answered = {"variant": "v", "device": "d", "accuracy": 0.75, "queue_s": 0.03}
    meters.ended("worker d", outcome(OutcomeKind.ANSWERED, 10.04, **answered))
    meters.ended("worker d", outcome(OutcomeKind.ANSWERED, 10.04, **answered))
    meters.ended("worker d", outcome(OutcomeKind.ANSWERED, 10.6, **answered))
    meters.ended("worker d", outcome(OutcomeKind.DROPPED, 10.1, reason="hopeless"))
    found = told(meters)
    assert found["sluice_outcomes_total", ("toy", "answered", "", "worker d")] == 2
    assert found["sluice_outcomes_total", ("toy", "late", "", "worker d")] == 1
    assert found["sluice_outcomes_total", ("toy", "dropped", "hopeless", "worker d")] == 1
    assert found["sluice_answers_total", ("toy", "d", "v")] == 2
    assert found["sluice_answers_accuracy_total", ("toy",)] == pytest.approx(1.5)
    assert found["sluice_query_seconds_count", ("toy",)] == 3
    assert found["sluice_query_seconds_sum", ("toy",)] == pytest.approx(0.68)


def test_no_time_is_below_nothing_where_a_producers_clock_is_ahead() -> None:
    meters = Meters()
    meters.ended("worker d", outcome(OutcomeKind.ANSWERED, 9.9997))
    assert told(meters)["sluice_query_seconds_sum", ("toy",)] == 0.0


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket() -> None:
    meters = Meters()
    for rows in (1, 2, 2, 3, 500):
        meters.observe("sluice_batch_rows", rows, "d", "v")
    found = told(meters)
    buckets = {float(labels[1]): value for (name, labels), value in found.items() if name == "sluice_batch_rows_bucket"}
    assert [buckets[bound] for bound in (1, 2, 4, 128, math.inf)] == [1, 3, 4, 4, 5]


def test_what_a_stage_knows_anyway_is_read_when_it_is_told() -> None:
    meters = Meters()
    queue: list[int] = []
    meters.read("sluice_queue_queries", lambda: [(("d", "whole"), float(len(queue)))])
    assert told(meters)["sluice_queue_queries", ("d", "whole")] == 0
    queue += [1, 2]
    assert told(meters)["sluice_queue_queries", ("d", "whole")] == 2
    assert meters.value("sluice_queue_queries", "d", "whole") == 2


def test_what_is_not_listed_cannot_be_counted() -> None:
    meters = Meters()
    with pytest.raises(KeyError):
        meters.add("sluice_made_up")
    with pytest.raises(KeyError):
        meters.read("sluice_made_up", list)
    meters.add("sluice_demand_rows", "toy", "too much")
    with pytest.raises(ValueError, match="sluice_demand_rows has labels"):
        told(meters)


def test_safe_mode_is_told_of_apps_that_are_served_whatever_keys_the_status_topic_has() -> None:
    meters = Meters()
    modes = SafeModes(meters, ["toy", "other"])
    modes.told("app:toy", "d3", on=True)
    modes.told("app:late", "d4", on=True)
    for number in range(20_000):
        modes.told(f"app:made-up-{number}", f"d{number}", on=True)
        modes.told(f"app:made-down-{number}", f"d{number}", on=False)
    assert meters.values("sluice_safe_mode") == {("app:toy", "planner"): 1.0}
    assert len(modes._standing) < 5000
    modes.registered(["late", "other"])
    assert meters.values("sluice_safe_mode") == {("app:late", "planner"): 1.0}
    modes.told("app:late", "d4", on=False)
    assert meters.values("sluice_safe_mode") == {("app:late", "planner"): 0.0}
