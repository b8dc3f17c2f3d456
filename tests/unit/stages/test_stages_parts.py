"""The parts that every stage is made of: outbox, intake, dedupe window, running together."""

import asyncio
from collections.abc import Awaitable, Sequence

import pytest
from typing_extensions import override

from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.domain.events import DeviceSeen, Ticked
from sluicegate.domain.models.app import App, Promise
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.executors.drivers.provider import Notice
from sluicegate.executors.drivers.simulated_provider import SimulatedProvider
from sluicegate.executors.drivers.worker_drivers import WorkerTasks
from sluicegate.planner.capacity.events import (
    CapacityAction,
    CapacityEvent,
    Start,
    Stop,
    WorkerReported,
    WorkerStarted,
    WorkerStopped,
)
from sluicegate.planner.capacity.procurement import Prices
from sluicegate.stages.capacity.stage import CapacityStage, Market
from sluicegate.stages.connections import Connections
from sluicegate.stages.runtime.consumer_loop import Intake
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.stages.worker.promise_recovery import recall
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import MemorySettings
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import (
    Broker,
    Consumer,
    DeliveryError,
    Headers,
    Record,
    TopicPartition,
    TopicSpec,
    Written,
)
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics
from tests.harness import PATIENCE_S

pytestmark = pytest.mark.virtual


class FlakyProducer:
    """Fails the first ``failures`` sends, then keeps what it is given."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.kept: list[bytes | None] = []

    async def start(self) -> None: ...

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> Awaitable[Written]:
        if value == b"huge":
            raise InvalidInputError("record", "too large")
        if self.failures:
            self.failures -= 1
            raise OSError("no broker")
        self.kept.append(value)
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        future.set_result(Written(topic, 0, len(self.kept)))
        return future

    def try_send(self, topic: str, value: bytes | None, **options: object) -> None:
        return None

    async def flush(self) -> None: ...

    async def stop(self) -> None: ...


@pytest.mark.virtual
async def test_what_waits_for_its_topic_is_written_once_and_in_order_when_that_is_there() -> None:
    broker = MemoryBroker()
    producer = broker.producer()
    await producer.start()
    outbox = Outbox(producer)
    await outbox.start()
    for value in (b"a", b"b", b"c"):
        outbox.post("late", value)
    await asyncio.sleep(20.0)
    await broker.admin().create_topics([TopicSpec(name="late")])
    await outbox.flush()
    reader = broker.consumer(topics=["late"])
    await reader.start()
    assert [record.value for record in await reader.get_many(wait=60.0)] == [b"a", b"b", b"c"]
    assert outbox.unacknowledged == 0 and not await reader.get_many(wait=60.0)
    await outbox.stop()
    await broker.close()


async def test_a_send_that_fails_is_sent_again_in_order() -> None:
    producer = FlakyProducer(failures=2)
    outbox = Outbox(producer)
    await outbox.start()
    done: list[bytes] = []
    for value in (b"a", b"b", b"c"):
        outbox.post("t", value, done=lambda value=value: done.append(value))
    assert outbox.unacknowledged == 3
    await outbox.flush()
    assert producer.kept == [b"a", b"b", b"c"]
    assert done == [b"a", b"b", b"c"]
    assert outbox.unacknowledged == 0
    await outbox.stop()


async def test_a_record_that_can_never_be_sent_is_refused_and_the_rest_goes_on() -> None:
    producer = FlakyProducer(failures=0)
    outbox = Outbox(producer)
    await outbox.start()
    refused: list[InvalidInputError] = []
    outbox.post("t", b"huge", refused=refused.append)
    outbox.post("t", b"small")
    await outbox.flush()
    assert [e.field for e in refused] == ["record"]
    assert producer.kept == [b"small"]
    await outbox.stop()


@pytest.mark.parametrize("waits", [True, False])
async def test_who_fails_of_what_it_is_told_ends_no_pump_and_is_told_of(waits: bool) -> None:
    """Both whoever is told that a record is refused and whoever is told that it is written."""
    broker = connect("memory://", memory=MemorySettings(max_message_bytes=100))
    await broker.admin().create_topics([TopicSpec(name="there")])
    producer = broker.producer()
    await producer.start()
    outbox = Outbox(producer)
    if not waits:
        await outbox.start()
    failing = asyncio.create_task(outbox.failure())
    outbox.post("there", b"a" * 200, refused=lambda error: {}[error.field])
    outbox.post("there", b"b", done=lambda: {}["later"])
    await outbox.start()
    async with asyncio.timeout(5.0):
        await outbox.flush()
        with pytest.raises(KeyError, match="record"):
            await failing
    assert outbox.unacknowledged == 0
    await outbox.stop()
    await broker.close()


async def test_what_is_for_a_topic_that_is_not_there_holds_nobody_up_and_is_written_once_it_is() -> None:
    """An app's topics were deleted while a stage had read a query of it."""
    broker = connect("memory://")
    await broker.admin().create_topics([TopicSpec(name="there")])
    producer = broker.producer()
    await producer.start()
    outbox = Outbox(producer)
    await outbox.start()
    done: list[str] = []
    for name, topic in (("a", "gone"), ("b", "there"), ("c", "late"), ("d", "gone"), ("e", "late"), ("f", "there")):
        outbox.post(topic, name.encode(), done=lambda name=name: done.append(name))
    await asyncio.sleep(1.0)
    assert (done, outbox.unacknowledged) == (["b", "f"], 4)
    await broker.admin().create_topics([TopicSpec(name="late")])
    await asyncio.sleep(5.0)
    assert (done, outbox.unacknowledged) == (["b", "f", "c", "e"], 2)
    outbox.post("gone", b"g")
    outbox.post("there", b"h", done=lambda: done.append("h"))
    outbox.post("late", b"i", done=lambda: done.append("i"))
    await asyncio.sleep(1.0)
    assert (done[4:], outbox.unacknowledged) == (["h", "i"], 3)
    await outbox.stop(within=1.0)
    log = broker.consumer(partitions=[TopicPartition("late", 0)], start_at="beginning")
    await log.start()
    assert [r.value for r in await log.get_many(wait=0.1)] == [b"c", b"e", b"i"]
    await broker.close()


