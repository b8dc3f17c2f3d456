"""Exactly-once writing on Apache Kafka, by librdkafka: a partition's results and its offsets, in one transaction.

Rules. One transactional producer an input partition, its id always the same (``<group>/<topic>/<partition>``): who
takes the partition over starts with that id, which fences whoever had it, whatever the group's generation says. A
client that hears of an older epoch is fenced, and does nothing more: the library by itself would ask for a newer epoch,
and so fence its heir. After any other error the transaction is undone, and the caller tries again: with a new client,
unless the old one can go on. One thread at a time waits for a client.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.consumer import Counts
from sluicegate.streams.kafka.rdkafka.connection import client_log, connection, failed, in_thread, writing
from sluicegate.streams.kafka.rdkafka.producer import AT_FAULT, TOO_LARGE
from sluicegate.streams.kafka.topic_limits import Limits, not_taken
from sluicegate.streams.kafka.transactions import BACKOFF_MS, MissingTopics
from sluicegate.streams.ports import BrokerError, FencedError, Letter, LettersNotTakenError, TopicPartition

log = logging.getLogger(__name__)

_FENCED = (
    KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
)  # fmt: skip
_REFUSED = (
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION,
)  # fmt: skip


class _UnsentError(BrokerError):
    """Nothing was written, because some of the letters at the indexes ``letters`` could not be sent."""

    def __init__(self, message: str, letters: tuple[int, ...]) -> None:
        super().__init__(message)
        self.letters = letters


class RdkafkaTransactions:
    """Implements ``sluicegate.streams.ports.Transactions``."""

    def __init__(
        self, servers: str, settings: KafkaSettings, limits: Limits, counts: Counts, transactional_id: str
    ) -> None:
        self._servers = servers
        self._settings = settings
        self._limits = limits
        self._id = transactional_id
        self._missing = MissingTopics(counts, transactional_id)
        self._inner: Any = None
        self._started = False
        self._one = threading.Lock()
        self._members: dict[str, Any] = {}

    async def start(self) -> None:
        """Connect and fence. Raises BrokerError where the broker is not ready, ConfigurationError where it refuses."""
        self._started = True
        await in_thread(self._begin)

    async def write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
        """All of it, or nothing."""
        if not self._started:
            raise ConfigurationError("these transactions are not started (or stopped): await start() first")
        self._check_sizes(letters)
        await self._missing.check(letters, self._missing.found)
        try:
            await in_thread(self._write, letters, offsets, group)
        except _UnsentError as error:
            await self._missing.check(letters, frozenset(letters[i].topic for i in error.letters))
            raise

    async def stop(self) -> None:
        """Disconnect, within a bound."""
        self._started = False
        try:
            async with asyncio.timeout(self._settings.stop_timeout):
                await in_thread(self._end)
        except TimeoutError:
            log.warning("%s did not end in time", self._id)

    # In a thread, one at a time: who is cancelled leaves it working.

    def _begin(self) -> None:
        with self._one:
            self._inner = self._inner or self._connect()

    def _end(self) -> None:
        with self._one:
            self._inner = None  # disconnects, which may take its time

    def _write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
        with self._one:
            if not self._started:
                raise BrokerError(f"{self._id}: stopped")
            inner = self._inner = self._inner or self._connect_again()
            self._write_by(inner, letters, offsets, group)

    def _write_by(
        self, inner: Any, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str
    ) -> None:
        fates: dict[int, KafkaError] = {}
        try:
            self._transact(inner, letters, offsets, group, fates)
        except KafkaException as raised:
            error = failed(raised)
            seen = {error.code(), *(fate.code() for fate in fates.values())}
            fenced = not seen.isdisjoint(_FENCED)
            undone = not fenced and self._undone(inner)  # which hears of further fates
            refused = tuple(i for i, fate in fates.items() if fate.code() in AT_FAULT)
            # Refused batches leave a gap in the sequence numbers, which an undone transaction does not close.
            if refused or not undone:
                self._inner = None
                inner.purge()
            if fenced:
                raise FencedError(f"{self._id}: another has taken over") from raised
            if refused:
                topics = ", ".join(sorted({letters[i].topic for i in refused}))
                why = fates[refused[0]]
                told = f"too large for {topics}" if why.code() in TOO_LARGE else not_taken(topics, why.str())
                raise LettersNotTakenError(f"{self._id}: {told}", refused) from raised
            told = f"{self._id}: not written ({error.str()})"
            raise (_UnsentError(told, tuple(fates)) if fates else BrokerError(told)) from raised

    def _transact(
        self,
        inner: Any,
        letters: Sequence[Letter],
        offsets: Mapping[TopicPartition, int],
        group: str,
        fates: dict[int, KafkaError],
    ) -> None:
        patience = self._settings.request_timeout
        until = time.monotonic() + patience
        inner.begin_transaction()
        for i, letter in enumerate(letters):
            produce = partial(
                inner.produce,
                letter.topic,
                letter.value,
                letter.key,
                -1 if letter.partition is None else letter.partition,
                on_delivery=partial(_noted, fates, i),
                timestamp=0 if letter.timestamp is None else round(1e3 * letter.timestamp),
                headers=list(letter.headers) if letter.headers else None,
            )
            _once_there_is_room(inner, produce, until)
        moved = [KafkaPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        inner.send_offsets_to_transaction(moved, self._member(group), patience)
        inner.commit_transaction(patience)

    def _undone(self, inner: Any) -> bool:
        """Whether the transaction could be undone, within a bound, so that the client can begin another one."""
        try:
            inner.abort_transaction(self._settings.stop_timeout)
        except KafkaException as error:
            log.debug("%s: not undone (%s)", self._id, error)
            return False
        return True

    def _member(self, group: str) -> Any:
        """Whose offsets are moved: the group's, whatever its generation, for it is the id that fences."""
        if group not in self._members:
            nobody = Consumer({"group.id": group, "logger": client_log})
            self._members[group] = nobody.consumer_group_metadata()
            nobody.close()
        return self._members[group]

    def _connect(self) -> Any:
        settings = self._settings
        inner = Producer(
            {
                **connection(self._servers, settings),
                **writing(settings, self._limits.batch_bytes),
                "transactional.id": self._id,
                "transaction.timeout.ms": int(1e3 * settings.transaction_timeout),
                "message.timeout.ms": int(1e3 * settings.transaction_timeout),
                "linger.ms": 0,
                "retry.backoff.ms": BACKOFF_MS,
            }
        )
        try:
            inner.init_transactions(settings.request_timeout)
        except KafkaException as raised:
            error = failed(raised)
            kind = ConfigurationError if error.code() in _REFUSED else BrokerError
            raise kind(f"{self._id}: cannot begin ({error.str()})") from raised
        return inner

    def _connect_again(self) -> Any:
        """A new client, whose start undoes what the one before it left."""
        try:
            return self._connect()
        except ConfigurationError as error:
            raise BrokerError(str(error)) from error

    def _check_sizes(self, letters: Sequence[Letter]) -> None:
        told = [(i, self._limits.excess(one.topic, one.key, one.value, one.headers)) for i, one in enumerate(letters)]
        if refused := [(i, excess) for i, excess in told if excess is not None]:
            raise LettersNotTakenError(f"{self._id}: {refused[0][1]}", tuple(i for i, _ in refused))


def _once_there_is_room(inner: Any, produce: Callable[[], None], until: float) -> None:
    """Call ``produce`` once the queue of ``inner`` has room. Raises KafkaException where it has none by ``until``
    (monotonic seconds)."""
    while True:
        try:
            return produce()
        except BufferError:
            left = until - time.monotonic()
            if left <= 0.0:
                raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from None
            inner.poll(left)


def _noted(fates: dict[int, KafkaError], number: int, error: KafkaError | None, message: Any) -> None:
    del message
    if error is not None:
        fates[number] = error
