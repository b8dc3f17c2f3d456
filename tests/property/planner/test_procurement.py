"""The spot state machine: no work for what is being taken back, no on-demand in spot-only, no spot in the core."""

from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluicegate.domain.errors import IllegalEventError, InvalidInputError
from sluicegate.planner.capacity.procurement import (
    PER_GPU,
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
    Redirect,
    Requeue,
    SpotAnswered,
    StopSending,
)


def test_a_notice_drains_asks_and_redirects() -> None:
    fleet = Procurement(("n",), "hybrid")
    assert fleet.handle(Noticed("n", 60), 0) == [StopSending("n"), AskSpot("n")]
    assert not fleet.serving("n")
    assert fleet.handle(SpotAnswered("n", granted=True), 1) == []
    assert fleet.handle(InstanceUp("n", Kind.SPOT), 20) == [Redirect("n", Kind.SPOT), LetGo("n", Kind.SPOT)]
    assert fleet.state("n") is NodeState.SPOT
    assert fleet.handle(DeadlinePassed("n", 60), 60) == []


def test_refused_spot_falls_back_to_on_demand_and_returns_to_spot_later() -> None:
    fleet = Procurement(("n",), "hybrid")
    fleet.handle(Noticed("n", 60), 0)
    assert fleet.handle(SpotAnswered("n", granted=False), 1) == [OrderOnDemand("n")]
    fleet.handle(InstanceUp("n", Kind.ON_DEMAND), 20)
    assert fleet.state("n") is NodeState.ON_DEMAND
    assert fleet.handle(IntervalPassed("n"), 60) == [AskSpot("n")]
    assert fleet.handle(IntervalPassed("n"), 61) == []
    fleet.handle(SpotAnswered("n", granted=True), 62)
    up = fleet.handle(InstanceUp("n", Kind.SPOT), 80)
    assert up == [Redirect("n", Kind.SPOT), LetGo("n", Kind.ON_DEMAND)]


def test_a_deadline_before_the_replacement_sends_unfinished_work_back() -> None:
    fleet = Procurement(("n",), "spot-only")
    fleet.handle(Noticed("n", 30), 0)
    assert fleet.handle(SpotAnswered("n", granted=False), 1) == []
    assert fleet.handle(DeadlinePassed("n", 30), 30) == [LetGo("n", Kind.SPOT), Requeue("n")]
    assert fleet.state("n") is NodeState.DOWN
    assert fleet.handle(IntervalPassed("n"), 60) == [AskSpot("n")]
    fleet.handle(SpotAnswered("n", granted=True), 60)
    assert fleet.handle(InstanceUp("n", Kind.SPOT), 80) == [Redirect("n", Kind.SPOT)]


def test_illegal_events_raise() -> None:
    fleet = Procurement(("n",), "on-demand")
    for event in (Noticed("n", 1), SpotAnswered("n", granted=True), InstanceUp("n", Kind.SPOT), IntervalPassed("x")):
        with pytest.raises(IllegalEventError):
            fleet.handle(event, 0)
    with pytest.raises(InvalidInputError, match="core"):
        Procurement(("n",), "hybrid", core=2)


def test_of_a_hybrid_fleet_the_core_stays_on_demand_and_of_others_all_are_alike() -> None:
    states = {mode: [Procurement(("m", "n"), mode, core=1).state(n).value for n in "mn"] for mode in get_args(Mode)}
    assert states == {"spot-only": ["spot"] * 2, "on-demand": ["on_demand"] * 2, "hybrid": ["on_demand", "spot"]}


def test_the_meter_pays_by_the_second_and_once_for_what_overlaps_not() -> None:
    meter = CostMeter(Prices(on_demand=3600.0, spot=360.0))
    meter.start("n", Kind.SPOT, 0)
    meter.start("n", Kind.ON_DEMAND, 10)
    meter.stop("n", Kind.SPOT, 20)
    meter.stop("n", Kind.SPOT, 25)
    assert meter.total(30) == pytest.approx(20 * 0.1 + 20 * 1.0)
    assert 1 - PER_GPU["aws"].spot / PER_GPU["aws"].on_demand == pytest.approx(0.70, abs=0.001)


class Fleet(RuleBasedStateMachine):
    """Three nodes, any fate."""

    @initialize(mode=st.sampled_from(["hybrid", "spot-only", "on-demand"]))
    def start(self, mode: str) -> None:
        self.mode = mode
        self.nodes = ("a", "b", "c")
        self.fleet = Procurement(self.nodes, mode, core=1 if mode == "hybrid" else 0)  # type: ignore[arg-type]
        self.asked: set[str] = set()
        self.ordered: dict[str, Kind] = {}

    def tell(self, event: object) -> None:
        for action in self.fleet.handle(event, 0.0):  # type: ignore[arg-type]
            match action:
                case AskSpot(node):
                    assert node not in self.asked
                    self.asked.add(node)
                case OrderOnDemand(node):
                    assert self.mode == "hybrid"
                    self.ordered[node] = Kind.ON_DEMAND
                case Requeue(node):
                    assert self.fleet.state(node) is NodeState.DOWN
                case _:
                    pass

    @rule(i=st.integers(0, 2))
    def notice(self, i: int) -> None:
        if self.fleet.state(self.nodes[i]) is NodeState.SPOT:
            self.tell(Noticed(self.nodes[i], 60.0))

    @rule(i=st.integers(0, 2))
    def interval(self, i: int) -> None:
        self.tell(IntervalPassed(self.nodes[i]))

    @rule(i=st.integers(0, 2))
    def deadline(self, i: int) -> None:
        self.tell(DeadlinePassed(self.nodes[i], 60.0))

    @precondition(lambda self: self.asked)
    @rule(granted=st.booleans())
    def answer(self, granted: bool) -> None:
        node = min(self.asked)
        self.asked.remove(node)
        if granted:
            self.ordered[node] = Kind.SPOT
        self.tell(SpotAnswered(node, granted))

    @precondition(lambda self: self.ordered)
    @rule()
    def up(self) -> None:
        node, kind = min(self.ordered.items())
        del self.ordered[node]
        self.tell(InstanceUp(node, kind))

    @invariant()
    def kinds_are_kept(self) -> None:
        if not hasattr(self, "fleet"):
            return
        states = [self.fleet.state(n) for n in self.nodes]
        if self.mode == "spot-only":
            assert NodeState.ON_DEMAND not in states
        if self.mode == "on-demand":
            assert states == [NodeState.ON_DEMAND] * 3
        if self.mode == "hybrid":
            assert states[0] is NodeState.ON_DEMAND


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
