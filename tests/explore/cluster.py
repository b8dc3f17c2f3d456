"""A broker as its clients see one over a network: Kafka's groups, transactions and failures, on the embedded log.

Rules. A request takes its way to the broker and its answer the way back; either can be held up, and while a link is
cut both wait, for at most ``REQUEST`` seconds where the real client gives up. Sends of one link arrive in order. A
member of a group lives by its heartbeats; one that is silent for ``SESSION`` is taken out, and learns of it when it
asks again. A rebalance waits for all members, at most ``REBALANCE`` seconds. A transaction is written as one, by the
newest epoch of its id; an answer that is lost leaves its writer not knowing. Who keeps the transactions may be away
(until ``coordinator_back``) while all else answers.
"""

import asyncio
import contextvars
import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from sluicegate.streams.broker_settings import MemorySettings
from sluicegate.streams.memory.broker import MemoryStore
from sluicegate.streams.ports import BrokerError, DeliveryError, Letter, TopicPartition, Written
from tests.explore.groups import Group
from tests.explore.invariants import Witness
from tests.explore.loop import BASE, VirtualLoop

if TYPE_CHECKING:
    from tests.explore.clients import Consumer

REQUEST = 3.0
_NETWORK = contextvars.Context()
"""What goes on between the processes is nobody's: it goes on, whatever becomes of them."""


class Cluster:
    """The log and the coordinators, which never lose anything, behind links that do."""

    def __init__(self, loop: VirtualLoop, rng: Random, witness: Witness) -> None:
        self.loop = loop
        self.witness = witness
        self.rng = rng
        self.store = MemoryStore(MemorySettings(), lambda: BASE + loop.time())
        self.groups: dict[str, Group] = {}
        self.epochs: dict[str, int] = {}
        self.delay = rng.choice((0.0005, 0.002, 0.004))
        self.disk = 0.0
        self.coordinator_back = 0.0
        self.written = hashlib.blake2b(digest_size=8)
        self._waiting: dict[TopicPartition, dict[Consumer, None]] = {}

    def append(self, letter: Letter, by: "Link | None") -> Written:
        """Write one record, tell who waits for it, and add it to the digest of all that was written."""
        place = self.store.append(
            letter.topic, letter.value, letter.key, letter.headers, letter.partition, letter.timestamp
        )
        self.written.update(struct.pack("<dq", self.loop.time(), place.offset) + place.topic.encode())
        self.written.update((letter.value or b"") + (letter.key or b""))
        self.witness.wrote(letter, place, by)
        for consumer in tuple(self._waiting.get(TopicPartition(place.topic, place.partition), ())):
            consumer.wake()
        return place

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """The group goes on there."""
        for partition, offset in offsets.items():
            self.store.offsets[group, partition] = offset
            self.witness.committed(group, partition, offset)

    def watch(self, consumer: "Consumer", partitions: Iterable[TopicPartition]) -> None:
        """Wake ``consumer`` when something is written there."""
        for partition in partitions:
            self._waiting.setdefault(partition, {})[consumer] = None

    def unwatch(self, consumer: "Consumer", partitions: Iterable[TopicPartition]) -> None:
        """No more."""
        for partition in partitions:
            self._waiting.get(partition, {}).pop(consumer, None)

    def group(self, name: str) -> "Group":
        """The group of that name."""
        return self.groups.setdefault(name, Group(self))

    def cut(self, links: Iterable["Link"], seconds: float) -> None:
        """Nothing passes these links for a while."""
        until = self.loop.time() + seconds
        for link in links:
            link.cut(until)


class Link:
    """One process's connection. ``lossy``: the share of sends that nobody acknowledges; half of them are written."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.loop = cluster.loop
        self.rng = Random(cluster.rng.getrandbits(64))
        self.usual = self.delay = cluster.delay * self.rng.choice((0.5, 1.0, 1.0, 4.0, 12.0))
        self.lossy = 0.0
        self._cut_until = 0.0
        self._last_arrival = 0.0
        self._sending: list[_Sending] = []
        self.readers: list[Consumer] = []
        self.gone = False

    @property
    def up(self) -> bool:
        """Whether anything passes now."""
        return self.loop.time() >= self._cut_until

    def cut(self, until: float) -> None:
        """Let nothing pass until then."""
        self._cut_until = max(self._cut_until, until)

    def way(self) -> float:
        """Seconds of one direction."""
        return self.delay * self.rng.uniform(0.4, 2.0)

    async def reach(self) -> None:
        """The way to the broker. Raises BrokerError where it is cut for too long."""
        until = self.loop.time() + REQUEST
        while not self.up:
            if self.loop.time() >= until:
                raise BrokerError(f"{self.name}: no answer within {REQUEST:g} s")
            await asyncio.sleep(min(self._cut_until, until) - self.loop.time() + 1e-6)
        await asyncio.sleep(self.way())

    async def back(self) -> None:
        """The way back."""
        await self.reach()

    def send(self, letter: Letter) -> "asyncio.Future[Written]":
        """Queue a record; the broker has it later, in order."""
        sending = _Sending(letter, self.loop.create_future())
        self._sending.append(sending)
        self._last_arrival = max(self._last_arrival, self.loop.time() + self.way())
        self._later(self._last_arrival, self._arrive)
        return sending.acknowledged

    def break_off(self) -> None:
        """The process is dead: of what was on its way, the broker gets some first part, and tells nobody."""
        reached = self.rng.randrange(len(self._sending) + 1) if self.up and self._sending else 0
        for sending in self._sending[:reached]:
            self.cluster.append(sending.letter, self)
        self._sending.clear()
        self.gone = True

    def _later(self, when: float, what: "object") -> None:
        self.loop.call_at(when, what, context=_NETWORK)

    def _arrive(self) -> None:
        if not self._sending:
            return
        if not self.up:
            self._later(self._cut_until, self._arrive)
            return
        sending = self._sending.pop(0)
        lost = self.rng.random() < self.lossy
        written = None if lost and self.rng.random() < 0.5 else self.cluster.append(sending.letter, self)
        kept = self.loop.time() + self.way() + self.cluster.disk * self.rng.random()
        self._later(kept, lambda: sending.settle(None if lost else written))

    @property
    def unacknowledged(self) -> int:
        """Sends on their way."""
        return len(self._sending)


@dataclass(slots=True)
class _Sending:
    letter: Letter
    acknowledged: "asyncio.Future[Written]"

    def settle(self, written: Written | None) -> None:
        if self.acknowledged.done():
            return
        if written is None:
            self.acknowledged.set_exception(DeliveryError(f"{self.letter.topic}: nobody knows whether it was written"))
        else:
            self.acknowledged.set_result(written)
