"""Tokens for SASL OAUTHBEARER, from an OpenID Connect provider by client credentials."""

import asyncio
import time
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import quote_plus

import aiohttp
import orjson
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError
from typing_extensions import override

from sluicegate.streams.broker_settings import KafkaOAuth
from sluicegate.streams.ports import BrokerError

_TIMEOUT = 10.0
_MOST = 64 << 10
_SHARE = 0.8
"""Of a token's life after which another is fetched."""
_LIFE = 300.0
"""Seconds, where the provider does not say."""


class NoTokenError(BrokerError, KafkaConnectionError):  # type: ignore[misc]  # the client has no types
    """The provider cannot be asked or gives no token: the client tries again, as where it cannot connect."""


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # the client has no types
    """Implements aiokafka's token provider: one token for all clients of the process, fetched anew before it ends.

    ``token`` raises NoTokenError where the provider cannot be asked or gives none; no message has the secret.
    """

    def __init__(self, oauth: KafkaOAuth, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._oauth = oauth
        self._monotonic = monotonic
        self._token = ""
        self._until = 0.0
        self._locks: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    @override
    async def token(self) -> str:
        """A token that has not ended."""
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            if self._monotonic() >= self._until:
                self._token, life = await self._fetch()
                self._until = self._monotonic() + _SHARE * life
            return self._token

    async def _fetch(self) -> tuple[str, float]:
        oauth = self._oauth
        form = {"grant_type": "client_credentials", **({"scope": oauth.scope} if oauth.scope else {})}
        who = b64encode(f"{quote_plus(oauth.client_id)}:{quote_plus(oauth.client_secret)}".encode()).decode()
        try:
            timeout = aiohttp.ClientTimeout(_TIMEOUT)
            async with (
                aiohttp.ClientSession(timeout=timeout, headers={"Authorization": f"Basic {who}"}) as session,
                session.post(oauth.token_url, data=form, allow_redirects=False) as answer,
            ):
                body, status = b"", answer.status
                while len(body) <= _MOST and (part := await answer.content.readany()):
                    body += part
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NoTokenError(f"kafka.oauth.token_url: {oauth.token_url} cannot be asked ({error!s:.200})") from error
        if status != 200:
            raise NoTokenError(f"kafka.oauth: {oauth.token_url} answered {status}; look at client_id and its secret")
        if len(body) > _MOST:
            raise NoTokenError(f"kafka.oauth: {oauth.token_url} gave over {_MOST} bytes; look at the address")
        try:
            told = orjson.loads(body)
            token, life = told["access_token"], float(told.get("expires_in", _LIFE))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NoTokenError(f"kafka.oauth: {oauth.token_url} gave no access_token") from error
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not 0.0 < life < 1e9:
            raise NoTokenError(f"kafka.oauth: {oauth.token_url} gave a token that cannot be used")
        return token, life


@lru_cache(maxsize=8)
def token_provider(oauth: KafkaOAuth) -> TokenProvider:
    """The one of this process."""
    return TokenProvider(oauth)
