"""Spot capacity, node by node: notice, drain, redirect, fallback.

Rules:
- SPOT: a notice with a deadline makes the node EVICTING: no new batches, running ones end, spot is asked for again.
- EVICTING: spot granted, or (hybrid) an on-demand instance ordered after spot was refused; once the replacement is up,
  work is redirected to it and the old instance is let go. If the deadline comes first the node is DOWN: unfinished
  work goes back to the queue until the replacement is up.
- ON_DEMAND: at each interval spot is asked for; granted and up, work is redirected, the on-demand instance is let go.
- DOWN: hybrid nodes wait for what was ordered; spot-only nodes ask for spot again at each interval.
- What was ordered and is not up after a while counts as refused: a hybrid node without an instance gets another order.
- ``spot-only`` never has on-demand instances, ``on-demand`` nothing else. ``core`` nodes of a hybrid fleet are always
  on demand: they alone can carry the strict load.

After PROTEAN (Middleware 2024), section 4.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, assert_never

from sluicegate.domain.errors import IllegalEventError, InvalidInputError

Mode = Literal["hybrid", "spot-only", "on-demand"]


class NodeState(StrEnum):
    """What a node runs on."""

    SPOT = "spot"
    EVICTING = "evicting"
    ON_DEMAND = "on_demand"
    DOWN = "down"


class Kind(StrEnum):
    """How an instance is paid."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"


@dataclass(frozen=True, slots=True)
class Noticed:
    """The provider takes the node's instance back at ``deadline``."""

    node: str
    deadline: float


@dataclass(frozen=True, slots=True)
class SpotAnswered:
    """The provider's answer to a request for spot."""

    node: str
    granted: bool


@dataclass(frozen=True, slots=True)
class InstanceUp:
    """An ordered instance runs."""

    node: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The instance noticed with this deadline is gone."""

    node: str
    deadline: float


@dataclass(frozen=True, slots=True)
class IntervalPassed:
    """Time to ask again."""

    node: str


@dataclass(frozen=True, slots=True)
class OrderLapsed:
    """What was ordered for the node is not up, and is waited for no longer."""

    node: str


ProcurementEvent = Noticed | SpotAnswered | InstanceUp | DeadlinePassed | IntervalPassed | OrderLapsed


@dataclass(frozen=True, slots=True)
class StopSending:
    """No new batches for the node."""

    node: str


@dataclass(frozen=True, slots=True)
class AskSpot:
    """Request a spot instance; answer with SpotAnswered, and InstanceUp if granted."""

    node: str


@dataclass(frozen=True, slots=True)
class OrderOnDemand:
    """Order an on-demand instance; answer with InstanceUp."""

    node: str


@dataclass(frozen=True, slots=True)
class Redirect:
    """The node's work goes to its new instance of ``kind``."""

    node: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class LetGo:
    """Stop paying for the node's instance of ``kind``; drain it first if it still runs."""

    node: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Requeue:
    """The node has no instance: its unfinished work goes back to the queue."""

    node: str


ProcurementAction = StopSending | AskSpot | OrderOnDemand | Redirect | LetGo | Requeue


@dataclass(slots=True)
class _Node:
    state: NodeState
    core: bool
    deadline: float = float("inf")
    asking: bool = False
    ordered: Kind | None = None


