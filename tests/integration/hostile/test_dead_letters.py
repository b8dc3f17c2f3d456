"""Dead letters asked again on a running system: each ends once, and the audit holds before, between and after."""

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from sluicegate.sluice.audit.dead_letter_replay import Chosen, Replay, ReplayBook, read_replays, write_replays
from sluicegate.sluice.main import app, register_all
from sluicegate.streams import connect
from sluicegate.streams.ports import Broker
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics
from tests.contract.open_inference.test_open_inference_protocol import affine_front
from tests.harness import PATIENCE, PATIENCE_S, PIXELS, Running, running, settings_for
from tests.integration.fronts.test_client import prefix_of

MINE = (("ce_source", b"/me"),)


def body(query_id: str | None, size: int = 0) -> bytes:
    """A query that names itself in its body alone, at least so large."""
    whole: dict[str, Any] = {
        "inputs": [{"name": "image", "shape": [1, PIXELS], "datatype": "FP32", "data": [0.5] * PIXELS}],
        "parameters": {"latency_ms": PATIENCE},
    }
    if query_id is not None:
        whole["id"] = query_id
    return orjson.dumps(whole) + b" " * size


async def replayed(broker: Broker, topics: Topics, *, write: bool = True, **chosen: Any) -> list[str | None]:
    """Ids of those that are written again."""
    found: tuple[Replay, ...] = await read_replays(broker, ReplayBook(topics, Chosen(**chosen)))
    going = [one for one in found if not one.refused]
    if write:
        assert await write_replays(broker, found) == found
    return [one.letter.query_id for one in going]


async def serving(run: Running) -> None:
    """Ask until a query is answered: devices of the plan before load again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            query_id = await run.ask()
            while query_id not in (outcomes := await run.outcomes()):
                await asyncio.sleep(0.05)
            if outcomes[query_id].on_time:
                return


async def balanced(run: Running) -> None:
    """Once all is settled."""
    report = await run.settled()
    assert report.balanced, report


async def test_what_can_be_understood_by_now_is_answered_once_and_the_rest_ends_as_a_dead_letter_again(
    broker_url: str, tmp_path: Path
) -> None:
    broker = connect(broker_url)
    strict = settings_for(broker_url, tmp_path, partitions=2, admission={"max_body_bytes": 2000})
    async with running(strict, broker, close=False) as run:
        await run.planned()
        await run.send("toy", body("large", 3000), key=b"stream", headers=MINE)
        await run.send("toy", body(None), headers=MINE)
        for _ in range(2):
            await run.send("toy", body("twice"), headers=MINE)
        await balanced(run)
        reasons = sorted(codec.dead_letter_reason(letter) for letter in await run.dead_letters())
        assert reasons == ["duplicate_id", "invalid", "invalid"]
        sent = run.sent
    lenient = strict.model_copy(update={"admission": settings_for(broker_url, tmp_path).admission})
    async with running(lenient, broker) as run:
        run.sent = sent
        await serving(run)
        sent = run.sent
        assert sorted(map(str, await replayed(broker, run.topics, write=False))) == ["None", "large"]
        assert (await run.audit()).queries == sent
        assert await replayed(broker, run.topics, apps=frozenset({"other"})) == []
        run.sent += len(await replayed(broker, run.topics))
        assert run.sent == sent + 2
        await balanced(run)
        ends = {key.id: outcome for key, outcome in (await run.ends()).items()}
        assert ends["large"].on_time and ends["large"].source == "/me" and ends["large"].stream == "stream"
        assert len(await run.dead_letters()) == 4, "what names nobody has a dead letter again"
        for times in (2, 3):
            written = await replayed(broker, run.topics)
            assert written == [None], times
            run.sent += 1
            await balanced(run)
        assert await replayed(broker, run.topics) == [], "three times is the most"
        report = await run.audit()
        assert (report.lost, report.duplicates, report.unknown, report.duplicate_ids) == (0, 0, 0, 1)
        assert report.queries == report.outcomes + report.dead_letters == sent + 4


def said(*arguments: str, code: int = 0) -> Any:
    """What the command says."""
    register_all("dead-letters")
    result = CliRunner().invoke(app, ["dead-letters", *arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else result.stderr


async def test_the_command_lists_tries_and_writes(tmp_path: Path) -> None:
    async with affine_front(tmp_path) as address:
        url = f"memory+{address}"
        prefix = await prefix_of(url)
        where = ("--broker", url, "--prefix", prefix)
        broker = connect(url)
        producer = broker.producer()
        await producer.start()
        await (await producer.send(Topics(prefix).queries("affine"), b"{nonsense", key=b"k"))
        await producer.stop()
        await broker.close()
        listed: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            while not listed:
                listed = (await asyncio.to_thread(said, "list", *where))["dead_letters"]
        assert [(one["app"], one["reason"], one["field"], one["refused"]) for one in listed] == [
            ("affine", "invalid", "body", None)
        ]
        tried = await asyncio.to_thread(said, "replay", "--dry-run", *where)
        assert (tried["written"], tried["refused"], len(tried["dead_letters"])) == (0, 0, 1)
        for count in (1, 0):
            limits = ("--until", "2999-01-01T00:00:00Z", "--max-replays", "1")
            done = await asyncio.to_thread(said, "replay", *limits, *where)
            assert done["written"] == count
        nothing = await asyncio.to_thread(said, "list", "--reason", "unreadable", *where)
        assert nothing["dead_letters"] == []
        wrong = await asyncio.to_thread(said, "list", "--since", "yesterday", *where, code=2)
        assert "--since" in wrong


def test_a_finished_run_is_listed_and_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_HTTP__PORT", "1")
    assert "no finished run" in said("list", code=2)
