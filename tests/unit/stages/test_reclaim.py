"""What a dead device left is moved, however often whoever moves it is fenced."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Query
from sluicegate.planner.control.events import End, Move, PlannerEvent, SweepBegan, SweepFailed
from sluicegate.planner.control.reclaiming import AGAIN, ReclaimEvent, Reclaiming
from sluicegate.stages.connections import Connections
from sluicegate.stages.following.work_topics import WorkTopics
from sluicegate.stages.planner.dead_device_sweep import Reclaimer
from sluicegate.stages.runtime.exactly_once import transactional_id
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.objects.claims import Claim
from sluicegate.streams.ports import (
    BrokerError,
    FencedError,
    Letter,
    LettersNotTakenError,
    Record,
    TopicPartition,
    TopicSpec,
)
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics


class Fenced:
    """Transactions of one id. ``newest``: who holds it."""

    newest: "Fenced | None" = None
    written: list[Letter]
    limit = 1 << 20

    def __init__(self, written: list[Letter]) -> None:
        self.written = written

    async def start(self) -> None:
        Fenced.newest = self

    async def write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
        if Fenced.newest is not self:
            raise FencedError("another has taken over")
        if any(len(letter.value or b"") > self.limit for letter in letters):
            raise LettersNotTakenError("too large", tuple(range(len(letters))))
        self.written += letters

    async def stop(self) -> None: ...


class Core:
    """Decides of ``d0`` what is left, sweep after sweep."""

    def __init__(self) -> None:
        self.reclaiming = Reclaiming((), 2.0)
        self.now = 1000.0
        self.reclaiming.dead("d0", self.now)
        self.reclaiming.due(self.now)

    def tell(self, event: PlannerEvent) -> list[Move | End]:
        assert isinstance(event, ReclaimEvent)
        said = self.reclaiming.handle(event, self.now, SystemClock().wall())
        return [action for action in said if isinstance(action, Move | End)]

    def again(self) -> None:
        self.now += AGAIN
        assert self.reclaiming.due(self.now)

    @property
    def fence(self) -> int:
        return self.reclaiming.fences["d0"]


class Noting(Fenced):
    """Notes what it committed with what it wrote, and for whom."""

    behind: list[tuple[dict[TopicPartition, int], str]]

    async def write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
        await super().write(letters, offsets, group)
        self.behind.append((dict(offsets), group))


async def read_all(broker: MemoryBroker, topic: str) -> list[Record]:
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)], start_at="beginning")
    await consumer.start()
    found = await consumer.get_many(wait=0.0)
    await consumer.stop()
    return list(found)


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_sweep_goes_from_the_commit_to_the_end_and_moves_each_as_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, exactly_once: bool
) -> None:
    """What lies below the commit, what the device answered beyond it, and what lies on other devices' topics stays."""
    broker, topics, clock = MemoryBroker(), Topics("t"), SystemClock()
    await broker.admin().create_topics(topics.specs(["toy", "tub"], ["d0", "d1"]))
    producer = broker.producer()
    await producer.start()
    now = clock.wall()
    carried = (("traceparent", b"00-" + b"1a" * 16 + b"-" + b"2b" * 8 + b"-01"), ("x-request-id", b"seven"))
    claim = Claim("s3://there/x", "ab" * 32, 4)

    async def put(device: str, name: str, app: str = "toy", source: str = "", left: float = 60.0) -> None:
        query = Query(name, app, now - 1.0, now + left, stream=f"of {name}", source=source)
        tensors = (Tensor("x", "FP32", (1, 1), b""), Tensor("y", "FP32", (1, 1), b"1234"))
        message = codec.QueryMessage(query, tensors, carried, ((0, claim),))
        work = codec.encode_work(message, epoch=Epoch(1, 1), slice="s")
        await (await producer.send(topics.work(device), work.value, key=work.key, headers=work.headers))

    async def answer(device: str, name: str) -> None:
        query = Query(name, "toy", now - 1.0, now + 60.0)
        told = codec.encode_outcome(Outcome.of(query, OutcomeKind.ANSWERED, now, device=device), ())
        await (await producer.send(topics.results("toy"), told.value, key=told.key, headers=told.headers))

    await put("d1", "elsewhere")
    for name in ("first", "second"):
        await put("d0", name)
    await put("d0", "answered")
    await put("d0", "answered", app="tub")
    await put("d0", "answered", source="/another")
    await put("d0", "by another")
    await put("d0", "past", left=-0.5)
    await producer.send(topics.work("d0"), b"noise", key=b"toy", headers=carried)
    await answer("d0", "answered")
    await answer("d1", "by another")
    work = TopicPartition(topics.work("d0"), 0)
    worker = broker.consumer(partitions=[work], group=topics.worker_group("d0"))
    await worker.start()
    await worker.commit({work: 2})
    await worker.stop()

    written, ids, behind = list[Letter](), list[str](), list[tuple[dict[TopicPartition, int], str]]()

    def transactions(name: str) -> Noting:
        ids.append(name)
        made = Noting(written)
        made.behind = behind
        return made

    monkeypatch.setattr(broker, "transactions", transactions)
    outbox = Outbox(producer)
    await outbox.start()
    core = Core()

    def tell(event: PlannerEvent) -> list[Move | End]:
        if isinstance(event, SweepBegan):  # a router with an old plan goes on writing: that is for the next sweep
            broker._store.append(topics.work("d0"), b"late noise", b"toy", (), 0, None)
        return core.tell(event)

    connections = Connections(broker=broker, producer=producer, topics=topics, clock=clock)
    reclaimer = Reclaimer(connections, outbox, tell, apps=["toy", "tub"], exactly_once=exactly_once)
    async with asyncio.timeout(30.0):
        await reclaimer.sweep("d0")
    assert core.fence == 8
    group = topics.worker_group("d0")
    if exactly_once:
        assert ids == [transactional_id(group, work)], "the dead worker's own: another fences nobody"
        assert behind == [({work: 8}, group)]
        moved = [Record(sent.topic, 0, 0, sent.key, sent.value, sent.headers, now) for sent in written]
    else:
        assert (ids, written) == ([], [])
        assert await broker.admin().committed(group, work) == 8
        answers = {b"answered", b"by another"}
        moved = [
            record
            for topic in (topics.admitted("toy"), topics.admitted("tub"), topics.results("toy"), topics.dead_letters)
            for record in await read_all(broker, topic)
            if topic != topics.results("toy") or record.key not in answers
        ]
    assert await broker.admin().committed(topics.swept_group, work) == 8
    assert await broker.admin().committed(group, TopicPartition(topics.work("d1"), 0)) is None
    back = [codec.decode_admitted(one) for one in moved if one.topic.endswith("admitted")]
    keys = [("toy", "/another", "answered"), ("toy", "", "by another"), ("tub", "", "answered")]
    if exactly_once:  # nobody looks answers up: what was not committed was not answered
        keys.append(("toy", "", "answered"))
    assert sorted(one.query.key for one in back) == sorted(keys)
    for one in back:
        assert (one.query.arrival, one.query.deadline, one.query.stream) == (
            now - 1.0,
            now + 60.0,
            f"of {one.query.id}",
        )
        assert (one.carried, one.claims) == (carried, ((0, claim),))
        assert [bytes(tensor.data) for tensor in one.tensors] == [b"", b"1234"]
    (past,) = (one for one in moved if one.topic == topics.results("toy"))
    assert past.headers[-2:] == carried, "whoever asked tells by these what ended"
    ended = codec.decode_outcome(past).outcome
    assert (ended.query_id, ended.kind, ended.reason, ended.device) == (
        "past",
        OutcomeKind.EXPIRED,
        Reason.DEVICE_LOST,
        "d0",
    )
    (dead,) = (one for one in moved if one.topic == topics.dead_letters)
    assert dead.value == b"noise"
    assert len(moved) == len(keys) + 2
    await reclaimer.close()
    await outbox.stop()
    await broker.close()


