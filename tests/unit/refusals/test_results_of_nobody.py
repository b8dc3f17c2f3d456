"""``sluice results`` where there is nothing to print: it says so, and whose outcomes there are."""

import asyncio

import pytest
from typer.testing import CliRunner

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.sluice.commands.reading import results
from sluicegate.sluice.main import app, register_all
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import TopicSpec
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics


async def holding(*sources: str) -> MemoryBroker:
    """A broker with an outcome of each of these sources."""
    broker, topic = MemoryBroker(), Topics().results("toy")
    await broker.admin().create_topics([TopicSpec(name=topic)])
    producer = broker.producer()
    await producer.start()
    for source in sources:
        query = Query(id="q", app="toy", arrival=1.0, deadline=2.0, source=source)
        message = codec.encode_outcome(Outcome.of(query, OutcomeKind.ANSWERED, 1.5), [])
        await (await producer.send(topic, message.value, key=message.key, headers=message.headers))
    await producer.stop()
    return broker


@pytest.mark.parametrize(
    ("sources", "options", "code", "said"),
    [
        ((), [], 0, "no outcomes yet\n"),
        ((), ["--source", "/nobody"], 0, "no outcomes yet\n"),
        (("/south", "/north"), ["--source", "/nort"], 2,
         "error --source: '/nort' has no outcomes there; sources that have: /north, /south\n"),
        (("/south", "/north"), ["--source", "/north"], 0, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("limited", [[], ["--limit", "3"]])
def test_where_nothing_is_printed_it_says_why(
    sources: tuple[str, ...],
    options: list[str],
    code: int,
    said: str,
    limited: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = asyncio.run(holding(*sources))
    monkeypatch.setattr(results, "open_broker", lambda *_: broker)
    register_all("results")
    ended = CliRunner().invoke(app, ["results", *options, *limited])
    assert (ended.exit_code, ended.stderr) == (code, said), ended.exception
    assert bool(ended.stdout) == (not said)
