"""Who makes plans in a run: what a control plane is, and the simplest one, a plan given at the start."""

from typing import Protocol

from domain.events import ControllerEvent
from domain.plan import Plan
from simulator.timeline import Timeline


class Plant(Protocol):
    """What a control plane acts on."""

    @property
    def timeline(self) -> Timeline:
        """The virtual clock."""
        ...

    def publish(self, plan: Plan, now: float) -> None:
        """Put ``plan`` on the control topic."""
        ...

    def reclaim(self, device: str, now: float) -> None:
        """Give what a dead device holds to those that live."""
        ...


class ControlPlane(Protocol):
    """Makes plans. ``solve_s``: wall seconds of each solve so far; ``epochs``: plans published.

    ``nondeterministic``: solves that a limit in seconds cut off, so that equal seeds may give different runs.
    """

    solve_s: list[float]
    epochs: int
    nondeterministic: int

    def start(self, plant: Plant, now: float) -> None:
        """The run begins."""
        ...

    def heard(self, event: ControllerEvent, now: float) -> None:
        """Demand, a heartbeat, an acknowledgement, a measurement."""
        ...


class FixedPlan:
    """One plan, published at the start."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.solve_s: list[float] = []
        self.epochs = 0
        self.nondeterministic = 0

    def start(self, plant: Plant, now: float) -> None:
        """Publish it."""
        self.epochs = 1
        plant.publish(self._plan, now)

    def heard(self, event: ControllerEvent, now: float) -> None:
        """A plan that is fixed hears nothing."""
