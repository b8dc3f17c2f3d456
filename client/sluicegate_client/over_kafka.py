"""Kafka's topics, by aiokafka.

Rules. A producer has used up the sequence numbers of a batch that the broker refuses, and whatever else it sends to
that partition is refused for them: another takes its place. What was surely not written is sent again by that one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
)

from sluicegate_client.errors import ClientError, InvalidQueryError
from sluicegate_client.log import Headers, Received
from sluicegate_client.outages import cut_off, give_up, refresh_seldom, speak_seldom
from sluicegate_client.security import Security, check_servers

log = logging.getLogger(__name__)

_MAX_BYTES = 16 << 20
_RETRY = 0.5
_STOPS = 5.0
"""Seconds that a broker has to acknowledge what was sent, once the client is closed."""
_LAST_WORDS = 1.0
"""Seconds in which a client without connections ends what it was asked for."""


class KafkaLog:
    """Implements ``sluicegate_client.log.Log``."""

    def __init__(self, servers: str, security: Security) -> None:
        self._servers = servers
        self._security = security
        self._producer: Any = None
        self._replaced: set[asyncio.Task[None]] = set()
        self._consumers: list[Any] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """Where it is."""
        return f"kafka://{self._servers}"

    async def open(self) -> None:
        """Connect."""
        check_servers(self._servers)
        speak_seldom()
        self._replacing = asyncio.Lock()  # of this event loop
        self._producer = await self._connected()

    async def _connected(self) -> Any:
        """A producer. Raises ClientError where nothing answers."""
        try:
            producer = AIOKafkaProducer(
                **self._options(), linger_ms=1, acks="all", enable_idempotence=True, max_request_size=_MAX_BYTES
            )
        except ValueError as error:
            raise ClientError(f"security: {error}") from error
        refresh_seldom(producer.client)
        try:
            await producer.start()
        except BaseException as error:
            with contextlib.suppress(KafkaError):
                await producer.stop()
            if not isinstance(error, KafkaError):
                raise
            raise ClientError(
                f"no Kafka broker answers at {self._servers} ({error}); correct the address, or what `security` says: "
                "who is refused gets no answer"
            ) from error
        return producer

    async def topics(self) -> frozenset[str]:
        """Names of all topics."""
        try:
            metadata = await self._producer.client.fetch_all_metadata()
        except KafkaError as error:
            raise ClientError(f"topics at {self._servers} cannot be told ({error}); try again") from error
        return frozenset(metadata.topics())

    async def send(self, topic: str, value: bytes, *, key: bytes, headers: Headers) -> None:
        """Write a record; sends again what was surely not written, for as long as it is waited for. Raises
        InvalidQueryError where it is too large for its topic."""
        while True:
            producer = self._producer
            try:
                await producer.send_and_wait(topic, value, key=key, headers=list(headers))
                return
            except KafkaTimeoutError:  # not written: there was no room for it
                continue
            except (OutOfOrderSequenceNumber, ProducerClosed):  # not written
                await self._replace(producer)
            except KafkaError as error:
                if not error.retriable:
                    with contextlib.suppress(ClientError):  # whoever sends next tries again
                        await self._replace(producer)
                if isinstance(error, MessageSizeTooLargeError):
                    told = f"{len(value)} bytes are too large for {topic}; ask about less at once"
                    raise InvalidQueryError("inputs", told) from error
                raise ClientError(f"{topic}: not acknowledged ({error}); it may have been written") from error

    async def _replace(self, producer: Any) -> None:
        """Send by another one from now on, unless that is so. Raises ClientError where that cannot be."""
        async with self._replacing:
            if self._producer is producer:
                made = await self._connected()
                if self._producer is producer:
                    self._producer, made = made, producer
                stopping = asyncio.create_task(_stop_producer(made))
                self._replaced.add(stopping)
                stopping.add_done_callback(self._replaced.discard)
        if self._producer is None:
            raise ClientError("the client was closed before this was written")

    async def follow(
        self, topics: Sequence[str], heard: Callable[[Received], None], *, beginning: bool
    ) -> asyncio.Future[None]:
        """Hear what is written from now on."""
        consumer = AIOKafkaConsumer(
            **self._options(),
            group_id=None,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="latest",
            fetch_max_wait_ms=100,
        )
        self._consumers.append(consumer)
        try:
            await consumer.start()
            metadata = await self._producer.client.fetch_all_metadata()
            partitions = [TopicPartition(t, i) for t in topics for i in sorted(metadata.partitions_for_topic(t) or ())]
            consumer.assign(partitions)
            start = consumer.beginning_offsets if beginning else consumer.end_offsets
            for partition, offset in (await start(partitions)).items():
                consumer.seek(partition, offset)
        except KafkaError as error:
            raise ClientError(f"{', '.join(topics)}: cannot be read ({error})") from error
        reading = asyncio.create_task(_read(consumer, heard))
        self._tasks.append(reading)
        return reading

    async def close(self) -> None:
        """Disconnect, within a bound: who waits for what is not acknowledged by then is told."""
        producer, self._producer = self._producer, None
        tasks, self._tasks = self._tasks, []
        consumers, self._consumers = self._consumers, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(_stop_producer(producer), *self._replaced, *map(_stop_consumer, consumers))

    def _options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._servers,
            "client_id": "sluicegate-client",
            "request_timeout_ms": 10_000,
            "metadata_max_age_ms": 30_000,
            **self._security.options(),
        }


async def _stop_consumer(consumer: Any) -> None:
    stopping = asyncio.create_task(consumer.stop())
    await asyncio.wait([stopping], timeout=_STOPS)
    stopping.cancel()
    ended: list[object] = await asyncio.gather(stopping, return_exceptions=True)
    if ended[0] is not None:
        await cut_off(consumer)


async def _stop_producer(producer: Any) -> None:
    if producer is None:
        return
    stopping = asyncio.create_task(producer.stop())
    done, _ = await asyncio.wait([stopping], timeout=_STOPS)
    if not done:  # it tries without an end
        stopping.cancel()
        sender, client = producer._sender.sender_task, producer.client
        sender.cancel()  # it still waits for the requests that are under way: they end with their connections
        await client.close()
        if client._md_update_fut is None:
            client._md_update_fut = asyncio.get_running_loop().create_future()
        if not client._md_update_fut.done():
            client._md_update_fut.set_result(False)  # nobody looks for brokers any more
        await asyncio.wait([sender], timeout=_LAST_WORDS)
        count = give_up(producer)
        log.warning("%d records were not acknowledged before the client was closed; they may be written", count)
    await asyncio.gather(stopping, return_exceptions=True)


async def _read(consumer: Any, heard: Callable[[Received], None]) -> None:
    """Raises ClientError for what is damaged: behind it, the client would read nothing, and not say so."""
    fetching = consumer._fetcher.error_future
    while True:
        try:
            found = await consumer.getmany(timeout_ms=1000)
            if fetching.done():
                raise fetching.exception() or ClientError("fetching has ended")
        except (RecordTooLargeError, TopicAuthorizationFailedError) as error:
            log.warning("reading: %s; trying again", error)
            await asyncio.sleep(_RETRY)
            continue
        except Exception as error:
            raise ClientError(f"cannot be read ({str(error) or type(error).__name__})") from error
        for records in found.values():
            for one in records:
                heard(Received(one.topic, one.key, one.value, tuple(one.headers)))
