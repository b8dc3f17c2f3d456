"""An instance: a variant on a worker, and the state that monitoring finds it in."""

from dataclasses import dataclass
from enum import StrEnum

from sluicegate.domain.fleet.device import WHOLE


class InstanceState(StrEnum):
    """Of a variant on a worker."""

    INACTIVE = "inactive"
    ACTIVE = "active"
    OVERLOADED = "overloaded"
    INTERFERED = "interfered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A loaded variant as its worker records it. ``qps``: rows/s answered; ``peak``: rows/s that its profile allows.

    ``slowdown``: measured over profiled latency (0: nothing ran). ``expires``: wall seconds after which the record
    counts for nothing, unless its worker, the only one to write it, has renewed it.
    """

    app: str
    variant: str
    device: str
    slice: str = WHOLE
    state: InstanceState = InstanceState.ACTIVE
    qps: float = 0.0
    peak: float = 0.0
    slowdown: float = 0.0
    expires: float = 0.0

    @property
    def key(self) -> str:
        """Of its record: no other instance has the same. Names of apps, variants and devices hold no ``|``."""
        return f"{self.app}|{self.variant}|{self.device}|{self.slice}"
