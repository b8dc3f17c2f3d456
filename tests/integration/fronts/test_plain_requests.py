"""Requests that the front answers by itself: as the web framework behind it would, and never where that is in doubt."""

import asyncio
import gzip
import json
import re
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluicegate.policies.admission.transport_delay import TransportDelay
from sluicegate.stages.fronts import front_desk
from sluicegate.stages.fronts.front_error import FrontError
from sluicegate.stages.fronts.http_front import HttpStage
from sluicegate.stages.fronts.plain_requests import PlainRequests, read_head
from sluicegate.streams import connect
from tests.harness import PATIENCE_S, PIXELS, ROLES, running, settings_for, toy_catalogue

Answer = tuple[int, dict[str, str], dict[str, Any]]
PATH = "/v2/models/toy/infer"
SOUND = (f"POST {PATH} HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 7")
FOR_THE_FRAMEWORK = "TE: trailers"
"""A header that changes nothing but who reads the request."""


def head(*lines: str) -> bytes:
    return "\r\n".join((*lines, "", "")).encode("latin-1")


async def test_a_plain_head_is_read() -> None:
    found = read_head(
        head(*SOUND, "content-type:application/octet-stream \t", "X-Request-Id: 7", "Accept: */*"),
        asyncio.get_running_loop(),
    )
    assert found is not None
    assert (found.app, found.path, found.size, found.json_length) == ("toy", PATH, 7, None)
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.carried == (("x-request-id", b"7"),)


@pytest.mark.parametrize(
    "text",
    [
        head(f"POST {PATH} HTTP/1.0", *SOUND[1:]),
        head(f"GET {PATH} HTTP/1.1", *SOUND[1:]),
        head(f"POST  {PATH} HTTP/1.1", *SOUND[1:]),
        head(f"POST {PATH}?a=b HTTP/1.1", *SOUND[1:]),
        head("POST /v2/models/to%79/infer HTTP/1.1", *SOUND[1:]),
        head("POST /v2/models/toy/versions/v/infer HTTP/1.1", *SOUND[1:]),
        head(*SOUND[:2]),
        head(*SOUND[:2], "Content-Length: 0"),
        head(*SOUND[:2], "Content-Length: -7"),
        head(*SOUND[:2], "Content-Length: +7"),
        head(*SOUND[:2], "Content-Length: 07"),
        head(*SOUND[:2], "Content-Length: 7, 7"),
        head(*SOUND[:2], "Content-Length : 7"),
        head(*SOUND, "Content-Length: 7"),
        head(*SOUND, "content-length: 8"),
        head(*SOUND, "Host: 127.0.0.1"),
        head(*SOUND, "Transfer-Encoding: chunked"),
        head(*SOUND, "Transfer-Encoding: identity"),
        head(*SOUND, "Content-Encoding: gzip"),
        head(*SOUND, "Expect: 100-continue"),
        head(*SOUND, "Upgrade: websocket"),
        head(*SOUND, "Connection: close"),
        head(*SOUND, "Connection: keep-alive, content-length"),
        head(*SOUND, "Content-Type: text/plain"),
        head(*SOUND, "X: a", " folded"),
        head(*SOUND, "no colon"),
        head(*SOUND, ": no name"),
        head(*SOUND, "X: \x00"),
        head(*SOUND, "X: \x7f"),
        head(*SOUND, "X: ü"),
        head(*SOUND, "X: a\rY: b"),
        head(*SOUND, "X: a\nY: b"),
        head(*SOUND, f"traceparent: {'a' * 20_000}"),
        head(*SOUND).replace(b"\r\n", b"\n"),
        head(*SOUND) + b"x",
        head(*SOUND)[:-1],
        b"",
    ],
)
async def test_what_is_not_plain_beyond_doubt_is_the_frameworks(text: bytes) -> None:
    assert read_head(text, asyncio.get_running_loop()) is None