class ForgetfulProducer(FlakyProducer):
    """Acknowledges when it is told to."""

    def __init__(self) -> None:
        super().__init__(failures=0)
        self.sent: list[tuple[bytes | None, asyncio.Future[Written]]] = []

    async def send(self, topic: str, value: bytes | None, **options: object) -> asyncio.Future[Written]:
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self.sent.append((value, future))
        return future


async def test_of_a_state_only_what_is_newest_is_sent_again() -> None:
    """What nobody knows to be written may be written; behind a newer record of its key it would be what counts."""
    producer = ForgetfulProducer()
    outbox = Outbox(producer, ["acks"])
    await outbox.start()
    done: list[bytes] = []
    for topic, key, value in (
        ("acks", b"d0", b"3"),
        ("acks", b"d1", b"7"),
        ("acks", b"d0", b"4"),
        ("work", b"d0", b"q1"),
        ("work", b"d0", b"q2"),
    ):
        outbox.post(topic, value, key=key, done=lambda value=value: done.append(value))
    async with asyncio.timeout(5.0):
        while len(producer.sent) < 5:
            await asyncio.sleep(0.01)
        for value, future in producer.sent[:5]:
            if value in (b"4", b"q2"):
                future.set_result(Written("t", 0, 0))
            else:
                future.set_exception(DeliveryError("nobody knows"))
        while len(producer.sent) < 7:
            await asyncio.sleep(0.01)
    assert sorted(value or b"" for value, _ in producer.sent[5:]) == [b"7", b"q1"]
    assert done == [b"3", b"4", b"q2"]
    for _, future in producer.sent[5:]:
        future.set_result(Written("t", 0, 0))
    await outbox.flush()
    await outbox.stop()


async def test_stopping_with_a_dead_broker_is_bounded() -> None:
    outbox = Outbox(FlakyProducer(failures=10**6))
    await outbox.start()
    outbox.post("t", b"a")
    async with asyncio.timeout(2.0):
        await outbox.stop(within=0.1)
    assert outbox.unacknowledged == 1


async def filled(count: int) -> Broker:
    broker = connect("memory://")
    await broker.admin().create_topics([TopicSpec(name="t")])
    producer = broker.producer()
    await producer.start()
    for i in range(count):
        await producer.send("t", str(i).encode())
    await producer.flush()
    return broker


def consumer_of(broker: Broker) -> Consumer:
    return broker.consumer(partitions=[TopicPartition("t", 0)], group="g")


