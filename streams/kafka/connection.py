"""Shared configuration of Kafka clients (servers, time limits, TLS and SASL), and what their logs say of a start."""

import asyncio
import logging
from typing import Any

from aiokafka.client import ConnectionGroup
from aiokafka.protocol.offset import OffsetRequest
from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.oauth import token_provider
from sluicegate.streams.ports import UnreachableError
from sluicegate_client.errors import ClientError
from sluicegate_client.outages import LOGGERS, speak_seldom
from sluicegate_client.security import Security

_ANSWER_WAIT = 1.0
"""Seconds that a start which is cancelled waits for what was asked last."""


def connection(servers: str, settings: KafkaSettings) -> dict[str, Any]:
    """Keyword arguments that every client takes. Raises ConfigurationError for certificates that cannot be used."""
    security = settings.security
    said = Security(
        protocol=security.protocol,
        ca_file=security.ca_file,
        cert_file=security.cert_file,
        key_file=security.key_file,
        key_password=security.key_password,
        sasl_mechanism=security.sasl_mechanism,
        username=security.username,
        password=security.password,
        token_provider=None if security.oauth is None else token_provider(security.oauth),
    )
    try:
        secured = said.options()
    except ClientError as error:
        raise ConfigurationError(f"kafka.{error}") from error
    return {
        "bootstrap_servers": servers,
        "client_id": settings.client_id,
        "request_timeout_ms": int(1e3 * min(settings.answer_timeout, settings.request_timeout)),
        "metadata_max_age_ms": int(1e3 * settings.metadata_age),
        **secured,
    }


class Overheard(logging.Filter):
    """Takes from the client's log what is told elsewhere: why it cannot begin with a broker, which its error does not
    say, and that offsets were not told by a broker that only leads no more, which it asks again.
    """

    _BEGINNING = frozenset({'Unable connect to "%s:%s": %s', 'Unable to request metadata from "%s:%s": %s'})
    _ASKED_AGAIN = "Failed fetch offsets from %s: %s"

    def __init__(self) -> None:
        super().__init__()
        self._reasons: dict[str, str] = {}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to let it pass."""
        *place, error = record.args if isinstance(record.args, tuple) and record.args else (None,)
        if record.msg in self._BEGINNING:
            self._reasons[":".join(map(str, place))] = " ".join(str(error).split())[:200] or type(error).__name__
            return False
        return record.msg != self._ASKED_AGAIN or not getattr(error, "retriable", False)

    def reasons(self, servers: str) -> str:
        """Why none of ``servers`` could be begun with, as far as was heard; each is told once."""
        heard = [(server, self._reasons.pop(server, "")) for server in servers.replace(" ", "").split(",")]
        told = {why if len(heard) == 1 else f"{server}: {why}" for server, why in heard if why}
        return "; ".join(sorted(told))


_overheard = Overheard()


def overhear() -> None:
    """Hear why the client cannot begin with a broker, and keep it from filling logs while one is away."""
    for logger in LOGGERS:
        if _overheard not in logger.filters:
            logger.filters.insert(0, _overheard)
    speak_seldom()


def unreachable(servers: str, error: Exception) -> UnreachableError:
    """What to tell when no broker answers."""
    why = _overheard.reasons(servers) or error
    return UnreachableError(
        f"no Kafka broker answers at {servers} ({why}); start one with `sluice broker start`, or correct the "
        "address, or what kafka.protocol, ca_file, username and password say: who is refused gets no answer"
    )


def close_what_it_begins_with(client: Any) -> None:
    """Have a cancelled start of ``client`` end what it asks first: aiokafka forgets the connection it asks by."""
    bootstrap = client.bootstrap

    async def whole() -> None:
        task = asyncio.create_task(bootstrap())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            try:
                await asyncio.wait([task], timeout=_ANSWER_WAIT)
            finally:
                task.cancel()
            raise

    client.bootstrap = whole


def ask_beside_fetches(client: Any) -> None:
    """Have the ``client`` of a consumer that is no member of a group ask where topics end on another connection: a
    broker answers the requests of one in their order, and a fetch waits for what is written next.
    """
    send = client.send

    async def beside(node: int, request: Any, **options: Any) -> Any:
        if isinstance(request, OffsetRequest):
            options["group"] = ConnectionGroup.COORDINATION
        return await send(node, request, **options)

    client.send = beside
