"""A network that is parted for the nodes of a broker: they hear nothing of each other, clients hear all."""

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from tests.chaos.links import HOST, Links
from tests.harness import PATIENCE_S

_NODE = """
import socket, sys
while line := sys.stdin.readline():
    try:
        with socket.create_connection(("127.0.0.1", int(line))) as there:
            there.settimeout(60)
            there.sendall(b"x")
            print(there.recv(1).decode() or "cut", flush=True)
    except OSError:
        print("cut", flush=True)
"""


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """A node that gives back what it hears; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        yield int(server.sockets[0].getsockname()[1])


async def test_nodes_that_are_parted_hear_nothing_until_they_are_joined(echo: int) -> None:
    node = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _NODE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert node.stdin is not None and node.stdout is not None
    links = Links(lambda: {1: node.pid}, lambda port: {echo: 2}.get(port, 0))
    told = await asyncio.to_thread(links.told, echo)
    assert told != echo and links.told(echo) == told

    async def said() -> str:
        assert node.stdout is not None
        return (await asyncio.wait_for(node.stdout.readline(), PATIENCE_S)).decode().strip()

    async def client() -> bytes:
        reader, writer = await asyncio.open_connection(HOST, told)
        writer.write(b"y")
        heard = await asyncio.wait_for(reader.read(1), PATIENCE_S)
        writer.close()
        return heard

    def dial() -> None:
        assert node.stdin is not None
        node.stdin.write(f"{told}\n".encode())

    try:
        dial()
        assert await said() == "x"
        links.part(3)  # another's trouble
        dial()
        assert await said() == "x"
        for parted in (1, 2):  # whichever end it is
            links.part(parted)
            dial()
            waiting = asyncio.create_task(said())
            assert await client() == b"y"
            await asyncio.sleep(0.2)
            assert not waiting.done()
            links.join()
            assert await waiting == "cut"
            dial()
            assert await said() == "x"
    finally:
        node.kill()
        await node.wait()
        await asyncio.to_thread(links.close)
