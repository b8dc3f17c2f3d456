"""Which GPUs may be cut otherwise, and when that is thought about: two GPUs cut unlike, one of another type beside."""

from dataclasses import replace

from sluicegate.domain.events import DeviceSeen
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.plan import NO_EPOCH, Epoch, Placement, Plan
from sluicegate.planner.geometry.recut_tracker import ChangeSettings, CutNews, GeometryChanges
from sluicegate.planner.problems.problem import AppDemand, Problem, RecutGroup, Recuts
from sluicegate.profiles.catalogue.catalogue import Catalogue

NOW = 1.7e9
WHOLE = (Slice("7g.0", "7g", 40),)
PARTS = (Slice("4g.0", "4g", 20), Slice("3g.4", "3g", 20))
SMALL = (Slice("3g.0", "3g", 20), Slice("2g.4", "2g", 10), Slice("2g.6", "2g", 10))
SETTINGS = ChangeSettings(fraction=0.5, timeout=40.0, hold=200.0, rest=50.0, loads=6.0, patience=5.0)
ASKED = Epoch(3, 5)


def gpu(name: str, slices: tuple[Slice, ...]) -> Device:
    return Device(name=name, type="a100", memory_bytes=40, slices=slices)


FIRST, SECOND = gpu("g1", WHOLE), gpu("g2", PARTS)
CPU = Device(name="c", type="cpu")
FLEET = (FIRST, SECOND, CPU)


def seen(device: Device, slices: tuple[Slice, ...] | None = None, fault: str = "", of: Epoch = NO_EPOCH) -> DeviceSeen:
    stated = device.slices if slices is None else slices
    return DeviceSeen(device.name, device.type, "i", slices=stated, fault=fault, fault_epoch=of)


def demand(*qps: float) -> list[AppDemand]:
    return [AppDemand(app=app, qps=each, slo=0.2) for app, each in zip("ab", qps, strict=False)]


def problem(recuts: Recuts | None, *qps: float) -> Problem:
    return Problem(catalogue=Catalogue.of([], [], []), devices=FLEET, demands=tuple(demand(*qps)), recuts=recuts)


def tracker(*devices: Device, enabled: bool = True, settings: ChangeSettings = SETTINGS) -> GeometryChanges:
    made = GeometryChanges(settings, enabled=enabled)
    for device in devices or (FIRST, SECOND):
        made.seen(seen(device), NOW)
    return made


def thinking(*devices: Device, settings: ChangeSettings = SETTINGS) -> GeometryChanges:
    """With nothing that it has been found right for, after its patience."""
    made = tracker(*devices, settings=settings)
    made.notice(FLEET, demand(40.0, 9.0), NOW)
    made.notice(FLEET, demand(40.0, 9.0), NOW + 5.0)
    return made


def changing(settings: ChangeSettings = SETTINGS) -> GeometryChanges:
    """The first is being cut since 10 s."""
    made = thinking(settings=settings)
    asked = problem(Recuts((RecutGroup(("g1", "g2"), 1),)), 40.0, 9.0)
    (said,) = made.answered(asked, {"g1": SMALL}, ASKED, NOW + 10.0)
    assert said == CutNews("g1", "recutting", "7g -> 3g+2gx2")
    return made


def test_a_geometry_is_thought_about_once_its_ground_differs_for_long_enough() -> None:
    made = tracker()
    assert made.question(FLEET, demand(40.0, 9.0), NOW) is None
    made.notice(FLEET, demand(40.0, 9.0), NOW)
    assert not made.due(NOW + 4.9) and made.due(NOW + 5.0)
    made.notice(FLEET, demand(40.0, 9.0), NOW + 4.9)
    assert made.question(FLEET, demand(40.0, 9.0), NOW + 4.9) is None
    made.notice(FLEET, demand(40.0, 9.0), NOW + 5.0)
    assert not made.due(NOW + 5.0), "it is thought about already"
    groups = (RecutGroup(("g1", "g2"), 1),)
    assert made.question(FLEET, demand(40.0, 9.0), NOW + 5.0) == Recuts(groups, ())
    assert made.question((FIRST, CPU), demand(40.0, 9.0), NOW + 5.0) == Recuts((RecutGroup(("g1",), 1),))
    assert made.question((CPU,), demand(40.0, 9.0), NOW + 5.0) is None
    for quiet in (tracker(enabled=False), GeometryChanges(SETTINGS, enabled=True)):
        for at in (0.0, 5.0, 50.0):
            quiet.notice(FLEET, demand(40.0, 9.0), NOW + at)
            assert not quiet.due(NOW + at)
            assert quiet.question(FLEET, demand(40.0, 9.0), NOW + at) is None


def settled(*qps: float) -> GeometryChanges:
    """Found right for this demand at 6 s."""
    made = thinking()
    asked = problem(made.question(FLEET, demand(*qps), NOW + 6.0), *qps)
    assert made.answered(asked, {}, ASKED, NOW + 6.0) == []
    assert made.question(FLEET, demand(*qps), NOW + 7.0) is None
    return made