async def test_a_sweep_that_was_fenced_fences_anew_when_it_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, topics, written = MemoryBroker(), Topics("t"), list[Letter]()
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    producer = broker.producer()
    await producer.start()
    await (await producer.send(topics.work("d0"), b"noise", key=b"toy"))
    for app in ("nobody", "no/body"):  # of a stranger: their outcomes would have nowhere to go
        query = Query("q", app, 1.0, SystemClock().wall() + 60.0)
        tensor = Tensor("x", "FP32", (1, 1), bytes(4))
        work = codec.encode_work(codec.QueryMessage(query, (tensor,)), epoch=Epoch(1, 1), slice="")
        await (await producer.send(topics.work("d0"), work.value, key=work.key, headers=work.headers))
    monkeypatch.setattr(broker, "transactions", lambda name: Fenced(written))
    core = Core()
    connections = Connections(broker=broker, producer=producer, topics=topics, clock=SystemClock())
    reclaimer = Reclaimer(connections, Outbox(producer), core.tell, apps=["toy"], exactly_once=True)
    await reclaimer._fence("d0", TopicPartition(topics.work("d0"), 0), topics.worker_group("d0"))
    await Fenced(written).start()  # a zombie
    with pytest.raises(FencedError):
        await reclaimer.sweep("d0")
    assert not written
    core.tell(SweepFailed("d0"))
    core.again()
    await reclaimer.sweep("d0")
    assert core.fence == 3
    assert [letter.topic for letter in written] == [topics.dead_letters] * 3
    assert connections.telemetry.meters.values("sluice_dead_letters") == {("planner", "invalid"): 3.0}
    await reclaimer.close()
    await producer.stop()


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_query_of_an_app_whose_topics_are_gone_is_buried(
    monkeypatch: pytest.MonkeyPatch, exactly_once: bool
) -> None:
    """It was served, then retired, and its topics were deleted: nothing may wait for them."""
    broker, topics, written, clock = MemoryBroker(), Topics("t"), list[Letter](), SystemClock()
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    producer = broker.producer()
    await producer.start()
    for app in ("retired", "toy"):
        query = Query("q", app, 1.0, clock.wall() + 60.0)
        work = codec.encode_work(
            codec.QueryMessage(query, (Tensor("x", "FP32", (1, 1), bytes(4)),)), epoch=Epoch(1, 1), slice=""
        )
        await (await producer.send(topics.work("d0"), work.value, key=work.key, headers=work.headers))
    monkeypatch.setattr(broker, "transactions", lambda name: Fenced(written))
    outbox = Outbox(producer)
    await outbox.start()
    connections = Connections(broker=broker, producer=producer, topics=topics, clock=clock)
    apps = ["toy", "retired"]
    reclaimer = Reclaimer(connections, outbox, Core().tell, apps=apps, exactly_once=exactly_once)
    async with asyncio.timeout(30.0):
        await reclaimer.sweep("d0")
    if exactly_once:
        assert [letter.topic for letter in written] == [topics.dead_letters, topics.admitted("toy")]
    else:
        assert {topics.dead_letters, topics.admitted("toy")} <= set(broker.written())
    await reclaimer.close()
    await outbox.stop()


