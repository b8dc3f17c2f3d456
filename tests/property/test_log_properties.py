"""The memory log against a simple model, its folder, its partitioner and its assignment of partitions."""

import asyncio
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from aiokafka.partitioner import murmur2 as reference_murmur2
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.memory.partition_log import PartitionLog, record_bytes
from sluicegate.streams.memory.partitioner import murmur2
from sluicegate.streams.memory.sticky_assignor import assign
from sluicegate.streams.ports import Record, TopicPartition, TopicSpec

keys = st.sampled_from([b"a", b"b", b"c", b"d"])
values = st.none() | st.binary(max_size=6)


class LogMachine(RuleBasedStateMachine):
    """A compacted log: the model is every record ever appended. Compacted at time 9; ``lag``: what is whole then."""

    lag = 0

    def __init__(self) -> None:
        super().__init__()
        self.log = PartitionLog("t", 0, compacted=True, compaction_lag_s=float(self.lag))
        self.appended: list[Record] = []
        self.compacted_to = 0
        self.compactions = 0

    @rule(key=keys, value=values, timestamp=st.integers(0, 9))
    def append(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        offset = self.log.append(key, value, (), float(timestamp), 0.0, record_bytes(key, value, ()))
        assert offset == len(self.appended)
        self.appended.append(Record("t", 0, offset, key, value, (), float(timestamp)))

    @rule()
    def compact(self) -> None:
        self.log.compact(9.0)
        self.compacted_to = len(self.appended)
        self.compactions += 1

    @precondition(lambda self: len(self.log) > 0)
    @rule(count=st.integers(0, 5))
    def drop_oldest(self, count: int) -> None:
        before = self.log.read(self.log.start, len(self.log))
        self.log.drop_oldest(count)
        assert self.log.read(self.log.start, len(self.log)) == before[count:]

    @rule(offset=st.integers(0, 60), limit=st.integers(1, 10))
    def read(self, offset: int, limit: int) -> None:
        offset = min(max(offset, self.log.start), self.log.end)
        whole = self.log.read(self.log.start, 10**6)
        assert self.log.read(offset, limit) == [r for r in whole if r.offset >= offset][:limit]

    @rule(timestamp=st.integers(0, 10))
    def find_time(self, timestamp: int) -> None:
        whole = self.log.read(self.log.start, 10**6)
        expected = next((r.offset for r in whole if r.timestamp >= timestamp), None)
        assert self.log.offset_at(float(timestamp)) == expected

    @invariant()
    def holds_what_was_appended_in_order_and_never_loses_the_newest_of_a_key(self) -> None:
        kept = self.log.read(self.log.start, 10**6)
        assert self.log.end == len(self.appended)
        assert all(r == self.appended[r.offset] for r in kept)
        assert [r.offset for r in kept] == sorted({r.offset for r in kept})
        assert self.log.bytes == sum(record_bytes(r.key, r.value, r.headers) for r in kept)
        offsets = {r.offset for r in kept}
        newest = {r.key: r for r in self.appended}
        for record in newest.values():
            if record.value is not None and record.offset >= self.log.start:
                assert record.offset in offsets
        for record in self.appended[max(self.compacted_to, self.log.start) :]:
            assert record.offset in offsets  # what came after the last compaction is whole
        for record in self.appended[self.log.start :] if self.lag else ():
            assert record.timestamp < 9.0 - self.lag or record.offset in offsets
        below = [r for r in kept if r.offset < self.compacted_to - 1]
        below = [r for r in below if not self.lag or r.timestamp < 9.0 - self.lag]
        if self.compactions:
            assert len({r.key for r in below}) == len(below)


class LaggingLogMachine(LogMachine):
    """Records of the last four seconds stay."""

    lag = 4


TestLog = LogMachine.TestCase
TestLaggingLog = LaggingLogMachine.TestCase
TestLog.settings = TestLaggingLog.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=300), st.integers(1, 20))
def test_retention_by_time_keeps_what_is_young_and_bounds_what_is_old(ages: list[int], retention: int) -> None:
    log = PartitionLog("t", 0, retention_s=float(retention))
    now = 0.0
    written: list[float] = []
    for step in ages:
        now += step / 10
        log.append(None, b"x", (), now, now, record_bytes(None, b"x", ()))
        written.append(now)
        kept = [r.timestamp for r in log.read(log.start, 10**6)]
        young = [at for at in written if at >= now - retention]
        assert kept[len(kept) - len(young) :] == young
        assert len(kept) - len(young) <= len(kept) // 8 + 1
    assert log.end == len(ages)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=400), min_size=1, max_size=300))
