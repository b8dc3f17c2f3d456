"""Certificates of a local broker: clients that verify strictly, as Python does from 3.13 on, accept them."""

import ssl
from pathlib import Path

import pytest

from sluicegate.streams.local_kafka.security import LocalSecurity


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Both sides in memory. Raises SSLError where one refuses."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=name)
    theirs = server.wrap_bio(up, down, server_side=True)
    done: set[int] = set()
    for _ in range(8):
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done.add(id(side))
            except ssl.SSLWantReadError:
                continue
    assert len(done) == 2


def test_strict_clients_accept_the_broker_by_its_address_and_nobody_else(tmp_path: Path) -> None:
    security = LocalSecurity(tmp_path, ["owner"])
    security.prepare()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(security.folder / "server.pem")
    client = ssl.create_default_context(cafile=str(security.ca_file))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in ("127.0.0.1", "localhost"):
        handshake(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "example.invalid")
    other = LocalSecurity(tmp_path / "other", ["owner"])
    other.prepare()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, ssl.create_default_context(cafile=str(other.ca_file)), "localhost")
