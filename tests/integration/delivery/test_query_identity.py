"""A query is known by its app, its source and its id: who shares one of them with another is answered all the same."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query, QueryKey
from sluicegate.sluice.commands.reading import audit, explain, results
from sluicegate.streams import connect
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Record, TopicPartition
from sluicegate.streams.records import codec
from sluicegate_client import Client
from tests.harness import PATIENCE_S, PIXELS, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual

WAYS = [
    pytest.param("memory", "at_least_once", id="memory"),
    pytest.param("kafka", "at_least_once", id="kafka", marks=pytest.mark.kafka),
    pytest.param("kafka", "exactly_once", id="exactly-once", marks=pytest.mark.kafka),
]
PATIENT = {"latency_ms": 20_000}
EVERY = {
    QueryKey("toy", "/north", "q1"),
    QueryKey("toy", "/south", "q1"),
    QueryKey("other", "/north", "q1"),
    QueryKey("toy", "/north", "q2"),
}


async def ask_every(run: Running) -> None:
    for key in sorted(EVERY):
        await run.ask(key.id, app=key.app, source=key.source.removeprefix("/"), parameters=PATIENT)


@pytest.mark.parametrize(("broker", "delivery"), WAYS)
async def test_the_same_id_of_two_sources_and_of_two_apps_is_answered_each_time(
    broker: str, delivery: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    broker_url = "memory://" if broker == "memory" else str(request.getfixturevalue("kafka_url"))
    settings = settings_for(broker_url, tmp_path, partitions=1, delivery=delivery)
    catalogue = toy_catalogue(("toy", "other"))
    async with running(settings, connect(broker_url), catalogue=catalogue) as run:
        await run.planned()
        await ask_every(run)
        report = await run.settled()
        assert (report.balanced, report.outcomes, report.duplicate_ids) == (True, 4, 0)
        ends = await run.ends()
        assert {key: end.kind for key, end in ends.items()} == dict.fromkeys(EVERY, OutcomeKind.ANSWERED)
        await run.ask("q1", source="south", parameters=PATIENT)
        async with asyncio.timeout(PATIENCE_S):
            while (report := await run.settled()).duplicate_ids == 0:
                await asyncio.sleep(0.05)
        assert (report.balanced, report.outcomes, report.duplicate_ids) == (True, 4, 1)
        (letter,) = await run.dead_letters()
        assert b"'q1' of source '/south'" in dict(letter.headers)["__dlq.errors.message"]
    kept = [json.loads(line) for line in (settings.runs / "run" / "outcomes.jsonl").read_bytes().splitlines()]
    assert sorted(QueryKey(one["model_name"], one["parameters"]["source"], one["id"]) for one in kept) == sorted(EVERY)


@pytest.mark.kafka
async def test_clients_with_ids_of_their_own_get_their_own_answers(kafka_url: str, tmp_path: Path) -> None:
    settings = settings_for(kafka_url, tmp_path)
    async with running(settings, connect(kafka_url), catalogue=toy_catalogue(("toy", "other"))) as run:
        await run.planned()
        image = {"image": np.zeros((1, PIXELS), np.float32)}
        async with (
            Client(kafka_url, prefix=settings.prefix, source="north") as north,
            Client(kafka_url, prefix=settings.prefix, source="south") as south,
        ):
            asked = [
                client.infer(name, image, query_id="mine", **PATIENT)
                for client in (north, south)
                for name in ("toy", "other")
            ]
            answers = await asyncio.gather(*asked)
        keys = [QueryKey(name, source, "mine") for source in ("/north", "/south") for name in ("toy", "other")]
        assert [QueryKey(a.outcome.app, a.outcome.source, a.outcome.query_id) for a in answers] == keys


@pytest.mark.virtual(False)
async def test_an_id_that_several_have_used_is_explained_once_it_is_said_which(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path)
    broker = connect("memory://")
    async with running(settings, broker, catalogue=toy_catalogue(("toy", "other")), close=False) as run:
        await run.planned()
        await ask_every(run)
        assert (await run.settled()).balanced
    folder = tmp_path / "kept"
    assert isinstance(broker, MemoryBroker)
    broker.dump(folder)
    await broker.close()

    app = typer.Typer()
    for command in (audit, explain, results):
        command.register(app)

    def sluice(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--prefix", settings.prefix])

    which = await asyncio.to_thread(sluice, "explain", "q1", "--run", str(folder))
    assert which.exit_code == 2
    said = " ".join(which.output.split())
    assert "names 3 queries" in said
    assert "--app other --source /north; --app toy --source /north; --app toy --source /south" in said
    for narrowed in (("--app", "other"), ("--source", "/south"), ("--app", "toy", "--source", "/north")):
        one = await asyncio.to_thread(sluice, "explain", "q1", "--run", str(folder), "--json", *narrowed)
        assert one.exit_code == 0, one.output
        assert all(f'"{value}"' in one.output for value in narrowed[1::2])
        told = json.loads(one.output)
        offered = told["plan"]["placements"]
        assert [p["device"] for p in offered if p["chosen"]] == [told["parameters"]["device"]]
    assert (await asyncio.to_thread(sluice, "explain", "q2", "--run", str(folder))).exit_code == 0
    listed = await asyncio.to_thread(sluice, "results", str(folder), "--source", "/south")
    assert len(listed.output.strip().splitlines()) == 1 and "q1" in listed.output
    audited = await asyncio.to_thread(sluice, "audit", str(folder))
    assert audited.exit_code == 0, audited.output


async def test_what_an_older_version_recorded_is_read_and_audited(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path)
    async with running(settings, connect("memory://"), roles=("sink",)) as run:
        told = await run.ask("told", source="north")
        query = codec.decode_query(await first_query(run), toy_catalogue().apps["toy"], codec.DEFAULT_LIMITS, 1.0).query
        old = replace(query, source="")
        message = codec.encode_admitted(codec.QueryMessage(old, ()))
        assert b"[" not in dict(message.headers)["sluice"].split(b",")[1]  # as it was written before sources were told
        await end(run, query)
        await run.ask("untold", source="south")
        await end(run, replace(query, id="untold", source=""))
        report = await run.audit()
        assert (report.balanced, report.outcomes) == (True, 2)
        await run.ask("lost", source="south")
        await end(run, replace(query, id="stray", source=""))
        report = await run.audit()
        assert (report.examples["lost"], report.examples["unknown"]) == (("lost",), ("stray",))
        assert told == "told"


async def first_query(run: Running) -> Record:
    consumer = run.broker.consumer(
        partitions=[TopicPartition(run.topics.queries("toy"), i) for i in range(run.system.settings.partitions)]
    )
    await consumer.start()
    (record,) = await consumer.get_many(wait=5.0)
    await consumer.stop()
    return record


async def end(run: Running, query: Query) -> None:
    message = codec.encode_outcome(Outcome.of(query, OutcomeKind.EXPIRED, query.deadline), ())
    await (await run.producer.send(run.topics.results("toy"), message.value, key=message.key, headers=message.headers))
