"""Where Apache Kafka is, and what its clients prove themselves by. Whoever asks over HTTP does not load its library."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluicegate_client.errors import ClientError


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """TLS and SASL. ``protocol``: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; files are PEM.

    ``token_provider``: for the mechanism OAUTHBEARER, an ``aiokafka.abc.AbstractTokenProvider``.
    """

    protocol: str = "PLAINTEXT"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    sasl_mechanism: str = "SCRAM-SHA-512"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token_provider: Any = field(default=None, repr=False)

    def options(self) -> dict[str, Any]:
        """As aiokafka takes them. Raises ClientError for certificates or a key that cannot be used, and for what the
        mechanism needs and does not have."""
        from aiokafka.abc import AbstractTokenProvider
        from aiokafka.helpers import create_ssl_context

        options: dict[str, Any] = {"security_protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            files = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
            cafile, certfile, keyfile = (file and str(file) for file in files.values())
            try:
                options["ssl_context"] = create_ssl_context(
                    cafile=cafile, certfile=certfile, keyfile=keyfile, password=self.key_password
                )
            except (OSError, ValueError) as error:
                named = ", ".join(f"{name} {file}" for name, file in files.items() if file is not None)
                raise ClientError(
                    f"security: {named}: cannot be used ({error}); give PEM files that belong together"
                ) from error
        if self.protocol.startswith("SASL"):
            options["sasl_mechanism"] = self.sasl_mechanism
            if self.sasl_mechanism == "OAUTHBEARER":
                if not isinstance(self.token_provider, AbstractTokenProvider):
                    raise ClientError("security: token_provider: give an aiokafka.abc.AbstractTokenProvider")
                options["sasl_oauth_token_provider"] = self.token_provider
            else:
                by_password = self.sasl_mechanism.startswith(("PLAIN", "SCRAM"))
                if by_password and None in (self.username, self.password):
                    raise ClientError(f"security: username and password: {self.sasl_mechanism} needs both")
                options["sasl_plain_username"] = self.username
                options["sasl_plain_password"] = self.password
        return options


def check_servers(servers: str) -> None:
    """Raises ClientError unless this is host:port, or several of them with commas between."""
    if "@" in servers:  # what stands before it is not told to anybody
        raise ClientError("Kafka's address holds a user: give host:port, and username and password apart from it")
    for one in servers.split(","):
        host, _, port = one.rpartition(":")
        if not host.strip("[]") or any(c.isspace() for c in host) or not (port.isdecimal() and 0 < int(port) < 65_536):
            raise ClientError(f"Kafka's address {one!r:.100}: give host:port, and commas between several")
