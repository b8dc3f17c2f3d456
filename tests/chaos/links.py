"""What nodes of a broker say to each other goes through here, and can be held back: a network that is parted.

Rules. Nodes and clients are told a port of ours for each that a node listens on. Who has dialled is told by the
process that holds the other end. Between nodes that are parted nothing is said and nothing refused: bytes are held, as
by a switch that has lost its way, and what was held is cut off once they are joined again. Clients pass always.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
_CHUNK = 1 << 16


@dataclass(eq=False)
class _Link:
    """A connection to ``target``, dialled by ``source``, None for a client."""

    source: int | None
    target: int
    passing: asyncio.Event = field(default_factory=asyncio.Event)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)


class Links:
    """Forwarders of one cluster, in a thread. ``pids``: process ids of its nodes, as they are now."""

    def __init__(self, pids: Callable[[], Mapping[int, int]], owner: Callable[[int], int]) -> None:
        self._pids = pids
        self._owner = owner
        self._parted: int | None = None
        self._told: dict[int, int] = {}
        self._links: set[_Link] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def told(self, port: int) -> int:
        """The port to tell others in the place of ``port``; always the same."""
        if port not in self._told:
            self._told[port] = asyncio.run_coroutine_threadsafe(self._listen(port), self._loop).result()
        return self._told[port]

    def part(self, node: int) -> None:
        """Nothing passes any more between ``node`` and the other nodes."""
        self._loop.call_soon_threadsafe(self._part, node)

    def join(self) -> None:
        """All can talk again, on connections that are new."""
        self._loop.call_soon_threadsafe(self._join)

    def close(self) -> None:
        """End the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports tell of their end

    async def _listen(self, port: int) -> int:
        server = await asyncio.start_server(lambda r, w: self._forward(r, w, port), HOST, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _part(self, node: int) -> None:
        self._parted = node
        for link in self._links:
            if self._is_parted(link):
                link.passing.clear()

    def _join(self) -> None:
        self._parted = None
        for link in self._links:
            if not link.passing.is_set():
                for writer in link.writers:
                    writer.transport.abort()
                link.passing.set()

    def _is_parted(self, link: _Link) -> bool:
        """One end is the node that was parted, the other another node."""
        ends = (link.source, link.target)
        return link.source is not None and link.source != link.target and self._parted in ends

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        link = _Link(self._dialled_by(writer), self._owner(port), writers=[writer])
        link.passing.set()
        self._links.add(link)
        if self._is_parted(link):
            link.passing.clear()
        try:
            await link.passing.wait()
            there, onward = await asyncio.open_connection(HOST, port)
            link.writers.append(onward)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, onward, link))
                both.create_task(_pump(there, writer, link))
        except* OSError:
            pass
        finally:
            self._links.discard(link)
            for end in link.writers:
                end.close()

    def _dialled_by(self, writer: asyncio.StreamWriter) -> int | None:
        """The node whose process holds the other end."""
        theirs = int(writer.get_extra_info("peername")[1])
        ours = int(writer.get_extra_info("sockname")[1])
        inode = _inode(theirs, ours)
        for node, pid in self._pids().items():
            if inode is not None and _holds(pid, inode):
                return node
        return None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link) -> None:
    """Until one end closes, then the other is closed too."""
    try:
        while data := await reader.read(_CHUNK):
            await link.passing.wait()
            writer.write(data)
            await writer.drain()
    finally:
        await link.passing.wait()
        with suppress(OSError):
            writer.close()


def _inode(local: int, remote: int) -> str | None:
    """The socket that is connected from port ``local`` to port ``remote``."""
    for table in ("tcp6", "tcp"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if [int(end.rpartition(":")[2], 16) for end in fields[1:3]] == [local, remote]:
                return fields[9]
    return None


def _holds(pid: int, inode: str) -> bool:
    try:
        held = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for link in held:
        with suppress(OSError):
            if str(link.readlink()) == f"socket:[{inode}]":
                return True
    return False
