"""Where things are: the broker a command talks to, folders of runs."""

import json
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from domain.errors import ConfigurationError
from sluice.settings import Settings
from streams import connect
from streams.dump import MANIFEST
from streams.ports import Broker


def new_run_folder(settings: Settings) -> Path:
    """``runs/<time>``, not there yet: it is made when something is kept in it."""
    try:
        settings.runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{settings.runs}: {error.strerror}; set SLUICE_RUNS to a writable folder") from error
    return settings.runs / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")


def newest_run(settings: Settings) -> Path:
    """The newest folder of runs that kept its topics."""
    kept = sorted(p.parent for p in settings.runs.glob(f"*/{MANIFEST}"))
    if not kept:
        raise ConfigurationError(f"no finished run in {settings.runs}/; run `sluice demo`, or give --broker")
    return kept[-1]


def live_server(settings: Settings) -> str | None:
    """Address of a running ``sluice up`` on the embedded broker, None where none answers."""
    address = f"http://{settings.http.host}:{settings.http.port}"
    request = urllib.request.Request(f"{address}/v2/health/live")  # noqa: S310 - always http
    try:
        with urllib.request.urlopen(request, timeout=1.0) as answer:  # noqa: S310
            return address if json.load(answer).get("live") else None
    except (OSError, urllib.error.URLError, ValueError):
        return None


def open_broker(settings: Settings, run: Path | None = None, broker: str | None = None) -> Broker:
    """The log a reading command means: ``run``'s folder, ``broker``, the settings' broker, a running ``sluice up``
    on the embedded broker, or the newest finished run, in this order.
    """
    if run is not None:
        return connect(f"file://{run.resolve()}")
    url = broker or settings.broker
    if url != "memory://":
        return connect(url)
    address = live_server(settings)
    if address is not None:
        return connect(f"memory+{address}")
    return connect(f"file://{newest_run(settings).resolve()}")
