"""What a client that is cancelled while it begins leaves behind: no connection."""

import asyncio
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.broker import KafkaBroker

METADATA = 3

STARTS: dict[str, Callable[[KafkaBroker], Coroutine[Any, Any, Any]]] = {
    "admin": lambda broker: broker.admin().topics(),
    "consumer": lambda broker: broker.consumer(topics=["t"], group="g").start(),
    "producer": lambda broker: broker.producer().start(),
    "transactions": lambda broker: broker.transactions("id").start(),
}


class HesitantBroker:
    """Says at once what it understands, and of its cluster nothing before ``go``."""

    def __init__(self) -> None:
        self.asked, self.go, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("sockname")
        with suppress(asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, _, correlation = struct.unpack_from(">hhi", await reader.readexactly(size))
                answer = struct.pack(">hihhh", 0, 1, METADATA, 0, 0)
                if key == METADATA:
                    self.asked.set()
                    await self.go.wait()
                    host = address[0].encode()
                    answer = struct.pack(f">iih{len(host)}sii", 1, 0, len(host), host, address[1], 0)
                writer.write(struct.pack(">ii", 4 + len(answer), correlation) + answer)
        writer.close()
        self.closed.set()


@pytest.mark.parametrize("role", STARTS)
async def test_a_start_that_is_cancelled_leaves_no_connection_open(role: str) -> None:
    hesitant = HesitantBroker()
    server = await asyncio.start_server(hesitant.talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    broker = KafkaBroker(f"127.0.0.1:{port}", KafkaSettings())
    starting = asyncio.create_task(STARTS[role](broker))
    async with asyncio.timeout(20.0):
        await hesitant.asked.wait()
        starting.cancel()
        asyncio.get_running_loop().call_later(0.1, hesitant.go.set)
        await asyncio.wait([starting])
        assert starting.cancelled()
        await hesitant.closed.wait()
    await broker.close()
    server.close()
    await server.wait_closed()
