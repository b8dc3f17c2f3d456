"""The client over topics: answers by query id, many at once, by rows; what cannot be asked is an error at once."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.domain.query import QueryKey
from sluicegate.sluice.client import Client
from sluicegate.streams import connect
from sluicegate.streams.ports import Record
from tests.contract.test_open_inference_protocol import affine_front

HEADERS = (("ce_id", b"q1"), ("ce_querysource", b"/client"))


async def prefix_of(url: str) -> str:
    """Of the only system there."""
    broker = connect(url)
    try:
        names = await broker.admin().topics()
    finally:
        await broker.close()
    return next(name for name in names if name.endswith(".control.plan")).removesuffix(".control.plan")


async def test_answers_come_back_to_whoever_asked_whatever_their_order(tmp_path: Path) -> None:
    async with affine_front(tmp_path) as address:
        url = f"memory+{address}"
        prefix = await prefix_of(url)
        async with Client(url, prefix=prefix) as client:
            rows = np.arange(60, dtype=np.float32).reshape(30, 2)
            asked = (client.infer("affine", {"x": rows[i : i + 1]}, latency_ms=5000, accuracy=0.85) for i in range(30))
            answers = await asyncio.gather(*asked)
            assert all(a.outcome.variant == "double" for a in answers)
            assert [a.outputs["y"].tolist() for a in answers] == [[(2 * r).tolist()] for r in rows]

            batch = await client.infer_batch("affine", [{"x": rows[:2]}, {"x": rows[2:5]}])
            assert [a.outputs["label"].tolist() for a in batch] == [[1, 1], [1, 1, 1]]

            whole = await client.infer_rows("affine", {"x": rows}, rows=8)
            assert [len(a.outputs["y"]) for a in whole] == [8, 8, 8, 6]
            assert np.array_equal(np.concatenate([a.outputs["y"] for a in whole]), 2 * rows)

            refused = await client.infer("affine", {"x": rows[:1]}, accuracy=0.99)
            assert (refused.outcome.kind, refused.outcome.reason) == (OutcomeKind.REJECTED, "infeasible")
            assert "nearest: double" in (refused.outcome.detail or "")
            assert refused.outputs == {}

            with pytest.raises(InvalidInputError, match="known: affine"):
                await client.infer("nobody", {"x": rows[:1]})
            with pytest.raises(InvalidInputError, match="as many of each"):
                await client.infer_rows("affine", {"x": rows, "z": rows[:1]})


async def test_an_id_that_another_source_uses_too_is_answered_to_each_with_its_own(tmp_path: Path) -> None:
    async with affine_front(tmp_path) as address:
        url = f"memory+{address}"
        prefix = await prefix_of(url)
        async with Client(url, prefix=prefix, source="a") as one, Client(url, prefix=prefix, source="b") as other:
            rows = np.array([[1.0, 2.0], [30.0, 40.0]], np.float32)
            asked = [
                client.infer("affine", {"x": rows[i : i + 1]}, query_id="mine", latency_ms=5000)
                for i, client in enumerate((one, other))
            ]
            answers = await asyncio.gather(*asked)
    assert [answer.outcome.source for answer in answers] == ["/a", "/b"]
    first, second = (answer.outputs["y"].tolist() for answer in answers)
    assert first != second and second[0][0] > 10 * first[0][0]


async def test_an_outcome_that_cannot_be_read_is_told_to_who_waits_for_it() -> None:
    client = Client("memory://")
    waiting = client._waiting[QueryKey("affine", "/client", "q1")] = asyncio.get_running_loop().create_future()
    record = Record("sluice.app.affine.results", 0, 0, None, b"{", HEADERS, 0.0)
    client._heard(record)
    client._heard(record)  # once more: nobody waits for it any more
    with pytest.raises(InvalidInputError):
        await waiting
