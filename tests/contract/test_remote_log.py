"""A log that is served over HTTP: who may ask, and what is refused."""

from math import inf

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.sluice.audit.retention import gone_before
from sluicegate.sluice.catalogue.broker_log import BrokerLog
from sluicegate.sluice.registration.registry_topic import await_served
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import RemoteSettings
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import TellsStates, TopicSpec, UnreachableError
from sluicegate.streams.remote.broker import RemoteBroker
from sluicegate.streams.topics import Topics
from sluicegate_client import Client
from tests.contract.brokers import serve


async def test_a_remote_log_asks_for_its_token_and_for_a_loopback_name() -> None:
    behind = connect("memory://")
    async with serve(behind, token="secret") as url, ClientSession() as session:
        for given in (None, "wrong"):
            stranger = connect(url, remote=RemoteSettings(token=given))
            with pytest.raises(ConfigurationError, match="token"):
                await stranger.admin().topics()
            await stranger.close()
        friend = connect(url, remote=RemoteSettings(token="secret"))
        assert await friend.admin().topics() == frozenset()
        await friend.close()
        plain = url.removeprefix("memory+")
        async with session.get(f"{plain}/log/topics") as answer:
            assert answer.status == 403
    async with serve(behind) as url, ClientSession() as session:
        plain = url.removeprefix("memory+")
        for host in ("rebound.example", "localhost:99999"):
            headers = {"Host": host, "Sluice-Log": "1"}
            async with session.get(f"{plain}/log/topics", headers=headers) as answer:
                assert answer.status == 403


async def test_a_remote_log_says_how_its_topics_are_kept() -> None:
    behind = connect("memory://")
    await behind.admin().create_topics(
        [TopicSpec(name="t", partitions=2, retention_s=60.0), TopicSpec(name="u", compacted=True)]
    )
    asked = ["t", "u", "there-is-none"]
    async with serve(behind) as url:
        remote = connect(url)
        told, known = remote.admin(), behind.admin()
        assert isinstance(told, TellsStates) and isinstance(known, TellsStates)
        found = await told.states(asked)
        assert found == await known.states(asked)
        assert (found["t"].partitions, found["t"].configs["retention.ms"]) == (2, "60000")
        assert await gone_before(remote, asked, 1.7e9) == {"t": 1.7e9 - 60.0, "u": inf, "there-is-none": inf}
        await remote.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("produce", b""),
        ("produce", b"\xff\xff\xff\xff"),
        ("produce", b"\x02\x00\x00\x00{}"),
        ("produce", b'\x17\x00\x00\x00{"blocks":[["t",0,999]]}'),
        ("fetch", b"not json"),
        ("fetch", b"[]"),
        ("fetch", b'{"positions":[]}'),
        ("fetch", b'{"positions":[["absent",0,0]]}'),
        ("fetch", b'{"positions":[["t",0,-4]]}'),
        ("fetch", b'{"positions":[["t","0"]],"wait":1}'),
        ("fetch", b'{"positions":[["t",0,0]],"wait":"long"}'),
        ("fetch", b'{"positions":[["t",0,0],["t",7,0]]}'),
        ("offsets", b'{"partitions":[["t",7]]}'),
        ("offsets", b'{"partitions":{}}'),
        ("committed", b'{"group":1,"partitions":[]}'),
        ("topics", b'{"topics":[{"name":"../x"}]}'),
        ("topics", b'{"topics":[{"name":"x","partitions":0}]}'),
        ("topics", b'{"topics":[{"name":"x","owner":0}]}'),
    ],
)
async def test_a_remote_log_refuses_malformed_calls_in_one_line(path: str, body: bytes) -> None:
    behind = connect("memory://")
    await behind.admin().create_topics([TopicSpec(name="t")])
    async with serve(behind) as url, ClientSession(headers={"Sluice-Log": "1"}) as session:
        answer = await session.post(f"{url.removeprefix('memory+')}/log/{path}", data=body)
        assert answer.status == 400
        assert (await answer.json())["problem"]
    assert await behind.admin().topics() == {"t"}
    assert isinstance(behind, MemoryBroker) and not behind._consumers


@pytest.mark.parametrize("at", [1e308, -1e308, 1e15, -1.0])
async def test_a_remote_log_refuses_a_record_of_a_time_that_is_none(at: float) -> None:
    behind = connect("memory://")
    await behind.admin().create_topics([TopicSpec(name="t")])
    async with serve(behind) as url:
        remote = connect(url)
        producer = remote.producer()
        await producer.start()
        with pytest.raises(InvalidInputError, match="timestamp"):
            await (await producer.send("t", b"value", timestamp=at))
        await (await producer.send("t", b"value", timestamp=1.5))
        await producer.stop()
        await remote.close()


async def test_a_front_of_a_system_whose_log_lies_elsewhere_is_told_from_one_that_is_not_there() -> None:
    async with TestServer(web.Application()) as front:
        other = connect(f"memory+{front.make_url('')}")
        with pytest.raises(UnreachableError, match=r"holds no log: .* on another broker; name it here"):
            await other.admin().topics()
        topics = Topics()
        with pytest.raises(UnreachableError, match="holds no log"):
            await await_served(other, topics, ["a"], within=0.0, say=lambda _: None)
        await other.close()
        with pytest.raises(UnreachableError, match="holds no log"):
            async with Client(BrokerLog(other)):
                pass
        assert isinstance(other, RemoteBroker)
        assert other._connection._session is None, "who could not connect is disconnected"


async def test_a_remote_log_that_is_not_there_says_so() -> None:
    absent = connect("memory+http://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="nothing answers"):
        await absent.admin().topics()
    with pytest.raises(ConfigurationError, match="groups only within"):
        absent.consumer(topics=["t"], group="g")
    await absent.close()