def test_what_differs_by_no_more_than_drift_and_noise_begins_nothing() -> None:
    """Of 100/s a fifth and two deviations of four seconds' counts: 30; beyond, of what is more: 0.2 x + sqrt(x)."""

    def due_at(devices: tuple[Device, ...], *qps: float) -> bool:
        made = settled(100.0, 9.0)
        made.notice(devices, demand(*qps), NOW + 10.0)
        assert not made.due(NOW + 14.9)
        return made.due(NOW + 15.0)

    assert not due_at(FLEET, 100.0, 9.0)
    assert not due_at(FLEET, 139.0, 9.0) and due_at(FLEET, 141.0, 9.0)
    assert not due_at(FLEET, 71.0, 9.0) and due_at(FLEET, 69.0, 9.0)
    assert not due_at(FLEET, 100.0, 14.0) and due_at(FLEET, 100.0, 17.0)
    assert due_at(FLEET, 100.0)
    assert due_at(FLEET[1:], 100.0, 9.0) and due_at((FIRST, replace(CPU, name="c2"), CPU), 100.0, 9.0)
    assert not due_at((FIRST, replace(SECOND, slices=SMALL), replace(CPU, name="c2")), 100.0, 9.0)
    both = settled(100.0, 9.0)
    both.notice(FLEET, [*demand(60.0, 9.0), *demand(41.0)], NOW + 10.0)
    assert not both.due(NOW + 15.0), "the classes of an app add up"


def test_a_difference_that_passes_begins_the_wait_anew() -> None:
    made = settled(100.0, 9.0)
    made.notice(FLEET, demand(200.0, 9.0), NOW + 10.0)
    made.notice(FLEET, demand(100.0, 9.0), NOW + 14.0)
    assert not made.due(NOW + 15.0)
    made.notice(FLEET, demand(200.0, 9.0), NOW + 16.0)
    made.notice(FLEET, demand(200.0, 9.0), NOW + 20.0)
    assert not made.due(NOW + 20.9) and made.due(NOW + 21.0)


def test_while_one_is_cut_the_others_wait_their_turn_and_it_counts_as_it_will_be() -> None:
    made = changing()
    assert made.changing == {"g1"}
    assert made.question(FLEET, demand(40.0, 9.0), NOW + 11.0) is None
    many = changing(replace(SETTINGS, fraction=1.0))
    recuts = many.question(FLEET, demand(40.0, 9.0), NOW + 11.0)
    assert recuts == Recuts((RecutGroup(("g2",), 1),), (replace(FIRST, slices=SMALL),))
    assert made.geometries(FLEET) == {"g1": SMALL, "g2": PARTS}
    assert made.stating(FLEET) == [FIRST, SECOND]
    assert made.begin((FIRST, SECOND), {"g1": PARTS}, Epoch(3, 6), NOW + 12.0) == [], "once at a time"
    assert made.begin((gpu("g2", SMALL),), {"g2": WHOLE}, Epoch(3, 6), NOW + 12.0) == [], "it is not cut so"


def test_it_is_done_when_its_worker_states_other_slices_and_then_it_rests() -> None:
    made = changing()
    assert made.seen(seen(FIRST), NOW + 11.0) is None
    assert made.seen(seen(FIRST, SMALL[::-1]), NOW + 13.5) == CutNews("g1", "recut", "7g -> 3g+2gx2 in 3.5 s")
    cut = gpu("g1", SMALL)
    assert made.changing == frozenset() and made.geometries((cut,)) == {"g1": SMALL[::-1]}
    assert made.let_be(NOW + 63.4) == {"g1"} and made.let_be(NOW + 63.5) == frozenset()
    assert made.question((cut, SECOND), demand(40.0, 9.0), NOW + 19.4) is None, "its slices are being loaded"
    recuts = made.question((cut, SECOND), demand(40.0, 9.0), NOW + 19.5)
    assert recuts == Recuts((RecutGroup(("g2",), 1),), ()), "none twice"


def test_what_was_cut_otherwise_than_asked_is_taken_as_it_is() -> None:
    said = changing().seen(seen(FIRST, PARTS), NOW + 12.0)
    assert said == CutNews("g1", "recut", "7g -> 4g+3g in 2.0 s, not 3g+2gx2 as asked")


def test_it_failed_where_its_worker_says_so_of_this_plan_or_states_nothing_or_takes_too_long() -> None:
    made = changing()
    assert made.seen(seen(FIRST, fault="a process runs", of=Epoch(3, 4)), NOW + 11.0) is None
    failed = CutNews("g1", "recut_failed", "7g stays, not 3g+2gx2: a process runs")
    assert made.seen(seen(FIRST, fault="a process runs", of=ASKED), NOW + 12.0) == failed
    assert made.let_be(NOW + 211.0) == {"g1"} and made.overdue(NOW + 211.9) == []
    assert made.let_be(NOW + 211.9) == {"g1"}
    assert made.overdue(NOW + 212.0) == [] and made.let_be(NOW + 212.0) == frozenset()
    silent = changing().seen(seen(FIRST, ()), NOW + 12.0)
    assert silent == CutNews("g1", "recut_failed", "7g stays, not 3g+2gx2: its worker cannot cut it")
    slow = changing()
    assert slow.overdue(NOW + 50.0) == []
    late = CutNews("g1", "recut_failed", "7g stays, not 3g+2gx2: not cut within 40 s")
    assert slow.overdue(NOW + 50.1) == [late]
    long = changing().seen(seen(FIRST, fault="x" * 999, of=Epoch(4, 0)), NOW + 12.0)
    assert long is not None and len(long.detail) == len("7g stays, not 3g+2gx2: ") + 300


