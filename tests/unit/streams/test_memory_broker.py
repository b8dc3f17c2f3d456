"""What is particular to the memory broker: its cap, its folder, its groups' rules, the URLs that lead to it."""

import asyncio
import time
from dataclasses import fields
from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import MemorySettings
from sluicegate.streams.memory.archive import read_folder
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import LostPartitionError, TopicPartition, TopicSpec


async def filled(settings: MemorySettings | None = None, *, records: int = 100, size: int = 100) -> MemoryBroker:
    """A broker with one topic that holds records."""
    broker = MemoryBroker(settings)
    await broker.admin().create_topics([TopicSpec(name="t"), TopicSpec(name="state", compacted=True)])
    producer = broker.producer()
    await producer.start()
    for i in range(records):
        await producer.send("t", b"x" * size, key=str(i).encode())
        await producer.send("state", b"x", key=b"k")
    return broker


async def test_memory_is_bounded_and_what_went_is_told_by_the_beginning() -> None:
    broker = await filled(MemorySettings(max_bytes=50_000), records=2000)
    tp, state = TopicPartition("t", 0), TopicPartition("state", 0)
    consumer = broker.consumer(partitions=[tp], start_at="beginning")
    await consumer.start()
    beginning = (await consumer.beginning_offsets([tp]))[tp]
    records = await consumer.get_many(wait=0.0, max_records=5000)
    assert 0 < beginning == records[0].offset and records[-1].offset == 1999
    assert sum(len(r.value or b"") for r in records) < 50_000
    assert (await consumer.end_offsets([state]))[state] == 2000
    await broker.close()


async def test_a_reader_that_retention_has_overtaken_goes_on_at_the_beginning() -> None:
    broker = await filled(MemorySettings(max_partition_bytes=20_000), records=10)
    consumer = broker.consumer(partitions=[TopicPartition("t", 0)])
    await consumer.start()
    assert (await consumer.get_many(wait=0.0, max_records=1))[0].offset == 0
    producer = broker.producer()
    await producer.start()
    for _ in range(500):
        await producer.send("t", b"y" * 100)
    offsets = [r.offset for r in await consumer.get_many(wait=0.0, max_records=5000)]
    assert offsets[0] > 1 and offsets == list(range(offsets[0], 510))
    await broker.close()


async def test_compacted_topics_keep_the_newest_of_each_key_for_those_who_start_late() -> None:
    broker = await filled(records=3000)
    consumer = broker.consumer(partitions=[TopicPartition("state", 0)], start_at="beginning")
    await consumer.start()
    records = await consumer.get_many(wait=0.0, max_records=5000)
    assert records[-1].offset == 2999 and len(records) < 600
    assert await consumer.position(TopicPartition("state", 0)) == 3000
    await broker.close()


async def test_the_same_static_member_twice_ends_the_older_consumer() -> None:
    broker = await filled()
    first = broker.consumer(topics=["t"], group="g", member="m")
    second = broker.consumer(topics=["t"], group="g", member="m")
    await first.start()
    await second.start()
    with pytest.raises(ConfigurationError, match="taken by another consumer"):
        await first.get_many(wait=0.0)
    await first.stop()
    assert len(second.assignment()) == 1
    await broker.close()


async def test_a_static_member_that_was_replaced_reads_and_commits_nothing_more() -> None:
    broker = await filled()
    place = TopicPartition("t", 0)
    first = broker.consumer(topics=["t"], group="g", member="m")
    await first.start()
    assert len(await first.get_many(wait=0.0, max_records=60)) == 60
    second = broker.consumer(topics=["t"], group="g", member="m")
    await second.start()
    await second.get_many(wait=0.0, max_records=30)
    await second.commit({place: 30})
    with pytest.raises(LostPartitionError):
        await first.commit({place: 60})
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="taken by another consumer"):
            await first.get_many(wait=0.0)
        with pytest.raises(ConfigurationError, match="taken by another consumer"):
            await first.subscribe(["state"])
    assert first.assignment() == frozenset() and second.assignment() == {place}
    assert await broker.admin().committed("g", place) == 30
    await first.stop()
    await first.start()  # as another start of it would: it is the member again, and goes on where that one was
    assert await first.position(place) == 30
    with pytest.raises(ConfigurationError, match="taken by another consumer"):
        await second.get_many(wait=0.0)
    await broker.close()


