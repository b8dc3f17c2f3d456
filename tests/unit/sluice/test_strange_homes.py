"""The system that runs here is found, and what is registered in one SLUICE_HOME is not told to one with another."""

import asyncio
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.catalogue.run_folders import awaited_url, live_server, open_broker, strange_home
from sluicegate.sluice.registration import publish_registration
from sluicegate.sluice.registration.publish_registration import announce
from sluicegate.sluice.settings.endpoint_settings import HttpSettings
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams import connect
from sluicegate.streams.topics import Topics
from tests.contract.brokers import serve
from tests.contract.open_inference.test_open_inference_protocol import affine_front
from tests.harness import toy_catalogue


@pytest.fixture(autouse=True)
def home_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's would win."""
    monkeypatch.delenv("SLUICE_HOME", raising=False)


async def test_a_system_with_another_home_is_told_nothing_and_one_with_this_home_by_any_path_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours, linked = tmp_path / "theirs", tmp_path / "ours", tmp_path / "linked"
    theirs.mkdir()
    ours.mkdir()
    linked.symlink_to(theirs)
    behind, held, registry = connect("memory://"), toy_catalogue(("mine",)), Topics().registry
    async with serve(behind, home=theirs) as url:
        address = url.removeprefix("memory+")
        monkeypatch.setattr(publish_registration, "live_server", lambda settings: address)
        told = await announce(Settings(home=ours), "mine", wait=0.0, held=held)
        assert told is not None and told.place is None
        assert str(theirs) in told.why and str(ours) in told.why and "SLUICE_HOME" in told.why
        assert registry not in await behind.admin().topics(), "nothing of it may reach that system"
        told = await announce(Settings(home=linked), "mine", wait=0.0, held=held)
        assert told is not None and told.why == "" and told.place is not None
        assert registry in await behind.admin().topics()


async def test_a_system_that_does_not_say_its_home_is_told(tmp_path: Path) -> None:
    async with serve(connect("memory://")) as url:
        address = url.removeprefix("memory+")
        assert await asyncio.to_thread(strange_home, Settings(home=tmp_path), address) is None
    assert await asyncio.to_thread(strange_home, Settings(home=tmp_path), address) is None, "it has gone meanwhile"


async def test_the_home_is_asked_for_with_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "theirs").mkdir()
    async with serve(connect("memory://"), token="secret", home=tmp_path / "theirs") as url:
        address = url.removeprefix("memory+")
        settings = Settings(
            home=tmp_path, http=HttpSettings(port=urlsplit(address).port, token_file=tmp_path / "token")
        )
        assert await asyncio.to_thread(strange_home, settings, address) == tmp_path / "theirs"


async def test_a_proxy_for_the_web_is_not_asked_for_the_system_that_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "theirs").mkdir()
    async with (
        await asyncio.start_server(hear, "127.0.0.1", 0) as proxy,
        affine_front(tmp_path) as front,
        serve(connect("memory://"), token="secret", home=tmp_path / "theirs") as url,
    ):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        monkeypatch.setattr(urllib.request, "_opener", None)  # which keeps what the environment said before
        here = Settings(home=tmp_path, http=HttpSettings(port=urlsplit(front).port))
        assert await asyncio.to_thread(live_server, here) == front
        settings = Settings(home=tmp_path, http=HttpSettings(token_file=tmp_path / "token"))
        address = url.removeprefix("memory+")
        assert await asyncio.to_thread(strange_home, settings, address) == tmp_path / "theirs"
    assert asked == [], "it would have had the token, too"


@pytest.mark.parametrize(
    "said",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"", *(b"HTTP/1.0 200 OK\r\n\r\n" + text for text in (b"[]", b"7", b"{}", b"<p>"))],
)
async def test_what_is_no_system_is_taken_for_none(tmp_path: Path, said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        settings = Settings(home=tmp_path, http=HttpSettings(port=port))
        assert await asyncio.to_thread(live_server, settings) is None
        assert await asyncio.to_thread(strange_home, settings, f"http://127.0.0.1:{port}") is None


def test_ipv6_is_looked_for_in_brackets(tmp_path: Path, unused_tcp_port: int) -> None:
    settings = Settings(home=tmp_path, http=HttpSettings(host="::1", port=unused_tcp_port))
    with pytest.raises(ConfigurationError, match=rf"answers at http://\[::1\]:{unused_tcp_port} "):
        open_broker(settings)


def test_where_none_runs_it_is_said_where_it_was_looked_for(tmp_path: Path, unused_tcp_port: int) -> None:
    settings = Settings(home=tmp_path, http=HttpSettings(host="localhost", port=unused_tcp_port))
    silent = f"no `sluice up` answers at http://localhost:{unused_tcp_port} .SLUICE_HTTP__PORT"
    with pytest.raises(ConfigurationError, match=f"no finished run in {tmp_path}/runs, and {silent}"):
        open_broker(settings)
    with pytest.raises(ConfigurationError, match=f"nothing to ask; {silent}"):
        awaited_url(settings, None, "nothing to ask", within=0.0, say=lambda _: None)
