"""Commands that read the topics of a run, where strangers and accidents have written too, or nobody has."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.sluice.commands.reading import audit, dead_letters, explain, results
from sluicegate.sluice.main import app, register_all
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Consumer, Record, TopicSpec, Unreadable
from sluicegate.streams.records import codec
from sluicegate.streams.records.codec_types import Message
from sluicegate.streams.topics import Topics

RESULTS = Topics().results("toy")
JUNK = b"junk"


class Damaging(MemoryBroker):
    """A broker that cannot read what says so."""

    def consumer(self, **options: object) -> "Damaged":  # type: ignore[override]
        return Damaged(super().consumer(**options))  # type: ignore[arg-type]


class Damaged:
    """Its consumer."""

    def __init__(self, inner: Consumer) -> None:
        self._inner = inner
        self.start, self.stop = inner.start, inner.stop
        self.beginning_offsets, self.end_offsets = inner.beginning_offsets, inner.end_offsets
        self.position = inner.position

    async def get_many(self, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        found = await self._inner.get_many(wait=wait, max_records=max_records)
        return [Unreadable.at(*r[:3], r.timestamp, "cut off") if r.value == b"damaged" else r for r in found]


def ended(query_id: str) -> Message:
    query = Query(id=query_id, app="toy", arrival=1.0, deadline=2.0, source="/me")
    return codec.encode_outcome(Outcome.of(query, OutcomeKind.EXPIRED, 1.5), [])


async def written(*messages: Message) -> MemoryBroker:
    broker = Damaging()
    await broker.admin().create_topics([TopicSpec(name=RESULTS)])
    await put(broker, RESULTS, *messages)
    return broker


async def put(broker: MemoryBroker, topic: str, *messages: Message) -> None:
    producer = broker.producer()
    await producer.start()
    for message in messages:
        await (await producer.send(topic, message.value, key=message.key, headers=message.headers))
    await producer.stop()


def run(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, *asked: str) -> Result:
    for command in (audit, dead_letters, explain, results):
        monkeypatch.setattr(command, "open_broker", lambda *_: broker)
    register_all(asked[0])
    return CliRunner().invoke(app, asked)


def test_a_query_is_explained_past_records_that_are_none_and_how_many_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ended("q7")
    of_this_id = replace(mine, value=JUNK)
    of_none = Message(JUNK, None)
    damaged = Message(b"damaged", None)
    of_another = replace(ended("q8"), value=JUNK)
    broker = asyncio.run(written(of_this_id, of_none, damaged, of_another, mine))
    told = run(broker, monkeypatch, "explain", "q7", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["id"] == "q7"
    assert told.stderr == "passed over 3 records on result topics: damaged, or no outcome\n"
    broker = asyncio.run(written(of_this_id))
    told = run(broker, monkeypatch, "explain", "q7")
    assert told.exit_code == 1 and told.stderr.startswith("passed over 1 record on result topics"), told.stderr
    assert "no outcome of q7 yet" in told.stderr


@pytest.mark.parametrize(("messages", "verdict"), [((), "nothing to audit"), ((ended("q9"),), "NOT balanced")])
def test_the_verdict_of_an_audit_is_in_its_json(
    messages: tuple[Message, ...], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = run(asyncio.run(written(*messages)), monkeypatch, "audit", "--json")
    assert json.loads(told.stdout)["verdict"] == verdict


def test_a_source_that_has_not_asked_is_refused_with_those_that_have(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = asyncio.run(written(ended("q7")))
    told = run(broker, monkeypatch, "explain", "q7", "--source", "/you")
    assert (told.exit_code, told.stderr) == (2, "error --source: '/you' has not asked q7; who has: /me\n")


def test_an_app_that_is_not_there_has_no_dead_letters_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = asyncio.run(written(ended("q7")))
    told = run(broker, monkeypatch, "dead-letters", "list", "--app", "toys")
    assert (told.exit_code, told.stderr) == (2, "error --app: 'toys' has no topics there; apps that have: toy\n")
    told = run(broker, monkeypatch, "dead-letters", "list", "--app", "toy")
    assert (told.exit_code, told.stdout) == (0, "0 dead letters\n")


@pytest.mark.parametrize(("apps", "shown"), [((), ["q7", "q8", "q9"]), (("toy",), ["q7", "q9"])])
async def test_who_follows_sees_apps_that_are_registered_later(
    apps: tuple[str, ...], shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    broker = await written(ended("q7"))
    following = asyncio.create_task(results._print(broker, Topics(), apps, None, True, len(shown), True))
    told: list[str] = []
    async with asyncio.timeout(60.0):
        while not told:
            await asyncio.sleep(0.01)
            told += capsys.readouterr().out.splitlines()
        await broker.admin().create_topics([TopicSpec(name=Topics().results("later"))])
        await put(broker, Topics().results("later"), ended("q8"))
        while "q8" in shown and len(told) < 2:
            await asyncio.sleep(0.01)
            told += capsys.readouterr().out.splitlines()
        await put(broker, RESULTS, ended("q9"))
        await following
    told += capsys.readouterr().out.splitlines()
    assert [json.loads(line)["id"] for line in told] == shown


@pytest.mark.parametrize("value", [JUNK, b'{"no":"outcome"}'])
def test_what_is_no_outcome_is_told_with_its_place_in_json_too(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = asyncio.run(written(ended("q7"), Message(value, None), ended("q9")))
    lines = run(broker, monkeypatch, "results", "--json").stdout.splitlines()
    first, junk, last = map(json.loads, lines)
    assert (first["id"], last["id"]) == ("q7", "q9")
    assert (junk["malformed"], junk["place"]) == (value.decode(), f"{RESULTS}/0/1") and "outcome" in junk["why"]


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (["results"], "result topics"),
        (["dead-letters", "list"], "topics of apps"),
        (["dead-letters", "replay"], "topics of apps"),
    ],
)
def test_a_prefix_that_nobody_uses_is_refused(asked: list[str], what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = run(asyncio.run(written(ended("q7"))), monkeypatch, *asked, "--prefix", "nobody.s")
    said = f"error no {what} under 'nobody.s' at memory://: start `sluice up`, or name its --prefix\n"
    assert (told.exit_code, told.stderr) == (2, said)


@pytest.mark.parametrize("options", [[], ["--follow", "--limit", "2"]])
def test_damaged_records_are_told_with_their_places(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    broker = asyncio.run(written(ended("q7"), Message(b"damaged", None), ended("q9")))
    told = run(broker, monkeypatch, "results", *options).stdout.splitlines()
    assert f"unreadable {RESULTS}/0/1: record: cannot be read: cut off" in told and len(told) == 3
    lines = map(json.loads, run(broker, monkeypatch, "results", "--json", *options).stdout.splitlines())
    (damaged,) = [one for one in lines if "malformed" in one]
    assert damaged == {"malformed": "", "place": f"{RESULTS}/0/1", "why": "record: cannot be read: cut off"}
