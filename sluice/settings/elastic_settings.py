"""Settings of capacity that comes and goes: drivers, scaling and procurement. Off by default."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device
from sluicegate.sluice.settings.endpoint_settings import Seconds, Section

if TYPE_CHECKING:
    from sluicegate.planner.capacity.cores import LoadRules, SpotRules

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class DriverSettings(Section):
    """What starts and ends workers. "tasks": in this process; "processes": ``sluice up worker`` (kafka:// only).

    "compose": ``docker compose up --scale worker-<device>=1`` with ``compose_file``; with ``dry_run`` the commands are
    only written to the log. ``grace_s``: seconds that a process has to drain before it is killed.
    """

    name: Literal["tasks", "processes", "compose"] = "tasks"
    grace_s: Seconds = 30.0
    compose_file: Path = Path("compose/docker-compose.yml")
    dry_run: bool = False


class ScalingSettings(Section):
    """Settings of the scaler. ``spare``: devices that have a worker only while the load needs it, in the order in which
    they are started.

    ``keep_alive_s``: for how long the largest number wanted is kept. ``headroom``: capacity over load. ``lead_s``:
    seconds that a worker takes to serve. ``start_timeout_s``: silence after which one is started again.
    """

    spare: tuple[str, ...] = Field(min_length=1)
    keep_alive_s: NotNegative = 600.0
    headroom: float = Field(default=1.2, ge=1, le=10)
    lead_s: NotNegative = 10.0
    period_s: Seconds = 1.0
    settle_s: NotNegative = 3.0
    patience_s: Seconds = 60.0
    start_timeout_s: Seconds = 30.0

    def rules(self) -> "LoadRules":
        """For the core."""
        from sluicegate.planner.capacity.cores import LoadRules

        return LoadRules(
            spare=self.spare,
            keep_alive=self.keep_alive_s,
            headroom=self.headroom,
            lead=self.lead_s,
            settle=self.settle_s,
            patience=self.patience_s,
            start_timeout=self.start_timeout_s,
        )


class ProcurementSettings(Section):
    """Devices with ``spot: true`` can be taken back; all others are the core that stays on demand.

    ``notices``: a file, or an http(s) address on this machine, that lists notices; elsewhere (a metadata service) only
    with ``notices_remote``. ``on_demand_price``: money an hour of a spot device's replacement; what it costs on spot is
    the device's own price. ``provider``: "simulated" grants spot with 1 - ``p_rev``, instances are up after ``boot_s``.
    """

    notices: str
    notices_remote: bool = False
    mode: Literal["hybrid", "spot-only"] = "hybrid"
    provider: Literal["simulated"] = "simulated"
    on_demand_price: NotNegative
    p_rev: Probability = 0.0
    boot_s: NotNegative = 20.0
    poll_s: Seconds = 1.0
    interval_s: Seconds = 60.0
    settle_s: NotNegative = 3.0
    seed: int = Field(default=0, ge=0)

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
                f"notices: {self.notices!r:.100} is not on this machine; set notices_remote if that is meant"
            )
        return self

    def rules(self) -> "SpotRules":
        """For the core."""
        from sluicegate.planner.capacity.cores import SpotRules

        return SpotRules(
            on_demand_price=self.on_demand_price, mode=self.mode, interval=self.interval_s, settle=self.settle_s
        )

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
