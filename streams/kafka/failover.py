"""Asking a cluster of which a broker may be gone: what one does not answer, another is asked.

The client asks whichever broker comes up, and fails where that one has died: until the controller notices, a third of
all questions to a cluster of three. Nothing is asked again where no broker answers at all, so that a command ends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaConnectionError,
    NodeNotReadyError,
    NotControllerError,
    NotCoordinatorForGroupError,
    RequestTimedOutError,
)

Answer = TypeVar("Answer")

_ELSEWHERE = (
    GroupCoordinatorNotAvailableError, GroupLoadInProgressError, KafkaConnectionError, NodeNotReadyError,
    NotControllerError, NotCoordinatorForGroupError, RequestTimedOutError,
)  # fmt: skip
_PAUSE = 0.1


async def answered(admin: Any, ask: Callable[[], Awaitable[Answer]], *, within: float) -> Answer:
    """What ``ask`` of the started client ``admin`` gives; asked again for ``within`` seconds where a broker is gone.

    Raises what it fails of last.
    """
    until = asyncio.get_running_loop().time() + within
    while True:
        try:
            return await ask()
        except _ELSEWHERE:
            if asyncio.get_running_loop().time() > until or not await admin._client.force_metadata_update():
                raise
        await asyncio.sleep(_PAUSE)


async def controller_answers(admin: Any) -> None:
    """Learn whom to ask for changes. Raises NodeNotReadyError where that one is gone: the client would wait for it."""
    client = admin._client
    await client.force_metadata_update()
    named = client.cluster.controller
    if named is None or not await client.ready(named.nodeId):
        raise NodeNotReadyError("the broker that takes changes does not answer")
