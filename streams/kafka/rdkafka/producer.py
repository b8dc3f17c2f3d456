"""Producer of Apache Kafka, on librdkafka.

Rules. Idempotent, acks from all, one a process: a send is queued and its future tells of the acknowledgement. A thread
waits for acknowledgements and wakes the event loop once for all that came together. The client retries what may be
retried without an end and without duplicates, and begins anew by itself where sequence numbers are broken. A batch that
is refused for a record in it is taken apart: each of its records is sent in a batch of its own, and only the one that
is at fault is refused for good: too large, as are others of its size from then on, or with a timestamp, or without a
key, that its topic does not take. Anything else fails with DeliveryError and is its sender's to send again. A client
with an error that it cannot outlive is replaced.
"""

import asyncio
import logging
import threading
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.consumer import Counts
from sluicegate.streams.kafka.rdkafka.connection import connection, failed, tell, writing
from sluicegate.streams.kafka.topic_limits import Limits, not_taken, size_of
from sluicegate.streams.ports import (
    BrokerError,
    DeliveryError,
    Headers,
    UnknownTopicError,
    UnreachableError,
    Written,
)
from sluicegate.streams.topics import check_topic_name

log = logging.getLogger(__name__)

TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
AT_FAULT = (*TOO_LARGE, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD)
"""Errors for a record that its topic never takes, or for its batch, where the broker does not say which."""
_REFUSED = (*AT_FAULT, KafkaError._INVALID_DIFFERENT_RECORD)
"""Errors for a record in a batch, this one or another."""
_TOPIC_WAIT = 3.0
"""Seconds that a topic may take to be known after it was created."""
_ROOM = 0.002
_LOOK = 0.2
"""Seconds after which the thread looks whether it is to end."""
_NOT_ASKED = 1 << 31
"""Partitions of a topic that could not be asked for: the client finds out."""


class _Sending:
    """A record on its way, and the future that its sender holds."""

    __slots__ = ("client", "headers", "key", "milliseconds", "partition", "topic", "value", "written")

    def __init__(
        self,
        written: "asyncio.Future[Written]",
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int,
        milliseconds: int,
    ) -> None:
        self.written = written
        self.topic = topic
        self.value = value
        self.key = key
        self.headers = headers
        self.partition = partition
        self.milliseconds = milliseconds
        self.client: _Client | None = None

    def __call__(self, error: Any, message: Any) -> None:
        """Its fate, told in the thread that waits for it."""
        assert self.client is not None
        self.client.told.append((self, error, message))

    @property
    def size(self) -> int:
        """Bytes, alone in its batch."""
        return size_of(self.key, self.value, self.headers)


class _Client:
    """One client of the library, and the thread that waits for its acknowledgements."""

    def __init__(self, producer: "RdkafkaProducer", properties: dict[str, Any]) -> None:
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self.told: list[tuple[_Sending, Any, Any]] = []
        self._inner = Producer(properties)
        self._ends = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._wait, name="sluice-acknowledgements", daemon=True).start()

    def produce(self, sending: _Sending) -> None:
        """Queue it. Raises BufferError where there is no room."""
        sending.client = self
        self._inner.produce(
            sending.topic,
            sending.value,
            sending.key,
            sending.partition,
            on_delivery=sending,
            timestamp=sending.milliseconds,
            headers=list(sending.headers) if sending.headers else None,
        )

    def end(self) -> None:
        """Give up what is not acknowledged, then disconnect."""
        self._ends = True

    def _wait(self) -> None:
        while not self._ends:
            try:
                self._inner.poll(_LOOK)
            except KafkaException as raised:  # it writes no more
                self._ends = True
                tell(self._loop, self._producer.renew, self, failed(raised))
            self._pass_on()
        self._inner.purge()
        with suppress(KafkaException):
            self._inner.poll(0)
        self._pass_on()
        del self._inner  # disconnects, which may take its time
        tell(self._loop, _done, self.ended)

    def _pass_on(self) -> None:
        if self.told:
            told, self.told = self.told, []
            tell(self._loop, self._producer.settle, told)


