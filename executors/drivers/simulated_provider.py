"""A provider that only pretends.

Spot fails with a probability, instances are up after a while, clocks are handed in.
"""

from collections.abc import Callable

from sluicegate.domain.errors import InvalidInputError
from sluicegate.planner.capacity.procurement import CostMeter, Kind, Prices


class SimulatedProvider:
    """Implements Provider. ``draw``: numbers in [0, 1); ``now``: wall seconds. ``meter`` has the bill."""

    def __init__(
        self, prices: Prices, *, p_rev: float, draw: Callable[[], float], now: Callable[[], float], boot: float = 20.0
    ) -> None:
        if not 0.0 <= p_rev <= 1.0 or not 0.0 <= boot < float("inf"):
            raise InvalidInputError("p_rev", f"{p_rev} is no probability, or {boot} s no time to boot")
        self._prices = prices
        self._p_rev = p_rev
        self._draw = draw
        self._now = now
        self._boot = boot
        self._ready: dict[tuple[str, Kind], float] = {}
        self.meter = CostMeter(prices)

    @property
    def prices(self) -> Prices:
        """As given."""
        return self._prices

    async def request_spot(self, node: str) -> bool:
        """Fails with ``p_rev``."""
        if self._draw() < self._p_rev:
            return False
        self._begin(node, Kind.SPOT)
        return True

    async def order(self, node: str) -> None:
        """Never fails."""
        self._begin(node, Kind.ON_DEMAND)

    async def up(self, node: str, kind: Kind) -> bool:
        """After ``boot`` seconds; paid from then on."""
        ready = self._ready.get((node, kind))
        if ready is None or self._now() < ready:
            return False
        self.meter.start(node, kind, ready)
        return True

    async def release(self, node: str, kind: Kind) -> None:
        """Stop paying."""
        self._ready.pop((node, kind), None)
        self.meter.stop(node, kind, self._now())

    def _begin(self, node: str, kind: Kind) -> None:
        self._ready[node, kind] = self._now() + self._boot
