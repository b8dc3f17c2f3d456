"""The simulated provider's bill and boot, and notices from files and over HTTP, hostile ones included."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from pydantic import ValidationError

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.executors.drivers.notice_sources import MAX_BYTES, file_notices, http_notices, notices_of
from sluicegate.executors.drivers.provider import Notice, ProviderError
from sluicegate.executors.drivers.simulated_provider import SimulatedProvider
from sluicegate.planner.capacity.procurement import Kind, Prices
from sluicegate.sluice.settings.elastic_settings import ProcurementSettings
from tests.harness import free_port


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_spot_fails_as_often_as_asked_and_is_paid_from_boot_to_release() -> None:
    clock, draws = Clock(), iter([0.1, 0.5])
    provider = SimulatedProvider(Prices(3600.0, 1080.0), p_rev=0.354, draw=lambda: next(draws), now=clock, boot=20.0)
    assert not await provider.request_spot("a")
    assert await provider.request_spot("a")
    assert not await provider.up("a", Kind.SPOT)
    clock.now = 30.0
    assert await provider.up("a", Kind.SPOT)
    clock.now = 120.0
    await provider.release("a", Kind.SPOT)
    assert provider.meter.total(500.0) == pytest.approx(100 * 0.3)
    await provider.order("a")
    assert provider.prices.of(Kind.ON_DEMAND) == 3600.0
    with pytest.raises(InvalidInputError):
        SimulatedProvider(Prices(1, 1), p_rev=1.5, draw=lambda: 0.0, now=clock)


async def test_a_file_tells_each_notice_once(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    source = file_notices(path)
    assert await source.poll() == ()
    path.write_text('[{"node": "gpu0", "deadline": "1970-01-01T00:01:00Z"}]')
    assert await source.poll() == (Notice("gpu0", 60.0),)
    assert await source.poll() == ()
    path.write_text('[{"node": "gpu0", "deadline": 60}, {"node": "gpu1", "deadline": 90.5}]')
    assert await source.poll() == (Notice("gpu1", 90.5),)


async def test_http_answers_404_without_notices_and_errors_are_one_line(unused_tcp_port_of: int) -> None:
    answers = {"/none": (404, ""), "/some": (200, '[{"node": "n", "deadline": 1}]'), "/broken": (500, "oops")}

    async def answer(request: web.Request) -> web.Response:
        status, text = answers[request.path]
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/{any}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port_of).start()
    base = f"http://127.0.0.1:{unused_tcp_port_of}"
    try:
        assert await http_notices(f"{base}/none").poll() == ()
        assert await http_notices(f"{base}/some").poll() == (Notice("n", 1.0),)
        with pytest.raises(ProviderError, match="answered 500"):
            await http_notices(f"{base}/broken").poll()
    finally:
        await runner.cleanup()
    with pytest.raises(ProviderError, match="notices"):
        await http_notices(f"{base}/none").poll()
    with pytest.raises(ConfigurationError):
        http_notices("file:///etc/passwd")


@pytest.mark.parametrize("answer", ["gone", "500 Broken", "200 OK"])
async def test_what_an_address_of_notices_keeps_secret_is_not_told(unused_tcp_port_of: int, answer: str) -> None:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 4\r\n\r\noops".encode())
        await writer.drain()
        writer.close()

    at = unused_tcp_port_of
    server = None if answer == "gone" else await asyncio.start_server(answered, "127.0.0.1", at)
    with pytest.raises(ProviderError) as told:
        await http_notices(f"http://user:secret@127.0.0.1:{at}/some?token=secret").poll()
    assert f"http://127.0.0.1:{at}/some" in str(told.value)
    assert "secret" not in str(told.value)
    if server is not None:
        server.close()


def test_settings_do_not_repeat_what_an_address_of_notices_keeps_secret() -> None:
    with pytest.raises(ConfigurationError) as told:
        http_notices("http://user:secret@[::1/some")
    assert "secret" not in str(told.value)
    with pytest.raises(ValidationError) as refused:
        ProcurementSettings(notices="http://user:secret@example.com/some?token=secret")
    assert "secret" not in refused.value.errors()[0]["msg"]


async def test_notices_over_http_may_come_in_parts_and_are_bounded(unused_tcp_port_of: int) -> None:
    parts = {
        "/some": [b'[{"node": "a", "deadline": 1},', b'{"node": "b", "deadline"', b": 2}]"],
        "/endless": [b"[]", *[b" " * 65_536] * 40],
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        parted = web.StreamResponse()
        await parted.prepare(request)
        for part in parts[request.path]:
            await parted.write(part)
            await asyncio.sleep(0.02 if len(part) < 100 else 0.0)
        return parted

    app = web.Application()
    app.router.add_get("/{any}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port_of).start()
    base = f"http://127.0.0.1:{unused_tcp_port_of}"
    try:
        assert await http_notices(f"{base}/some").poll() == (Notice("a", 1.0), Notice("b", 2.0))
        with pytest.raises(ProviderError, match=f"more than {MAX_BYTES} bytes"):
            await http_notices(f"{base}/endless").poll()
    finally:
        await runner.cleanup()


@pytest.fixture
def unused_tcp_port_of() -> int:
    return free_port()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"{}", "must be a list"),
        (b"[1]", r"\[0\]\.node"),
        (b'[{"node": ""}]', r"\[0\]\.node"),
        (b'[{"node": "n"}]', r"\[0\]\.deadline"),
        (b'[{"node": "n", "deadline": true}]', r"\[0\]\.deadline"),
        (b'[{"node": "n", "deadline": "soon"}]', "is not a time"),
        (b'[{"node": "n", "deadline": "2026-01-02T03:04:05"}]', "has no zone"),
        (b'[{"node": "n", "deadline": -5}]', r"\[0\]\.deadline"),
        (b" " * (MAX_BYTES + 1), "more than"),
    ],
)
def test_what_cannot_be_understood_is_refused_by_place(content: bytes, message: str) -> None:
    with pytest.raises(ProviderError, match=message):
        notices_of(content, "x")
