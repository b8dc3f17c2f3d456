"""Producer of Apache Kafka.

Rules. Idempotent, acks from all, one a process: a send is queued and its future tells of the
acknowledgement. What may be retried is retried by the client without an end and without duplicates. After an error that
may not, the broker refuses the partition's later sequence numbers, so a new client takes the old one's place. What was
refused for its sequence number is sent again there; a batch refused for a record in it is taken apart, each of its
records is sent alone, and only the one that is at fault is refused for good: too large, as are others of its size from
then on, or with a timestamp, or without a key, that its topic does not take. Anything else fails with DeliveryError and
is its sender's to send again.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    BrokerResponseError,
    InvalidTimestampError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    RecordListTooLargeError,
    kafka_errors,
)

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.connection import (
    close_what_it_begins_with,
    connection,
    unreachable,
)
from sluicegate.streams.kafka.topic_limits import UNLIMITED, Limits, not_taken, size_of
from sluicegate.streams.memory.partitioner import partition_of
from sluicegate.streams.ports import DeliveryError, Headers, UnknownTopicError, Written
from sluicegate.streams.topics import check_topic_name
from sluicegate_client.outages import give_up, refresh_seldom

log = logging.getLogger(__name__)

T = TypeVar("T")


class InvalidRecordError(BrokerResponseError):  # type: ignore[misc]
    """A record of the batch is not what its topic takes. The client has no name for it, and would call it unknown."""

    errno = 87
    message = "INVALID_RECORD"


kafka_errors[InvalidRecordError.errno] = InvalidRecordError

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
NOT_TAKEN = (*TOO_LARGE, InvalidTimestampError, InvalidRecordError)
"""Errors for a record in a batch: sent again, that one is refused again."""
_NOT_WRITTEN = (*NOT_TAKEN, OutOfOrderSequenceNumber)
"""Errors by which the broker says that it has not taken a batch: sending again makes no duplicates."""

_TOPIC_WAIT = 3.0
"""Seconds that a topic may take to be known after it was created."""


@dataclass(slots=True)
class _Sending:
    """A record on its way, and the future that its sender holds."""

    written: asyncio.Future[Written]
    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers
    partition: int | None
    milliseconds: int | None

    @property
    def size(self) -> int:
        """Bytes, alone in its batch."""
        return size_of(self.key, self.value, self.headers)

    def fail(self, error: Exception) -> None:
        if not self.written.done():
            self.written.set_exception(error)

    def succeed(self, metadata: Any) -> None:
        if not self.written.done():
            self.written.set_result(Written(self.topic, metadata.partition, metadata.offset))


class KafkaProducer:
    """Implements ``sluicegate.streams.ports.Producer``."""

    def __init__(self, servers: str, settings: KafkaSettings, limits: Limits) -> None:
        self._servers = servers
        self._settings = settings
        self._limits = limits
        self._inner: Any = None
        self._renewal: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_alone = asyncio.Lock()
        self._unsettled: set[asyncio.Future[Written]] = set()
        self._asking: dict[Any, set[asyncio.Task[Any]]] = {}
        """What waits for answers of each client: one that was stopped gives none, and does not say so."""

    async def start(self) -> None:
        """Connect. Raises ConfigurationError where no broker answers."""
        if self._inner is None:
            self._inner = await self._connect()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> asyncio.Future[Written]:
        """Queue a record."""
        if value is None and key is None:
            raise InvalidInputError("record", "has neither key nor value; give one of them")
        if (excess := self._limits.excess(topic, key, value, headers)) is not None:
            raise InvalidInputError("record", excess)
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        inner = self._inner
        if inner is None:
            raise ConfigurationError("this producer is not started (or stopped): await start() before send()")
        known = inner.client.cluster.partitions_for_topic(topic)
        if known is None:
            known = await self._by(inner, self._partitions_of(inner, topic))
        if partition is None:
            # The client's own choice hashes the key even where there is one partition only.
            partition = partition_of(key, len(known)) if key is not None else None
        elif partition not in known:
            raise UnknownTopicError(f"topic {topic!r} has no partition {partition}; it has {len(known)}")
        milliseconds = None if timestamp is None else round(timestamp * 1e3)
        written: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        sending = _Sending(written, topic, value, key, headers, partition, milliseconds)
        try:
            sent = await _send(inner, sending)
        except KafkaError as error:
            self._renew(inner, error)
            raise DeliveryError(f"{topic}: not sent ({error})") from error
        self._unsettled.add(written)
        written.add_done_callback(self._unsettled.discard)
        sent.add_done_callback(lambda future: self._settle(inner, sending, future))
        return written

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> asyncio.Future[Written] | None:
        """Never: a send may wait for metadata or room."""
        del topic, value, key, headers, partition, timestamp
        return None

    async def flush(self) -> None:
        """Wait until all that was sent is acknowledged, what is sent again too. Who gives up waiting stops nothing."""
        while self._unsettled:
            await asyncio.wait(self._unsettled)

    async def stop(self) -> None:
        """Flush and disconnect; what is not acknowledged within the stop timeout fails."""
        until = asyncio.get_running_loop().time() + self._settings.stop_timeout
        if pending := [*self._tasks, *([self._renewal] if self._renewal is not None else [])]:
            await asyncio.wait(pending, timeout=self._settings.stop_timeout)
        inner, self._inner = self._inner, None
        if self._renewal is not None:  # no broker answers
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        if inner is not None:
            await self._stop(inner, until - asyncio.get_running_loop().time())
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self) -> Any:
        settings = self._settings
        inner = AIOKafkaProducer(
            **connection(self._servers, settings),
            enable_idempotence=True,
            acks="all",
            linger_ms=settings.linger * 1e3,
            max_batch_size=self._limits.batch_bytes,
            max_request_size=UNLIMITED,
            compression_type=settings.compression,
        )
        refresh_seldom(inner.client)
        close_what_it_begins_with(inner.client)
        try:
            await inner.start()
        except KafkaConnectionError as error:
            await inner.stop()
            raise unreachable(self._servers, error) from error
        except BaseException:
            await inner.stop()
            raise
        return inner

    async def _by(self, inner: Any, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` with ``inner`` gives. Raises DeliveryError where that is stopped meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        asking = self._asking.setdefault(inner, set())
        asking.add(task)
        try:
            await asyncio.wait([task])
        finally:
            asking.discard(task)
            task.cancel()
        if task.cancelled():
            raise DeliveryError("another client takes the place of the one that was asked")
        return task.result()

    async def _stop(self, inner: Any, within: float) -> None:
        for task in self._asking.pop(inner, ()):
            task.cancel()
        stopping = asyncio.create_task(inner.stop())
        done, _ = await asyncio.wait([stopping], timeout=max(0.0, within))
        if not done:
            # The client retries without an end: ending its sender and giving up its batches lets it go.
            inner._sender.sender_task.cancel()
            await asyncio.wait([stopping], timeout=self._settings.stop_timeout)
            give_up(inner)
        await asyncio.gather(stopping, return_exceptions=True)

    async def _partitions_of(self, inner: Any, topic: str) -> set[int]:
        check_topic_name(topic)
        inner.client.add_topic(topic)
        until = asyncio.get_running_loop().time() + _TOPIC_WAIT
        while True:
            await inner.client.force_metadata_update()
            known: set[int] | None = inner.client.cluster.partitions_for_topic(topic)
            if known is not None:
                return known
            if asyncio.get_running_loop().time() > until:
                inner.client.set_topics(set(inner.client._topics) - {topic})
                raise UnknownTopicError(f"topic {topic!r} does not exist; topics are created before use")
            await asyncio.sleep(0.25)

    def _settle(self, inner: Any, sending: _Sending, future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if future.cancelled():
            sending.fail(DeliveryError(f"{sending.topic}: delivery was cancelled"))
        elif error is None:
            sending.succeed(future.result())
        elif isinstance(error, _NOT_WRITTEN):
            self._renew(inner, error)
            alone = isinstance(error, NOT_TAKEN)
            if alone and sending.size > self._settings.batch_bytes:  # it was a batch of its own
                self._refuse(sending, error)
                return
            task = asyncio.get_running_loop().create_task(self._send_again(sending, alone=alone))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._renew(inner, error)
            sending.fail(DeliveryError(f"{sending.topic}: not acknowledged ({error})"))

    async def _send_again(self, sending: _Sending, *, alone: bool) -> None:
        """Until it is written, or refused for itself: another that is refused breaks its sequence number once more."""
        while not sending.written.done():
            # One alone after the other: each that is refused breaks the numbers of all that are behind it.
            async with self._one_alone if alone else nullcontext():
                alone = await self._try_again(sending, alone=alone)

    async def _try_again(self, sending: _Sending, *, alone: bool) -> bool:
        """Whether it is to be sent alone, should its fate be open still."""
        topic = sending.topic
        inner = None
        try:
            if self._renewal is not None:
                await asyncio.wait([self._renewal])
            inner = self._inner
            if inner is None:
                raise DeliveryError(f"{topic}: the producer was stopped")
            sent = await self._by(inner, (_send_alone if alone else _send)(inner, sending))
            sending.succeed(await sent)
        except NOT_TAKEN as error:
            self._renew(inner, error)
            if alone:
                self._refuse(sending, error)
            return True
        except OutOfOrderSequenceNumber as error:
            self._renew(inner, error)
        except (KafkaError, DeliveryError) as error:
            self._renew(inner, error)
            sending.fail(DeliveryError(f"{topic}: not acknowledged ({error})"))
        return alone

    def _refuse(self, sending: _Sending, error: Exception) -> None:
        if isinstance(error, TOO_LARGE):
            self._limits.refused(sending.topic, sending.size)
            told = f"{sending.size} bytes are too large for topic {sending.topic}; send less at once"
        else:
            told = not_taken(sending.topic, str(error))
        sending.fail(InvalidInputError("record", told))

    def _renew(self, failed: Any, error: BaseException) -> None:
        """Put a new client in the place of one whose sequence numbers are broken, unless that is under way."""
        if failed is None or self._inner is not failed:  # stopped, or replaced already
            return
        if self._renewal is None and not getattr(error, "retriable", False):
            log.warning("producer of %s begins anew after: %s", self._servers, error)
            self._renewal = asyncio.create_task(self._replace(failed))

    async def _replace(self, failed: Any) -> None:
        pause = 0.1
        try:
            while self._inner is failed:
                try:
                    self._inner = await self._connect()
                except (KafkaError, ConfigurationError) as error:
                    log.warning("no new producer yet: %s", error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, 2.0)
        finally:
            self._renewal = None
        await self._stop(failed, self._settings.stop_timeout)


async def _send(inner: Any, sending: _Sending) -> Any:
    return await inner.send(
        sending.topic, sending.value, sending.key, sending.partition, sending.milliseconds, list(sending.headers)
    )


async def _send_alone(inner: Any, sending: _Sending) -> Any:
    batch = inner.create_batch()
    batch.append(key=sending.key, value=sending.value, timestamp=sending.milliseconds, headers=list(sending.headers))
    return await inner.send_batch(batch, sending.topic, partition=sending.partition or 0)
