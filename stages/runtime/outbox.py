"""Sends that end well: each record is sent again until the broker acknowledges it, and only then is its cause told.

``post`` never waits, so that policies' actions can be carried out at once; a pump hands the records to the producer in
order. What is unacknowledged is counted, so that a stage can stop reading while the broker does not answer. Letters of
a topic that does not exist, because it was deleted or is not made yet, wait beside the others, in order, until it does,
or, where their caller has another use for them, until it is looked for again.
What a caller's ``done`` or ``refused`` raises ends no pump; ``failure`` raises it, which the stage awaits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial

from sluicegate.domain.errors import InvalidInputError
from sluicegate.streams.ports import Headers, Letter, Producer, UnknownTopicError, Written

log = logging.getLogger(__name__)

_FIRST_RETRY = 0.1
_LAST_RETRY = 2.0


@dataclass(slots=True)
class _Posted:
    letter: Letter
    done: Callable[[], None] | None
    refused: Callable[[InvalidInputError], None] | None
    gone: Callable[[InvalidInputError], None] | None
    number: int


class Outbox:
    """One a stage, over the process's shared producer. ``start`` before use, ``stop`` after ``flush``.

    ``states``: topics of which the newest record of a key is what counts. What is not known to be written there is not
    sent again behind a newer one.
    """

    def __init__(self, producer: Producer, states: Collection[str] = ()) -> None:
        self._producer = producer
        self._newest: dict[str, dict[bytes | None, int]] = {topic: {} for topic in states}
        self._queue: deque[_Posted] = deque()
        self._waiting = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._pump: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._failed = asyncio.Event()
        self._handing = False
        self._again: set[asyncio.TimerHandle] = set()
        self._missing: dict[str, tuple[deque[_Posted], asyncio.Task[None]]] = {}
        self.unacknowledged = 0
        self.posted = 0
        self.resent = 0

    def post(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
        done: Callable[[], None] | None = None,
        refused: Callable[[InvalidInputError], None] | None = None,
    ) -> None:
        """As ``put``, of a letter with these fields."""
        self.put(Letter(topic, value, key, headers, partition, timestamp), done=done, refused=refused)

    def put(
        self,
        letter: Letter,
        *,
        done: Callable[[], None] | None = None,
        refused: Callable[[InvalidInputError], None] | None = None,
        gone: Callable[[InvalidInputError], None] | None = None,
    ) -> None:
        """Send; ``done`` is called once the broker has acknowledged.

        A record that can never be sent (over the broker's size limit) is given to ``refused``; without it, it is
        logged and counts as done. One whose topic does not exist is given to ``gone``, once it was looked for twice;
        without it, it waits for its topic.
        """
        if not self.unacknowledged:
            self._idle.clear()
        self.unacknowledged += 1
        self.posted += 1
        posted = _Posted(letter, done, refused, gone, self.posted)
        if letter.topic in self._newest:
            self._newest[letter.topic][letter.key] = posted.number
        if not self._queue and self._pump is not None and not self._handing and self._sent_at_once(posted):
            return
        if not self._queue:
            self._waiting.set()
        self._queue.append(posted)

    async def start(self) -> None:
        """Start the pump."""
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())

    async def failure(self) -> None:
        """Wait for what somebody raises who is told of a letter, and raise it."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    async def flush(self) -> None:
        """Wait until all is acknowledged."""
        await self._idle.wait()

    async def stop(self, *, within: float = 5.0) -> None:
        """Flush for at most ``within`` seconds, then stop. What is not acknowledged is its reader's to read again."""
        try:
            async with asyncio.timeout(within):
                await self.flush()
        except TimeoutError:
            log.warning("%d records unacknowledged at the end", self.unacknowledged)
        for handle in self._again:
            handle.cancel()
        tasks = [task for _, task in self._missing.values()]
        if self._pump is not None:
            tasks.append(self._pump)
            self._pump = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        waiting = self._queue
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            self._handing = True
            while waiting:
                await self._hand_over(waiting.popleft())
            self._handing = False

    def _sent_at_once(self, posted: _Posted) -> bool:
        """Whether the producer took it without waiting, as the embedded log does: no task need be woken for it."""
        letter = posted.letter
        if letter.topic in self._missing:
            return False
        try:
            sent = self._producer.try_send(
                letter.topic,
                letter.value,
                key=letter.key,
                headers=letter.headers,
                partition=letter.partition,
                timestamp=letter.timestamp,
            )
        except InvalidInputError as error:
            self._refuse(posted, error)
            return True
        except UnknownTopicError as error:
            self._set_aside(posted, error)
            return True
        if sent is None:
            return False
        self._follow(posted, sent)
        return True

    def _follow(self, posted: _Posted, sent: "asyncio.Future[Written]") -> None:
        if sent.done():
            self._acknowledged(posted, sent)
        else:
            sent.add_done_callback(lambda future: self._acknowledged(posted, future))

    async def _hand_over(self, posted: _Posted) -> None:
        """Give one letter to the producer, trying until it takes it, so that order is kept."""
        pause = _FIRST_RETRY
        topic = posted.letter.topic
        while True:
            if topic in self._missing:
                self._missing[topic][0].append(posted)
                return
            try:
                sent = await self._send(posted.letter)
                break
            except InvalidInputError as error:
                self._refuse(posted, error)
                return
            except UnknownTopicError as error:
                self._set_aside(posted, error)
                return
            except Exception as error:  # a client's own errors are many; each means: not sent, try again
                log.warning("send to %s failed (%s); again in %.1f s", topic, error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_RETRY)
        self._follow(posted, sent)

    def _send(self, letter: Letter) -> "Awaitable[asyncio.Future[Written]]":
        return self._producer.send(
            letter.topic,
            letter.value,
            key=letter.key,
            headers=letter.headers,
            partition=letter.partition,
            timestamp=letter.timestamp,
        )

    def _set_aside(self, posted: _Posted, error: UnknownTopicError) -> None:
        topic = posted.letter.topic
        log.warning("%s; what is written there waits", error)
        waiting = deque([posted])
        self._missing[topic] = waiting, asyncio.create_task(self._await_topic(topic, waiting))

    async def _await_topic(self, topic: str, waiting: deque[_Posted]) -> None:
        """Try the first letter that waits, until the topic is there."""
        while waiting:
            await asyncio.sleep(_LAST_RETRY)
            try:
                sent = await self._send(waiting[0].letter)
            except InvalidInputError as error:
                self._refuse(waiting.popleft(), error)
            except UnknownTopicError as error:
                log.debug("%s; what is written there waits still", error)
                self._turn_away(waiting, error)
            except Exception as error:  # as for all others
                log.warning("send to %s failed (%s); trying again", topic, error)
            else:
                self._follow(waiting.popleft(), sent)
                break
        del self._missing[topic]
        self._queue.extendleft(reversed(waiting))
        self._waiting.set()

    def _turn_away(self, waiting: deque[_Posted], error: UnknownTopicError) -> None:
        """Those of whom something else can become wait no longer."""
        away = [posted.gone for posted in waiting if posted.gone is not None]
        kept = [posted for posted in waiting if posted.gone is None]
        waiting.clear()
        waiting.extend(kept)
        for gone in away:
            self._tell(partial(gone, InvalidInputError("topic", str(error))))
            self._settle(None)

    def _acknowledged(self, posted: _Posted, future: "asyncio.Future[Written]") -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, InvalidInputError):
            self._refuse(posted, error)
        elif future.cancelled() or error is not None:
            self._post_again(posted, error or "cancelled")
        else:
            self._settle(posted.done)

    def _post_again(self, posted: _Posted, why: object) -> None:
        if self._superseded(posted):
            self._settle(posted.done)
            return
        log.warning("send to %s was not acknowledged (%s); sending again", posted.letter.topic, why)
        self.resent += 1
        handle: asyncio.TimerHandle

        def again() -> None:
            self._again.discard(handle)
            if self._superseded(posted):
                self._settle(posted.done)
                return
            self._queue.append(posted)
            self._waiting.set()

        handle = asyncio.get_running_loop().call_later(_FIRST_RETRY, again)
        self._again.add(handle)

    def _superseded(self, posted: _Posted) -> bool:
        letter = posted.letter
        return self._newest.get(letter.topic, {}).get(letter.key, posted.number) > posted.number

    def _refuse(self, posted: _Posted, error: InvalidInputError) -> None:
        if posted.refused is None:
            log.error("a record for %s can never be sent: %s", posted.letter.topic, error)
            self._settle(posted.done)
        else:
            self._tell(partial(posted.refused, error))
            self._settle(None)

    def _settle(self, done: Callable[[], None] | None) -> None:
        self.unacknowledged -= 1
        if not self.unacknowledged:
            self._idle.set()
        if done is not None:
            self._tell(done)

    def _tell(self, told: Callable[[], None]) -> None:
        try:
            told()
        except Exception as error:
            log.exception("what follows from a record that was sent, or cannot be, failed")
            self._failure = self._failure or error
            self._failed.set()