def test_a_cap_on_bytes_is_kept_to_within_a_record(sizes: list[bytes]) -> None:
    log = PartitionLog("t", 0, max_bytes=4000)
    for value in sizes:
        log.append(None, value, (), 0.0, 0.0, record_bytes(None, value, ()))
        assert log.bytes <= 4000 + 600 and len(log) >= 1
        assert log.read(log.end - 1, 1)[0].value == value


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=50))
def test_murmur2_is_that_of_kafkas_default_partitioner(data: bytes) -> None:
    assert murmur2(data) == reference_murmur2(data) & 0xFFFFFFFF


members = st.dictionaries(
    st.sampled_from("mnopq"), st.frozensets(st.sampled_from(["s", "t", "u"]), min_size=1), min_size=1
)
counts = st.dictionaries(st.sampled_from(["s", "t", "u"]), st.integers(1, 7), min_size=3)


@settings(max_examples=150, deadline=None)
@given(members, counts, st.randoms(use_true_random=False))
def test_each_partition_has_one_member_that_asked_for_it(members, counts, chance) -> None:  # type: ignore[no-untyped-def]
    everything = [TopicPartition(t, p) for t, n in counts.items() for p in range(n)]
    held = {m: frozenset(chance.sample(everything, chance.randint(0, len(everything)))) for m in members}
    given_ = assign(members, counts, held)
    assert given_ == assign(dict(reversed(members.items())), counts, held)
    assert set(given_) == set(members)
    listed = sorted(tp for tps in given_.values() for tp in tps)
    wanted = frozenset().union(*members.values())
    assert listed == sorted(tp for tp in everything if tp.topic in wanted)
    assert all(tp.topic in members[m] for m, tps in given_.items() for tp in tps)
    if len(set(members.values())) == 1:
        sizes = [len(tps) for tps in given_.values()]
        assert max(sizes) - min(sizes) <= 1
        assert assign(members, counts, given_) == given_  # nothing moves without a reason
        assert assign(members, counts, {}) == assign(members, counts, dict.fromkeys(members, frozenset()))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 20))
def test_a_member_that_leaves_moves_its_own_partitions_only(staying: int, partitions: int) -> None:
    names = [f"m{i}" for i in range(staying + 1)]
    subscribed = dict.fromkeys(names, frozenset({"t"}))
    before = assign(subscribed, {"t": partitions}, {})
    subscribed.pop(names[-1])
    after = assign(subscribed, {"t": partitions}, before)
    assert all(before[name] <= after[name] for name in subscribed)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 6))
def test_no_more_moves_than_fair_shares_ask_for(holds: list[int], free: int) -> None:
    ends = list(accumulate(holds, initial=0))
    held = {
        f"m{i}": frozenset(TopicPartition("t", p) for p in range(*between)) for i, between in enumerate(pairwise(ends))
    }
    partitions, count = ends[-1] + free, len(holds)
    shared = assign(dict.fromkeys(held, frozenset({"t"})), {"t": partitions}, held)
    share, extra = divmod(partitions, count)
    sizes = [len(tps) for tps in shared.values()]
    assert sorted(sizes) == [share] * (count - extra) + [share + 1] * extra
    over = sum(len(tps) > share for tps in held.values())
    kept = sum(len(shared[name] & tps) for name, tps in held.items())
    assert kept == sum(min(len(tps), share) for tps in held.values()) + min(extra, over)


records = st.tuples(
    st.none() | st.binary(max_size=8),
    st.binary(max_size=30),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple),
    st.integers(0, 4 * 10**12).map(lambda ms: ms / 1e3),
    st.integers(0, 1),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(records, max_size=20), st.integers(0, 50))
def test_a_kept_log_reads_as_it_was(written, committed: int) -> None:  # type: ignore[no-untyped-def]
    async def whole(broker: MemoryBroker) -> list[Record]:
        consumer = broker.consumer(topics=["a.t"], start_at="beginning")
        await consumer.start()
        return sorted(await consumer.get_many(wait=0.0, max_records=1000))

    async def check() -> None:
        broker = MemoryBroker()
        tp = TopicPartition("a.t", 1)
        await broker.admin().create_topics([TopicSpec(name="a.t", partitions=2), TopicSpec(name="c", compacted=True)])
        producer = broker.producer()
        await producer.start()
        for key, value, headers, timestamp, partition in written:
            await producer.send("a.t", value, key=key, headers=headers, partition=partition, timestamp=timestamp)
        committer = broker.consumer(partitions=[tp], group="g")
        await committer.start()
        await committer.commit({tp: committed})
        with TemporaryDirectory() as folder:
            broker.dump(Path(folder))
            kept = MemoryBroker.load(Path(folder))
        assert await whole(kept) == await whole(broker)
        assert await kept.admin().committed("g", tp) == committed
        assert await kept.admin().partitions(["a.t", "c"]) == {"a.t": 2, "c": 1}

    asyncio.run(check())