async def test_no_more_is_in_flight_than_the_limit_and_everything_is_read() -> None:
    broker = await filled(100)
    intake = Intake(lambda _: consumer_of(broker), limit=10, poll=0.01, commit_every=0.02)
    stop = asyncio.Event()
    seen: list[Record] = []
    most = 0

    async def handle(records: Sequence[Record]) -> None:
        nonlocal most
        for record in records:
            seen.append(record)
            asyncio.get_running_loop().call_later(0.001, intake.done, record)
        most = max(most, intake.in_flight)
        if len(seen) == 100:
            stop.set()

    async with asyncio.timeout(10.0):
        await intake.run(handle, stop)
    assert [int(r.value or b"") for r in seen] == list(range(100))
    assert most <= 10
    assert await broker.admin().committed("g", TopicPartition("t", 0)) == 100
    await broker.close()


async def test_what_is_not_done_is_not_committed() -> None:
    broker = await filled(10)
    intake = Intake(lambda _: consumer_of(broker), poll=0.01, commit_every=0.01, drain_s=0.1)
    stop = asyncio.Event()

    async def handle(records: Sequence[Record]) -> None:
        for record in records:
            if record.offset != 4:
                intake.done(record)
        stop.set()

    await intake.run(handle, stop)
    assert await broker.admin().committed("g", TopicPartition("t", 0)) == 4
    await broker.close()


async def test_after_abandoning_nothing_more_is_committed() -> None:
    broker = await filled(10)
    intake = Intake(lambda _: consumer_of(broker), poll=0.01, commit_every=10.0)
    stop = asyncio.Event()

    async def handle(records: Sequence[Record]) -> None:
        for record in records:
            intake.done(record)
        intake.abandon()
        stop.set()

    await intake.run(handle, stop)
    assert await broker.admin().committed("g", TopicPartition("t", 0)) is None
    await broker.close()


class OneStage:
    def __init__(self, name: str, fails: bool = False, lasts: float | None = None) -> None:
        self.name = name
        self.fails = fails
        self.lasts = lasts
        self.stopped = False

    async def run(self, stop: asyncio.Event) -> None:
        if self.fails:
            raise RuntimeError(f"{self.name} is broken")
        if self.lasts is not None:
            await asyncio.sleep(self.lasts)
            return
        await stop.wait()
        self.stopped = True


async def test_one_stage_that_fails_stops_the_others_and_is_told() -> None:
    good = OneStage("good")
    with pytest.raises(RuntimeError, match="broken") as raised:
        await run_stages([good, OneStage("bad", fails=True)], asyncio.Event())
    assert good.stopped
    assert raised.value.__notes__ == ["(stage bad)"]


async def test_of_stages_that_fail_one_is_raised_and_the_others_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="first is broken") as raised:
        await run_stages([OneStage("first", fails=True), OneStage("second", fails=True)], asyncio.Event())
    assert raised.value.__notes__ == ["(stage first)"]
    assert [record.getMessage() for record in caplog.records] == ["stage second failed: second is broken"]


async def test_one_stage_that_ends_by_itself_stops_the_others_and_is_told() -> None:
    """Whoever looks after the process starts it again by its exit code."""
    good = OneStage("good")
    with pytest.raises(SluiceError, match="stage short ended"):
        await run_stages([good, OneStage("short", lasts=0.5)], asyncio.Event())
    assert good.stopped


async def test_a_stage_that_ends_when_all_are_stopped_has_not_failed() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, stop.set)
    good = OneStage("good")
    await run_stages([good, OneStage("short", lasts=0.5)], stop)
    assert good.stopped


async def no_worker(device: str, stop: asyncio.Event) -> None: ...


class BrokenWorkers(WorkerTasks):
    """Raises what no driver should."""

    async def start(self, device: str) -> None:
        raise RuntimeError(f"{device} is broken")

    async def stop(self, device: str) -> None:
        raise RuntimeError(f"{device} is still broken")


async def test_a_rule_of_capacity_is_told_of_calls_that_failed_whatever_they_raised() -> None:
    broker, topics, stop = MemoryBroker(), Topics("t"), asyncio.Event()
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    told: list[CapacityEvent] = []

    def handle(event: CapacityEvent, now: float) -> Sequence[CapacityAction]:
        match event:
            case Ticked():
                return [] if told else [Start("s0")]
            case WorkerStarted():
                told.append(event)
                return [Stop("s0")]
            case WorkerStopped():
                told.append(event)
                stop.set()
        return []

    connections = Connections(broker=broker, producer=broker.producer(), topics=topics, clock=SystemClock())
    stage = CapacityStage("scaler", connections, handle, driver=BrokenWorkers(no_worker), period=0.01)
    async with asyncio.timeout(PATIENCE_S):
        await stage.run(stop)
    assert told[0] == WorkerStarted("s0", ok=False)
    assert WorkerStopped("s0") in told
    await broker.close()


