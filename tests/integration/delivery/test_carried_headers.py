"""What a query brings along in its headers comes back with its outcome, whatever that is and whoever tells it."""

from pathlib import Path

import pytest

from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.streams import connect
from sluicegate.streams.records import codec
from tests.harness import ROLES, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual

BODY = b'{"inputs":[{"name":"image","shape":[1,4],"datatype":"FP32","data":[0,0,0,0]}]}'
LATE = b'{"parameters":{"latency_ms":0.001},' + BODY[1:]


def brought(query_id: str) -> tuple[tuple[str, bytes], ...]:
    """Different for each query, not text, and one of them twice."""
    return (
        ("ce_tenant", b"\xff" + query_id.encode()),
        ("baggage", b"of=" + query_id.encode()),
        ("kafka_correlationId", query_id.encode()),
        ("ce_tenant", b"again"),
    )


async def ask(run: Running, query_id: str, value: bytes) -> None:
    told = codec.query_headers(query_id, app="toy", source="t", now=run.system.clock.wall())
    await run.send("toy", value, key=query_id.encode(), headers=(*told, ("x-secret", b"s"), *brought(query_id)))


async def test_every_kind_of_outcome_brings_back_what_came_along(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path, devices=2)
    async with running(settings, connect("memory://"), catalogue=toy_catalogue(slo=2.0), roles=ROLES) as run:
        await run.planned()
        for query_id, value in (("answered", BODY), ("refused", b"{}"), ("too-late", LATE), ("answered-too", BODY)):
            await ask(run, query_id, value)
        await run.settled()
        results = [r async for r in read_results(run.broker, await result_topics(run.broker, run.topics), follow=False)]
    ends = {codec.query_id_of(record): codec.decode_outcome(record).outcome for record in results}
    assert {name: str(end.kind) for name, end in ends.items()} == {
        "answered": "answered",
        "answered-too": "answered",
        "refused": "rejected",
        "too-late": str(ends["too-late"].kind),
    }
    assert str(ends["too-late"].kind) != "answered"
    for record in results:
        query_id = codec.query_id_of(record)
        assert query_id is not None
        back = [header for header in record.headers if header in brought(query_id)]
        assert tuple(back) == brought(query_id)
        assert "x-secret" not in dict(record.headers)