class Raw:
    """A connection on which bytes are written as they are."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Raw":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def read(self) -> Answer:
        async with asyncio.timeout(20.0):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            lines = text.split("\r\n")
            headers = {name.lower(): held.strip() for name, _, held in (line.partition(":") for line in lines[1:-2])}
            body = await self.reader.readexactly(int(headers["content-length"]))
        return int(lines[0].split(" ")[1]), headers, json.loads(body)


def request(body: bytes, *more: str, path: str = PATH) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}")
    return head(*lines, "Content-Type: application/json", *more) + body


def query(**changes: Any) -> bytes:
    image = {"name": "image", "shape": [1, PIXELS], "datatype": "FP32", "data": [0.0] * PIXELS}
    return json.dumps({"inputs": [image], **changes}).encode()


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[HttpStage]:
    async with fronted(tmp_path) as found:
        yield found


@asynccontextmanager
async def fronted(folder: Path, topics: Mapping[str, Any] | None = None, **changes: float) -> AsyncIterator[HttpStage]:
    """The HTTP front of a whole system, with ``changes`` to its settings, and settings of ``topics``."""
    settings = settings_for("memory://", folder, http={"port": 0, **changes}, topics=topics or {})
    catalogue = toy_catalogue(slo=PATIENCE_S)
    async with running(settings, connect("memory://"), catalogue=catalogue, roles=(*ROLES, "http")) as run:
        await run.planned()
        http = next(stage for stage in run.stages if isinstance(stage, HttpStage))
        await http.bound.wait()
        yield http


def port_of(front: HttpStage) -> int:
    return int(front.address.rpartition(":")[2])


async def test_it_is_answered_as_by_the_framework(front: HttpStage) -> None:
    """But for ids, times and what happens to be in force."""
    bodies = [
        query(id="mine"),
        query(id="mine", outputs=[{"name": "label"}]),
        query(outputs=[{"name": "nothing"}]),
        query(outputs=7),
        query(parameters={"unknown": 1}),
        query(parameters={"latency_ms": -1}),
        b"{}",
        b"no JSON",
    ]
    async with Raw(port_of(front)) as plain, Raw(port_of(front)) as other:
        for body in bodies:
            plain.writer.write(request(body))
            other.writer.write(request(body, FOR_THE_FRAMEWORK))
            ours, theirs = await plain.read(), await other.read()
            assert ours[0] == theirs[0]
            assert ours[1].keys() == theirs[1].keys()
            for name in ours[1].keys() - {"content-length", "date", "sluice-outcome"}:
                assert ours[1][name] == theirs[1][name]
            assert ours[2].keys() == theirs[2].keys()
            assert ours[2].get("outputs") == theirs[2].get("outputs")
            hidden = [re.sub("[0-9a-f]{32}", "ID", str(answer[2].get("error"))) for answer in (ours, theirs)]
            assert hidden[0] == hidden[1]
        assert front._guard.doors._open[next(iter(front._guard.doors._open))].is_plain


async def test_what_the_query_topic_does_not_take_ends_at_once_and_is_not_under_way(tmp_path: Path) -> None:
    large = query(padding="x" * 100_000)
    async with fronted(tmp_path, {"queries": {"max_bytes": 65_536}}) as front:
        for more in ((), (FOR_THE_FRAMEWORK,)):
            async with Raw(port_of(front)) as asks:
                asks.writer.write(request(large, *more) + request(query(id="mine"), *more))
                status, _, body = await asks.read()
                assert status == 413 and "65536" in body["error"] and "topics.queries.max_bytes" in body["error"]
                status, _, body = await asks.read()
                assert (status, body["id"]) == (200, "mine")
        assert front._desk.waiting == 0
        assert not front._desk._transport["toy"]._under_way


async def test_nested_bodies_and_lengths_that_are_no_text_are_refused_not_failed_at(front: HttpStage) -> None:
    deep = query(parameters={"accuracy": 7}).replace(b": 7", b": " + b"[" * 600 + b"]" * 600)
    version = next(version for _, version in front._desk.index())
    cases = [
        (request(deep), "parameters.accuracy"),
        (request(deep, path=f"/v2/models/toy/versions/{version}/infer"), "nest it less deep"),
        (request(query(), "Inference-Header-Content-Length: \xff"), "inference-header-content-length"),
        (request(query(), "Inference-Header-Content-Length: ü"), "inference-header-content-length"),
    ]
    async with Raw(port_of(front)) as asks:
        for asked, told in cases:
            asks.writer.write(asked)
            status, _, body = await asks.read()
            assert (status, told in body["error"]) == (400, True), body


async def test_a_body_may_come_in_any_pieces(front: HttpStage) -> None:
    whole = request(query(id="mine"))
    begins = whole.index(b"\r\n\r\n") + 4
    async with Raw(port_of(front)) as plain:
        for cut in (begins, begins + 1, len(whole) - 1):
            for part in (whole[:cut], whole[cut:]):
                plain.writer.write(part)
                await plain.writer.drain()
                await asyncio.sleep(0.02)
            status, _, body = await plain.read()
            assert (status, body["id"]) == (200, "mine")
        for at in range(0, len(whole), 97):
            plain.writer.write(whole[at : at + 97])
            await asyncio.sleep(0)
        assert (await plain.read())[0] == 200


async def test_requests_sent_ahead_are_answered_in_their_order(front: HttpStage) -> None:
    """Also those that go to the framework from one of them on, and more than are read ahead."""
    bodies = [query(id=f"q{i:700}", parameters={"unknown": 1} if i % 3 == 1 else {}) for i in range(100)]
    sent = [request(body, *([FOR_THE_FRAMEWORK] if i > 90 else [])) for i, body in enumerate(bodies)]
    assert sum(map(len, sent)) > 65_536
    async with Raw(port_of(front)) as plain:
        plain.writer.write(b"".join(sent))
        for i in range(len(bodies)):
            status, _, body = await plain.read()
            assert status == (400 if i % 3 == 1 else 200)
            if status == 200:
                assert body["id"] == f"q{i:700}"


async def test_what_comes_just_as_an_answer_is_written_waits_for_what_came_before(
    front: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = request(query(id="third"))
    comes = [third[:30], third[30:]]
    write = PlainRequests._write

    def written(self: PlainRequests, *answer: Any, **more: Any) -> None:
        write(self, *answer, **more)
        while comes and self._rest:
            self.data_received(comes.pop(0))

    monkeypatch.setattr(PlainRequests, "_write", written)
    async with Raw(port_of(front)) as plain:
        plain.writer.write(request(query(id="first")) + request(query(id="second")))
        assert [(await plain.read())[2]["id"] for _ in range(3)] == ["first", "second", "third"]
    assert not comes


async def test_while_answers_are_not_taken_nothing_more_of_a_connection_begins(
    front: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers would be held here, ever more of them. Neither what came before nor what comes meanwhile is begun."""
    async with Raw(port_of(front)) as plain:
        plain.writer.write(request(query(id="first")))
        assert (await plain.read())[2]["id"] == "first"
        (door,) = front._guard.doors._open.values()
        held = door._plain
        assert isinstance(held, PlainRequests)
        asked = front._desk.begin
        begun = []

        def begins(*given: Any) -> Any:
            begun.append(json.loads(given[1])["id"])
            if begun == ["second"]:
                door.pause_writing()
            return asked(*given)

        monkeypatch.setattr(front._desk, "begin", begins)
        plain.writer.write(b"".join(request(query(id=name)) for name in ("second", "third")))
        assert (await plain.read())[2]["id"] == "second"
        waiting = request(query(id="fourth")) + request(query(id="fifth"), FOR_THE_FRAMEWORK)
        plain.writer.write(waiting)
        async with asyncio.timeout(PATIENCE_S):
            while not held._rest.endswith(waiting):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert begun == ["second"] and front._desk.waiting == 0
        door.resume_writing()
        assert [(await plain.read())[2]["id"] for _ in range(3)] == ["third", "fourth", "fifth"]