class Procurement:
    """All nodes of a fleet. ``core``: how many of a hybrid fleet stay on demand."""

    def __init__(self, nodes: tuple[str, ...], mode: Mode, *, core: int = 0) -> None:
        if not 0 <= core <= len(nodes):
            raise InvalidInputError("core", f"{core} is not within 0..{len(nodes)} nodes")
        self.mode: Mode = mode
        self._nodes: dict[str, _Node] = {}
        for i, name in enumerate(nodes):
            fixed = mode == "on-demand" or (mode == "hybrid" and i < core)
            self._nodes[name] = _Node(NodeState.ON_DEMAND if fixed else NodeState.SPOT, fixed)

    def state(self, node: str) -> NodeState:
        """Raises IllegalEventError for an unknown node."""
        return self._known(node).state

    def ordered(self, node: str) -> Kind | None:
        """What is on its way to the node. Raises IllegalEventError for an unknown node."""
        return self._known(node).ordered

    def serving(self, node: str) -> bool:
        """Whether the node takes new batches."""
        return self.state(node) in (NodeState.SPOT, NodeState.ON_DEMAND)

    def handle(self, event: ProcurementEvent, now: float) -> list[ProcurementAction]:  # noqa: ARG002
        """Decide; see the rules of the module. Raises IllegalEventError for an event that the state forbids."""
        node = self._known(event.node)
        match event:
            case Noticed(name, deadline):
                if node.state is not NodeState.SPOT:
                    raise IllegalEventError(f"notice for {name}, which is {node.state}")
                node.state, node.deadline, node.asking = NodeState.EVICTING, deadline, True
                return [StopSending(name), AskSpot(name)]
            case SpotAnswered(name, granted):
                return self._answered(name, node, granted)
            case InstanceUp(name, kind):
                return self._up(name, node, kind)
            case DeadlinePassed(name, deadline):
                if node.state is not NodeState.EVICTING or deadline != node.deadline:
                    return []  # the replacement was up in time
                node.state = NodeState.DOWN
                return [LetGo(name, Kind.SPOT), Requeue(name)]
            case IntervalPassed(name):
                asks = node.state is NodeState.ON_DEMAND or (node.state is NodeState.DOWN and self.mode == "spot-only")
                if node.core or node.asking or node.ordered is not None or not asks:
                    return []
                node.asking = True
                return [AskSpot(name)]
            case OrderLapsed(name):
                if node.ordered is None:
                    raise IllegalEventError(f"an order for {name} lapsed, which waits for none")
                node.ordered = None
                return self._refused(name, node)
            case _ as unreachable:
                assert_never(unreachable)

    def _answered(self, name: str, node: _Node, granted: bool) -> list[ProcurementAction]:
        if not node.asking:
            raise IllegalEventError(f"an answer for {name}, which did not ask")
        node.asking = False
        if granted:
            node.ordered = Kind.SPOT
            return []
        return self._refused(name, node)

    def _refused(self, name: str, node: _Node) -> list[ProcurementAction]:
        if self.mode == "hybrid" and node.state in (NodeState.EVICTING, NodeState.DOWN):
            node.ordered = Kind.ON_DEMAND
            return [OrderOnDemand(name)]
        return []

    def _up(self, name: str, node: _Node, kind: Kind) -> list[ProcurementAction]:
        if node.ordered is not kind:
            raise IllegalEventError(f"a {kind} instance for {name}, which waits for {node.ordered}")
        before = node.state
        node.ordered = None
        node.state = NodeState.SPOT if kind is Kind.SPOT else NodeState.ON_DEMAND
        actions: list[ProcurementAction] = [Redirect(name, kind)]
        if before is NodeState.EVICTING:
            actions.append(LetGo(name, Kind.SPOT))
        elif before is NodeState.ON_DEMAND:
            actions.append(LetGo(name, Kind.ON_DEMAND))
        return actions

    def _known(self, node: str) -> _Node:
        found = self._nodes.get(node)
        if found is None:
            raise IllegalEventError(f"no node is called {node}")
        return found


@dataclass(frozen=True, slots=True)
class Prices:
    """Money an hour for one GPU."""

    on_demand: float
    spot: float

    def of(self, kind: Kind) -> float:
        """By kind of instance."""
        return self.spot if kind is Kind.SPOT else self.on_demand


PER_GPU: dict[str, Prices] = {
    "aws": Prices(32.7726 / 8, 9.8318 / 8),
    "azure": Prices(32.7700 / 8, 18.0235 / 8),
    "gcp": Prices(30.0846 / 8, 8.8147 / 8),
}
"""List prices of machines with eight A100, as PROTEAN gives them, by GPU."""


class CostMeter:
    """What instances cost: each is paid from its start to its end, by the second. ``by_node``: other prices of some."""

    def __init__(self, prices: Prices, by_node: Mapping[str, Prices] = MappingProxyType({})) -> None:
        self._prices = prices
        self._by_node = dict(by_node)
        self._running: dict[tuple[str, Kind], float] = {}
        self._paid: dict[Kind, float] = dict.fromkeys(Kind, 0.0)

    def price(self, node: str, kind: Kind) -> float:
        """Money an hour for an instance of ``kind``."""
        return self._by_node.get(node, self._prices).of(kind)

    def start(self, node: str, kind: Kind, now: float) -> None:
        """An instance is paid from now on. A second one of the same kind follows the first without a gap."""
        self._running.setdefault((node, kind), now)

    def stop(self, node: str, kind: Kind, now: float) -> None:
        """It is paid no longer; unknown ones cost nothing."""
        since = self._running.pop((node, kind), None)
        if since is not None:
            self._paid[kind] += (now - since) / 3600.0 * self.price(node, kind)

    def by_kind(self, now: float) -> dict[Kind, float]:
        """Money so far, by kind of instance."""
        found = dict(self._paid)
        for (node, kind), since in self._running.items():
            found[kind] += (now - since) / 3600.0 * self.price(node, kind)
        return found

    def total(self, now: float) -> float:
        """Money so far."""
        return sum(self.by_kind(now).values())