async def test_reading_lets_other_tasks_have_their_turn() -> None:
    broker = await filled(records=1000)
    consumer = broker.consumer(partitions=[TopicPartition("t", 0)])
    await consumer.start()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(100):
        assert await consumer.get_many(wait=1.0, max_records=1)
    task.cancel()
    assert turns >= 99
    await broker.close()


async def test_a_kept_folder_is_read_by_its_url_and_cannot_be_written(tmp_path: Path) -> None:
    broker = await filled()
    broker.dump(tmp_path / "run 1")
    kept = connect((tmp_path / "run 1").as_uri())
    assert kept.url == (tmp_path / "run 1").as_uri()
    consumer = kept.consumer(topics=["t"], start_at="beginning")
    await consumer.start()
    assert len(await consumer.get_many(wait=0.0, max_records=500)) == 100
    producer = kept.producer()
    await producer.start()
    with pytest.raises(ConfigurationError, match="kept copy"):
        await producer.send("t", b"x")
    await kept.close()


async def test_a_kept_topic_is_made_again_as_it_was_made(tmp_path: Path) -> None:
    made = TopicSpec(
        name="t",
        partitions=3,
        compacted=True,
        retention_s=86_400.0,
        max_message_bytes=5000,
        broker_time=True,
        segment_s=60.0,
        compaction_lag_s=7200.0,
        replication=2,
        min_insync_replicas=4,
        compression="zstd",
    )
    plain = TopicSpec(name="plain")
    assert all(getattr(made, field.name) != getattr(plain, field.name) for field in fields(TopicSpec))
    broker = MemoryBroker()
    await broker.admin().create_topics([made, plain])
    broker.dump(tmp_path)
    kept, _ = read_folder(tmp_path)
    assert [topic.spec for topic in kept] == [plain, made]


async def test_compaction_of_a_topic_that_was_kept_spares_what_is_young_as_before(tmp_path: Path) -> None:
    begins = time.time()
    made = MemoryBroker(clock=lambda: begins)
    await made.admin().create_topics([TopicSpec(name="t", compacted=True, compaction_lag_s=7200.0)])
    made.dump(tmp_path)
    broker = MemoryBroker.load(tmp_path, read_only=False)
    producer = broker.producer()
    await producer.start()
    for number in range(1000):
        await producer.send("t", b"%d" % number, key=b"k")
    consumer = broker.consumer(partitions=[TopicPartition("t", 0)], start_at="beginning")
    await consumer.start()
    assert len(await consumer.get_many(wait=0.0, max_records=5000)) == 1000
    await broker.close()


async def test_dumping_again_replaces_what_was_there(tmp_path: Path) -> None:
    (await filled(records=50)).dump(tmp_path)
    (await filled(records=20)).dump(tmp_path)
    kept = MemoryBroker.load(tmp_path)
    consumer = kept.consumer(topics=["t"], start_at="beginning")
    await consumer.start()
    assert len(await consumer.get_many(wait=0.0)) == 20


async def test_damage_to_a_kept_folder_is_noticed(tmp_path: Path) -> None:
    (await filled()).dump(tmp_path)
    file = tmp_path / "topics" / "t" / "0.log"
    whole = file.read_bytes()
    for damage in (
        whole[:-1],
        whole[:40],
        b"",
        b"SLUICELOG1" + b"\xff" * 12,
        whole[:30] + b"?" + whole[31:],
        whole * 2,
    ):
        file.write_bytes(damage)
        with pytest.raises(ConfigurationError, match="damaged"):
            MemoryBroker.load(tmp_path)
    file.unlink()
    with pytest.raises(ConfigurationError, match="no topics are kept"):
        MemoryBroker.load(tmp_path)
    file.write_bytes(whole)
    assert MemoryBroker.load(tmp_path).url


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"{}",
        b'{"topics":[{"name":"../../etc","partitions":1}],"offsets":[]}',
        b'{"topics":[{"name":"t","partitions":"many"}],"offsets":[]}',
        b'{"topics":[],"offsets":[["g"]]}',
    ],
)
async def test_a_manifest_that_is_not_ours_is_refused(tmp_path: Path, manifest: bytes) -> None:
    (await filled()).dump(tmp_path)
    (tmp_path / "topics.json").write_bytes(manifest)
    with pytest.raises(
        ConfigurationError, match=r"damaged: topics.json lacks 'topics'$" if manifest == b"{}" else "damaged"
    ):
        MemoryBroker.load(tmp_path)


