"""The guard of every HTTP endpoint: who may ask, how much, how often. Shared by all stages that listen.

Rules.
- With a token, each request must carry ``Authorization: Bearer <token>``, compared in constant time; paths that are
  named open (a page without data) need none. A client may have a token of its own, which opens ``/v2`` alone and tells
  who asks.
- A page of another origin may ask nothing (``Origin``), and where no token is set nobody under a name that is not this
  machine's own (``Host``): a web page cannot reach what listens on loopback, through a name of its own either.
- Each address (of IPv6 each network, ``network_of``) has a bucket of ``burst`` requests that refills at ``rate`` a
  second; an empty one gets 429 and the seconds to wait. At most ``_ADDRESSES`` addresses are remembered, the longest
  unseen is forgotten first.
- Connections are limited in number and time (``sluicegate.stages.fronts.http_connections``).
- Listening beyond loopback without a token is refused at the start.
"""

import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import ConfigurationError
from sluicegate.stages.fronts.http_connections import Doors, Site
from sluicegate.stages.fronts.http_handler import refusal

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Given = Mapping[str, str]
"""Headers of a request, asked for by their names in lower case."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_ADDRESSES = 4096
_HOST_BITS = 64
_HOSTS = 64
"""Names of hosts that are remembered."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Who may ask an endpoint. ``own``: the token that opens everything, None: none does.

    ``clients``: name -> token of those who may ask for answers, and for nothing else.
    """

    own: str | None = field(default=None, repr=False)
    clients: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client_of(self, authorization: bytes, *, answers: bool) -> str | None:
        """The name of the client who gives this; "" where it is nobody's by name, None where it opens nothing here."""
        if self.own is None and not (self.clients and answers):
            return ""
        if self.own is not None and hmac.compare_digest(authorization, f"Bearer {self.own}".encode()):
            return ""
        found = None
        for name, token in self.clients.items() if answers else ():  # all of them, so that time tells nothing
            if hmac.compare_digest(authorization, f"Bearer {token}".encode()):
                found = name
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where an endpoint listens, and for whom. ``rate``: requests a second of one address, None: unlimited.

    ``connections``: open at once. ``idle_s``: a request's head may take, ``body_s``: its body, seconds.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tokens: Tokens = Tokens()
    rate: float | None = None
    burst: int = 100
    connections: int = 1024
    idle_s: float = 30.0
    body_s: float = 10.0

    def checked(self, section: str) -> "Access":
        """Itself; raises ConfigurationError where it would listen beyond loopback without a token."""
        if self.host not in LOOPBACK and not self.tokens.own:
            raise ConfigurationError(
                f"{section}.token: needed to listen on {self.host}; set SLUICE_{section.upper()}__TOKEN "
                f"or {section}.token_file"
            )
        return self


class RateLimit:
    """Token buckets by address."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_for(self, address: str, now: float) -> float:
        """Take one request of ``address``: 0 where it may pass, else the seconds until one may."""
        address = network_of(address)
        level, since = self._buckets.pop(address, (self._burst, now))
        level = min(self._burst, level + self._rate * (now - since))
        passes = level > 1.0 - 1e-6
        self._buckets[address] = (max(0.0, level - 1.0) if passes else level, now)
        while len(self._buckets) > _ADDRESSES:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1.0 - level) / self._rate


class Guard:
    """Middleware for ``web.Application(middlewares=[guard.middleware])``, and the doors of what runs it. ``counted`` is
    told each status."""

    def __init__(
        self,
        access: Access,
        clock: Clock,
        *,
        open_paths: Collection[str] = (),
        counted: Callable[[int], None] = lambda _status: None,
    ) -> None:
        self._tokens = access.tokens
        self._limit = None if access.rate is None else RateLimit(access.rate, access.burst)
        self._clock = clock
        self._open = frozenset(open_paths)
        self._counted = counted
        self.doors = Doors(access.connections, access.idle_s, counted)

    @property
    def middleware(self) -> Middleware:
        """For aiohttp."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            self.doors.begun(request)
            told = self.refused(request.remote or "", request.path, given(request))
            refused = None if told is None else refusal(*told)
            try:
                return refused if refused is not None else await handler(request)
            finally:
                self.doors.ended(request)

        return guarded

    def refused(self, address: str, path: str, headers: Given) -> tuple[int, str, dict[str, str]] | None:
        """Status, why and headers of what a request from there is refused with; None: it may pass, and is counted."""
        if self._limit is not None:
            wait = self._limit.wait_for(address, self._clock.monotonic())
            if wait > 0.0:
                return 429, f"too many requests; try again in {wait:.2f} s", {"Retry-After": str(ceil(wait))}
        host = headers.get("host")
        if self._tokens.own is None and host is not None and not is_loopback(host):
            return 403, f"host: {host!a:.80} is not this machine; ask for 127.0.0.1, or set a token", {}
        origin = headers.get("origin")
        if origin is not None and not _is_of(origin, host):
            return 403, f"origin: {origin!a:.80} is not this server; pages of other places may ask nothing", {}
        if path not in self._open and self.client_of(path, headers) is None:
            return 401, "give the token of this server as 'Authorization: Bearer …'", {}
        return None

    def client_of(self, path: str, headers: Given) -> str | None:
        """Who asks by a token of his own, "" where nobody is told apart so; None: who may not."""
        given = headers.get("authorization", "").encode("utf-8", "surrogateescape")
        return self._tokens.client_of(given, answers=path.startswith("/v2"))

    def count(self, status: int) -> None:
        """A request was answered, past the middleware."""
        self._counted(status)


def given(request: web.Request) -> Given:
    """Its headers: a mapping that passes over the case of names."""
    return request.headers


@lru_cache(maxsize=_ADDRESSES)
def network_of(address: str) -> str:
    """Itself; of IPv6 its /64, since whoever has one address there has all of them."""
    try:
        known = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(known) >> _HOST_BITS << _HOST_BITS))


def _is_of(origin: str, host: str | None) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


@lru_cache(maxsize=_HOSTS)
def is_loopback(host: str) -> bool:
    """Whether a ``Host``, with or without a port, names this machine and nothing that a name server says."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def netloc(host: str, port: int | None) -> str:
    """``host`` and ``port`` as addresses have them: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def bind(runner: web.AppRunner, access: Access, section: str, doors: Doors) -> str:
    """Listen; the address. Raises ConfigurationError where the port is taken."""
    site = Site(runner, doors, access.host, access.port)
    try:
        await site.start()
    except OSError as error:
        told = netloc(access.host, access.port)
        raise ConfigurationError(
            f"{section} {told}: {error.strerror}; set SLUICE_{section.upper()}__PORT (0: any)"
        ) from error
    host, port = site.address
    return f"http://{netloc(host, port)}"
