"""Shared configuration of Kafka clients (servers, time limits, TLS and SASL), and throttling of their logs."""

import logging
import time
from typing import Any

from aiokafka.helpers import create_ssl_context
from typing_extensions import override

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.oauth import token_provider
from sluicegate.streams.ports import UnreachableError


def connection(servers: str, settings: KafkaSettings) -> dict[str, Any]:
    """Keyword arguments that every client takes."""
    security = settings.security
    options: dict[str, Any] = {
        "bootstrap_servers": servers,
        "client_id": settings.client_id,
        "request_timeout_ms": int(1e3 * settings.request_timeout),
        "security_protocol": security.protocol,
    }
    if security.protocol.endswith("SSL"):
        options["ssl_context"] = create_ssl_context(
            cafile=security.ca_file and str(security.ca_file),
            certfile=security.cert_file and str(security.cert_file),
            keyfile=security.key_file and str(security.key_file),
            password=security.key_password,
        )
    if security.protocol.startswith("SASL"):
        options["sasl_mechanism"] = security.sasl_mechanism
        if security.oauth is not None:
            options["sasl_oauth_token_provider"] = token_provider(security.oauth)
        else:
            options["sasl_plain_username"] = security.username
            options["sasl_plain_password"] = security.password
    return options


class Seldom(logging.Filter):
    """Lets the same message of a logger pass once in ``every`` seconds."""

    def __init__(self, every: float = 5.0) -> None:
        super().__init__()
        self._every = every
        self._last: dict[str, float] = {}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to let it pass. The message before its arguments counts, of which there are not many."""
        now = time.monotonic()
        if now - self._last.get(str(record.msg), -self._every) < self._every:
            return False
        self._last[str(record.msg)] = now
        return True


_LOGGERS = ("", ".cluster", ".conn", ".consumer.fetcher", ".consumer.group_coordinator", ".producer.sender")


def speak_seldom() -> None:
    """Keep the client from filling logs while a broker is away: it tries, and tells of it, many times a second."""
    for name in _LOGGERS:
        logger = logging.getLogger(f"aiokafka{name}")
        if not any(isinstance(known, Seldom) for known in logger.filters):
            logger.addFilter(Seldom())


def unreachable(servers: str, error: Exception) -> UnreachableError:
    """What to tell when no broker answers."""
    return UnreachableError(
        f"no Kafka broker answers at {servers} ({error}); start one with `sluice broker start`, or correct the "
        "address, or what kafka.protocol, ca_file, username and password say: who is refused gets no answer"
    )