def test_a_folder_without_a_log_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no topics are kept .*; give the folder of a run that has topics\.json"
    ):
        connect(tmp_path.as_uri())
    occupied = tmp_path / "file"
    occupied.write_text("x")
    with pytest.raises(ConfigurationError, match="choose another folder"):
        MemoryBroker().dump(occupied / "run")


@pytest.mark.parametrize("url", ["", "memory", "kafka://", "http://x", "ftp://x", "memory+http://"])
def test_other_urls_are_refused_with_what_would_be_right(url: str) -> None:
    with pytest.raises(ConfigurationError, match="give memory://"):
        connect(url)


async def test_headers_count_in_the_size_of_a_record() -> None:
    broker = connect("memory://")
    await broker.admin().create_topics([TopicSpec(name="t", max_message_bytes=65_536)])
    producer = broker.producer()
    await producer.start()
    for value, headers in ((100, 70_000), (40_000, 40_000), (65_000, 600)):
        for named in ((("x", b"h" * headers),), (("n" * (headers - 1), b"h"),)):
            with pytest.raises(InvalidInputError, match="topic t takes 65536 at most"):
                await producer.send("t", b"v" * value, headers=named)
    for value, headers in ((100, 60_000), (30_000, 30_000)):
        await (await producer.send("t", b"v" * value, headers=(("x", b"h" * headers),)))


