"""What stands on the topic of instances of a worker at its start, from before."""

import asyncio

from sluicegate.domain.fleet.instance import Instance
from sluicegate.stages.following.control_follower import Follower
from sluicegate.streams.ports import Broker, Record
from sluicegate.streams.records.instances import decode_instance
from sluicegate.streams.topics import Topics


async def instances_of(device: str, broker: Broker, topics: Topics) -> tuple[Instance, ...]:
    """The records of ``device``, read once to the end that is seen now."""
    found: dict[bytes | None, Instance] = {}

    def note(record: Record) -> None:
        found.pop(record.key, None)
        if record.value is not None:
            instance = decode_instance(record.key, record.value)
            if instance.device == device:
                found[record.key] = instance

    stop = asyncio.Event()
    follower = Follower(broker, topics.instances, note)
    reading = asyncio.create_task(follower.run(stop))
    reached = asyncio.create_task(follower.ready.wait())
    try:
        await asyncio.wait((reading, reached), return_when=asyncio.FIRST_COMPLETED)  # who may not read it is told so
    finally:
        stop.set()
        reached.cancel()
        await reading
    return tuple(found.values())