def test_once_a_failure_is_past_it_is_thought_about_anew() -> None:
    made = changing()
    made.seen(seen(FIRST, fault="a process runs", of=ASKED), NOW + 12.0)
    recuts = made.question(FLEET, demand(40.0, 9.0), NOW + 13.0)
    assert recuts == Recuts((RecutGroup(("g2",), 1),), ())
    assert made.answered(problem(recuts, 40.0, 9.0), {}, ASKED, NOW + 13.0) == []
    assert made.question(FLEET, demand(40.0, 9.0), NOW + 14.0) is None, "an answer changed nothing"
    made.overdue(NOW + 212.0)
    recuts = made.question(FLEET, demand(40.0, 9.0), NOW + 212.0)
    assert recuts == Recuts((RecutGroup(("g1", "g2"), 1),), ())


def test_an_answer_without_cuts_settles_nothing_while_one_is_being_cut_or_rests() -> None:
    made = changing()
    recuts = Recuts((RecutGroup(("g2",), 1),), ())
    assert made.answered(problem(recuts, 40.0, 9.0), {}, ASKED, NOW + 11.0) == []
    made.left("g1")
    assert made.changing == frozenset()
    assert made.question((SECOND, CPU), demand(40.0, 9.0), NOW + 11.0) == recuts
    assert made.geometries(FLEET) == {"g2": PARTS}
    assert made.answered(problem(None, 40.0, 9.0), {}, ASKED, NOW + 12.0) == []
    assert made.answered(problem(recuts, 40.0, 9.0), None, ASKED, NOW + 12.0) == []
    assert made.question((SECOND, CPU), demand(40.0, 9.0), NOW + 12.0) == recuts
    made.answered(problem(recuts, 40.0, 9.0), {}, ASKED, NOW + 12.0)
    assert made.question((SECOND, CPU), demand(40.0, 9.0), NOW + 12.0) is None


def test_who_takes_over_goes_on_with_what_was_asked_of_those_that_nothing_is_placed_on() -> None:
    placed = (Placement("g2", "a", ("v",), 1.0, 1, "4g.0"),)
    plan = Plan(epoch=ASKED, created=NOW, placements=placed, geometries={"g1": SMALL, "g2": WHOLE, "g3": PARTS})
    made = tracker()
    made.take_over(plan, NOW + 1.0)
    assert made.changing == {"g1"}
    made.seen(seen(gpu("g3", WHOLE)), NOW + 2.0)
    assert made.changing == {"g1", "g3"}, "it is heard of later"
    failed = made.seen(seen(FIRST, fault="no", of=Epoch(3, 4)), NOW + 3.0)
    assert failed is None, "of an older plan"
    assert made.seen(seen(FIRST, SMALL), NOW + 3.0) == CutNews("g1", "recut", "7g -> 3g+2gx2 in 2.0 s")
    made.take_over(None, NOW + 4.0)
    assert made.changing == frozenset()
    done = tracker(gpu("g1", SMALL[::-1]))
    done.take_over(plan, NOW)
    assert done.changing == frozenset(), "it is cut so already"


def test_one_that_was_cut_takes_part_in_new_thoughts_once_it_has_rested() -> None:
    made = changing()
    made.seen(seen(FIRST, SMALL), NOW + 13.5)
    cut = (gpu("g1", SMALL), SECOND, CPU)
    recuts = made.question(cut, demand(40.0, 9.0), NOW + 20.0)
    assert made.answered(problem(recuts, 40.0, 9.0), {}, ASKED, NOW + 20.0) == []
    assert made.question(cut, demand(40.0, 9.0), NOW + 21.0) is None
    for at in (30.0, 35.0):
        made.notice(cut, demand(100.0, 9.0), NOW + at)
    alone = Recuts((RecutGroup(("g2",), 1),), ())
    assert made.question(cut, demand(100.0, 9.0), NOW + 36.0) == alone
    assert made.answered(problem(alone, 100.0, 9.0), {}, ASKED, NOW + 36.0) == []
    assert made.question(cut, demand(100.0, 9.0), NOW + 63.4) == alone, "it may have another answer once both may"
    both = Recuts((RecutGroup(("g1", "g2"), 1),), ())
    assert made.question(cut, demand(100.0, 9.0), NOW + 63.5) == both
    assert made.answered(problem(both, 100.0, 9.0), {}, ASKED, NOW + 64.0) == []
    assert made.question(cut, demand(100.0, 9.0), NOW + 65.0) is None
