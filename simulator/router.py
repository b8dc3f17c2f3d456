"""The router of one app under the virtual clock: the same activation and routing policies as live.

Rules. Routes by the newest plan whose capacity is ready; until the first plan is active, queries are held and expire at
their deadline; a query past its deadline ends here.
"""

from collections.abc import Callable
from typing import Any, assert_never

from domain.actions import Activate, Drop, Send, WakeAt
from domain.app import App
from domain.events import ActivationEvent, Arrived, DeviceReported, PlanActivated, PlanPublished, TurnsTold, Woke
from domain.outcome import OutcomeKind
from domain.plan import Plan
from domain.query import Query
from policies.protocols import ActivationPolicy, RoutingPolicy
from simulator.ledger import Ledger
from simulator.timeline import Timeline

_WOKE = Woke()


class SimulatedRouter:
    """``send`` takes what to send where, and the time; ``tell`` a count of turns; ``activated``: who hosts what."""

    __slots__ = (
        "_activated",
        "_activation",
        "_held",
        "_ledger",
        "_routing",
        "_send",
        "_tell_turns",
        "_timeline",
        "app",
        "routes",
    )

    def __init__(
        self,
        app: App,
        *,
        routing: RoutingPolicy,
        activation: ActivationPolicy,
        activated: Callable[[Plan], PlanActivated],
        timeline: Timeline,
        ledger: Ledger,
        send: Callable[[Send, float], None],
        tell_turns: Callable[[TurnsTold, float], None],
    ) -> None:
        self.app = app
        self.routes = False
        self._routing = routing
        self._activation = activation
        self._activated = activated
        self._timeline = timeline
        self._ledger = ledger
        self._send = send
        self._tell_turns = tell_turns
        self._held: dict[Query, None] = {}

    def route(self, query: Query, now: float) -> None:
        """Send ``query`` on, hold it, or end it."""
        if query.deadline <= now:
            self._ledger.ended(query, OutcomeKind.EXPIRED, now)
            return
        if not self.routes:
            self._held[query] = None
            self._timeline.at(query.deadline, self._expire, query)
            return
        for action in self._routing.handle(Arrived(query), now):
            if isinstance(action, Send):
                self._send(action, now)
            elif isinstance(action, Drop):
                self._ledger.ended(action.query, OutcomeKind.DROPPED, now, action.reason)
            else:
                self._tell_turns(action.told, now)

    def published(self, plan: Plan, now: float) -> None:
        """A plan is on the control topic."""
        self.tell(PlanPublished(plan), now)

    def reported(self, event: DeviceReported, now: float) -> None:
        """A heartbeat of a slice."""
        self._routing.handle(event, now)

    def tell(self, event: ActivationEvent, now: float) -> None:
        """Something of plans happened."""
        for action in self._activation.handle(event, now):
            match action:
                case Activate(plan):
                    self._activate(plan, now)
                case WakeAt(at):
                    self._timeline.at(at, self._woke)
                case _ as unreachable:
                    assert_never(unreachable)

    def _activate(self, plan: Plan, now: float) -> None:
        self._routing.handle(self._activated(plan), now)
        self.routes = True
        held, self._held = self._held, {}
        for query in held:
            self.route(query, now)

    def _woke(self, _: Any, now: float) -> None:
        self.tell(_WOKE, now)

    def _expire(self, query: Query, now: float) -> None:
        if query in self._held:
            del self._held[query]
            self._ledger.ended(query, OutcomeKind.EXPIRED, now)
