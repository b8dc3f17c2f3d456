"""Where Apache Kafka is and what it is asked with: what cannot be is refused by its name, before anything is tried."""

import traceback
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSecurity, KafkaSettings
from sluicegate.streams.kafka.connection import connection
from sluicegate_client import Client, ClientError, Security

WRONG = ["", "here", "here:", "here:x", "here:0", "here:65536", "here:-1", ":9092", "h re:9092", "a:1,,b:2", "a:1,b"]


@pytest.mark.parametrize("servers", WRONG)
async def test_an_address_that_cannot_be_is_named(servers: str) -> None:
    with pytest.raises(ConfigurationError, match=r"host:port"):
        connect(f"kafka://{servers}")
    with pytest.raises(ClientError, match=r"give .*host:port"):
        async with Client(f"kafka://{servers}"):
            pass


async def test_a_password_in_an_address_is_told_to_nobody() -> None:
    with pytest.raises(ConfigurationError, match=r"broker: .* holds a user") as by_server:
        connect("kafka://me:secret@127.0.0.1:1")
    said = [str(by_server.value)]
    for at, told in (
        ("kafka://me:secret@127.0.0.1:1", "holds a user"),
        ("http://me:secret@127.0.0.1:1", "//127.0.0.1:1"),
    ):
        with pytest.raises(ClientError, match=told) as by_client:
            async with Client(at):
                pass
        said.append(str(by_client.value))
    assert not [one for one in said if "secret" in one]


@pytest.mark.parametrize(
    "at",
    [
        "http://me:se/cret@127.0.0.1:1",
        "http://me:1/secret@127.0.0.1:1",
        "http://me:1?secret@127.0.0.1:1",
        "http://me:1#secret@127.0.0.1:1",
        "http://me:secret@127.0.0.1:99999",
        "http://me:secret@127.0.0.1:x",
        "http://me:secret@:1",
        "http://me:secret@[::1:1",
        "http://m%3Ae:secret@127.0.0.1:1",
        "http://me:sec ret@127.0.0.1:x",
        "htp://me:secret@127.0.0.1:1",
        "me:secret@127.0.0.1:1",
    ],
)
async def test_a_password_is_told_to_nobody_whatever_is_wrong_with_its_address(at: str) -> None:
    with pytest.raises(ClientError, match=r"give .*http://host:port") as told:
        async with Client(at):
            pass
    said = "".join(traceback.format_exception(told.value))
    assert not [part for part in ("secret", "se/", "cret", "sec ") if part in said.replace(__file__, "")]


async def test_a_user_of_an_address_is_told_to_the_front_alone() -> None:
    asked = []

    async def live(request: web.Request) -> web.Response:
        asked.append((request.path, request.headers["Authorization"]))
        return web.Response()

    application = web.Application()
    application.router.add_get("/base/v2/health/live", live)
    async with TestServer(application) as server, Client(f"http://me:s%2Fcret@127.0.0.1:{server.port}/base/"):
        pass
    with pytest.raises(ClientError, match=r"token: .* names a user already"):
        Client("http://me:secret@127.0.0.1:1", token="mine")
    assert asked == [("/base/v2/health/live", f"Basic {b64encode(b'me:s/cret').decode()}")]


def test_one_and_several_and_numbers_of_either_kind_are_taken() -> None:
    for servers in ("here:1", "kafka-0.kafka:9092,10.0.0.7:65535", "[::1]:9092"):
        assert connect(f"kafka://{servers}").url == f"kafka://{servers}"


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "ca.pem"
    empty.write_text("none")
    with pytest.raises(ClientError, match=rf"security: ca_file {empty}: cannot be used .* PEM"):
        Security(protocol="SSL", ca_file=empty).options()
    with pytest.raises(ConfigurationError, match=rf"kafka\.security: ca_file {empty}: cannot be used"):
        connection("here:1", KafkaSettings(security=KafkaSecurity(protocol="SSL", ca_file=empty)))
    with pytest.raises(ClientError, match=r"cert_file .*gone"):
        Security(protocol="SSL", cert_file=tmp_path / "gone", key_file=tmp_path / "gone").options()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "username and password: SCRAM-SHA-512 needs both"),
        ({"username": "u"}, "username and password: SCRAM-SHA-512 needs both"),
        ({"password": "secret", "sasl_mechanism": "SCRAM-SHA-256"}, "username and password: SCRAM-SHA-256 needs both"),
        ({"username": "u", "sasl_mechanism": "PLAIN"}, "username and password: PLAIN needs both"),
        ({"token_provider": object()}, "username and password: SCRAM-SHA-512 needs both"),
        ({"sasl_mechanism": "OAUTHBEARER", "username": "u", "password": "secret"}, "token_provider: give an aiokafka"),
        ({"sasl_mechanism": "OAUTHBEARER", "token_provider": object()}, "token_provider: give an aiokafka"),
    ],
)
async def test_what_a_mechanism_needs_is_asked_for_before_it_is_tried(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ClientError, match=f"^security: {problem}") as raised:
        async with Client("kafka://127.0.0.1:1", security=Security(protocol="SASL_PLAINTEXT", **given)):
            pass
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "security", [Security(protocol="ssl"), Security(protocol="SASL_PLAINTEXT", sasl_mechanism="X")]
)
async def test_a_protocol_or_mechanism_that_is_none_is_named(security: Security) -> None:
    with pytest.raises(ClientError, match="security: "):
        async with Client("kafka://127.0.0.1:1", security=security):
            pass
