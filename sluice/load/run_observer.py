"""Watching a system from its topics alone: outcomes, plans and demand, folded into a time series a second wide.

It reads what anyone may read, so it is the same on the embedded broker and on Apache Kafka, in one process or many.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fold import OutcomeFold
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import Plan
from sluicegate.sluice.audit.result_log import result_topics
from sluicegate.stages.following.control_follower import Follower
from sluicegate.streams.ports import Broker, Record
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics


@dataclass(slots=True)
class Second:
    """What ended or arrived within one second."""

    asked: int = 0
    on_time: int = 0
    accuracy: float = 0.0
    missed: int = 0
    variants: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Checked:
    """Rows that a variant answered whose true label is known."""

    answers: int = 0
    right: int = 0


LabelsOf = Callable[[str, str], NDArray[np.int64] | None]
"""(app, query id) -> the true labels of its rows, None where they are not known."""


class Observer:
    """Folds a system's topics into a time series. ``labels_of`` lets answers be checked; ``seconds`` is keyed by whole
    seconds since the epoch."""

    def __init__(self, broker: Broker, topics: Topics, labels_of: LabelsOf | None = None) -> None:
        self._broker = broker
        self._topics = topics
        self.labels_of = labels_of
        self.fold = OutcomeFold()
        self.seconds: dict[int, Second] = {}
        self.plans: list[Plan] = []
        self.checked: dict[str, Checked] = {}
        self.outcomes = 0
        self.dead_letters = 0
        self.ready = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Watch from now on until ``stop``."""
        followers = [
            Follower(self._broker, self._topics.plan, self._on_plan),
            Follower(self._broker, self._topics.dead_letters, self._on_dead_letter, start_at="end"),
        ]
        tasks = [asyncio.create_task(f.run(stop)) for f in followers]
        try:
            await self._read(stop)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, stop: asyncio.Event) -> None:
        partitions = await result_topics(self._broker, self._topics)
        consumer = self._broker.consumer(partitions=partitions, start_at="end")
        await consumer.start()
        self.ready.set()
        try:
            while not stop.is_set():
                for record in await consumer.get_many(wait=0.1, max_records=1000):
                    self.take(record)
        finally:
            await consumer.stop()

    def asked(self, at: float, count: int = 1) -> None:
        """Queries were produced."""
        self._second(at).asked += count

    def take(self, record: Record) -> None:
        """A record of a result topic."""
        try:
            message = codec.decode_outcome(record)
        except InvalidInputError:
            return  # anybody can write there
        outcome = message.outcome
        self.outcomes += 1
        self.fold.add(outcome)
        second = self._second(outcome.arrival)
        if outcome.on_time:
            second.on_time += 1
            second.accuracy += outcome.accuracy / (outcome.best_accuracy or 1.0)
            second.variants[f"{outcome.app}/{outcome.variant}"] += 1
        else:
            second.missed += 1
        if outcome.kind is OutcomeKind.ANSWERED:
            self._check(outcome, message)

    def _check(self, outcome: Outcome, message: codec.OutcomeMessage) -> None:
        if self.labels_of is None:
            return
        truth = self.labels_of(outcome.app, outcome.query_id)
        label = next((t for t in message.outputs() if t.name == "label" and t.datatype == "INT64"), None)
        if truth is None or label is None:
            return
        checked = self.checked.setdefault(f"{outcome.app}/{outcome.variant}", Checked())
        checked.answers += truth.size
        checked.right += int(np.count_nonzero(np.frombuffer(label.data, dtype="<i8") == truth))

    def _second(self, at: float) -> Second:
        return self.seconds.setdefault(int(at), Second())

    def _on_plan(self, record: Record) -> None:
        if record.value is not None:
            self.plans.append(control.decode_plan(record.value))

    def _on_dead_letter(self, record: Record) -> None:
        del record
        self.dead_letters += 1
