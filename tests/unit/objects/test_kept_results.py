"""Results that go to the object store: what keeping one fails of is told, else its record would wait for ever."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Query
from sluicegate.policies.serving.device_actions import End
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.stages.worker.answers import Answers
from sluicegate.stages.worker.objects import WorkerObjects
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics
from tests.harness import toy_catalogue

pytestmark = pytest.mark.virtual

QUERY = Query("a", "toy", 0.0, 1.0)


class Store:
    """Keeps nothing. ``begun``: whether it was asked to."""

    results = "file:///kept/"

    def __init__(self, write: Callable[[], Any]) -> None:
        self.begun = False
        self._write = write

    async def write(self, app: str, data: bytes) -> Any:
        self.begun = True
        return await self._write()


async def broken() -> None:
    raise ZeroDivisionError("a defect")


def answering(store: Store, failed: Callable[[BaseException], None]) -> Answers:
    """The end of QUERY is too large for its topic, so that its output goes to ``store``."""
    topics = Topics("t")
    objects = WorkerObjects(cast(Any, store))
    outbox = Outbox(cast(Any, None))
    answers = Answers(
        "d0",
        "none",
        catalogue=toy_catalogue(),
        outbox=outbox,
        topics=topics,
        telemetry=Telemetry(),
        objects=objects,
        failed=failed,
    )
    too_large = InvalidInputError("record", "is too large")
    answers.intake = cast(
        Any, SimpleNamespace(answer=lambda _record, _outbox, _letter, instead, _told: instead(too_large))
    )
    tensor = Tensor("x", "FP32", (1, 1), bytes(4))
    work = codec.encode_work(codec.QueryMessage(QUERY, (tensor,)), epoch=Epoch(1, 1), slice="")
    message = answers.read(Record(topics.work("d0"), 0, 0, work.key, work.value, work.headers, 0.0), 0.0)
    assert message is not None
    answers.ran(message.query, (Tensor("y", "FP32", (1, 5000), bytes(20_000)),))
    answers.ended(End("", message.query, OutcomeKind.ANSWERED, 0.5, None, None, None))
    return answers


async def test_a_result_that_a_defect_keeps_from_being_kept_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []
    store = Store(broken)
    answers = answering(store, told.append)
    await asyncio.sleep(1.0)
    await answers.close()
    assert store.begun and [str(error) for error in told] == ["a defect"]
    assert "worker d0: a defect" in caplog.text


async def test_a_worker_that_ends_waits_for_no_store() -> None:
    told: list[BaseException] = []
    store = Store(asyncio.Event().wait)
    answers = answering(store, told.append)
    await asyncio.sleep(1.0)
    await answers.close()
    assert store.begun and not told
    assert asyncio.all_tasks() == {asyncio.current_task()}
