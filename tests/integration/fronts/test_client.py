"""The client over topics: answers by query id, many at once, by rows; what cannot be asked is an error at once."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typing_extensions import override

from sluicegate.sluice.catalogue.broker_log import BrokerLog
from sluicegate.streams import connect
from sluicegate_client import Client, ClientError, InvalidQueryError, NoOutcomeError, RefusedError, Status, Tensor
from sluicegate_client.log import Headers, Received
from tests.contract.open_inference.test_open_inference_protocol import affine_front
from tests.harness import PATIENCE_S

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
        async with Client(BrokerLog(connect(url)), prefix=prefix) as client:
            rows = np.arange(60, dtype=np.float32).reshape(30, 2)
            asked = (
                client.infer("affine", {"x": rows[i : i + 1]}, latency_ms=30_000, accuracy=0.85) for i in range(30)
            )
            answers = await asyncio.gather(*asked)
            assert all(a.outcome.variant == "double" for a in answers)
            assert [a.outputs["y"].tolist() for a in answers] == [[(2 * r).tolist()] for r in rows]

            batch = await client.infer_batch("affine", [{"x": rows[:2]}, {"x": rows[2:5]}])
            assert [a.outputs["label"].tolist() for a in batch] == [[1, 1], [1, 1, 1]]

            whole = await client.infer_rows("affine", {"x": rows}, rows=8)
            assert [len(a.outputs["y"]) for a in whole] == [8, 8, 8, 6]
            assert np.array_equal(np.concatenate([a.outputs["y"] for a in whole]), 2 * rows)

            refused = await client.infer("affine", {"x": rows[:1]}, accuracy=0.99)
            assert (refused.outcome.kind, refused.outcome.reason) == ("rejected", "infeasible")
            assert "nearest: double" in (refused.outcome.detail or "")
            assert refused.outputs == {}

            with pytest.raises(InvalidQueryError, match="known: affine"):
                await client.infer("nobody", {"x": rows[:1]})
            with pytest.raises(InvalidQueryError, match="as many of each"):
                await client.infer_rows("affine", {"x": rows, "z": rows[:1]})


async def test_an_id_that_another_source_uses_too_is_answered_to_each_with_its_own(tmp_path: Path) -> None:
    async with affine_front(tmp_path) as address:
        url = f"memory+{address}"
        prefix = await prefix_of(url)
        async with (
            Client(BrokerLog(connect(url)), prefix=prefix, source="a") as one,
            Client(BrokerLog(connect(url)), prefix=prefix, source="b") as other,
        ):
            rows = np.array([[1.0, 2.0], [30.0, 40.0]], np.float32)
            asked = [
                client.infer("affine", {"x": rows[i : i + 1]}, query_id="mine", latency_ms=30_000)
                for i, client in enumerate((one, other))
            ]
            answers = await asyncio.gather(*asked)
    assert [answer.outcome.source for answer in answers] == ["/a", "/b"]
    first, second = (answer.outputs["y"].tolist() for answer in answers)
    assert first != second and second[0][0] > 10 * first[0][0]


class Scribbled:
    """A log whose results are ``told`` one after the other, one a query, by one reader as any log has."""

    url = "scribbled://"

    def __init__(self, *told: tuple[bytes, Headers]) -> None:
        self._told = iter(told)
        self._written: asyncio.Queue[Received] = asyncio.Queue()
        self.sent = 0

    async def open(self) -> None:
        pass

    async def topics(self) -> frozenset[str]:
        return frozenset({"sluice.app.affine.results"})

    async def follow(
        self, topics: Sequence[str], heard: Callable[[Received], None], *, beginning: bool
    ) -> asyncio.Future[None] | None:
        async def read() -> None:
            while True:
                heard(await self._written.get())

        self.topic, self._reader = topics[0], asyncio.create_task(read())
        return None

    async def send(self, topic: str, value: bytes, *, key: bytes, headers: Headers) -> None:
        self.sent += 1
        for value, given in (next(self._told),) * 2:  # once more: nobody waits for it any more
            self._written.put_nowait(Received(self.topic, None, value, given))

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


def result(*outputs: dict[str, Any]) -> bytes:
    told = {"kind": "answered", "late": False}
    return json.dumps({"id": "q1", "model_name": "affine", "parameters": told, "outputs": outputs}).encode()


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"[" * 100_000,
        result({"name": "y", "datatype": "INT64", "shape": [1], "data": [1.5]}),
        result({"name": "y", "datatype": "FP32", "shape": [1], "data": [1e300]}),
        result({"name": "y", "datatype": "BYTES", "shape": [1 << 50], "data": ["a"]}),
    ],
    ids=["cut short", "nested", "no integer", "too large a number", "too large a shape"],
)
async def test_an_outcome_that_cannot_be_read_is_told_to_who_waits_for_it_and_others_are_read(value: bytes) -> None:
    whole = result({"name": "y", "datatype": "FP32", "shape": [1], "data": [2.5]})
    async with Client(Scribbled((value, HEADERS), (whole, HEADERS)), timeout=5.0) as client:
        with pytest.raises(ClientError, match="is no outcome"):
            await client.infer("affine", {"x": [[1.0, 2.0]]}, query_id="q1")
        answer = await client.infer("affine", {"x": [[1.0, 2.0]]}, query_id="q1")
    assert answer.outputs["y"].tolist() == [2.5]


class Deafened(Scribbled):
    """A log whose readers end of ``fails`` as soon as a query is written."""

    def __init__(self, fails: Exception) -> None:
        super().__init__()
        self._fails = fails
        self.readings: list[asyncio.Future[None]] = []

    @override
    async def follow(
        self, topics: Sequence[str], heard: Callable[[Received], None], *, beginning: bool
    ) -> asyncio.Future[None]:
        await super().follow(topics, heard, beginning=beginning)
        self.readings.append(asyncio.get_running_loop().create_future())
        return self.readings[-1]

    @override
    async def send(self, topic: str, value: bytes, *, key: bytes, headers: Headers) -> None:
        self.sent += 1
        self.readings[-1].set_exception(self._fails)


async def test_who_waits_for_results_that_are_read_no_more_is_told_at_once_and_so_is_who_asks_then() -> None:
    log = Deafened(ClientError("cannot be read (its checksum is wrong)"))
    async with Client(log) as client:
        for _ in range(2):
            with pytest.raises(ClientError, match=r"read no more: cannot be read .*connect again"):
                async with asyncio.timeout(PATIENCE_S):
                    await client.infer("affine", {"x": [[1.0, 2.0]]}, query_id="q1")
    assert log.sent == 1
    async with Client(log) as client:
        with pytest.raises(ClientError, match="read no more"):
            await client.infer("affine", {"x": [[1.0, 2.0]]}, query_id="q1")
    assert log.sent == 2, "who connects again asks again"


async def test_announcements_that_are_followed_no_more_are_told_of_and_odd_ones_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Deafened(RuntimeError("gone"))
    told: list[Status] = []
    async with Client(log) as client:
        client.on_status(told.append)
        async with asyncio.timeout(PATIENCE_S):
            while len(log.readings) < 2:
                await asyncio.sleep(0)
            for value in (b"[" * 100_000, b'{"subject": "a", "state": "b", "detail": "c"}'):
                log._written.put_nowait(Received("sluice.control.status", None, value, ()))
            while not told:
                await asyncio.sleep(0)
            log.readings[-1].set_exception(RuntimeError("gone"))
            while "announcements cannot be followed" not in caplog.text:
                await asyncio.sleep(0)


FRONT = {"Sluice-Outcome": '{"id": 1}'}
SHORT = result({"name": "y", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}})
CUT = result({"name": "y", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}})


@pytest.mark.parametrize(
    ("status", "headers", "body", "raised"),
    [
        (200, {}, b"[]", ClientError),
        (200, {}, b"<html>", ClientError),
        (200, {}, b"[" * 100_000, ClientError),
        (200, {}, b'{"model_name": "affine", "parameters": {"kind": "answered", "late": false}}', ClientError),
        (200, {}, b'{"id": "q", "model_name": "affine", "parameters": null}', ClientError),
        (200, {}, result({"name": "y", "datatype": "FP128", "shape": [1], "data": [1]}), ClientError),
        (200, {}, result({"name": "y", "datatype": "FP32", "shape": [-1], "data": [1]}), ClientError),
        (200, {}, SHORT, ClientError),
        (200, {"Inference-Header-Content-Length": str(len(CUT))}, CUT + b"\x07\0\0\0ab", ClientError),
        (200, {"Inference-Header-Content-Length": "all"}, SHORT, ClientError),
        (504, FRONT, b"{}", RefusedError),
        (400, {}, b'["no"]', RefusedError),
        (502, {}, b"<html>", RefusedError),
    ],
    ids=lambda told: repr(told[:24]) if isinstance(told, bytes) else None,
)
async def test_whatever_answers_in_the_place_of_a_front_is_one_error(
    status: int, headers: dict[str, str], body: bytes, raised: type[ClientError]
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response() if request.method == "GET" else web.Response(status=status, headers=headers, body=body)

    app = web.Application()
    app.router.add_route("*", "/{way:.*}", answer)
    async with TestServer(app) as server, Client(str(server.make_url(""))) as client:
        with pytest.raises(ClientError, match="is no answer of a front") as told:
            await client.infer("affine", {"x": [[1.0, 2.0]]})
    assert type(told.value) is raised


async def test_a_batch_is_asked_little_by_little_again_where_the_front_is_busy_and_given_up_else() -> None:
    under_way, most, asked = 0, 0, 0
    refused: dict[int, int] = {}

    async def answer(request: web.Request) -> web.Response:
        nonlocal under_way, most, asked
        if request.method == "GET":
            return web.Response()
        under_way, asked = under_way + 1, asked + 1
        most, status = max(most, under_way), refused.get(asked)
        for _ in range(20):
            await asyncio.sleep(0)
        under_way -= 1
        body = result({"name": "y", "datatype": "FP32", "shape": [1], "data": [2.5]})
        return web.json_response({"error": "busy"}, status=status) if status else web.Response(body=body)

    app = web.Application()
    app.router.add_route("*", "/{way:.*}", answer)
    async with TestServer(app) as server, Client(str(server.make_url("")), timeout=5.0) as client:
        refused |= {20: 503, 30: 429}
        assert len(await client.infer_batch("affine", [{"x": [[1.0, 2.0]]}] * 60)) == 60
        assert (1 < most <= 16) and asked == 62
        most, refused[162] = 0, 413
        with pytest.raises(RefusedError, match="busy"):
            await client.infer_rows("affine", {"x": [[1.0, 2.0]] * 400}, rows=1, at_once=5)
        assert most <= 5 and asked < 180


@pytest.mark.parametrize(("body", "problem"), [(b'{"error": "busy"}', "busy"), (b"<html>", "is no answer of a front")])
async def test_a_refusal_tells_when_to_ask_again(body: bytes, problem: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        told = {"Retry-After": "17"}
        return web.Response() if request.method == "GET" else web.Response(status=503, headers=told, body=body)

    app = web.Application()
    app.router.add_route("*", "/{way:.*}", answer)
    async with TestServer(app) as server, Client(str(server.make_url(""))) as client:
        with pytest.raises(RefusedError, match=problem) as refused:
            await client.infer("affine", {"x": [[1.0, 2.0]]})
    assert refused.value.retry_after == 17.0


async def test_a_query_that_a_front_ended_for_now_tells_when_to_ask_again() -> None:
    ended = {
        "id": "q",
        "model_name": "affine",
        "parameters": {"kind": "rejected", "late": False, "reason": "over_share"},
    }
    told = {"Retry-After": "17", "Sluice-Outcome": json.dumps(ended)}

    async def answer(request: web.Request) -> web.Response:
        return web.Response() if request.method == "GET" else web.Response(status=429, headers=told)

    app = web.Application()
    app.router.add_route("*", "/{way:.*}", answer)
    async with TestServer(app) as server, Client(str(server.make_url(""))) as client:
        refused = await client.infer("affine", {"x": [[1.0, 2.0]]})
    assert (refused.outcome.reason, refused.retry_after) == ("over_share", 17.0)


async def test_a_result_whose_id_has_no_value_is_nobodys_and_others_are_read() -> None:
    whole = result({"name": "y", "datatype": "FP32", "shape": [1], "data": [2.5]})
    nameless = cast(Headers, (("ce_id", None), ("ce_querysource", b"/client")))
    async with Client(log := Scribbled((whole, nameless), (whole, HEADERS)), timeout=5.0) as client:
        first = asyncio.create_task(client.infer("affine", {"x": [[1.0, 2.0]]}, query_id="q0"))
        while not log.sent:
            await asyncio.sleep(0)
        answer = await client.infer("affine", {"x": [[1.0, 2.0]]}, query_id="q1")
        assert not first.done()
    assert answer.outputs["y"].tolist() == [2.5]
    assert (await asyncio.gather(first, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_an_id_that_waits_is_not_asked_again_before_its_outcome_came() -> None:
    told = [(result({"name": "y", "datatype": "FP32", "shape": [1], "data": [v]}), HEADERS) for v in (2.5, 3.5)]
    async with Client(log := Scribbled(*told), timeout=5.0) as client:
        first = asyncio.create_task(client.infer("affine", {"x": [[1.0, 2.0]]}, query_id="q1"))
        await asyncio.sleep(0)
        with pytest.raises(InvalidQueryError, match="query_id: 'q1' waits") as raised:
            await client.infer("affine", {"x": [[3.0, 4.0]]}, query_id="q1")
        assert (await first).outputs["y"].tolist() == [2.5]
        assert raised.value.field == "query_id" and log.sent == 1
        again = await client.infer("affine", {"x": [[3.0, 4.0]]}, query_id="q1")
    assert again.outputs["y"].tolist() == [3.5]


async def test_over_http_answers_and_refusals_say_the_same(tmp_path: Path) -> None:
    async with affine_front(tmp_path) as address, Client(address) as client:
        answer = await client.infer("affine", {"x": [[1.0, 2.0], [3.0, 4.5]]}, latency_ms=30_000, accuracy=0.85)
        assert answer.outcome.variant == "double" and answer.outcome.on_time
        assert answer.outputs["y"].tolist() == [[2.0, 4.0], [6.0, 9.0]]
        refused = await client.infer("affine", {"x": [[1.0, 2.0]]}, accuracy=0.99)
        assert (refused.outcome.kind, refused.outcome.reason, refused.outputs) == ("rejected", "infeasible", {})
        assert "nearest: double" in (refused.outcome.detail or "")
        with pytest.raises(InvalidQueryError, match="known: affine"):
            await client.infer("nobody", {"x": [[1.0, 2.0]]})
        wrong = await client.infer("affine", {"x": Tensor.of("INT32", [[1, 2]])})
        assert wrong.outcome.reason == "invalid" and "it must be FP32" in (wrong.outcome.detail or "")
    with pytest.raises(ClientError, match="nothing answers"):
        async with Client(address):
            pass


@pytest.mark.parametrize("at", ["127.0.0.1:9092", "kafka://", "memory://"])
def test_an_address_of_no_known_kind_is_an_error_at_once(at: str) -> None:
    with pytest.raises(ClientError, match="give kafka://host:port, or http://host:port"):
        Client(at)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"timeout": 0.0}, "timeout: is 0"),
        ({"timeout": float("nan")}, "timeout: is nan"),
        ({"timeout": float("inf")}, "timeout: is inf"),
        ({"token": "secret\n"}, "token: holds what no header carries"),
    ],
)
def test_what_cannot_be_a_timeout_or_a_token_is_an_error_at_once(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ClientError, match=problem) as raised:
        Client("http://127.0.0.1:8080", **given)
    assert "secret" not in str(raised.value)


async def test_what_a_broker_does_not_acknowledge_is_waited_for_no_longer_than_an_outcome() -> None:
    log = Scribbled()

    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    log.send = never  # type: ignore[method-assign]
    async with Client(log, timeout=0.01) as client, asyncio.timeout(5):
        with pytest.raises(NoOutcomeError, match=r"within 0\.01 s"):
            await client.infer("affine", {"x": [[1.0, 2.0]]})


async def test_a_host_that_takes_a_connection_and_says_nothing_is_waited_for_no_longer_than_an_outcome() -> None:
    """aiokafka would wait for forty seconds."""
    over = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server, asyncio.timeout(20.0):
        at = f"kafka://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ClientError, match=rf"nothing answers at {at} within 0\.3 s"):
            async with Client(at, timeout=0.3):
                pass
        over.set()


async def test_who_is_connected_is_not_connected_again_and_stays_so() -> None:
    whole = result({"name": "y", "datatype": "FP32", "shape": [1], "data": [2.5]})
    async with Client(Scribbled((whole, HEADERS)), timeout=5.0) as client:
        with pytest.raises(ClientError, match="connected already"):
            async with client:
                pass
        assert (await client.infer("affine", {"x": [[1.0, 2.0]]}, query_id="q1")).outputs["y"] == [2.5]