class TwoClocks(SystemClock):
    """The wall clock is set back further at every look."""

    looks = 0

    @override
    def wall(self) -> float:
        self.looks += 1
        return 1.7e9 - 3600.0 * self.looks

    @override
    def monotonic(self) -> float:
        return 70.0 + self.looks


class NoNotices:
    async def poll(self) -> tuple[Notice, ...]:
        return ()


@pytest.mark.parametrize("bought", [False, True])
async def test_what_goes_by_the_load_is_told_a_time_that_never_goes_back_and_what_is_noticed_that_of_notices(
    bought: bool,
) -> None:
    broker, topics, stop = MemoryBroker(), Topics("t"), asyncio.Event()
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    told: list[float] = []

    def handle(event: CapacityEvent, now: float) -> Sequence[CapacityAction]:
        told.append(now)
        if len(told) > 3:
            stop.set()
        return []

    connections = Connections(broker=broker, producer=broker.producer(), topics=topics, clock=TwoClocks())
    provider = SimulatedProvider(Prices(2.0, 1.0), p_rev=0.0, draw=lambda: 0.5, now=SystemClock().wall)
    market = Market(NoNotices(), provider) if bought else None
    stage = CapacityStage("c", connections, handle, driver=BrokenWorkers(no_worker), period=0.01, market=market)
    async with asyncio.timeout(PATIENCE_S):
        await stage.run(stop)
    assert (min(told) > 1e9) is bought
    assert (told == sorted(told)) is not bought
    await broker.close()


async def test_a_rule_of_capacity_hears_of_a_device_only_from_the_worker_that_runs_it() -> None:
    broker, topics, stop = MemoryBroker(), Topics("t"), asyncio.Event()
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    told: list[tuple[int, int]] = []

    def handle(event: CapacityEvent, now: float) -> Sequence[CapacityAction]:
        if isinstance(event, WorkerReported):
            told.append((event.queued, event.rows))
            stop.set()
        return []

    producer = broker.producer()
    await producer.start()
    connections = Connections(broker=broker, producer=producer, topics=topics, clock=SystemClock())
    stage = CapacityStage("scaler", connections, handle, driver=BrokenWorkers(no_worker), period=0.01)
    running = asyncio.create_task(stage.run(stop))
    async with asyncio.timeout(PATIENCE_S):
        while not running.done():
            for queued, stands_by in ((3, True), (7, False)):
                seen = DeviceSeen("d0", "cpu", f"i{queued}")
                parts = (control.SliceState("s0", 8 * queued), control.SliceState("s1", 1))
                beat = control.Heartbeat(seen=seen, at=9.0, queued=queued, slices=parts, stands_by=stands_by)
                await producer.send(topics.devices_metrics, control.encode_heartbeat(beat), key=b"d0")
            await asyncio.sleep(0.01)
    assert set(told) == {(7, 57)}, "queries there, and rows that wait in its slices"
    await broker.close()


@pytest.mark.parametrize("count", [300, 12_000])
async def test_the_past_of_streams_is_recalled_as_far_as_retention_has_left_it(count: int) -> None:
    """Fewer outcomes are kept than would be read of a topic that is whole; another app's have no promise."""
    written = 1e9
    broker, topics = MemoryBroker(clock=lambda: written), Topics("t")
    specs = [TopicSpec(name=topics.results(app), retention_s=60.0) for app in ("toy", "other")]
    await broker.admin().create_topics(specs)
    producer = broker.producer()
    await producer.start()
    for sequence in range(count):
        written += 0.5
        for app in ("toy", "other"):
            times = {"arrival": written - 2.0, "deadline": written - 1.0, "at": written}
            one = Outcome(query_id="q", app=app, kind=OutcomeKind.DROPPED, stream="s", sequence=sequence, **times)
            message = codec.encode_outcome(one, ())
            await producer.send(topics.results(app), message.value, key=message.key, headers=message.headers)
    counted = broker.consumer(partitions=[TopicPartition(topics.results("toy"), 0)])
    (kept_from,) = (await counted.beginning_offsets([TopicPartition(topics.results("toy"), 0)])).values()
    assert kept_from > 100

    promised = App(name="toy", slo=1.0, promise=Promise(max_consecutive=40))
    (past,) = (await recall(broker, topics, {"toy": promised, "other": App(name="other", slo=1.0)})).streams
    assert (past.app, [end[0] for end in past.ends]) == ("toy", list(range(kept_from, count)))
