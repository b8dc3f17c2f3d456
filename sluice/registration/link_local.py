"""Clients that connect to no link-local address, where clouds hand out credentials, whatever name leads there."""

import errno
import ipaddress
import socket
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp.connector import AddrInfoType

METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")))
"""Where some clouds answer as others do on link-local addresses."""


class LinkLocalError(OSError):
    """An address that nothing is fetched from."""


def refused(address: str) -> bool:
    """Whether nothing may be fetched from this numeric address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_link_local or (mapped or found) in METADATA


def check_host(host: str) -> None:
    """Raises LinkLocalError where ``host`` leads to such an address."""
    with suppress(socket.gaierror, UnicodeError):  # it leads nowhere, as whoever asks it will find
        for *_, address in socket.getaddrinfo(host, None):
            _check(str(address[0]))


async def client(**options: Any) -> aiohttp.ClientSession:
    """A session that refuses each connection to such an address, also after a redirection."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=_socket), **options)


def _socket(where: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, address = where
    _check(str(address[0]))
    return socket.socket(family, kind, protocol)


def _check(address: str) -> None:
    if refused(address):
        raise LinkLocalError(errno.EACCES, f"{address} is a link-local address")
