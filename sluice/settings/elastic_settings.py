"""Settings of capacity that comes and goes: drivers, scaling and procurement. Off by default."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device
from sluicegate.planner.capacity.capacity_fields import LoadFields, SpotFields
from sluicegate.profiles.formats.addresses import shown
from sluicegate.profiles.formats.field_types import Seconds, Text
from sluicegate.sluice.settings.endpoint_settings import Section


class DriverSettings(Section):
    """What starts and ends workers. "tasks": in this process; "processes": ``sluice up worker`` (kafka:// only).

    "compose": ``docker compose up --scale worker-<device>=1`` with ``compose_file``; with ``dry_run`` the commands are
    only written to the log. ``grace_s``: seconds that a process has to drain before it is killed.
    """

    name: Literal["tasks", "processes", "compose"] = "tasks"
    grace_s: Seconds = 30.0
    compose_file: Path = Path("compose/docker-compose.yml")
    dry_run: bool = False


class ScalingSettings(LoadFields, Section):
    """Settings of the scaler."""


class ProcurementSettings(SpotFields, Section):
    """Settings of spot capacity. Devices with ``spot: true`` can be taken back; all others are the core that stays.

    ``notices``: a file, or an http(s) address on this machine, that lists notices; elsewhere (a metadata service) only
    with ``notices_remote``. ``provider``: "simulated" is the only one.
    """

    notices: Text
    notices_remote: bool = False
    provider: Literal["simulated"] = "simulated"
    seed: int = Field(default=0, ge=0, le=2**63 - 1)

    @field_validator("notices")
    @classmethod
    def _given(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is empty; give a file or an http:// address")
        return value

    @model_validator(mode="after")
    def _near(self) -> "ProcurementSettings":
        if self.is_address and not self.notices_remote and not _loopback(urlsplit(self.notices).hostname or ""):
            raise ValueError(
                f"notices: {shown(self.notices)!r:.100} is not on this machine; set notices_remote if that is meant"
            )
        return self

    @property
    def is_address(self) -> bool:
        """Whether notices come over HTTP."""
        return self.notices.startswith(("http://", "https://"))


def driven(
    scaling: ScalingSettings | None, procurement: ProcurementSettings | None, devices: Sequence[Device]
) -> set[str]:
    """Devices whose workers a driver starts and ends. Raises ConfigurationError."""
    names = {d.name for d in devices}
    spare = set(scaling.spare) if scaling else set()
    if unknown := sorted(spare - names):
        raise ConfigurationError(f"scaling.spare: {unknown[0]!r} is not among the settings' devices")
    spot = {d.name for d in devices if d.spot} if procurement else set()
    if procurement and not spot:
        raise ConfigurationError("procurement: no device is set as spot; nothing could be taken back")
    if both := sorted(spare & spot):
        raise ConfigurationError(f"scaling.spare: {both[0]!r} is a spot device; procurement looks after those")
    return spare | spot


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