async def test_a_connection_may_turn_to_anything_else(front: HttpStage) -> None:
    async with Raw(port_of(front)) as plain:
        plain.writer.write(request(query(id="mine")))
        assert (await plain.read())[2]["id"] == "mine"
        plain.writer.write(head("GET /v2/health/live HTTP/1.1", "Host: 127.0.0.1"))
        assert (await plain.read())[2] == {"live": True}
        plain.writer.write(request(query(), path="/v2/models/nobody/infer"))
        assert (await plain.read())[0] == 404
        plain.writer.write(request(query(id="again")))
        assert (await plain.read())[2]["id"] == "again"


async def test_strangers_are_refused(front: HttpStage) -> None:
    for line in ("Origin: http://elsewhere.example", "Host: elsewhere.example"):
        async with Raw(port_of(front)) as plain:
            lines = [f"POST {PATH} HTTP/1.1", f"Content-Length: {len(query())}", "Host: 127.0.0.1"]
            plain.writer.write(head(*(lines[:2] if line.startswith("Host") else lines), line) + query())
            assert (await plain.read())[0] == 403


async def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    async with fronted(tmp_path, body_s=0.5) as front, Raw(port_of(front)) as slow:
        slow.writer.write(request(query())[:-1])
        status, headers, _ = await slow.read()
        assert (status, headers["connection"]) == (408, "close")
        assert await slow.reader.read() == b""


async def test_a_connection_that_asks_nothing_more_is_closed(tmp_path: Path) -> None:
    async with fronted(tmp_path, idle_s=1.0) as front, Raw(port_of(front)) as silent:
        silent.writer.write(request(query()))
        assert (await silent.read())[0] == 200
        async with asyncio.timeout(10.0):
            assert await silent.reader.read() == b""


async def test_who_leaves_before_the_answer_leaves_nothing_behind(front: HttpStage) -> None:
    for _ in range(20):
        async with Raw(port_of(front)) as plain:
            plain.writer.write(request(query()))
            await plain.writer.drain()
    async with asyncio.timeout(10.0):
        while front._desk.waiting or front._guard.doors._open:
            await asyncio.sleep(0.01)
    assert not front._desk._asking


