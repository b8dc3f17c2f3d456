"""The reconfiguration rule under random ticks: one change a GPU, tokens kept, and the counter's published fault."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluicegate.domain.errors import IllegalEventError
from sluicegate.planner.geometry.reconfigurator import (
    Desired,
    Drain,
    GeometryChanged,
    GpuJoined,
    GpuLeft,
    GpuState,
    Reconfigurator,
    Reshape,
    Resume,
    SlicesIdle,
    change_limit,
)

SMALL, LARGE, WHOLE = ("4g", "2g", "1g"), ("4g", "3g"), ("7g",)
GEOMETRIES = (SMALL, LARGE, WHOLE)


def test_the_third_mismatch_in_a_row_drains_then_reshapes_then_resumes() -> None:
    rule = Reconfigurator({"g": LARGE})
    said = [rule.handle(Desired("g", SMALL), t) for t in range(3)]
    assert said == [[], [], [Drain("g", SMALL)]]
    assert rule.handle(Desired("g", SMALL), 3) == []
    assert rule.handle(SlicesIdle("g"), 4) == [Reshape("g", SMALL)]
    assert rule.geometry("g") == LARGE
    assert rule.handle(GeometryChanged("g"), 6) == [Resume("g", SMALL)]
    assert (rule.geometry("g"), rule.counter("g")) == (SMALL, 0)


def test_the_same_slices_in_another_order_are_no_mismatch() -> None:
    rule = Reconfigurator({"g": LARGE}, patience=1)
    assert rule.handle(Desired("g", ("3g", "4g")), 0) == []
    assert Reconfigurator({"g": LARGE}, published=True).handle(Desired("g", ("3g", "4g")), 0) == []
    published = Reconfigurator({"g": LARGE}, published=True)
    assert [len(published.handle(Desired("g", ("3g", "4g")), t)) for t in range(4)] == [0, 0, 0, 1]


def test_another_target_starts_the_count_anew_but_not_as_published() -> None:
    targets = [SMALL, SMALL, WHOLE, WHOLE]
    ours, published = Reconfigurator({"g": LARGE}), Reconfigurator({"g": LARGE}, published=True)
    assert [len(ours.handle(Desired("g", x), t)) for t, x in enumerate(targets)] == [0, 0, 0, 0]
    # Three ticks of two different targets are enough for the fourth to fire.
    assert [len(published.handle(Desired("g", x), t)) for t, x in enumerate(targets)] == [0, 0, 0, 1]


def test_the_published_counter_fires_late_and_again_while_the_change_is_in_flight() -> None:
    published, ours = Reconfigurator({"g": LARGE}, published=True), Reconfigurator({"g": LARGE})
    for counted, issued in ((published, [0, 0, 0, 1]), (ours, [0, 0, 1, 1])):
        seen = []
        for t in range(4):
            counted.handle(Desired("g", SMALL), t)
            seen.append(counted.issued)
        assert seen == issued
        counted.handle(SlicesIdle("g"), 4)
        for t in range(5, 10):
            counted.handle(Desired("g", SMALL), t)
    assert (published.issued, ours.issued) == (6, 1)


def test_a_failed_change_leaves_the_old_geometry_and_gives_the_token_back() -> None:
    rule = Reconfigurator({"a": LARGE, "b": LARGE}, patience=1)
    assert rule.handle(Desired("a", SMALL), 0) == [Drain("a", SMALL)]
    assert rule.handle(Desired("b", SMALL), 0) == []
    rule.handle(SlicesIdle("a"), 1)
    assert rule.handle(GeometryChanged("a", ok=False), 2) == [Resume("a", LARGE)]
    assert rule.handle(Desired("b", SMALL), 3) == [Drain("b", SMALL)]


@pytest.mark.parametrize(("gpus", "limit"), [(1, 1), (3, 1), (7, 2), (8, 2), (10, 3), (1000, 300)])
def test_three_in_ten_gpus_may_change_at_a_time_and_always_one(gpus: int, limit: int) -> None:
    assert change_limit(gpus) == limit


def test_events_out_of_turn_raise_and_change_nothing() -> None:
    rule = Reconfigurator({"g": LARGE})
    for event in (SlicesIdle("g"), GeometryChanged("g"), Desired("x", SMALL), GpuJoined("g", LARGE)):
        with pytest.raises(IllegalEventError):
            rule.handle(event, 0)
    assert (rule.state("g"), rule.counter("g")) == (GpuState.UP, 0)


class Fleet(RuleBasedStateMachine):
    """Five GPUs, any order of ticks, idles, ends, departures."""

    @initialize(patience=st.integers(1, 4))
    def start(self, patience: int) -> None:
        self.patience = patience
        self.rule = Reconfigurator({f"g{i}": LARGE for i in range(5)}, patience=patience)
        self.names = [f"g{i}" for i in range(5)]
        self.asked: dict[str, list[tuple[str, ...]]] = {n: [] for n in self.names}

    @rule(i=st.integers(0, 4), geometry=st.sampled_from(GEOMETRIES))
    def tick(self, i: int, geometry: tuple[str, ...]) -> None:
        name = self.names[i % len(self.names)]
        before = self.rule.state(name)
        self.asked[name].append(geometry)
        for action in self.rule.handle(Desired(name, geometry), 0.0):
            assert action == Drain(name, geometry)
            assert before is GpuState.UP
            assert self.asked[name][-self.patience :] == [geometry] * self.patience
            assert sorted(geometry) != sorted(self.rule.geometry(name))

    @precondition(lambda self: self.of(GpuState.DRAINING))
    @rule(i=st.integers(0, 4))
    def idle(self, i: int) -> None:
        names = self.of(GpuState.DRAINING)
        assert isinstance(self.rule.handle(SlicesIdle(names[i % len(names)]), 0.0)[0], Reshape)

    @precondition(lambda self: self.of(GpuState.CHANGING))
    @rule(i=st.integers(0, 4), ok=st.booleans())
    def changed(self, i: int, ok: bool) -> None:
        names = self.of(GpuState.CHANGING)
        name = names[i % len(names)]
        assert isinstance(self.rule.handle(GeometryChanged(name, ok), 0.0)[0], Resume)
        self.asked[name].clear()

    @precondition(lambda self: len(self.names) > 2)
    @rule(i=st.integers(0, 4))
    def leave(self, i: int) -> None:
        name = self.names.pop(i % len(self.names))
        self.rule.handle(GpuLeft(name), 0.0)

    def of(self, state: GpuState) -> list[str]:
        return [n for n in self.names if self.rule.state(n) is state]

    @invariant()
    def tokens_are_kept(self) -> None:
        if hasattr(self, "rule"):
            assert len(self.rule.in_flight) <= change_limit(5)


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.sampled_from(GEOMETRIES), min_size=1, max_size=60))
@settings(max_examples=80, deadline=None)
def test_a_geometry_asked_for_once_or_twice_in_a_row_never_changes_anything(asked: list[tuple[str, ...]]) -> None:
    rule = Reconfigurator({"g": LARGE})
    run = 0
    last = None
    for t, geometry in enumerate(asked):
        run = run + 1 if geometry == last else 1
        last = geometry
        if rule.handle(Desired("g", geometry), t):
            assert run >= 3
            return