async def test_what_was_answered_behind_a_query_with_a_late_deadline_is_left_however_long_ago() -> None:
    """That one alone waits, and holds back the commit that tells of the others."""
    now = SystemClock().wall()
    wrote = [now - 400.0]
    broker, topics = MemoryBroker(clock=lambda: wrote[0]), Topics("t")
    await broker.admin().create_topics(topics.specs(["toy"], ["d0", "d1"]))
    producer = broker.producer()
    await producer.start()
    for name in ("late", "answered", "elsewhere"):
        query = Query(name, "toy", now - 401.0, now + 199.0)
        message = codec.QueryMessage(query, (Tensor("x", "FP32", (1, 1), bytes(4)),))
        work = codec.encode_work(message, epoch=Epoch(1, 1), slice="")
        await (await producer.send(topics.work("d0"), work.value, key=work.key, headers=work.headers))
    wrote[0] = now - 390.0
    for name, device in (("answered", "d0"), ("elsewhere", "d1")):
        query = Query(name, "toy", now - 401.0, now + 199.0)
        said = codec.encode_outcome(Outcome.of(query, OutcomeKind.ANSWERED, wrote[0], device=device), ())
        await (await producer.send(topics.results("toy"), said.value, key=said.key, headers=said.headers))
    wrote[0] = now
    outbox = Outbox(producer)
    await outbox.start()
    core = Core()
    connections = Connections(broker=broker, producer=producer, topics=topics, clock=SystemClock())
    reclaimer = Reclaimer(connections, outbox, core.tell, apps=["toy"])
    await reclaimer.sweep("d0")
    consumer = broker.consumer(partitions=[TopicPartition(topics.admitted("toy"), 0)], start_at="beginning")
    await consumer.start()
    assert [record.key for record in await consumer.get_many(wait=0.0)] == [b"late", b"elsewhere"]
    assert core.fence == 3
    await reclaimer.close()
    await outbox.stop()
    await broker.close()


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_query_too_large_to_go_back_ends_alone(monkeypatch: pytest.MonkeyPatch, exactly_once: bool) -> None:
    broker, topics, written, clock = MemoryBroker(), Topics("t"), list[Letter](), SystemClock()
    small = [TopicSpec(name=name, max_message_bytes=5_000) for name in (topics.admitted("toy"), topics.dead_letters)]
    await broker.admin().create_topics(small)
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    producer = broker.producer()
    await producer.start()
    now = clock.wall()
    carried = (("x-request-id", b"seven"),)
    for name, columns in (("a", 10), ("b", 2_000), ("c", 20)):
        query = Query(name, "toy", now - 1.0, now + 60.0)
        tensor = Tensor("x", "FP32", (1, columns), bytes(4 * columns))
        work = codec.encode_work(codec.QueryMessage(query, (tensor,), carried), epoch=Epoch(1, 1), slice="")
        await (await producer.send(topics.work("d0"), work.value, key=work.key, headers=work.headers))
    await producer.send(topics.work("d0"), b"noise" * 1_200, key=b"n")
    monkeypatch.setattr(broker, "transactions", lambda name: Fenced(written))
    monkeypatch.setattr(Fenced, "limit", 5_000)
    outbox = Outbox(producer)
    await outbox.start()
    core = Core()
    connections = Connections(broker=broker, producer=producer, topics=topics, clock=clock)
    reclaimer = Reclaimer(connections, outbox, core.tell, apps=["toy"], exactly_once=exactly_once)
    await reclaimer.sweep("d0")
    assert core.fence == 4
    if not exactly_once:
        for topic in (topics.admitted("toy"), topics.results("toy"), topics.dead_letters):
            written += [Letter(topic, r.value, r.key, r.headers) for r in await read_all(broker, topic)]
    assert sorted((letter.topic, letter.key) for letter in written) == [
        (topics.admitted("toy"), b"a"),
        (topics.admitted("toy"), b"c"),
        (topics.results("toy"), b"b"),
        (topics.dead_letters, b"n"),
    ]
    (dead,) = (letter for letter in written if letter.topic == topics.dead_letters)
    assert dead.value == b"", "where it lay is told, which is small"
    (ended,) = (letter for letter in written if letter.topic == topics.results("toy"))
    outcome = codec.decode_outcome(Record("r", 0, 0, ended.key, ended.value, ended.headers, now)).outcome
    assert (outcome.kind, outcome.reason, outcome.device) == (OutcomeKind.FAILED, Reason.TOO_LARGE, "d0")
    assert ended.headers[-1:] == carried
    await reclaimer.close()
    await outbox.stop()
    await broker.close()


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_what_a_sweep_ends_counts_once_however_often_that_is_tried(
    monkeypatch: pytest.MonkeyPatch, exactly_once: bool
) -> None:
    broker, topics, written, clock = MemoryBroker(), Topics("t"), list[Letter](), SystemClock()
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    producer = broker.producer()
    await producer.start()
    query = Query("past", "toy", clock.wall() - 60.0, clock.wall() - 1.0)
    work = codec.encode_work(
        codec.QueryMessage(query, (Tensor("x", "FP32", (1, 1), bytes(4)),)), slice="", epoch=Epoch(1, 1)
    )
    await (await producer.send(topics.work("d0"), work.value, key=work.key, headers=work.headers))

    class Away(Fenced):
        async def write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
            if not failed:
                failed.append(group)
                raise BrokerError("away")
            await super().write(letters, offsets, group)

    failed: list[str] = []
    monkeypatch.setattr(broker, "transactions", lambda name: Away(written))
    outbox = Outbox(producer)
    core = Core()
    connections = Connections(broker=broker, producer=producer, topics=topics, clock=clock)
    reclaimer = Reclaimer(connections, outbox, core.tell, apps=["toy"], exactly_once=exactly_once)
    sweeping = asyncio.create_task(reclaimer.sweep("d0"))
    while not (sweeping.done() or outbox._queue):  # at least once nothing is written before the outbox is started
        await asyncio.sleep(0)
    sweeping.cancel()
    (error,) = await asyncio.gather(sweeping, return_exceptions=True)
    assert isinstance(error, BrokerError if exactly_once else asyncio.CancelledError)
    count = partial(connections.telemetry.meters.value, "sluice_outcomes", "toy", "planner", "expired", "device_lost")
    assert count() == 0
    await outbox.start()
    await outbox.flush()
    core.tell(SweepFailed("d0"))
    core.again()
    await reclaimer.sweep("d0")
    await outbox.stop()
    assert count() == 1
    await reclaimer.close()
    await broker.close()