@pytest.mark.parametrize("more", [(), (FOR_THE_FRAMEWORK,)])
async def test_who_says_no_more_is_answered_what_it_asked(front: HttpStage, more: tuple[str, ...]) -> None:
    """Whoever reads first, and however many there are; then the connection ends, and at once where nothing is due."""
    whole = request(query(id="first"), *more)
    for sent, due in (
        (whole, ["first"]),
        (whole + request(query(id="second"), *more), ["first", "second"]),
        (whole + request(query(id="second"), FOR_THE_FRAMEWORK), ["first", "second"]),
        (whole + request(query(id="cut"), *more)[:-1], ["first"]),
        (whole + request(query(id="cut"))[:30], ["first"]),
        (whole[:-1], []),
        (whole[:30], []),
        (b"", []),
    ):
        async with Raw(port_of(front)) as asks, asyncio.timeout(5.0):
            asks.writer.write(sent)
            asks.writer.write_eof()
            assert [(await asks.read())[2]["id"] for _ in due] == due
            assert await asks.reader.read() == b""
    assert not front._guard.doors._open


async def test_who_may_be_answered_in_a_while_is_told_when(front: HttpStage, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = front._desk
    app = replace(toy_catalogue().apps["toy"], slo=2.5)
    version = next(version for _, version in desk.index())
    by_version = f"/v2/models/toy/versions/{version}/infer"

    is_ready = head("GET /v2/models/toy/ready HTTP/1.1", "Host: 127.0.0.1")
    asked = [request(query()), request(query(), FOR_THE_FRAMEWORK), request(query(), path=by_version)]

    async def told(asks: Raw, *more: bytes) -> list[tuple[int, str | None]]:
        found = []
        for sent in (*asked, *more):
            asks.writer.write(sent)
            status, headers, _ = await asks.read()
            found.append((status, headers.get("retry-after")))
        return found

    async with Raw(port_of(front)) as asks:
        with monkeypatch.context() as patched:
            patched.setattr(front_desk, "MOST_WAITING", 0)
            assert await told(asks) == [(503, "1")] * 3
        with monkeypatch.context() as patched:
            patched.setitem(desk._apps, "toy", app)
            patched.setattr(TransportDelay, "comes", lambda *_: False)
            assert await told(asks) == [(503, "3")] * 3
        with monkeypatch.context() as patched:
            patched.setattr(desk, "_stopping", True)
            patched.setattr(type(desk), "ready", False)
            assert await told(asks, is_ready) == [(503, "5")] * 3 + [(503, "1")]


async def test_when_to_ask_again_is_told_of_what_passes_alone() -> None:
    assert [FrontError(status, "").headers for status in (400, 404, 500, 504)] == [{}] * 4
    assert FrontError(429, "", retry_s=0.2).headers == {"Retry-After": "1"}


async def test_what_is_refused_before_the_front_has_it_is_refused_as_json(
    front: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(front._desk, "index", fails)
    cases = [
        (b"nonsense\r\n\r\n", 400, "HTTP/1.1"),
        (head("GET / HTTP/9.1"), 400, "HTTP/1.1"),
        (head(*SOUND[:2], "Content-Length: -7"), 400, "HTTP/1.1"),
        (head(*SOUND, f"X: {'y' * 20_000}"), 431, "8190"),
        (head(*SOUND, *(f"X{i}: y" for i in range(200))), 431, "128"),
        (head(*SOUND, "Expect: the best"), 417, "Expectation"),
        (head("POST /v2/repository/index HTTP/1.1", *SOUND[1:2]), 500, "report it"),
    ]
    for sent, expected, told in cases:
        async with Raw(port_of(front)) as asks:
            asks.writer.write(sent)
            status, headers, body = await asks.read()
            assert (status, headers["content-type"], list(body)) == (expected, "application/json", ["error"]), body
            assert told in body["error"] and len(body["error"]) < 300 and "a defect" not in body["error"]


async def test_a_body_is_unpacked_where_it_is_said_how_and_refused_where_that_is_not_known(front: HttpStage) -> None:
    """Not read as if it were not packed, however well that may go."""
    plain = query(id="mine")
    read = [(gzip.compress(plain), "gzip"), (zlib.compress(plain), "Deflate"), (plain, "identity")]
    for body, encoding in read:
        async with Raw(port_of(front)) as asks:
            asks.writer.write(request(body, f"Content-Encoding: {encoding}"))
            status, _, answer = await asks.read()
            assert (status, answer.get("id")) == (200, "mine"), (encoding, answer)
    for encoding in ("br", "zstd", "x-gzip", "compress", "gzip, gzip", "gzip\r\nContent-Encoding: identity", "rot13"):
        async with Raw(port_of(front)) as asks:
            asks.writer.write(request(plain, f"Content-Encoding: {encoding}"))
            status, _, answer = await asks.read()
            assert status == 415 and answer["error"].startswith("content-encoding: "), (encoding, answer)
            assert "gzip, deflate" in answer["error"]
