"""TLS and users of a broker on this machine: a certificate authority of its folder's own, and a password a user.

Rules.
- Everything lies in ``secrets`` below the broker's folder, readable by its owner alone; passwords are random.
- The first user may do anything; others what access rules say (``sluice describe acls``).
- The authority signs one certificate, for 127.0.0.1 and localhost, and is trusted by nobody who is not told of it.
"""

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.local_kafka.programs import ran

MECHANISM = "SCRAM-SHA-512"
_OPENSSL_TIMEOUT = 60.0

_PROPERTIES = """\
listener.security.protocol.map=CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
inter.broker.listener.name=SASL_SSL
sasl.enabled.mechanisms={mechanism}
sasl.mechanism.inter.broker.protocol={mechanism}
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
username="{user}" password="{password}";
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{user};User:ANONYMOUS
"""
# ANONYMOUS is the controller's own listener, on loopback, which only the broker itself speaks to.

_SERVER_EXTENSIONS = """\
subjectAltName=IP:127.0.0.1,DNS:localhost
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature,keyEncipherment
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""
# What RFC 5280 asks for: clients that verify strictly (Python's, from 3.13 on) refuse certificates without.


class LocalSecurity:
    """Of one broker's ``folder``. ``users``: names, the first of which may do anything."""

    def __init__(self, folder: Path, users: Sequence[str]) -> None:
        self.folder = folder / "secrets"
        self.users = tuple(users)
        for user in self.users:
            if not user.replace("-", "").replace("_", "").isalnum():
                raise ConfigurationError(f"user {user!r} is no name for a broker's user; use letters, digits, - and _")

    @property
    def ca_file(self) -> Path:
        """The authority's certificate, for clients."""
        return self.folder / "ca.pem"

    def password_file(self, user: str) -> Path:
        """Where the password of ``user`` is."""
        return self.folder / user

    def prepare(self) -> None:
        """Make what is not there yet. Raises ConfigurationError where openssl is missing or fails."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for user in self.users:
            if not self.password_file(user).exists():
                _write_private(self.password_file(user), secrets.token_urlsafe(24) + "\n")
        if not (self.folder / "server.pem").exists():
            self._certify()

    def password(self, user: str) -> str:
        """Of a user that was prepared."""
        return self.password_file(user).read_text().strip()

    def properties(self) -> str:
        """Lines for the server's properties."""
        first = self.users[0]
        return _PROPERTIES.format(folder=self.folder, mechanism=MECHANISM, user=first, password=self.password(first))

    def format_arguments(self) -> list[str]:
        """For Kafka's storage tool: users are written into the cluster's first snapshot."""
        return [
            argument
            for user in self.users
            for argument in ("--add-scram", f"{MECHANISM}=[name={user},password={self.password(user)}]")
        ]

    def _certify(self) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            raise ConfigurationError("openssl is missing: install it, or start the broker without users")
        (self.folder / "names.cnf").write_text(_SERVER_EXTENSIONS)
        days = ["-days", "3650"]
        for arguments in (
            ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", *days,
             "-subj", "/CN=Sluicegate local authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign"],
            ["req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr",
             "-subj", "/CN=localhost"],
            ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", *days,
             "-out", "server.crt", "-extfile", "names.cnf"],
        ):  # fmt: skip
            command = [openssl, *arguments]
            done = ran(command, f"openssl {arguments[0]} did not end", within=_OPENSSL_TIMEOUT, cwd=self.folder)
            if done.returncode:
                said = done.stderr.strip().splitlines() or ["it said nothing"]
                raise ConfigurationError(f"openssl {arguments[0]} failed: {said[-1][:200]}")
        parts = [(self.folder / name).read_text() for name in ("server.key", "server.crt")]
        _write_private(self.folder / "server.pem", "".join(parts))
        for name in ("ca.key", "server.key"):
            (self.folder / name).chmod(0o600)


def _write_private(file: Path, text: str) -> None:
    """Nobody else may read it, at no moment."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as private:
        private.write(text)
