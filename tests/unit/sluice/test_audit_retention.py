"""What the audit says where topics have let go of their oldest records."""

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.sluice.audit.topic_audit import Audit, AuditReport, read_topics, read_whole
from sluicegate.sluice.commands.reading.audit import table
from sluicegate.streams.broker_settings import MemorySettings
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Record, TopicSpec
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

TOPICS = Topics("t")
QUERIES, RESULTS = TOPICS.queries("cats"), TOPICS.results("cats")
T0 = 1.7e9


def answer(number: int, asked: float) -> codec.Message:
    outcome = Outcome(
        query_id=str(number), app="cats", source="/a", kind=OutcomeKind.ANSWERED, arrival=asked,
        deadline=asked + 1.0, at=asked + 0.5, accuracy=0.5,
    )  # fmt: skip
    return codec.encode_outcome(outcome, ())


def test_who_asked_after_what_is_kept_begins_is_known_or_unknown() -> None:
    audit = Audit(TOPICS)
    audit.let_go(QUERIES, T0 + 100.0)
    for number, asked in enumerate((T0 + 20.0, T0 + 180.0)):
        message = answer(number, asked)
        audit.add_result(Record(RESULTS, 0, number, message.key, message.value, message.headers, asked + 0.5))
    report = audit.report()
    assert (report.unknown, report.gone_by, report.examples["unknown"]) == (1, 1, ("1",))
    assert not report.balanced


async def audited(settings: MemorySettings, *, skipped: int) -> AuditReport:
    """Of 400 queries, a second apart, of which ``skipped`` has no answer."""
    now = [T0]
    broker = MemoryBroker(settings, clock=lambda: now[0])
    await broker.admin().create_topics([TopicSpec(name=QUERIES), TopicSpec(name=RESULTS, partitions=2)])
    producer = broker.producer()
    await producer.start()
    for number in range(400):
        now[0] += 1.0
        message = codec.encode_query(str(number), (), app="cats", now=now[0], source="a")
        await producer.send(QUERIES, message.value, key=message.key, headers=message.headers, timestamp=now[0])
        if number != skipped:
            said = answer(number, now[0])
            at = now[0] + 0.5
            await producer.send(RESULTS, said.value, key=said.key, headers=said.headers, timestamp=at)
    report = (await read_topics(broker, TOPICS)).report()
    await broker.close()
    return report


async def test_a_log_that_let_go_of_its_oldest_records_is_balanced_as_far_as_it_goes() -> None:
    whole = await audited(MemorySettings(), skipped=-1)
    assert (whole.queries, whole.outcomes, whole.gone_by, whole.balanced) == (400, 400, 0, True)
    rest = await audited(MemorySettings(read_bytes=60_000, unread_s=5.0), skipped=-1)
    assert rest.queries < 300 and rest.outcomes < 300
    assert rest.balanced and rest.gone_by > 0
    assert "not judged: gone by retention" in [str(cell) for cell in table(rest).columns[0].cells]


async def test_what_is_lost_of_what_is_kept_is_seen() -> None:
    report = await audited(MemorySettings(read_bytes=60_000, unread_s=5.0), skipped=395)
    assert (report.lost, report.examples["lost"], report.unknown) == (1, ("395",), 0)


async def test_when_safe_mode_was_announced_is_known_as_long_as_results_are() -> None:
    now = [T0]
    broker = MemoryBroker(clock=lambda: now[0])
    await broker.admin().create_topics([spec for spec in TOPICS.specs(["cats"]) if spec.name == TOPICS.status])
    producer = broker.producer()
    await producer.start()
    for number in range(2000):
        now[0] += 1.0
        await producer.send(TOPICS.status, b"%d" % number, key=b"lease")
        if number in (100, 110, 1500):
            await producer.send(TOPICS.status, b"%d" % number, key=b"app:cats@d0")
    found: list[Record] = []
    await read_whole(broker, {TOPICS.status}, found.append)
    assert [record.value for record in found if record.key == b"app:cats@d0"] == [b"100", b"110", b"1500"]
    await broker.close()
