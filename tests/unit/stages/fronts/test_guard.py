"""The guard of what listens: tokens, rates, loopback unless there is a token; and where secrets may come from."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.settings.endpoint_settings import HttpSettings, MetricsSettings, WebSettings
from sluicegate.sluice.settings.kafka_section import KafkaSection
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.sluice.system.logs import Bounded, JsonFormatter, show_logs
from sluicegate.stages.fronts import http_auth, http_connections
from sluicegate.stages.fronts.http_auth import _ADDRESSES, Access, Guard, RateLimit, Tokens, bind, network_of
from sluicegate.stages.fronts.http_connections import Doors
from tests.harness import settings_for


class Hand:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@asynccontextmanager
async def guarded(access: Access, **options: Any) -> AsyncIterator[tuple[aiohttp.ClientSession, Hand, list[int]]]:
    """A server that answers "in" to those who pass."""
    clock = Hand()
    statuses: list[int] = []
    guard = Guard(access, clock, counted=statuses.append, **options)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="in")

    async def defect(request: web.Request) -> web.Response:
        raise ZeroDivisionError

    application = web.Application(middlewares=[guard.middleware])
    application.add_routes([web.get("/", answer), web.get("/open", answer), web.get("/defect", defect)])
    runner = web.AppRunner(application)
    await runner.setup()
    address = await bind(runner, access, "web", guard.doors)
    async with aiohttp.ClientSession(address) as session:
        yield session, clock, statuses
    await runner.cleanup()


@pytest.mark.parametrize(
    ("at", "told"), [(("::1", 8080, 0, 0), "http://[::1]:8080"), (("127.0.0.1", 80), "http://127.0.0.1:80")]
)
async def test_where_it_listens_is_an_address(monkeypatch: pytest.MonkeyPatch, at: tuple[str, int], told: str) -> None:
    class Bound:
        address = at[:2]

        def __init__(self, *_: object) -> None: ...

        async def start(self) -> None: ...

    monkeypatch.setattr(http_auth, "Site", Bound)
    access = Access(host=at[0], port=at[1])
    assert await bind(web.AppRunner(web.Application()), access, "http", Doors(1, 1.0)) == told


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", "bearer right", "Basic right", "Bearer right "])
async def test_without_the_right_token_nobody_gets_in(given: str | None) -> None:
    async with guarded(Access(tokens=Tokens("right")), open_paths={"/open"}) as (session, _, statuses):
        headers = {} if given is None else {"Authorization": given}
        async with session.get("/", headers=headers) as answer:
            passed = given == "Bearer right "  # HTTP strips blanks around a value
            assert answer.status == (200 if passed else 401)
        async with session.get("/open", headers=headers) as answer:
            assert answer.status == 200
        async with session.get("/", headers={"Authorization": "Bearer right"}) as answer:
            assert await answer.text() == "in"
        assert statuses[1:] == [200, 200]


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("127.0.0.1:8080", True),
        ("127.8.8.8", True),
        ("[::1]:8080", True),
        ("localhost", True),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
        ("10.0.0.1", False),
        ("[::1", False),
        ("", False),
    ],
)
async def test_without_a_token_only_this_machine_s_names_are_answered(host: str, passes: bool) -> None:
    async with guarded(Access()) as (session, _, _), session.get("/", headers={"Host": host}) as answer:
        assert answer.status == (200 if passes else 403)
    async with guarded(Access(tokens=Tokens("right"))) as (session, _, _):
        headers = {"Host": host, "Authorization": "Bearer right"}
        async with session.get("/", headers=headers) as answer:
            assert answer.status == 200  # behind a name of its own, who may ask is told by the token


async def test_pages_of_other_origins_may_ask_nothing() -> None:
    async with guarded(Access(tokens=Tokens("right")), open_paths={"/open"}) as (session, _, _):
        ours = str(session._base_url).rstrip("/")
        for origin, status in (
            (ours, 200),
            ("null", 403),
            ("https://example.org", 403),
            (ours + "0", 403),
            ("http://[", 403),
        ):
            async with session.get("/open", headers={"Origin": origin}) as answer:
                assert answer.status == status, origin


async def test_who_asks_too_often_waits() -> None:
    async with guarded(Access(rate=10.0, burst=3)) as (session, clock, statuses):
        for expected in (200, 200, 200, 429):
            async with session.get("/") as answer:
                assert answer.status == expected
                told = await answer.text()
        assert "try again in 0.10 s" in told
        clock.now += 0.1
        async with session.get("/") as answer:
            assert answer.status == 200
        assert statuses.count(429) == 1


async def test_what_does_not_exist_is_counted_too() -> None:
    async with guarded(Access()) as (session, _, statuses):
        async with session.get("/nowhere") as answer:
            assert answer.status == 404
            assert (await answer.json())["error"].endswith("Not Found")
        async with session.post("/open") as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")
            assert "POST '/open'" in (await answer.json())["error"]
        assert statuses == [404, 405]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:0:7::1", "2001:db8:0:7:ffff::2", True),
        ("2001:db8:0:7::1", "2001:db8:0:8::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_addresses_of_one_ipv6_network_are_one_client(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same
    limit = RateLimit(rate=1.0, burst=1)
    limit.wait_for(one, 0.0)
    assert (limit.wait_for(other, 0.0) > 0.0) is same


def test_the_addresses_remembered_are_bounded_and_each_has_its_own_bucket() -> None:
    limit = RateLimit(rate=1.0, burst=1)
    assert limit.wait_for("a", 0.0) == 0.0
    assert limit.wait_for("a", 0.5) == pytest.approx(0.5)
    assert limit.wait_for("b", 0.5) == 0.0
    for i in range(3 * _ADDRESSES):
        limit.wait_for(f"{i}", 1.0)
    assert len(limit._buckets) == _ADDRESSES


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_nothing_listens_beyond_loopback_without_a_token_and_all_is_limited_there(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"web\.token: needed to listen on"):
        WebSettings(host=host).access("web")
    with pytest.raises(ConfigurationError, match="needed to listen"):
        WebSettings(host=host, token="").access("web")
    exposed = WebSettings(host=host, token="right").access("web")
    assert exposed.rate and "right" not in repr(exposed)
    assert WebSettings().access("web").rate is None


@pytest.mark.parametrize(
    ("asked", "headers", "status", "why"),
    [
        ("/ HTTP/1.1", "X: y\r\n" * 100, 200, ""),
        ("/ HTTP/1.1", "X: y\r\n" * 140, 431, "headers: more than 128"),
        ("/ HTTP/1.1", f"X: {'y' * 8100}\r\n", 200, ""),
        ("/ HTTP/1.1", f"X: {'y' * 8200}\r\n", 431, "headers: one is longer than 8190 bytes"),
        ("/ HTTP/1.1", f"{'X' * 8200}: y\r\n", 431, "headers: one is longer than 8190 bytes"),
        (f"/{'y' * 8100} HTTP/1.1", "", 404, "GET '/yyy"),
        (f"/{'y' * 8200} HTTP/1.1", "", 414, "request: its path is longer than 8192 bytes"),
        ("/ HTTP/9.9", "", 400, "request: cannot be read as HTTP/1.1"),
        ("/ HTTP/1.1", "Expect: rain\r\n", 417, "GET '/'"),
        ("/defect HTTP/1.1", "", 500, "the server failed"),
    ],
    ids=["headers", "too many", "header", "long value", "long name", "path", "long path", "no HTTP", "unmet", "defect"],
)
async def test_every_answer_is_counted_once_under_its_status_and_what_is_too_long_is_named(
    asked: str, headers: str, status: int, why: str
) -> None:
    async with guarded(Access()) as (session, _, statuses):
        reader, writer = await asyncio.open_connection("127.0.0.1", session._base_url and session._base_url.port)
        writer.write(f"GET {asked}\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode())
        told = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(told.partition(b"content-length: ")[2].split()[0]))
        writer.close()
    assert [int(told.split()[1])] == statuses == [status]
    assert body == b"in" if status == 200 else json.loads(body)["error"].startswith(why)


async def test_a_port_that_is_taken_is_told_with_the_setting() -> None:
    async with guarded(Access()) as (session, _, _):
        port = session._base_url.port if session._base_url else 0
        runner = web.AppRunner(web.Application())
        await runner.setup()
        with pytest.raises(ConfigurationError, match="SLUICE_WEB__PORT"):
            await bind(runner, Access(port=port or 0), "web", Doors(8, 1.0))
        await runner.cleanup()


async def test_who_says_no_more_makes_room_and_who_may_still_say_something_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connections, "_SETTLES", 0.0)
    answered = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        await answered.wait()
        return web.Response(text="in")

    guard = Guard(Access(connections=2), Hand())
    application = web.Application(middlewares=[guard.middleware])
    application.add_routes([web.get("/", slow)])
    runner = web.AppRunner(application)
    await runner.setup()
    port = int((await bind(runner, Access(), "web", guard.doors)).rpartition(":")[2])
    readers, writers = [], []
    async with asyncio.timeout(20.0):
        for says_more in (True, False, True):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if not says_more:
                writer.write_eof()
            readers.append(reader)
            writers.append(writer)
            while len(guard.doors._half_closed) < (not says_more) or guard.doors._idle:
                await asyncio.sleep(0.01)
        assert not guard.doors._half_closed and len(guard.doors._open) == 2
        answered.set()
        for reader in (readers[0], readers[2]):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        with suppress(ConnectionResetError):
            assert await readers[1].read() == b""
    for writer in writers:
        writer.close()
    await runner.cleanup()


def test_a_secret_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from a file\nsecond line\n")
    assert MetricsSettings(token_file=tmp_path / "token").access("metrics").tokens.own == "from a file"
    monkeypatch.setenv("SLUICE_KAFKA__PASSWORD", "from the environment")
    monkeypatch.setenv("SLUICE_KAFKA__USERNAME", "me")
    monkeypatch.setenv("SLUICE_KAFKA__PROTOCOL", "SASL_SSL")
    assert load().kafka.settings().security.password == "from the environment"


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("kafka: {password: hidden}", "SLUICE_KAFKA__PASSWORD"),
        ("http: {token: hidden}", "SLUICE_HTTP__TOKEN"),
        ("kafka: {key_password: hidden}", "SLUICE_KAFKA__KEY_PASSWORD"),
        ("kafak: {oauth: {token: hidden}}", "SLUICE_KAFAK__OAUTH__TOKEN"),
        ("worker: {cuda: {key: hidden}}", "SLUICE_WORKER__CUDA__KEY"),
        (
            "kafka: {sasl_mechanism: OAUTHBEARER, oauth: {token_url: https://a, client_id: b, client_secret: hidden}}",
            "SLUICE_KAFKA__OAUTH__CLIENT_SECRET",
        ),
    ],
)
def test_a_settings_file_may_hold_no_secret(tmp_path: Path, text: str, variable: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    setting = variable.removeprefix("SLUICE_").replace("__", ".").lower()
    with pytest.raises(ConfigurationError, match=f"{setting} is a secret; set {variable} or {setting}_file") as told:
        load(file)
    assert "hidden" not in str(told.value)


@pytest.mark.parametrize("name", ["token", "key", "password"])
def test_apps_and_clients_may_be_called_what_secrets_are(tmp_path: Path, name: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        f"slo_s: {{{name}: 0.5}}\nweights: {{{name}: 2}}\nmin_accuracy: {{{name}: 0.5}}\n"
        f"promises: {{{name}: {{max_consecutive: 3}}}}\n"
        f"admission: {{weights: {{{name}: 2}}, priorities: {{{name}: 1}}}}\n"
    )
    found = load(file)
    named = (found.slo_s, found.weights, found.min_accuracy, found.promises, found.admission.weights)
    assert all(name in one for one in named) and found.admission.priorities == {name: 1}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"protocol": "SASL_SSL", "username": "me"}, "needs a username and a password"),
        ({"protocol": "SASL_SSL", "password": "hidden"}, "needs a username and a password"),
        ({"protocol": "SASL_SSL", "username": "me", "password_file": "nowhere"}, "cannot be read"),
        ({"protocol": "SSL", "ca_file": "nowhere"}, "is no file"),
        ({"protocol": "SSL", "cert_file": "a"}, "go together"),
        ({"protocol": "TLS"}, "protocol"),
        ({"sasl_mechanism": "GSSAPI"}, "sasl_mechanism"),
    ],
)
def test_what_cannot_work_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in given.items():
        monkeypatch.setenv(f"SLUICE_KAFKA__{name.upper()}", value)
    with pytest.raises(ConfigurationError, match=told) as error:
        load().kafka.settings()
    assert "hidden" not in str(error.value) and "\n" not in str(error.value)


def test_an_empty_secret_file_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty"):
        WebSettings(token_file=tmp_path / "token").access("web")


def test_secrets_are_in_nothing_that_settings_print_or_write(tmp_path: Path) -> None:
    settings = settings_for(
        "memory://",
        tmp_path,
        kafka=KafkaSection(protocol="SASL_SSL", username="me", password="hidden-1"),
        web=WebSettings(token="hidden-2"),
    )
    for shown in (repr(settings), str(settings), settings.model_dump_json(), repr(settings.kafka.settings())):
        assert "hidden" not in shown
    assert isinstance(settings, Settings) and settings.kafka.settings().security.password == "hidden-1"


@pytest.fixture
def line() -> Iterator[Any]:
    """Format a record as JSON and read it back."""

    def made(message: str, *arguments: Any, **extra: Any) -> dict[str, Any]:
        record = logging.LogRecord(
            "sluicegate.stages.worker.slice_runner", logging.WARNING, "", 0, message, arguments, None
        )
        record.__dict__.update(extra)
        text = JsonFormatter().format(record)
        assert "\n" not in text
        found: dict[str, Any] = json.loads(text)
        return found

    yield made


def test_without_a_terminal_a_log_line_is_one_line_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        show_logs()
        logging.getLogger("a").warning("%s is away; trying again\nin 5.0 s", "broker " * 40)
        logging.getLogger("a").error("fell", exc_info=ValueError("why"))
    finally:
        root.handlers[:], root.level = before, level
    away, fell, *traceback = capsys.readouterr().err.splitlines()
    assert away.endswith("broker  is away; trying again\\nin 5.0 s") and " WARNING broker broker " in away
    assert fell.endswith("ERROR   fell") and traceback[-1] == "ValueError: why"


def test_a_log_line_is_one_object_with_the_queries_it_is_about(line: Any) -> None:
    told = line("%s failed a batch of %d", "conv8", 2, query_ids=["a", "b"])
    assert told["message"] == "conv8 failed a batch of 2" and told["query_ids"] == ["a", "b"]
    assert (
        told["level"] == "warning"
        and told["logger"] == "sluicegate.stages.worker.slice_runner"
        and told["time"].endswith("+00:00")
    )


def test_nobody_can_forge_a_log_line(line: Any) -> None:
    told = line("record %s", 'x"}\n{"level": "info", "message": "all is well')
    assert told["level"] == "warning" and "\n" in told["message"]


def test_a_flood_of_one_line_is_told_in_few_and_hides_no_other() -> None:
    clock = Hand()
    bounded = Bounded(clock.monotonic)

    def shown(message: str, *arguments: object) -> str | None:
        record = logging.LogRecord("a", logging.WARNING, "", 0, message, arguments, None)
        return record.getMessage() if bounded.filter(record) else None

    flood = [shown("query %d is wrong", number) for number in range(5000)]
    assert [told for told in flood if told] == [f"query {number} is wrong" for number in range(20)]
    assert shown("something else") == "something else"
    clock.now += 10.0
    assert shown("query %d is wrong", 7) == "query 7 is wrong (and 4980 more like it)"
    assert shown("query %d is wrong", 8) == "query 8 is wrong"
    assert sum(shown(f"made up {number}") is not None for number in range(3000)) == 3000
    assert len(bounded._kinds) <= 1000


def test_a_clients_token_opens_answers_alone_and_tells_who_asks() -> None:
    tokens = Tokens(own="of the operator", clients={"billing": "token of billing", "search": "token of search"})
    told = {
        path: [tokens.client_of(f"Bearer {given}".encode(), answers=path == "/v2") for given in GIVEN]
        for path in ("/v2", "/log")
    }
    assert told == {"/v2": ["", "billing", "search", None, None], "/log": ["", None, None, None, None]}
    open_otherwise = replace(tokens, own=None)
    assert open_otherwise.client_of(b"", answers=True) is None
    assert open_otherwise.client_of(b"", answers=False) == "", "loopback's"
    assert "token" not in repr(tokens)


GIVEN = ("of the operator", "token of billing", "token of search", "token of nobody", "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a b c d e f g h i\n", "line 1 of"),
        ("# names\n\na secret\n", "line 3 of .* has no secret of 16"),
        ("a 0123456789abcdef\na 0123456789abcdeg\n", "line 2 of .* stands above"),
        ("a 0123456789abcdef\nb 0123456789abcdef\n", "line 2 of .* stands above"),
        ("ä 0123456789abcdef\n", "line 1 of .* begins with no name"),
        (None, "cannot be read"),
    ],
)
def test_files_of_names_and_secrets_are_told_by_line_and_show_nothing(
    tmp_path: Path, text: str | None, told: str
) -> None:
    file = tmp_path / "clients"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=told) as error:
        HttpSettings(clients_file=file).access("http")
    assert "0123456789" not in str(error.value) and "\n" not in str(error.value)
    file.write_text("# who may ask\nbilling 0123456789abcdef\n\nsearch  fedcba9876543210 \n")
    tokens = HttpSettings(clients_file=file).access("http").tokens
    assert tokens.clients == {"billing": "0123456789abcdef", "search": "fedcba9876543210"}


@pytest.mark.parametrize("peer", ["ipv6:%5B2001:db8::7%5D:4711", "ipv6:[2001:db8::7]:4711"])
def test_the_address_of_a_grpc_peer_is_its_address_alone(peer: str) -> None:
    grpc_front = pytest.importorskip("sluicegate.stages.fronts.grpc_front")
    assert grpc_front._address(peer) == "2001:db8::7"
    assert grpc_front._address("ipv4:127.0.0.1:4711") == "127.0.0.1"