class RdkafkaProducer:
    """Implements ``sluicegate.streams.ports.Producer``."""

    def __init__(self, servers: str, settings: KafkaSettings, limits: Limits, counts: Counts) -> None:
        self._servers = servers
        self._settings = settings
        self._limits = limits
        self._counts = counts
        self._client: _Client | None = None
        self._alone: _Client | None = None
        self._known: dict[str, int] = {}
        self._on_the_way = 0
        self._quiet = asyncio.Event()

    async def start(self) -> None:
        """Connect. Raises ConfigurationError where no broker answers."""
        if self._client is None:
            await self._counts.partitions(())
            self._client = self._new_client()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> "asyncio.Future[Written]":
        """Queue a record."""
        while True:
            sent = self.try_send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)
            if sent is not None:
                return sent
            if self._known.get(topic, 0) <= (partition or 0):
                await self._learn(topic, partition or 0)
            else:
                await asyncio.sleep(_ROOM)

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> "asyncio.Future[Written] | None":
        """Queue a record, where its topic is known and there is room."""
        if value is None and key is None:
            raise InvalidInputError("record", "has neither key nor value; give one of them")
        if (excess := self._limits.excess(topic, key, value, headers)) is not None:
            raise InvalidInputError("record", excess)
        client = self._client
        if client is None:
            raise ConfigurationError("this producer is not started (or stopped): await start() before send()")
        if self._known.get(topic, 0) <= (partition or 0):
            return None
        written: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        milliseconds = 0 if timestamp is None else round(timestamp * 1e3)
        chosen = -1 if partition is None else partition
        try:
            client.produce(_Sending(written, topic, value, key, headers, chosen, milliseconds))
        except BufferError:
            return None
        except KafkaException as raised:
            error = failed(raised)
            if _is_fatal(error):
                self.renew(client, error)
                return None
            if error.code() != KafkaError._UNKNOWN_TOPIC:
                raise BrokerError(f"{topic}: cannot be written to ({error.str()})") from raised
            self._known.pop(topic, None)
            raise UnknownTopicError(f"topic {topic!r} does not exist any more") from raised
        self._on_the_way += 1
        return written

    async def flush(self) -> None:
        """Wait until all that was sent is acknowledged."""
        while self._on_the_way:
            self._quiet.clear()
            await self._quiet.wait()

    async def stop(self) -> None:
        """Flush and disconnect; what is not acknowledged within the stop timeout fails."""
        client, self._client = self._client, None
        if client is None:
            return
        try:
            async with asyncio.timeout(self._settings.stop_timeout):
                await self.flush()
        except TimeoutError:
            log.warning("%d records were not acknowledged before the producer stopped", self._on_the_way)
        clients = [one for one in (client, self._alone) if one is not None]
        self._alone = None
        for one in clients:
            one.end()
        await asyncio.wait([one.ended for one in clients], timeout=self._settings.stop_timeout)

    def settle(self, told: "list[tuple[_Sending, Any, Any]]") -> None:
        """What became of these: (sending, error, where it is)."""
        for sending, error, message in told:
            if error is None:
                self._end(sending, Written(sending.topic, message.partition(), message.offset()))
            else:
                self._failed(sending, error)

    def _failed(self, sending: _Sending, error: KafkaError) -> None:
        if error.code() in _REFUSED:
            if sending.client is self._alone or sending.size > self._settings.batch_bytes:
                self._end(sending, self._refusal(sending, error))
                return
            if self._send_alone(sending):
                return
        if _is_fatal(error) and sending.client is not None:
            self.renew(sending.client, error)
        self._end(sending, DeliveryError(f"{sending.topic}: not acknowledged ({error.str()})"))

    def _refusal(self, sending: _Sending, error: KafkaError) -> InvalidInputError:
        if error.code() in TOO_LARGE:
            self._limits.refused(sending.topic, sending.size)
            said = f"{sending.size} bytes are too large for topic {sending.topic}; send less at once"
        else:
            said = not_taken(sending.topic, error.str())
        return InvalidInputError("record", said)

    def _send_alone(self, sending: _Sending) -> bool:
        """In a batch of its own; whether it could be queued."""
        if self._client is None:
            return False
        if self._alone is None:
            self._alone = self._new_client(**{"batch.num.messages": 1})
        try:
            self._alone.produce(sending)
        except (BufferError, KafkaException):
            return False
        return True

    def _end(self, sending: _Sending, fate: Written | Exception) -> None:
        self._on_the_way -= 1
        if not self._on_the_way:
            self._quiet.set()
        if sending.written.done():
            return
        if isinstance(fate, Exception):
            sending.written.set_exception(fate)
        else:
            sending.written.set_result(fate)

    def renew(self, failed: _Client, error: KafkaError) -> None:
        """Put a new client in the place of one that writes no more; what was on its way by that fails."""
        if failed not in (self._client, self._alone):
            return
        log.warning("producer of %s begins anew after: %s", self._servers, error.str())
        if failed is self._client:
            self._client = self._new_client()
        else:
            self._alone = None
        failed.end()

    def _new_client(self, **more: Any) -> _Client:
        settings = self._settings
        properties = {
            **connection(self._servers, settings),
            **writing(settings, self._limits.batch_bytes),
            "linger.ms": 1e3 * settings.linger,
            "message.timeout.ms": 0,
            **more,
        }
        return _Client(self, properties)

    async def _learn(self, topic: str, partition: int) -> None:
        """How many partitions the topic has. Raises UnknownTopicError where there is no such one."""
        check_topic_name(topic)
        until = asyncio.get_running_loop().time() + _TOPIC_WAIT
        while True:
            try:
                counts = await self._counts.partitions([topic])
            except (BrokerError, UnreachableError) as error:
                log.warning("%s is not looked up (%s): the client will find out", topic, error)
                self._known[topic] = _NOT_ASKED
                return
            if topic in counts:
                self._known[topic] = counts[topic]
                if partition >= counts[topic]:
                    raise UnknownTopicError(f"topic {topic!r} has no partition {partition}; it has {counts[topic]}")
                return
            if asyncio.get_running_loop().time() > until:
                raise UnknownTopicError(f"topic {topic!r} does not exist; topics are created before use")
            await asyncio.sleep(0.25)


def _is_fatal(error: KafkaError) -> bool:
    return bool(error.fatal()) or error.code() == KafkaError._FATAL


def _done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
