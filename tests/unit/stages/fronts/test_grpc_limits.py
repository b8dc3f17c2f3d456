"""What one address may hold of the calls that the gRPC front has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing

import pytest

from sluicegate.stages.fronts.front_desk import MOST_WAITING
from sluicegate.stages.fronts.front_error import FrontError
from sluicegate.stages.fronts.grpc_limits import Requests
from sluicegate.stages.fronts.http_auth import Access


async def once(request: str) -> AsyncIterator[str]:
    """A stream that asks once, and then says no more."""
    yield request
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("mine", "also_mine", "theirs"),
    [("10.0.0.7", "10.0.0.7", "10.0.0.8"), ("2001:db8:1:2::7", "2001:db8:1:2:9::", "2001:db8:1:3::7")],
)
async def test_streams_of_one_address_take_at_most_half_of_the_calls_and_others_are_heard(
    mine: str, also_mine: str, theirs: str
) -> None:
    requests = Requests(Access(idle_s=70.0, body_s=60.0))
    async with AsyncExitStack() as stack:
        for _ in range(MOST_WAITING // 2):
            held = await stack.enter_async_context(aclosing(requests.of_stream(once("mine"), mine, lambda: False)))
            assert await anext(held) == "mine"
        with pytest.raises(FrontError, match="too many of your calls") as stream:
            await anext(requests.of_stream(once("more"), also_mine, lambda: False))
        with pytest.raises(FrontError, match="too many of your calls"):
            await requests.of_call(once("more"), also_mine)
        assert stream.value.status == 503
        assert await requests.of_call(once("theirs"), theirs) == "theirs"
    assert await requests.of_call(once("later"), mine) == "later", "streams that ended are held no more"
