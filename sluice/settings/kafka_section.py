"""Settings of the clients of Apache Kafka: TLS, SASL, and what they wait for."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.formats.field_types import Seconds, Text
from sluicegate.sluice.settings.endpoint_settings import Secret, Section, secret_of
from sluicegate.streams.broker_settings import KafkaOAuth, KafkaSecurity, KafkaSettings

_CLIENT = KafkaSettings()
Milliseconds = Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)]


class KafkaClientSection(Section):
    """What every client does, beyond what it is told by whom it serves.

    ``linger_ms``, ``batch_bytes``: how long and how large a batch gets. ``fetch_wait_ms``, ``fetch_bytes``: how long
    the broker holds a fetch open (half a second at least of who belongs to no group), and bytes of a partition at once.
    ``gather_ms``: least time between two reads that find something. ``answer_timeout_s``: after which a broker that
    does not answer is taken for hung; ``metadata_age_s``: how old what is known of who leads what may get. ``rack``:
    where this process runs; the nearest replica is read.
    """

    client_id: Text = _CLIENT.client_id
    linger_ms: Milliseconds = 1e3 * _CLIENT.linger
    batch_bytes: int = Field(default=_CLIENT.batch_bytes, ge=1024, le=16 << 20)
    fetch_wait_ms: Milliseconds = 1e3 * _CLIENT.fetch_wait
    fetch_bytes: int = Field(default=_CLIENT.fetch_bytes, ge=1024, le=1 << 30)
    gather_ms: Milliseconds = 1e3 * _CLIENT.gather
    request_timeout_s: Seconds = _CLIENT.request_timeout
    answer_timeout_s: Seconds = _CLIENT.answer_timeout
    metadata_age_s: Seconds = _CLIENT.metadata_age
    rebalance_timeout_s: Seconds = _CLIENT.rebalance_timeout
    heartbeat_interval_s: Seconds = _CLIENT.heartbeat_interval
    transaction_timeout_s: Seconds = _CLIENT.transaction_timeout
    rack: Text | None = None


class KafkaOAuthSection(Section):
    """An OpenID Connect provider that gives tokens for ``client_id`` (client credentials); http on loopback only."""

    token_url: Text
    client_id: Text
    client_secret: Secret = None
    client_secret_file: Path | None = None
    scope: Text | None = None

    @field_validator("token_url")
    @classmethod
    def _private(cls, value: str) -> str:
        url = urlsplit(value)
        if url.scheme == "https" and url.hostname:
            return value
        if url.scheme == "http" and _loopback(url.hostname or ""):
            return value
        raise ValueError("give https://…, or http:// on loopback: a secret is sent there")

    def oauth(self) -> KafkaOAuth:
        """What clients are given. Raises ConfigurationError without a secret."""
        secret = secret_of("kafka.oauth.client_secret", self.client_secret, self.client_secret_file)
        if not secret:
            raise ConfigurationError(
                "kafka.oauth needs a secret: set SLUICE_KAFKA__OAUTH__CLIENT_SECRET or kafka.oauth.client_secret_file"
            )
        return KafkaOAuth(self.token_url, self.client_id, secret, self.scope)


class KafkaSection(Section):
    """Clients of Apache Kafka. Files are PEM.

    ``replication``, ``min_insync_replicas``: of topics that are created; None: the broker's defaults. ``oauth``: with
    the mechanism OAUTHBEARER, in the place of username and password. ``library``: what reads and writes records,
    aiokafka or, with the extra of that name installed, rdkafka. ``group_protocol``: how groups share partitions; with
    consumer (KIP-848, rdkafka alone) session timeout and heartbeats are what the broker says. All members of a group
    must have the same of both.
    """

    library: Literal["aiokafka", "rdkafka"] = "aiokafka"
    group_protocol: Literal["classic", "consumer"] = "classic"

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    key_password: Secret = None
    key_password_file: Path | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "SCRAM-SHA-512"
    username: Text | None = None
    password: Secret = None
    password_file: Path | None = None
    oauth: KafkaOAuthSection | None = None
    replication: int | None = Field(default=None, ge=1, le=16)
    min_insync_replicas: int | None = Field(default=None, ge=1, le=16)
    session_timeout_s: Seconds = _CLIENT.session_timeout
    compression: Literal["gzip", "snappy", "lz4", "zstd"] | None = None
    client: KafkaClientSection = KafkaClientSection()

    @model_validator(mode="after")
    def _whole(self) -> "KafkaSection":
        if (self.sasl_mechanism == "OAUTHBEARER") is not (self.oauth is not None):
            raise ValueError("kafka.oauth and sasl_mechanism OAUTHBEARER go together")
        named = self.oauth is not None or (self.username and (self.password or self.password_file))
        if self.protocol.startswith("SASL") and not named:
            raise ValueError(
                f"{self.protocol} needs a username and a password: set SLUICE_KAFKA__PASSWORD or kafka.password_file"
            )
        if self.group_protocol == "consumer" and self.library != "rdkafka":
            raise ValueError("kafka.group_protocol consumer needs kafka.library rdkafka; aiokafka has the classic one")
        if (self.cert_file is None) is not (self.key_file is None):
            raise ValueError("kafka.cert_file and kafka.key_file go together")
        if self.client.heartbeat_interval_s >= self.session_timeout_s:
            raise ValueError("kafka.client.heartbeat_interval_s must be below kafka.session_timeout_s")
        if self.min_insync_replicas is not None and self.min_insync_replicas > (self.replication or 16):
            raise ValueError(
                f"kafka.min_insync_replicas is {self.min_insync_replicas}, more than kafka.replication, "
                f"{self.replication}: nothing could be written; give at most as many"
            )
        return self

    def settings(self) -> KafkaSettings:
        """What clients are given. Raises ConfigurationError where a file of a secret or certificate cannot be read."""
        for name in ("ca_file", "cert_file", "key_file"):
            file = getattr(self, name)
            if file is not None and not file.is_file():
                raise ConfigurationError(f"kafka.{name}: {file} is no file; give the PEM file")
        client = self.client
        return KafkaSettings(
            client_id=client.client_id,
            linger=client.linger_ms / 1e3,
            batch_bytes=client.batch_bytes,
            fetch_wait=client.fetch_wait_ms / 1e3,
            fetch_bytes=client.fetch_bytes,
            gather=client.gather_ms / 1e3,
            request_timeout=client.request_timeout_s,
            answer_timeout=client.answer_timeout_s,
            metadata_age=client.metadata_age_s,
            rebalance_timeout=client.rebalance_timeout_s,
            heartbeat_interval=client.heartbeat_interval_s,
            transaction_timeout=client.transaction_timeout_s,
            rack=client.rack,
            replication=self.replication,
            min_insync_replicas=self.min_insync_replicas,
            session_timeout=self.session_timeout_s,
            library=self.library,
            group_protocol=self.group_protocol,
            compression=self.compression,
            security=KafkaSecurity(
                protocol=self.protocol,
                ca_file=self.ca_file,
                cert_file=self.cert_file,
                key_file=self.key_file,
                key_password=secret_of("kafka.key_password", self.key_password, self.key_password_file),
                sasl_mechanism=self.sasl_mechanism,
                username=self.username,
                password=secret_of("kafka.password", self.password, self.password_file),
                oauth=None if self.oauth is None else self.oauth.oauth(),
            ),
        )


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
