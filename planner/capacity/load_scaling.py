"""As many workers as the load needs.

Rules. At each look the demand of every app, measured and by its trend for when a worker that is started now would
serve, and what waits, become rows on hand; ``autoscaling`` says how many workers that is, kept for a while;
``spare_pool`` which spare devices start, are withdrawn and end. An app that is registered later counts
from then on, and one that is retired no more. What waited at a worker that is silent counts no more:
it died, and others have what it held.
"""

from collections.abc import Callable, Mapping

from sluicegate.domain.events import DemandCounted, Registered, Ticked
from sluicegate.planner.capacity.autoscaling import Autoscaler, Observed, Trend, Unit
from sluicegate.planner.capacity.events import (
    CapacityAction,
    CapacityEvent,
    Serving,
    Start,
    Told,
    Wants,
    Withdraw,
    WorkerReported,
    WorkerStarted,
    WorkerStopped,
)
from sluicegate.planner.capacity.spare_pool import (
    ElasticEvent,
    ElasticFleet,
    TimePassed,
    Wanted,
    WorkerEnded,
    WorkerHeard,
)
from sluicegate.planner.estimates.demand_estimate import DemandEstimator, DemandSettings
from sluicegate.profiles.catalogue.catalogue import Catalogue

_NONE = 1e-12
"""Queries a second that no worker is for."""
_HEARD = 5.0
"""Seconds for which what a worker said of its queue counts: some heartbeats."""


class LoadScaling:
    """As many workers as the load needs. ``units``: what a worker does for each app at a time. ``headroom``: capacity
    over load. ``lead``: seconds that a worker takes to serve once it is started. ``units_of``: what a worker does for
    the apps of another catalogue; without it they stay as they are.
    """

    def __init__(
        self,
        units: Mapping[str, Unit],
        autoscaler: Autoscaler,
        fleet: ElasticFleet,
        *,
        headroom: float,
        lead: float,
        units_of: Callable[[Catalogue], Mapping[str, Unit]] | None = None,
    ) -> None:
        self._units = dict(units)
        self._autoscaler = autoscaler
        self._fleet = fleet
        self._headroom = headroom
        self._lead = lead
        self._units_of = units_of
        self._demand = DemandEstimator(DemandSettings(min_qps=_NONE))
        self._trends = {app: Trend() for app in units}
        self._waiting: dict[str, tuple[float, int]] = {}  # when it was told, and how many rows

    def handle(self, event: CapacityEvent, now: float) -> list[CapacityAction]:
        """Decide."""
        match event:
            case DemandCounted():
                self._demand.handle(event, now)
            case WorkerReported(device):
                self._waiting[device] = now, 0 if event.leaving else event.rows
                return self._tell(WorkerHeard(device, event.idle, event.leaving), now)
            case WorkerStarted(device, ok) if not ok:
                return self._tell(WorkerEnded(device, failed=True), now)
            case WorkerStopped(device):
                self._waiting.pop(device, None)
                return self._tell(WorkerEnded(device), now)
            case Registered(apps, variants, profiles) if self._units_of is not None:
                return self._registered(self._units_of(Catalogue.of(apps, variants, profiles)))
            case Ticked():
                return self._look(now)
            case _:
                pass
        return []

    def _registered(self, units: Mapping[str, Unit]) -> list[CapacityAction]:
        retired = [app for app in self._units if app not in units]
        self._units = dict(units)
        self._autoscaler.registered({unit.variant: unit.batch for unit in units.values()})
        self._trends = {app: self._trends.get(app) or Trend() for app in units}
        return [Wants(app, 0) for app in retired]

    def _look(self, now: float) -> list[CapacityAction]:
        rates = {app: self._demand.estimate(app, now).qps for app in self._units}
        everything = sum(rates.values())
        self._waiting = {device: told for device, told in self._waiting.items() if now - told[0] <= _HEARD}
        waiting = sum(rows for _, rows in self._waiting.values())
        actions: list[CapacityAction] = []
        for app, unit in self._units.items():
            trend = self._trends[app]
            trend.update(rates[app], now)
            backlog = waiting * rates[app] / everything if everything else 0.0
            event = Observed(
                app,
                {unit.variant: unit.on_hand(self._headroom * rates[app], backlog)},
                {unit.variant: unit.on_hand(self._headroom * trend.ahead(self._lead))},
            )
            self._autoscaler.handle(event, now)
            actions.append(Wants(app, self._autoscaler.target(app)))
        wanted = sum(self._autoscaler.target(app) for app in self._units)
        return [*actions, *self._tell(Wanted(wanted), now), *self._tell(TimePassed(), now)]

    def _tell(self, event: ElasticEvent, now: float) -> list[CapacityAction]:
        actions: list[CapacityAction] = []
        for action in self._fleet.handle(event, now):
            if isinstance(action, Start):
                actions.append(Told(f"starts the worker of {action.device}"))
            elif isinstance(action, Withdraw):
                actions.append(Told(f"{action.device} is not needed and will end"))
            actions.append(action)
        return [*actions, Serving(self._fleet.serving)]
