"""Settings of what listens and what is secret: endpoints, Apache Kafka's TLS and SASL, traces, logs.

Rules.
- A secret comes from the environment or from a file that a setting names (``…_file``), never from the settings file
  itself, and is never part of what settings print or write.
- What listens beyond loopback needs a token, and is limited in rate.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.formats.field_types import Seconds, Share, Text
from sluicegate.stages.fronts.http_auth import LOOPBACK, Access
from sluicegate.streams.broker_settings import KafkaSecurity, KafkaSettings
from sluicegate.streams.signing import Signing

Secret = Annotated[str | None, Field(repr=False, exclude=True)]

_EXPOSED_RATE = 500.0
_KEY = 16
"""Characters of a key at least."""

SECRETS = ("password", "key_password", "token", "key")
"""Names of settings that must not stand in a settings file."""


class Section(BaseModel):
    """A part of the settings: unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EndpointSettings(Section):
    """Where something listens. Loopback unless said otherwise; a token is required once it is not.

    ``token_file``: a file with the token, where it is not in the environment. ``rate``: requests a second that one
    address may make, ``burst`` at once; without one unlimited on loopback, 500 beyond it. ``connections``: open at
    once, never more than an eighth of the process's descriptors; ``idle_s``: seconds that a request's head, and
    ``body_s`` that its body, may take.
    """

    host: Text = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65535)
    token: Secret = None
    token_file: Path | None = None
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    burst: int = Field(default=200, ge=1)
    connections: int = Field(default=128, ge=1, le=65536)
    idle_s: Seconds = 30.0
    body_s: Seconds = 10.0

    def secret(self, section: str) -> str | None:
        """The token, None where there is none. Raises ConfigurationError where its file cannot be read."""
        return secret_of(f"{section}.token", self.token, self.token_file)

    def access(self, section: str) -> Access:
        """Raises ConfigurationError where it would be exposed without a token, or the token's file cannot be read."""
        exposed = self.host not in LOOPBACK
        return Access(
            host=self.host,
            port=self.port or 0,
            token=self.secret(section),
            rate=self.rate or (_EXPOSED_RATE if exposed else None),
            burst=self.burst,
            connections=self.connections,
            idle_s=self.idle_s,
            body_s=self.body_s,
        ).checked(section)


class HttpSettings(EndpointSettings):
    """The inference front."""

    port: int | None = Field(default=8080, ge=0, le=65535)
    connections: int = Field(default=1024, ge=1, le=65536)


class GrpcSettings(EndpointSettings):
    """The inference front by gRPC. No ``port``: none runs unless it is asked for by name (0 then: any free one)."""


class WebSettings(EndpointSettings):
    """The page that shows what happens."""

    port: int | None = Field(default=8081, ge=0, le=65535)


class MetricsSettings(EndpointSettings):
    """The ``/metrics`` endpoint of each process. No ``port``: none; 0: any free one."""


class TracingSettings(Section):
    """OpenTelemetry. ``endpoint``: an OTLP collector's traces URL; ``sample``: share of traces begun here (0..1)."""

    endpoint: Text | None = None
    sample: Share = 1.0


class LogSettings(Section):
    """How logs are written. ``json``: one object a line, with query ids where a line is about queries."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "warning"


class KafkaSection(Section):
    """Clients of Apache Kafka. Files are PEM.

    ``replication``, ``min_insync_replicas``: of topics that are created; None: the broker's defaults.
    """

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    key_password: Secret = None
    key_password_file: Path | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: Text | None = None
    password: Secret = None
    password_file: Path | None = None
    replication: int | None = Field(default=None, ge=1, le=16)
    min_insync_replicas: int | None = Field(default=None, ge=1, le=16)
    session_timeout_s: Seconds = 10.0
    compression: Literal["gzip", "snappy", "lz4", "zstd"] | None = None

    @model_validator(mode="after")
    def _whole(self) -> "KafkaSection":
        if self.protocol.startswith("SASL") and not (self.username and (self.password or self.password_file)):
            raise ValueError(
                f"{self.protocol} needs a username and a password: set SLUICE_KAFKA__PASSWORD or kafka.password_file"
            )
        if (self.cert_file is None) is not (self.key_file is None):
            raise ValueError("kafka.cert_file and kafka.key_file go together")
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
        return KafkaSettings(
            replication=self.replication,
            min_insync_replicas=self.min_insync_replicas,
            session_timeout=self.session_timeout_s,
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
            ),
        )


class SigningSettings(Section):
    """Of control and metrics records, by a key that all processes of a system share (at least 16 characters).

    ``key_file``: a file with the key, where it is not in the environment. ``required``: what is unsigned, or signed
    with another key, is not read; by default where there is a key and the broker is shared. Off while processes go
    over to a key one by one: what they write is signed already.
    """

    key: Secret = None
    key_file: Path | None = None
    required: bool | None = None

    def signing(self, prefix: str, *, shared: bool) -> Signing | None:
        """None: nothing is signed. ``shared``: others may write to the broker. Raises ConfigurationError."""
        key = secret_of("signing.key", self.key, self.key_file)
        if key is None:
            if self.required:
                raise ConfigurationError("signing.required: needs a key; set SLUICE_SIGNING__KEY or signing.key_file")
            return None
        if len(key) < _KEY:
            raise ConfigurationError(f"signing.key: has {len(key)} characters; give at least {_KEY}")
        if self.required is None and not shared:
            return None
        return Signing(prefix=prefix, key=key.encode(), required=self.required is not False)


def secret_of(name: str, given: str | None, file: Path | None) -> str | None:
    """The secret itself, or the first line of ``file``. Raises ConfigurationError where that cannot be read."""
    if given is not None or file is None:
        return given
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name}_file: {file} cannot be read ({type(error).__name__})") from error
    if not lines or not lines[0].strip():
        raise ConfigurationError(f"{name}_file: {file} is empty; write the secret into its first line")
    return lines[0].strip()


def refuse_secrets(values: dict[str, Any], file: str) -> None:
    """Raise ConfigurationError where a settings file holds a secret: it would be copied, committed and shown."""
    for section, held in values.items():
        if isinstance(held, dict):
            for name in SECRETS:
                if held.get(name) is not None:
                    variable = f"SLUICE_{section.upper()}__{name.upper()}"
                    raise ConfigurationError(
                        f"{file}: {section}.{name} is a secret; set {variable} or {section}.{name}_file instead"
                    )
