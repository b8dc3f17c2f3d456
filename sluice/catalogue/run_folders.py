"""Where things are: the broker a command talks to, folders of runs."""

import http.client
import json
import os
import shutil
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.sluice.catalogue.broker_log import BrokerLog
from sluicegate.sluice.settings.settings import Settings
from sluicegate.stages.fronts.http_auth import netloc
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import MemorySettings, RemoteSettings
from sluicegate.streams.memory.archive import MANIFEST
from sluicegate.streams.ports import Broker
from sluicegate.streams.remote.frames import CALL_HEADER
from sluicegate.streams.remote.identity import identity
from sluicegate.streams.signing import SignedBroker
from sluicegate_client import Client

SAID_AFTER = 1.5
"""Seconds after which who waits is told what for."""
_LOOK_EVERY = 0.25
PATIENCE = 30.0
"""Seconds that commands wait for a system that starts."""
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A system of one's own lies behind no proxy, whatever the environment says for the web, nor is its token for one."""

_NO_SYSTEM = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError)
"""Raised where nobody answers, or somebody else."""


def new_run_folder(settings: Settings) -> Path:
    """A folder by the time it is, not there yet: it is made when something is kept in it. Queries lie there, and their
    answers: runs are their owner's alone."""
    runs = settings.kept_runs
    try:
        runs.mkdir(parents=True, exist_ok=True)
        if runs.stat().st_uid == os.geteuid():
            runs.chmod(0o700)
        free = shutil.disk_usage(runs).free
    except OSError as error:
        raise ConfigurationError(f"{runs}: {error.strerror}; set SLUICE_RUNS to a writable folder") from error
    if free < settings.disk_floor_bytes:
        told = f"{free >> 20} MiB are free, less than disk_floor_bytes ({settings.disk_floor_bytes >> 20} MiB)"
        raise ConfigurationError(f"{runs}: {told}; make room, or set SLUICE_RUNS to another disk")
    return runs / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")


def newest_run(settings: Settings) -> Path:
    """The newest folder of runs that kept its topics."""
    kept = sorted(p.parent for p in settings.kept_runs.glob(f"*/{MANIFEST}"))
    if not kept:
        raise ConfigurationError(
            f"no finished run in {settings.kept_runs}, and {_silent(settings)}; "
            "start it, run `sluice demo`, or give --broker"
        )
    return kept[-1]


def connected(settings: Settings, url: str | None = None) -> Broker:
    """The broker at ``url`` (the settings' where None), with what the settings say of TLS, SASL, tokens and signing.

    Raises ConfigurationError for an address of no known kind, or a secret's file that cannot be read.
    """
    where = url or settings.broker
    if where.startswith("kafka://"):
        made = connect(where, kafka=settings.kafka.settings())
    elif where.startswith("memory+http://"):
        made = connect(where, remote=RemoteSettings(token=settings.http.secret("http")))
    else:
        made = connect(where, memory=MemorySettings(read_bytes=settings.embedded_log_mb << 20))
    shared = not where.startswith(("memory://", "file://"))
    signing = settings.signing.signing(settings.prefix, shared=shared)
    return made if signing is None else SignedBroker(made, signing)


def asking(settings: Settings, url: str, *, timeout: float = 60.0) -> Client:
    """A client of ``url``, with what the settings say of the prefix, TLS, SASL and tokens."""
    return Client(BrokerLog(connected(settings, url)), prefix=settings.prefix, timeout=timeout)


def live_server(settings: Settings) -> str | None:
    """Address of a running ``sluice up`` on the embedded broker, None where none answers."""
    address = _front(settings)
    request = urllib.request.Request(f"{address}/v2/health/live")  # noqa: S310 - always http
    token = settings.http.secret("http")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with _DIRECTLY.open(request, timeout=1.0) as answer:
            return address if json.load(answer)["live"] else None
    except _NO_SYSTEM:
        return None


def _front(settings: Settings) -> str:
    return f"http://{netloc(settings.http.host, settings.http.port)}"


def _silent(settings: Settings) -> str:
    """Where ``live_server`` found none, and what to do where there is one."""
    return f"no `sluice up` answers at {_front(settings)} (SLUICE_HTTP__PORT says its port)"


def strange_home(settings: Settings, address: str) -> Path | None:
    """The folder of the system at ``address`` that ``live_server`` found, where it is another than the settings': what
    is registered in this one cannot be loaded there. None where it is this one, or is not said."""
    token = settings.http.secret("http")
    headers = {CALL_HEADER: "1"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    request = urllib.request.Request(f"{address}/log/home", headers=headers)  # noqa: S310 - always http
    try:
        with _DIRECTLY.open(request, timeout=1.0) as answer:
            told = json.load(answer)
        theirs, folder = Path(told["home"]), str(told["folder"])
    except _NO_SYSTEM:
        return None
    return None if folder == identity(settings.home) else theirs


def awaited_url(
    settings: Settings, broker: str | None, missing: str, *, within: float, say: Callable[[str], None]
) -> str:
    """Where to ask: ``broker``, the settings', or a ``sluice up`` on the embedded one, which may be starting.

    It is waited for, ``within`` seconds; after ``SAID_AFTER`` it is said that it is ``missing``. Raises
    ConfigurationError where none comes.
    """
    url = broker or settings.broker
    if url != "memory://":
        return url
    began = time.monotonic()
    told = False
    while (address := live_server(settings)) is None:
        waited = time.monotonic() - began
        if waited >= within:
            raise ConfigurationError(f"{missing}; {_silent(settings)}")
        if waited >= SAID_AFTER and not told:
            told = True
            say(f"waiting: {missing}")
        time.sleep(_LOOK_EVERY)
    return f"memory+{address}"


def open_broker(settings: Settings, run: Path | None = None, broker: str | None = None) -> Broker:
    """The log a reading command means: ``run``'s folder, ``broker``, the settings' broker, a running ``sluice up``
    on the embedded broker, or the newest finished run, in this order.
    """
    if run is not None:
        if broker is not None:
            told = f"means nothing with a run's folder ({run}), whose topics are read; leave one of the two out"
            raise InvalidInputError("--broker", told)
        return connect(f"file://{run.resolve()}")
    url = broker or settings.broker
    if url != "memory://":
        return connected(settings, url)
    address = live_server(settings)
    if address is not None:
        return connected(settings, f"memory+{address}")
    return connect(f"file://{newest_run(settings).resolve()}")
