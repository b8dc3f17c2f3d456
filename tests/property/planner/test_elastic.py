"""Spare devices: never more or fewer than wanted for long, withdrawn before they end, any order of events."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.capacity.autoscaling import Trend, Unit, units
from sluicegate.planner.capacity.spare_pool import (
    ElasticAction,
    ElasticFleet,
    Restore,
    SpareState,
    Start,
    Stop,
    TimePassed,
    Wanted,
    Withdraw,
    WorkerEnded,
    WorkerHeard,
)
from sluicegate.profiles.catalogue.catalogue import Catalogue

SPARE = ("a", "b", "c")


def fleet() -> ElasticFleet:
    return ElasticFleet(1, SPARE, settle=3.0, patience=60.0, start_timeout=30.0)


def test_a_device_starts_serves_is_withdrawn_and_ends_only_once_it_is_idle() -> None:
    one = fleet()
    assert one.handle(Wanted(2), 0.0) == [Restore("a"), Start("a")]
    assert one.handle(WorkerHeard("a", idle=True), 1.0) == []
    assert one.handle(Wanted(1), 10.0) == [Withdraw("a")]
    assert one.handle(WorkerHeard("a", idle=True), 11.0) == [], "routers may not have switched yet"
    assert one.handle(WorkerHeard("a", idle=False), 14.0) == []
    assert one.handle(WorkerHeard("a", idle=True), 15.0) == [Stop("a")]
    assert one.handle(WorkerEnded("a"), 16.0) == []
    assert one.state("a") is SpareState.OFF


def test_one_that_is_wanted_again_while_withdrawn_comes_back_without_a_start() -> None:
    one = fleet()
    one.handle(Wanted(2), 0.0)
    one.handle(WorkerHeard("a", idle=False), 1.0)
    one.handle(Wanted(1), 2.0)
    assert one.handle(Wanted(3), 3.0) == [Restore("a"), Restore("b"), Start("b")]


def test_one_that_holds_work_for_too_long_is_ended_and_one_that_falls_silent_is_started_again() -> None:
    one = fleet()
    one.handle(Wanted(3), 0.0)
    one.handle(WorkerHeard("a", idle=False), 1.0)
    assert one.handle(TimePassed(), 30.5) == [Start("b")], "b was never heard"
    assert one.handle(TimePassed(), 32.0) == [Start("a")], "a fell silent"
    one.handle(WorkerHeard("a", idle=False), 33.0)
    one.handle(WorkerHeard("b", idle=False), 33.0)
    one.handle(Wanted(2), 34.0)
    one.handle(WorkerHeard("b", idle=False), 90.0)
    assert Stop("b") in one.handle(TimePassed(), 95.0)


def test_a_start_that_failed_is_not_tried_again_at_once_and_others_are_tried_instead() -> None:
    one = fleet()
    one.handle(Wanted(2), 0.0)
    assert one.handle(WorkerEnded("a", failed=True), 1.0) == [Restore("b"), Start("b")]
    assert one.handle(WorkerEnded("b", failed=True), 2.0) == [Restore("c"), Start("c")]
    assert one.handle(WorkerEnded("c", failed=True), 3.0) == []
    assert one.handle(TimePassed(), 31.5) == [Restore("a"), Start("a")]


class AnyOrder(RuleBasedStateMachine):
    """``workers``: processes that run; ``withdrawn``: what the devices topic says."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = fleet()
        self.now = 0.0
        self.wanted = 1
        self.workers: set[str] = set()
        self.withdrawn: dict[str, float] = {}

    def apply(self, actions: list[ElasticAction]) -> None:
        for action in actions:
            match action:
                case Start(device):
                    self.workers.add(device)
                case Withdraw(device):
                    self.withdrawn[device] = self.now
                case Restore(device):
                    self.withdrawn.pop(device, None)
                case Stop(device):
                    assert self.now - self.withdrawn[device] >= 3.0, "ended before plans could leave it out"

    @rule(devices=st.integers(0, 5))
    def wants(self, devices: int) -> None:
        self.wanted = devices
        self.apply(self.fleet.handle(Wanted(devices), self.now))

    @rule(device=st.sampled_from(SPARE), idle=st.booleans())
    def beats(self, device: str, idle: bool) -> None:
        if device in self.workers:
            self.apply(self.fleet.handle(WorkerHeard(device, idle), self.now))

    @rule(device=st.sampled_from(SPARE))
    def ends(self, device: str) -> None:
        if self.fleet.state(device) is SpareState.ENDING:
            self.workers.discard(device)
            self.apply(self.fleet.handle(WorkerEnded(device), self.now))

    @rule(seconds=st.floats(0.0, 40.0))
    def waits(self, seconds: float) -> None:
        self.now += seconds
        self.apply(self.fleet.handle(TimePassed(), self.now))

    @invariant()
    def as_many_serve_as_are_wanted_or_can(self) -> None:
        ending = sum(self.fleet.state(d) is SpareState.ENDING for d in SPARE)
        assert self.fleet.serving <= max(1, self.wanted)
        assert self.fleet.serving >= min(self.wanted, 4 - ending)

    @invariant()
    def what_serves_is_not_withdrawn(self) -> None:
        for device in SPARE:
            serving = self.fleet.state(device) in (SpareState.STARTING, SpareState.UP)
            assert not (serving and device in self.withdrawn)


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_workers_are_sized_for_the_most_accurate_variant_that_keeps_the_slo() -> None:
    def profile(name: str, seconds: float) -> Profile:
        points = tuple(BatchLatency(b, seconds * (1 + 0.1 * b), seconds * (1 + 0.1 * b)) for b in (1, 8, 64))
        return Profile(variant=name, device_type="cpu", points=points)

    catalogue = Catalogue.of(
        [App(name="x", slo=0.2), App(name="slow", slo=0.01)],
        [
            Variant(name="best", app="x", accuracy=0.9),
            Variant(name="good", app="x", accuracy=0.8),
            Variant(name="quick", app="x", accuracy=0.7),
            Variant(name="s", app="slow", accuracy=0.9),
        ],
        [profile("best", 0.2), profile("good", 0.05), profile("quick", 0.01), profile("s", 0.2)],
    )
    assert units(catalogue, "cpu") == {"x": Unit("good", 8, 0.05 * 1.8, 0.2)}
    assert units(catalogue, "gpu") == {}
    # Ten a second for 0.09 s, and a backlog of 20 that has 0.2 s.
    assert abs(Unit("good", 8, 0.09, 0.2).on_hand(10.0, 20.0) - 9.9) < 1e-9
    assert abs(Unit("good", 8, 0.09, 0.2).on_hand(10.0) - 0.9) < 1e-9


def test_a_trend_sees_a_ramp_coming_and_never_less_than_nothing() -> None:
    trend = Trend()
    assert trend.ahead(10.0) == 0.0
    for second in range(60):
        trend.update(10.0 * second, float(second))
    assert abs(trend.ahead(10.0) - 690.0) < 15.0
    for second in range(60, 120):
        trend.update(max(0.0, 590.0 - 40.0 * (second - 60)), float(second))
    assert trend.ahead(100.0) < 5.0