async def test_what_was_read_goes_first_and_what_a_group_has_not_read_stays() -> None:
    now = [1.7e9]
    broker = MemoryBroker(MemorySettings(read_bytes=40_000, max_bytes=4_000_000), clock=lambda: now[0])
    await broker.admin().create_topics([TopicSpec(name=name) for name in ("read", "half", "nobody", "old")])
    places = {name: TopicPartition(name, 0) for name in ("read", "half", "nobody", "old")}
    producer = broker.producer()
    await producer.start()
    for _ in range(100):
        await producer.send("old", b"x" * 100)
        now[0] += 0.1
    now[0] += 60.0
    readers = {name: broker.consumer(partitions=[places[name]], group=f"of {name}") for name in ("read", "half")}
    for name, reader in readers.items():
        await reader.start()
        await reader.commit({places[name]: 0})
    for number in range(1000):
        for name in ("read", "half", "nobody"):
            await producer.send(name, b"x" * 100)
        now[0] += 0.01
        await readers["read"].commit({places["read"]: number})
        await readers["half"].commit({places["half"]: number // 2})
    begins = await readers["read"].beginning_offsets(places.values())
    assert 500 < begins[places["read"]] < 1000
    assert 100 < begins[places["half"]] <= 500
    assert begins[places["nobody"]] == 0  # nobody reads it by a group, and none of it is a minute old
    assert begins[places["old"]] > 50
    await broker.close()


@pytest.mark.virtual
async def test_a_static_members_partitions_wait_for_as_long_as_its_session_and_no_longer() -> None:
    broker = MemoryBroker(MemorySettings(session_timeout=7.0))
    await broker.admin().create_topics([TopicSpec(name="t", partitions=4)])
    stays, leaves = (broker.consumer(topics=["t"], group="g", member=name) for name in ("stays", "leaves"))
    await stays.start()
    await leaves.start()
    await leaves.stop()
    await asyncio.sleep(6.9)
    assert len(stays.assignment()) == 2
    back = broker.consumer(topics=["t"], group="g", member="leaves")
    await back.start()  # and the time begins anew
    await asyncio.sleep(20.0)
    assert (len(stays.assignment()), len(back.assignment())) == (2, 2)
    twice = broker.consumer(topics=["t"], group="g", member="leaves")
    await twice.start()
    await back.stop()  # whose partitions are another's already
    await asyncio.sleep(20.0)
    assert (len(stays.assignment()), len(twice.assignment())) == (2, 2)
    await twice.stop()
    await asyncio.sleep(6.9)
    assert len(stays.assignment()) == 2
    await asyncio.sleep(0.2)
    assert len(stays.assignment()) == 4
    await broker.close()


async def test_a_member_without_a_name_is_replaced_at_once() -> None:
    broker = MemoryBroker(MemorySettings(session_timeout=1000.0))
    await broker.admin().create_topics([TopicSpec(name="t", partitions=4)])
    stays, leaves = (broker.consumer(topics=["t"], group="g") for _ in range(2))
    await stays.start()
    await leaves.start()
    assert len(stays.assignment()) == 2
    await leaves.stop()
    async with asyncio.timeout(30.0):
        while len(stays.assignment()) < 4:
            await asyncio.sleep(0)
    await broker.close()


async def test_a_busy_partition_starves_no_quiet_one() -> None:
    """It fills each read whole."""
    broker = MemoryBroker()
    await broker.admin().create_topics([TopicSpec(name="t", partitions=3)])
    producer = broker.producer()
    await producer.start()
    consumer = broker.consumer(topics=["t"])
    await consumer.start()
    for _ in range(100):
        await producer.send("t", b"busy", partition=0)
    for _ in range(2):
        for partition in (1, 2):
            await producer.send("t", b"quiet", partition=partition)
        found = [await consumer.get_many(wait=0.0, max_records=10) for _ in range(3)]
        assert [len(records) for records in found] == [10] * 3
        assert {record.partition for records in found for record in records} == {0, 1, 2}
    for partition in (1, 2):
        for _ in range(100):
            await producer.send("t", b"busy", partition=partition)
    found = [await consumer.get_many(wait=0.0, max_records=10) for _ in range(3)]
    assert {record.partition for records in found for record in records} == {0, 1, 2}, "each has its turn"
    await broker.close()


@pytest.mark.parametrize("first", ["ahead", "behind"])
async def test_of_two_groups_the_one_that_has_read_least_says_what_may_go(first: str) -> None:
    now = [1.7e9]
    broker = MemoryBroker(MemorySettings(read_bytes=40_000, max_bytes=4_000_000), clock=lambda: now[0])
    await broker.admin().create_topics([TopicSpec(name="t")])
    place = TopicPartition("t", 0)
    producer = broker.producer()
    await producer.start()
    ahead, behind = (broker.consumer(partitions=[place], group=name) for name in ("ahead", "behind"))
    for reader in (behind, ahead) if first == "behind" else (ahead, behind):
        await reader.start()
        await reader.commit({place: 0})
    for number in range(1000):
        await producer.send("t", b"x" * 100)
        await ahead.commit({place: number})
        now[0] += 1.0
    assert (await ahead.beginning_offsets([place]))[place] == 0, "however old it is, it waits for who has not read it"
    await behind.commit({place: 700})
    for _ in range(1000):
        await producer.send("t", b"x" * 100)
        await ahead.commit({place: 1000})
    assert 600 < (await ahead.beginning_offsets([place]))[place] <= 700
    await broker.close()


async def test_who_does_not_read_a_partition_neither_moves_in_it_nor_commits() -> None:
    broker = await filled(records=3)
    place = TopicPartition("t", 0)
    alone = broker.consumer(partitions=[place])
    await alone.start()
    with pytest.raises(ConfigurationError, match="has no group to commit for"):
        await alone.commit({place: 1})
    with pytest.raises(ConfigurationError, match="only a started member of a group changes its topics"):
        await alone.subscribe(["state"])
    with pytest.raises(ConfigurationError, match="offsets start at 0"):
        await alone.seek(place, -1)
    member = broker.consumer(topics=["t"], group="g")
    with pytest.raises(ConfigurationError, match="not started"):
        await member.get_many(wait=0.0)
    await member.start()
    other = TopicPartition("state", 0)
    for refused in (member.commit({other: 1}), member.seek(other, 0), member.position(other)):
        with pytest.raises(LostPartitionError, match="partition 0 of state is not read"):
            await refused
    for told in (member.pause, member.resume):
        with pytest.raises(LostPartitionError, match="partition 0 of state is not read"):
            told([other])
    assert await broker.admin().committed("g", other) is None
    await broker.close()
