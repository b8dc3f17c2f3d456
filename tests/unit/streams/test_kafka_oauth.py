"""Tokens for OAUTHBEARER: one for all clients, fetched anew before it ends; the secret is told to nobody else."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiokafka.errors import KafkaConnectionError

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.settings.kafka_section import KafkaSection
from sluicegate.streams.broker_settings import KafkaOAuth
from sluicegate.streams.kafka.connection import connection
from sluicegate.streams.kafka.oauth import TokenProvider
from sluicegate.streams.ports import BrokerError


class Provider:
    """Gives tokens 1, 2, …, or answers as it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.instead: web.Response | None = None
        self.life: Any = 60
        self.parts: list[bytes] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        form = {name: str(held) for name, held in (await request.post()).items()}
        self.asked.append((b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode(), form))
        if self.instead is not None:
            return self.instead
        if self.parts:
            parted = web.StreamResponse()
            await parted.prepare(request)
            for part in self.parts:
                await parted.write(part)
                await asyncio.sleep(0.05)
            return parted
        return web.json_response({"access_token": f"token-{len(self.asked)}", "expires_in": self.life})


@asynccontextmanager
async def serving(provider: Provider) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/token", provider.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/token"
    finally:
        await runner.cleanup()


async def test_all_clients_share_a_token_until_it_is_about_to_end() -> None:
    provider, now = Provider(), [5_000.0]
    async with serving(provider) as url:
        tokens = TokenProvider(KafkaOAuth(url, "me", "s3cret", "kafka read"), monotonic=lambda: now[0])
        assert set(await asyncio.gather(*(tokens.token() for _ in range(5)))) == {"token-1"}
        now[0] += 47.0
        assert await tokens.token() == "token-1"
        now[0] += 2.0  # 49 of 60 s
        assert await tokens.token() == "token-2"
    form = {"grant_type": "client_credentials", "scope": "kafka read"}
    assert provider.asked == [("me:s3cret", form)] * 2


@pytest.mark.parametrize(
    ("instead", "told"),
    [
        (web.Response(status=401, text="no"), "answered 401"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"}), "answered 302"),
        (web.Response(text="<html>"), "no access_token"),
        (web.json_response([]), "no access_token"),
        (web.json_response({"access_token": "t", "expires_in": "soon"}), "no access_token"),
        (web.json_response({"access_token": 7, "expires_in": 60}), "cannot be used"),
        (web.json_response({"access_token": "a\x01auth=b", "expires_in": 60}), "cannot be used"),
        (web.json_response({"access_token": "t", "expires_in": -1}), "cannot be used"),
    ],
)
async def test_what_gives_no_token_is_told_without_the_secret(instead: web.Response, told: str) -> None:
    provider = Provider()
    provider.instead = instead
    async with serving(provider) as url:
        with pytest.raises(BrokerError, match=told) as caught:
            await TokenProvider(KafkaOAuth(url, "me", "s3cret")).token()
    assert "s3cret" not in str(caught.value)
    assert isinstance(caught.value, KafkaConnectionError), "aiokafka ends for good of what it does not know"


async def test_a_token_may_come_in_parts_and_no_more_is_read_than_a_token_may_be() -> None:
    provider = Provider()
    provider.parts = [b'{"expires_in": 60, "access_', b'token": "' + b"a" * 3_000, b'"}']
    async with serving(provider) as url:
        assert await TokenProvider(KafkaOAuth(url, "me", "s3cret")).token() == "a" * 3_000
        provider.parts = [b'{"access_token": "t", "expires_in": 60}', *[b" " * 65_536] * 40, b"x"]
        with pytest.raises(BrokerError, match="over 65536 bytes"):
            await TokenProvider(KafkaOAuth(url, "me", "s3cret")).token()


async def test_a_provider_that_is_away_is_told() -> None:
    with pytest.raises(BrokerError, match="cannot be asked") as caught:
        await TokenProvider(KafkaOAuth("http://127.0.0.1:1/token", "me", "s3cret")).token()
    assert isinstance(caught.value, KafkaConnectionError), "aiokafka tries again"


def section(**more: Any) -> KafkaSection:
    oauth = {"token_url": "https://id.example/token", "client_id": "me", "client_secret": "s3cret"}
    told = {"protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "oauth": oauth, **more}
    return KafkaSection.model_validate(told)


def test_clients_are_given_the_provider_in_the_place_of_a_password() -> None:
    settings = section().settings()
    options = connection("h:1", settings)
    assert isinstance(options["sasl_oauth_token_provider"], TokenProvider)
    assert options["sasl_mechanism"] == "OAUTHBEARER" and "sasl_plain_password" not in options
    assert options["sasl_oauth_token_provider"] is connection("h:1", settings)["sasl_oauth_token_provider"]
    assert "s3cret" not in repr(settings) and "s3cret" not in section().model_dump_json()


@pytest.mark.parametrize("url", ["http://id.example/token", "ftp://127.0.0.1/", "https:///x", "file:///etc", "x"])
def test_a_secret_is_sent_to_nobody_in_the_clear(url: str) -> None:
    with pytest.raises(ValueError, match="on loopback"):
        section(oauth={"token_url": url, "client_id": "me", "client_secret": "s"})


def test_the_secret_must_be_there_and_the_mechanism_said() -> None:
    nobody = section(oauth={"token_url": "http://localhost:1/t", "client_id": "me"})
    with pytest.raises(ConfigurationError, match="CLIENT_SECRET"):
        nobody.settings()
    with pytest.raises(ValueError, match="go together"):
        section(sasl_mechanism="PLAIN")
    with pytest.raises(ValueError, match="go together"):
        section(oauth=None)