async def test_a_query_whose_end_cannot_be_written_either_holds_up_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results topic takes nothing as large as what would be said."""
    broker, topics, written, clock = MemoryBroker(), Topics("t"), list[Letter](), SystemClock()
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    producer = broker.producer()
    await producer.start()
    now = clock.wall()
    query = Query("a", "toy", now - 1.0, now + 60.0)
    tensor = Tensor("x", "FP32", (1, 1), bytes(4))
    work = codec.encode_work(codec.QueryMessage(query, (tensor,)), epoch=Epoch(1, 1), slice="")
    await (await producer.send(topics.work("d0"), work.value, key=work.key, headers=work.headers))
    monkeypatch.setattr(broker, "transactions", lambda name: Fenced(written))
    monkeypatch.setattr(Fenced, "limit", 0)
    core = Core()
    connections = Connections(broker=broker, producer=producer, topics=topics, clock=clock)
    reclaimer = Reclaimer(connections, Outbox(producer), core.tell, apps=["toy"], exactly_once=True)
    await reclaimer.sweep("d0")
    assert (core.fence, written) == (1, [])
    await reclaimer.close()
    await broker.close()


async def test_a_work_topic_is_gone_where_the_broker_says_so_now(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, topics = MemoryBroker(), Topics("t")
    await broker.admin().create_topics(topics.specs(["toy"], ["d0", "d1"]))
    works = WorkTopics(broker, topics, SystemClock())
    await works.look()
    admin = broker.admin()
    left = await admin.topics() - {topics.work("d1")}

    async def away() -> frozenset[str]:
        raise BrokerError("nobody answers")

    async def there() -> frozenset[str]:
        return left

    monkeypatch.setattr(admin, "topics", away)
    monkeypatch.setattr(broker, "admin", lambda: admin)
    assert not await works.gone("d1") and not works.lacking(["d1"])
    monkeypatch.setattr(admin, "topics", there)
    assert not works.lacking(["d1"]), "as it was when it was looked up"
    assert await works.gone("d1") and not await works.gone("d0")
    await broker.close()


@pytest.mark.virtual
async def test_a_look_that_fails_of_a_defect_is_told_of_and_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker, topics = MemoryBroker(), Topics("t")
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    works = WorkTopics(broker, topics, SystemClock())
    admin = broker.admin()
    topics_of = admin.topics

    async def broken() -> frozenset[str]:
        raise ZeroDivisionError("a defect")

    def then_broken() -> None:
        raise ZeroDivisionError("another defect")

    monkeypatch.setattr(broker, "admin", lambda: admin)
    monkeypatch.setattr(admin, "topics", broken)
    works.look_soon()
    await asyncio.sleep(1.5)
    assert "work topics: a defect" in caplog.text
    monkeypatch.setattr(admin, "topics", topics_of)
    works.look_soon(then_broken)
    await asyncio.sleep(1.5)
    assert "work topics: another defect" in caplog.text
    assert not works.lacking(["d0"])
    await works.close()
    await broker.close()
