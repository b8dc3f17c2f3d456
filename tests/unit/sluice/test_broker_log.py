"""The client's topics on a broker of ours: whoever closed them may connect again, in another event loop too."""

import asyncio

from sluicegate.sluice.catalogue.broker_log import BrokerLog
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicSpec


def test_who_connects_again_in_another_event_loop_hears_and_closes_what_that_one_made() -> None:
    broker = connect("memory://")
    log = BrokerLog(broker)

    async def hear() -> bytes | None:
        await broker.admin().create_topics([TopicSpec(name="t")])
        heard: asyncio.Queue[bytes | None] = asyncio.Queue()
        await log.open()
        await log.follow(["t"], lambda record: heard.put_nowait(record.value), beginning=False)
        await log.send("t", b"v", key=b"k", headers=())
        value = await heard.get()
        await log.close()
        return value

    assert [asyncio.run(hear()) for _ in range(2)] == [b"v", b"v"]
