"""Bought GPUs in a simulated world: a provider that takes spot back, and the bill.

Rules:
- Revocations and refusals have one cause: the provider is short of capacity. In each interval it is so for a node
  with probability ``p_rev``. Then the node's spot instance is taken back, with a notice of ``notice_s`` on average
  (uniform between 30 s and twice that less 30 s), and a request for spot fails with ``p_rev``. A provider that is not
  short revokes nothing and refuses nobody.
- So a node has no spot instance with probability ``p_rev ** 2``, interval by interval, and the hybrid pays on demand
  for just these: nothing here is fitted to a cost.
- An instance is up ``boot_s`` after it was granted or ordered. It is paid from then on, and until it is let go.
- The generator is handed in: equal seeds, equal fates, whatever the system does with its GPUs.
"""

from dataclasses import dataclass

import numpy as np

from reproduce.protean.slices.world import World
from sluicegate.planner.capacity.procurement import (
    AskSpot,
    CostMeter,
    DeadlinePassed,
    InstanceUp,
    IntervalPassed,
    Kind,
    LetGo,
    Mode,
    NodeState,
    Noticed,
    OrderOnDemand,
    Prices,
    Procurement,
    ProcurementAction,
    ProcurementEvent,
    Redirect,
    Requeue,
    SpotAnswered,
    StopSending,
)

_SHORTEST_NOTICE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotMarket:
    """A simulated spot market. ``p_rev``: of a shortage in an interval, and of a request that fails in one."""

    p_rev: float
    interval_s: float = 60.0
    notice_s: float = 60.0
    boot_s: float = 20.0


class BoughtNodes:
    """Implements ``Nodes``: each GPU is a node of its own."""

    def __init__(
        self, mode: Mode, market: SpotMarket, prices: Prices, rng: np.random.Generator, *, core: int = 0
    ) -> None:
        self._mode: Mode = mode
        self._market = market
        self._core = core
        self._rng = rng
        self.meter = CostMeter(prices)
        self.evictions = 0
        self._short: dict[str, bool] = {}
        self._procurement: Procurement | None = None

    def start(self, world: World) -> None:
        """Everything is up at time 0; intervals begin."""
        names = tuple(g.name for g in world.gpus)
        self._procurement = Procurement(names, self._mode, core=self._core)
        for name in names:
            on_demand = self._procurement.state(name) is NodeState.ON_DEMAND
            self.meter.start(name, Kind.ON_DEMAND if on_demand else Kind.SPOT, 0.0)
        world.at(self._market.interval_s, None)

    def handle(self, world: World, what: object, now: float) -> None:
        """An interval (None), or an event of a node."""
        if what is None:
            if now < world.workload.duration:
                world.at(now + self._market.interval_s, None)
            self._interval(world, now)
        else:
            self._tell(world, what, now)  # type: ignore[arg-type]

    def state(self, node: str) -> NodeState:
        """Of one GPU."""
        assert self._procurement is not None
        return self._procurement.state(node)

    def _interval(self, world: World, now: float) -> None:
        for gpu in world.gpus:
            # Drawn for every node at every interval: fates do not depend on states.
            draw, width = self._rng.random(), self._rng.random()
            self._short[gpu.name] = bool(draw < self._market.p_rev)
            if self.state(gpu.name) is NodeState.SPOT and self._short[gpu.name]:
                notice = _SHORTEST_NOTICE + width * 2.0 * (self._market.notice_s - _SHORTEST_NOTICE)
                self.evictions += 1
                self._tell(world, Noticed(gpu.name, now + notice), now)
                world.at(now + notice, DeadlinePassed(gpu.name, now + notice))
            else:
                self._tell(world, IntervalPassed(gpu.name), now)

    def _tell(self, world: World, event: ProcurementEvent, now: float) -> None:
        assert self._procurement is not None
        for action in self._procurement.handle(event, now):
            self._do(world, action, now)

    def _do(self, world: World, action: ProcurementAction, now: float) -> None:
        node = action.node
        at = world.index(node)
        match action:
            case StopSending():
                world.close(at, now)
            case AskSpot():
                lucky = bool(self._rng.random() >= self._market.p_rev)
                granted = lucky or not self._short.get(node, False)
                self._tell(world, SpotAnswered(node, granted), now)
                if granted:
                    world.at(now + self._market.boot_s, InstanceUp(node, Kind.SPOT))
            case OrderOnDemand():
                world.at(now + self._market.boot_s, InstanceUp(node, Kind.ON_DEMAND))
            case Redirect(_, kind):
                world.regain(at, now)
                self.meter.start(node, kind, now)
            case LetGo(_, kind):
                # A spot instance that replaced another goes on: only what is paid beside the new one ends.
                if self.state(node) is not NodeState(kind.value):
                    self.meter.stop(node, kind, now)
            case Requeue():
                world.lose(at, now)
