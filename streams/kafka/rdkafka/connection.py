"""Shared configuration of librdkafka's clients (servers, time limits, TLS and SASL), their log, and where they wait.

Rules. librdkafka works in threads of its own; what waits for it in Python waits in a thread too, never on the event
loop. Such threads are daemons: one that a broker keeps waiting must not keep the process from ending.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sluicegate.streams.broker_settings import KafkaSecurity, KafkaSettings
from sluicegate_client.outages import Seldom

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_RECONNECT_MS = 1000
"""At most between two attempts to connect: the client by itself waits for up to ten seconds."""

_ELSEWHERE = (
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT, KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError.OFFSET_NOT_AVAILABLE,
)  # fmt: skip
_PAUSE = 0.05

client_log = logging.getLogger(f"{__name__}.client")
"""What the clients say themselves, which is the same many times a second while a broker is away."""


def connection(servers: str, settings: KafkaSettings) -> dict[str, Any]:
    """Properties that every client takes."""
    if not any(isinstance(known, Seldom) for known in client_log.filters):
        client_log.addFilter(Seldom())
    return {
        "bootstrap.servers": servers,
        "client.id": settings.client_id,
        "socket.timeout.ms": _ms(min(settings.answer_timeout, settings.request_timeout)),
        "topic.metadata.refresh.interval.ms": _ms(settings.metadata_age),
        "metadata.max.age.ms": _ms(3 * settings.metadata_age),
        "reconnect.backoff.max.ms": _RECONNECT_MS,
        "allow.auto.create.topics": False,
        "log.connection.close": False,
        "error_cb": _said,
        "logger": client_log,
        **_security(settings.security),
    }


def writing(settings: KafkaSettings, batch_bytes: int) -> dict[str, Any]:
    """Properties of whoever writes, beyond its connection."""
    return {
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "compression.type": settings.compression or "none",
        "message.max.bytes": 1_000_000_000,  # the limits that count are the topics'
        "batch.size": batch_bytes,
    }


def _security(security: KafkaSecurity) -> dict[str, Any]:
    told: dict[str, Any] = {"security.protocol": security.protocol}
    if security.protocol.endswith("SSL"):
        files = {"ca": security.ca_file, "certificate": security.cert_file, "key": security.key_file}
        told |= {f"ssl.{name}.location": str(file) for name, file in files.items() if file is not None}
        if security.key_password is not None:
            told["ssl.key.password"] = security.key_password
    if security.protocol.startswith("SASL"):
        told["sasl.mechanism"] = security.sasl_mechanism
        if (oauth := security.oauth) is None:
            return {**told, "sasl.username": security.username, "sasl.password": security.password}
        told |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": oauth.token_url,
            "sasl.oauthbearer.client.id": oauth.client_id,
            "sasl.oauthbearer.client.secret": oauth.client_secret,
            **({"sasl.oauthbearer.scope": oauth.scope} if oauth.scope else {}),
        }
    return told


def _said(error: KafkaError) -> None:
    client_log.warning("%s", error)


def _ms(seconds: float) -> int:
    return max(10, int(1e3 * seconds))


def failed(error: KafkaException) -> KafkaError:
    """What an exception of the client is about."""
    return error.args[0]


def patiently(ask: Callable[[], Result], within: float) -> Result:
    """What ``ask`` gives, asked again for ``within`` seconds where a coordinator moves or a connection was lost."""
    until = time.monotonic() + within
    while True:
        try:
            return ask()
        except KafkaException as error:
            if failed(error).code() not in _ELSEWHERE or time.monotonic() > until:
                raise
        time.sleep(_PAUSE)


async def in_thread(work: Callable[..., Result], *arguments: Any) -> Result:
    """What ``work`` gives, in a thread of its own that nobody waits for should this be cancelled."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Result] = loop.create_future()
    _begin(lambda: _settle(loop, found, lambda: work(*arguments)))
    return await found


async def asked(servers: str, settings: KafkaSettings, question: Callable[[Any], Result]) -> Result:
    """What ``question`` gives of an admin client of its own. The client ends after that, which may take its time."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Result] = loop.create_future()
    clients: list[AdminClient] = []

    def ask() -> Result:
        clients.append(AdminClient(connection(servers, settings)))
        return question(clients[0])

    def run() -> None:
        _settle(loop, found, ask)
        clients.clear()

    _begin(run)
    return await found


def _begin(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="sluice-rdkafka", daemon=True).start()


def _settle(loop: asyncio.AbstractEventLoop, found: "asyncio.Future[Result]", work: Callable[[], Result]) -> None:
    try:
        result = work()
    except BaseException as error:
        tell(loop, _fail, found, error)
    else:
        tell(loop, _succeed, found, result)


def tell(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *arguments: Any) -> None:
    """Have the loop call it; nothing where the loop has ended."""
    try:
        loop.call_soon_threadsafe(what, *arguments)
    except RuntimeError:
        log.debug("nobody is there to be told any more")


def _succeed(found: "asyncio.Future[Result]", result: Result) -> None:
    if not found.done():
        found.set_result(result)


def _fail(found: "asyncio.Future[Any]", error: BaseException) -> None:
    if not found.done():
        found.set_exception(error)
