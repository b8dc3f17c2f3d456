"""Settings of what listens and what is secret: endpoints, signatures, traces, logs.

Rules.
- A secret comes from the environment or from a file that a setting names (``…_file``), never from the settings file
  itself, and is never part of what settings print or write.
- What listens beyond loopback needs a token, and is limited in rate.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo
from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.formats.field_errors import model_at
from sluicegate.profiles.formats.field_types import Seconds, Share, Text
from sluicegate.sluice.settings.named_secrets import named_secrets
from sluicegate.stages.fronts.http_auth import LOOPBACK, Access, Tokens
from sluicegate.streams.signing import Signing

Secret = Annotated[str | None, Field(repr=False, exclude=True)]

_EXPOSED_RATE = 500.0
_KEY = 16
"""Characters of a key at least."""

SECRETS = ("password", "key_password", "client_secret", "token", "key")
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

    def tokens(self, section: str) -> Tokens:
        """Who may ask. Raises ConfigurationError where a file cannot be read."""
        return Tokens(self.secret(section))

    def access(self, section: str) -> Access:
        """Raises ConfigurationError where it would be exposed without a token, or the token's file cannot be read."""
        exposed = self.host not in LOOPBACK
        return Access(
            host=self.host,
            port=self.port or 0,
            tokens=self.tokens(section),
            rate=self.rate or (_EXPOSED_RATE if exposed else None),
            burst=self.burst,
            connections=self.connections,
            idle_s=self.idle_s,
            body_s=self.body_s,
        ).checked(section)


class FrontSettings(EndpointSettings):
    """Clients of a front. ``clients_file``: lines of a client's name and its token, which opens ``/v2`` alone.

    Who asks with one is the client ``/http/<name>`` (``/grpc/<name>``), with a share of its own, from any address.
    """

    clients_file: Path | None = None

    @override
    def tokens(self, section: str) -> Tokens:
        """Who may ask."""
        return Tokens(self.secret(section), named_secrets(f"{section}.clients_file", self.clients_file))


class HttpSettings(FrontSettings):
    """The inference front."""

    port: int | None = Field(default=8080, ge=0, le=65535)
    connections: int = Field(default=1024, ge=1, le=65536)


class GrpcSettings(FrontSettings):
    """The inference front by gRPC. No ``port``: none runs unless it is asked for by name (0 then: any free one)."""

    connections: int = Field(default=1024, ge=1, le=65536)


class WebSettings(EndpointSettings):
    """The page that shows what happens."""

    port: int | None = Field(default=8081, ge=0, le=65535)


class MetricsSettings(EndpointSettings):
    """The ``/metrics`` endpoint of each process. No ``port``: none; 0: any free one."""


class TracingSettings(Section):
    """OpenTelemetry. ``endpoint``: an OTLP collector's traces URL; ``sample``: share of traces begun here (0..1)."""

    endpoint: Text | None = None
    sample: Share = 1.0

    @field_validator("endpoint")
    @classmethod
    def _whole(cls, value: str | None) -> str | None:
        if value is not None:
            url = urlsplit(value)
            if url.scheme not in {"http", "https"} or not url.hostname or url.port == 0:
                raise ValueError("give http:// or https://, host and path, such as http://127.0.0.1:4318/v1/traces")
        return value


class LogSettings(Section):
    """How logs are written. ``json``: one object a line, with query ids where a line is about queries."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "warning"


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


def refuse_secrets(values: dict[str, Any], file: str, model: type[BaseModel]) -> None:
    """Raise ConfigurationError where a settings file, of ``model``, holds a secret: it would be copied, committed and
    shown. What is mapped by names, as of apps or clients, is none, whatever they are."""
    for section, held in values.items():
        _refuse_below((str(section),), held, file, model.model_fields.get(section))


def _refuse_below(place: tuple[str, ...], held: Any, file: str, field: FieldInfo | None) -> None:
    if not isinstance(held, dict) or (field is not None and _maps(field.annotation)):
        return
    model = model_at(field.annotation) if field is not None else None
    for name, value in held.items():
        inner = (*place, str(name))
        if name in SECRETS and value is not None:
            variable = f"SLUICE_{'__'.join(inner).upper()}"
            told = ".".join(inner)
            raise ConfigurationError(f"{file}: {told} is a secret; set {variable} or {told}_file instead")
        _refuse_below(inner, value, file, model.model_fields.get(name) if model is not None else None)


def _maps(annotation: Any) -> bool:
    return get_origin(annotation) is dict or any(_maps(one) for one in get_args(annotation))
