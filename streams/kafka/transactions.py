"""Exactly-once writing on Apache Kafka: results of a partition's records and its offsets, in one transaction.

Rules. One transactional producer an input partition, its id always the same (``<group>/<topic>/<partition>``): who
takes the partition over starts with that id, which fences whoever had it, whatever the group's generation says. After
any other error the transaction is undone, and the caller tries again: with a new client, unless the old one can go on.
Nothing waits for a client whose sender has ended, nor for a topic that does not exist: what such a client was asked for
would never end.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidProducerEpoch,
    KafkaConnectionError,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.producer import sender as aiokafka_sender

from sluicegate.domain.errors import ConfigurationError, SluiceError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.connection import (
    close_what_it_begins_with,
    connection,
    unreachable,
)
from sluicegate.streams.kafka.consumer import Counts
from sluicegate.streams.kafka.producer import NOT_TAKEN, TOO_LARGE
from sluicegate.streams.kafka.topic_limits import UNLIMITED, Limits, not_taken
from sluicegate.streams.memory.partitioner import partition_of
from sluicegate.streams.ports import (
    BrokerError,
    FencedError,
    Letter,
    LettersNotTakenError,
    LettersWithoutTopicError,
    TopicPartition,
)
from sluicegate_client.outages import refresh_seldom, see_given_up

log = logging.getLogger(__name__)

_TOPIC_WAIT = 3.0
"""Seconds in which every broker hears of a new topic."""
_AGAIN = 0.25
_LOOKS = 1.0
"""Seconds after which letters that are not sent make one look for their topics, again and again."""
_LAST_WORDS = 0.05
"""Seconds in which a client whose sender has ended fails what it was asked for; some of it it never does."""
BACKOFF_MS = 5
"""Before something is asked again. A broker refuses a batch that comes while another part of its transaction is added
(as if replicas were missing), and the first part of one while the one before it ends: both take milliseconds."""
aiokafka_sender.BACKOFF_OVERRIDE = 1e-3 * BACKOFF_MS  # of the latter: 20 ms, for which there is no option
_FENCED = (ProducerFenced, InvalidProducerEpoch)
_REFUSED = (TransactionalIdAuthorizationFailed, ClusterAuthorizationFailedError, GroupAuthorizationFailedError)


class _RefusedError(KafkaError):  # type: ignore[misc]
    """The broker has refused the batches of these letters for what is in them, because of ``why``."""

    def __init__(self, letters: tuple[int, ...], why: BaseException) -> None:
        super().__init__(f"{len(letters)} letters are refused ({why})")
        self.letters = letters
        self.why = why


class MissingTopics:
    """Which topics are gone, of those that ``writer`` writes to: the clients wait for them for long, or for ever.
    Looked up by ``counts``."""

    def __init__(self, counts: Counts, writer: str) -> None:
        self._counts = counts
        self._writer = writer
        self.found: frozenset[str] = frozenset()
        """Those that were missing when they were last looked up."""

    async def check(self, letters: Sequence[Letter], suspects: frozenset[str]) -> None:
        """Raises LettersWithoutTopicError where topics of ``letters`` that are ``suspects`` are not there, nor come
        within seconds, unless they were missing before; BrokerError or UnreachableError where no broker says so."""
        asked = suspects & {letter.topic for letter in letters}
        until = asyncio.get_running_loop().time() + _TOPIC_WAIT
        while asked:
            missing = asked - (await self._counts.partitions(asked)).keys()
            if missing <= self.found or asyncio.get_running_loop().time() > until:
                self.found = self.found - asked | missing
                break
            await asyncio.sleep(_AGAIN)
        if numbers := tuple(i for i, letter in enumerate(letters) if letter.topic in asked & self.found):
            told = ", ".join(sorted({letters[i].topic for i in numbers}))
            raise LettersWithoutTopicError(f"{self._writer}: {told} does not exist", numbers)


class KafkaTransactions:
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

    async def start(self) -> None:
        """Connect and fence. Raises BrokerError where the broker is not ready, ConfigurationError where none answers or
        it refuses."""
        self._started = True
        if self._inner is None:
            self._inner = await self._connect()

    async def write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
        """All of it, or nothing."""
        if not self._started:
            raise ConfigurationError("these transactions are not started (or stopped): await start() first")
        self._check_sizes(letters)
        inner = self._inner = self._inner or await self._connect_again()
        unknown = {
            letter.topic for letter in letters if inner.client.cluster.partitions_for_topic(letter.topic) is None
        }
        await self._missing.check(letters, frozenset(unknown))
        try:
            await _while_it_sends(inner, self._write(inner, letters, offsets, group))
        except _FENCED as error:
            raise FencedError(f"{self._id}: another has taken over") from error
        except KafkaError as error:
            if not (error.retriable and await self._undone(inner)) and self._inner is inner:
                self._inner = None
                await self._stop(inner)
            if isinstance(error, _RefusedError):
                topics = ", ".join(sorted({letters[i].topic for i in error.letters}))
                large = isinstance(error.why, TOO_LARGE)
                told = f"too large for {topics}" if large else not_taken(topics, str(error.why))
                raise LettersNotTakenError(f"{self._id}: {told}", error.letters) from error
            raise BrokerError(f"{self._id}: not written ({error})") from error
        except LettersWithoutTopicError:
            inner._sender.sender_task.cancel()  # it would go on asking for the topic, and the client wait for it
            if self._inner is inner:
                self._inner = None
            await self._stop(inner)
            raise
        except asyncio.CancelledError:
            await self._undone(inner)
            raise

    async def stop(self) -> None:
        """Disconnect, within a bound."""
        self._started = False
        inner, self._inner = self._inner, None
        if inner is not None:
            await self._stop(inner)

    async def _write(
        self, inner: Any, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str
    ) -> None:
        await inner.begin_transaction()
        # What it fails of is told by its parts; the client keeps that here too, for nobody.
        inner._txn_manager.wait_for_transaction_end().add_done_callback(_seen)
        sending = asyncio.create_task(self._send_all(inner, letters, offsets, group))
        sending.add_done_callback(_seen)
        try:
            while not (await asyncio.wait((sending,), timeout=_LOOKS))[0]:
                await self._look_for_topics(letters)
        finally:
            sending.cancel()
        told, *results = sending.result()
        if refused := {i: result for i, result in enumerate(results) if isinstance(result, NOT_TAKEN)}:
            raise _RefusedError(tuple(refused), min(refused.items())[1])
        for result in (*results, told):
            if isinstance(result, BaseException):
                raise result
        await inner.commit_transaction()

    async def _send_all(
        self, inner: Any, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str
    ) -> "Sequence[Any]":
        """What became of the offsets and of each letter."""
        sent: list[asyncio.Future[Any]] = []
        for letter in letters:
            sent.append(await self._send(inner, letter))
            sent[-1].add_done_callback(_seen)
        moved = {KafkaPartition(*tp): offset for tp, offset in offsets.items()}
        # The offsets go while the letters do, a round trip less: where either fails, neither counts.
        moving = asyncio.ensure_future(inner.send_offsets_to_transaction(moved, group))
        moving.add_done_callback(_seen)
        return await asyncio.gather(moving, *sent, return_exceptions=True)

    async def _look_for_topics(self, letters: Sequence[Letter]) -> None:
        try:
            await self._missing.check(letters, frozenset(letter.topic for letter in letters))
        except LettersWithoutTopicError:
            raise
        except SluiceError as error:  # whoever is asked is away too
            log.debug("%s: topics are not looked up (%s)", self._id, error)

    async def _undone(self, inner: Any) -> bool:
        """Whether the transaction could be undone, within a bound, so that the client can begin another one."""
        try:
            async with asyncio.timeout(self._settings.stop_timeout):
                await _while_it_sends(inner, inner.abort_transaction())
        except (KafkaError, TimeoutError):
            return False
        return True

    async def _send(self, inner: Any, letter: Letter) -> Any:
        partition = letter.partition
        if partition is None and letter.key is not None:
            partition = partition_of(letter.key, len(await inner.partitions_for(letter.topic)))
        milliseconds = None if letter.timestamp is None else round(1e3 * letter.timestamp)
        return await inner.send(letter.topic, letter.value, letter.key, partition, milliseconds, list(letter.headers))

    def _check_sizes(self, letters: Sequence[Letter]) -> None:
        told = [(i, self._limits.excess(one.topic, one.key, one.value, one.headers)) for i, one in enumerate(letters)]
        if refused := [(i, excess) for i, excess in told if excess is not None]:
            raise LettersNotTakenError(f"{self._id}: {refused[0][1]}", tuple(i for i, _ in refused))

    async def _connect(self) -> Any:
        settings = self._settings
        inner = AIOKafkaProducer(
            **connection(self._servers, settings),
            transactional_id=self._id,
            transaction_timeout_ms=int(1e3 * settings.transaction_timeout),
            acks="all",
            linger_ms=0,
            retry_backoff_ms=BACKOFF_MS,
            max_batch_size=self._limits.batch_bytes,
            max_request_size=UNLIMITED,
            compression_type=settings.compression,
        )
        refresh_seldom(inner.client)
        close_what_it_begins_with(inner.client)
        try:
            await inner.start()
        except KafkaConnectionError as error:
            await self._stop(inner)
            raise unreachable(self._servers, error) from error
        except KafkaError as error:
            await self._stop(inner)
            kind = ConfigurationError if isinstance(error, _REFUSED) else BrokerError
            raise kind(f"{self._id}: cannot begin ({error})") from error
        except BaseException:
            await self._stop(inner)
            raise
        return inner

    async def _connect_again(self) -> Any:
        """A new client, whose start undoes what the one before it left."""
        try:
            inner = await self._connect()
        except ConfigurationError as error:
            raise BrokerError(f"{self._id}: {error}") from error
        if not self._started:  # stopped meanwhile
            await self._stop(inner)
            raise BrokerError(f"{self._id}: stopped")
        return inner

    async def _stop(self, inner: Any) -> None:
        see_given_up(inner)
        stopping = asyncio.create_task(inner.stop())
        done, _ = await asyncio.wait([stopping], timeout=self._settings.stop_timeout)
        if not done:
            stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)


def _seen(future: "asyncio.Future[Any]") -> None:
    """What a part failed of is told once, for the transaction."""
    if not future.cancelled():
        future.exception()


async def _while_it_sends(inner: Any, work: Coroutine[Any, Any, None]) -> None:
    """Await ``work``, which the sender of ``inner`` does. Raises what that ended of, should it end before."""
    working: asyncio.Task[None] = asyncio.create_task(work)
    sender: asyncio.Task[None] = inner._sender.sender_task
    try:
        await asyncio.wait((working, sender), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((working,), timeout=_LAST_WORDS)
    finally:
        if undone := not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    if undone:
        raise (None if sender.cancelled() else sender.exception()) or KafkaError("the client's sender has ended")
    working.result()
