"""What fails beside a stage's work ends it; what is beside ends with it."""

import asyncio

import pytest

from sluicegate.stages.runtime.background_tasks import BackgroundTasks, beside
from sluicegate.streams.ports import BrokerError


async def failing(after: float = 0.0) -> None:
    await asyncio.sleep(after)
    raise BrokerError("away")


async def done() -> None:
    return


async def test_a_failure_beside_ends_the_body_and_is_raised_as_it_is() -> None:
    left = False
    with pytest.raises(BrokerError, match="away"):
        async with beside([done(), failing(0.01)]):
            try:
                await asyncio.sleep(60.0)
            finally:
                left = True
    assert left


async def test_what_is_beside_ends_with_the_body() -> None:
    ended = asyncio.Event()

    async def waiting() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            ended.set()

    async with beside([waiting(), done()]):
        await asyncio.sleep(0)
    assert ended.is_set()


async def test_a_failure_of_the_body_is_raised_as_it_is() -> None:
    with pytest.raises(ValueError, match="body"):
        async with beside([asyncio.sleep(60.0)]):
            raise ValueError("body")


async def test_a_cancelled_stage_is_cancelled() -> None:
    async def stage() -> None:
        async with beside([asyncio.sleep(60.0)]):
            await asyncio.sleep(60.0)

    task = asyncio.create_task(stage())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_one_that_nobody_awaits_fails_of_is_logged_and_told_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []
    tasks = BackgroundTasks("worker odd", lambda error: told.append(str(error)))
    waits = tasks.begin(asyncio.sleep(60.0))
    tasks.begin(failing(0.01))
    await asyncio.sleep(0.05)
    assert told == ["away"] and "worker odd: away" in caplog.text and not waits.done()
    tasks.cancel()
    await tasks.over()
    assert waits.cancelled() and told == ["away"], "who is cancelled has not failed"
