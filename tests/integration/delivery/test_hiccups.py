"""A broker that does not answer for a moment while stages begin ends none of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.streams.memory.broker import MemoryAdmin, MemoryBroker
from sluicegate.streams.memory.consumer import MemoryConsumer
from sluicegate.streams.ports import BrokerError
from tests.harness import running, settings_for, toy_catalogue


class Hiccups(MemoryBroker):
    """Answers some questions only when they are asked for the third time. ``asked``: which, how often."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def answer(self, what: str) -> None:
        self.asked[what] += 1
        if self.asked[what] < 3:
            raise BrokerError(f"{what}: no answer")

    @override
    def admin(self) -> MemoryAdmin:
        return HiccupsAdmin(self)

    @override
    def consumer(self, **options: Any) -> MemoryConsumer:
        made = super().consumer(**options)
        of = "".join(one.topic for one in options.get("partitions") or ())
        start = made.start

        async def starts() -> None:
            if "work" in of:
                self.answer("work")
            await start()

        made.start = starts  # type: ignore[method-assign]
        return made


class HiccupsAdmin(MemoryAdmin):
    def __init__(self, broker: Hiccups) -> None:
        super().__init__(broker._store)
        self._broker = broker

    @override
    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        topics = list(topics)
        for what in ("admitted", "results"):
            if any(what in topic for topic in topics):
                self._broker.answer(what)
        return await super().partitions(topics)


async def test_stages_that_begin_while_the_broker_does_not_answer_begin_once_it_does(tmp_path: Path) -> None:
    broker, known = Hiccups(), toy_catalogue()
    promised = replace(known.apps["toy"], promise=Promise(weakly_hard=(WeaklyHard(1, 5),)))
    settings = settings_for("memory://", tmp_path, worker={"executor": "emulated", "batching": "adaptive"})
    async with running(settings, broker, catalogue=replace(known, apps={"toy": promised})) as run:
        await run.planned()
        asked = await run.ask(parameters={"latency_ms": 20_000})
        await run.settled()
        assert (await run.outcomes())[asked].kind is OutcomeKind.ANSWERED
    assert min(broker.asked[what] for what in ("admitted", "results", "work")) >= 3, broker.asked
