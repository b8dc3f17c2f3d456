"""What every client of Apache Kafka is told: servers, time limits, TLS and SASL."""

from typing import Any

from aiokafka.helpers import create_ssl_context

from domain.errors import ConfigurationError
from streams.settings import KafkaSettings


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
        options["sasl_plain_username"] = security.username
        options["sasl_plain_password"] = security.password
    return options


def unreachable(servers: str, error: Exception) -> ConfigurationError:
    """What to tell when no broker answers."""
    return ConfigurationError(
        f"no Kafka broker answers at {servers} ({error}); start one with `sluice broker start` or correct the address"
    )
