"""What a plan is made for: demand by app and class, without what failed to load, as late as hosts and profiles are."""

from typing import Any

import pytest

from sluicegate.domain.events import DemandCounted, LatencyMeasured
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.estimates.host_strain import StrainSettings
from sluicegate.planner.estimates.problem_builder import Outlook
from sluicegate.planner.estimates.profile_drift import LatencyFactors, LatencySettings
from sluicegate.planner.problems.plan_limits import PlanLimitFields, PlanLimits, limits_of
from sluicegate.planner.problems.problem import Allocation
from sluicegate.profiles.catalogue.catalogue import Catalogue
from tests.unit.planner.control.test_host_strain import beats

NOW = 1001.5


def profile(variant: str, kind: str, *seconds: float) -> Profile:
    points = tuple(BatchLatency(b, s, 1.5 * s) for b, s in enumerate(seconds, 1))
    return Profile(variant=variant, device_type=kind, points=points)


APPS = (
    App(name="a", slo=0.4, slo_classes=(0.2, 0.6)),
    App(name="b", slo=0.3, weight=2.5, min_accuracy=0.25, query_class=QueryClass.BEST_EFFORT),
)
VARIANTS = (
    Variant(name="a-s", app="a", accuracy=0.6),
    Variant(name="a-l", app="a", accuracy=0.9),
    Variant(name="b-o", app="b", accuracy=0.8),
)
PROFILES = (
    profile("a-s", "cpu", 0.01, 0.015),
    profile("a-l", "cpu", 0.05),
    profile("b-o", "cpu", 0.02),
    profile("b-o", "gpu", 0.14),
)
CATALOGUE = Catalogue.of(APPS, VARIANTS, PROFILES)


def outlook(**settings: Any) -> Outlook:
    """12 queries a second of one app, a quarter of them in the tight class, and 4 of the other."""
    found = Outlook(CATALOGUE, ControllerSettings(**settings))
    found.counted(DemandCounted("a", 12, 1.0, classes=((0.2, 3), (0.6, 9))), 1001.0)
    found.counted(DemandCounted("b", 4, 1.0), 1001.0)
    found.counted(DemandCounted("unheard of", 99, 1.0), 1001.0)
    return found


def test_demand_is_asked_for_by_class_with_what_its_app_is_worth() -> None:
    tight, loose, other = outlook().problem((), (), NOW).demands
    assert [(d.app, d.slo, d.qps) for d in (tight, loose, other)] == [("a", 0.2, 3.0), ("a", 0.6, 9.0), ("b", 0.3, 4.0)]
    spread = (1.0 / (0.3 * 12.0)) ** 0.5
    assert tight.spread == loose.spread == pytest.approx(spread)
    assert tight.headroom == loose.headroom == pytest.approx(1.0 + 1.5 * spread)
    assert other.headroom == pytest.approx(1.0 + 1.5 * (1.0 / 1.2) ** 0.5)
    assert (tight.weight, tight.min_accuracy, tight.query_class) == (1.0, 0.0, QueryClass.STRICT)
    assert (other.weight, other.min_accuracy, other.query_class) == (2.5, 0.25, QueryClass.BEST_EFFORT)
    uniform = outlook(headroom=1.3).problem((), (), NOW).demands
    assert {(d.headroom, d.spread) for d in uniform} == {(1.3, 0.0)}


def test_an_app_under_strain_is_planned_for_so_many_times_its_demand_and_batches_for_later() -> None:
    """Of the delay of .2, half the SLO less one and a half times a row of the fastest variant counts at most."""
    found = outlook(strain=StrainSettings(step=3.0))
    plain = found.problem((), (), NOW)
    beats(found.strain, 995.0, 997.0, 0.2, (5, 5))
    assert (found.strain.strains, found.strain.delay) == ({"a": 2.0}, pytest.approx(0.2))
    strained = found.problem((), (), NOW)
    for before, after in zip(plain.demands, strained.demands, strict=True):
        factor = 2.0 if before.app == "a" else 1.0
        assert after.headroom == pytest.approx(factor * before.headroom)
        assert after.spread == (0.0 if before.app == "a" else before.spread)
    later = {key: [p.median for p in known.points] for key, known in strained.catalogue.profiles.items()}
    assert later == {
        ("a-s", "cpu"): pytest.approx([0.195, 0.2]),
        ("a-l", "cpu"): pytest.approx([0.235]),
        ("b-o", "cpu"): pytest.approx([0.14]),
        ("b-o", "gpu"): pytest.approx([0.26]),
    }


def test_what_failed_to_load_is_left_out_for_a_while_unless_its_app_has_nothing_else() -> None:
    found = outlook(load_failure_hold=40.0)
    assert found.failed("a-l", "cpu", NOW)
    assert not found.failed("a-l", "cpu", NOW + 5.0), "no news"
    assert found.failed("b-o", "gpu", NOW + 5.0)
    known = found.problem((), (), NOW + 44.9).catalogue
    assert set(known.profiles) == {("a-s", "cpu"), ("b-o", "cpu")}
    assert set(known.variants) == {"a-s", "a-l", "b-o"}
    assert set(found.problem((), (), NOW + 45.0).catalogue.profiles) == set(CATALOGUE.profiles)
    assert found.failed("a-l", "cpu", NOW + 45.1), "it was tried again"
    assert found.failed("a-s", "cpu", NOW + 45.1)
    assert ("a-l", "cpu") in found.problem((), (), NOW + 46.0).catalogue.profiles, "nothing else is left"
    without = Catalogue.of(APPS, VARIANTS, [p for p in PROFILES if p.variant != "a-s"])
    assert found.registered(without) == ["a"]
    found.registered(CATALOGUE)
    assert set(found.problem((), (), NOW + 46.0).catalogue.profiles) == set(CATALOGUE.profiles) - {("a-l", "cpu")}, (
        "of what was taken back nothing is remembered"
    )


def test_what_failed_to_load_on_a_slice_is_left_out_on_every_slice_of_the_type() -> None:
    """Who tells of it names the device, and profiles are filed under its type and how that is cut."""
    kinds = ("cpu", "a100:3g", "a100:1g", "a100x:3g")
    sliced = Catalogue.of(APPS, VARIANTS, [profile(v.name, kind, 0.02) for v in VARIANTS for kind in kinds])
    found = Outlook(sliced, ControllerSettings(load_failure_hold=40.0))
    found.failed("a-l", "a100", NOW)
    barred = set(sliced.profiles) - set(found.problem((), (), NOW + 39.0).catalogue.profiles)
    assert barred == {("a-l", "a100:3g"), ("a-l", "a100:1g")}
    assert found.registered(Catalogue.of(APPS, VARIANTS, [*sliced.profiles.values(), profile("b-o", "gpu", 0.3)]))
    assert barred.isdisjoint(found.problem((), (), NOW + 39.0).catalogue.profiles), "another app is no reason to retry"
    assert barred <= set(found.problem((), (), NOW + 40.0).catalogue.profiles)
    alone = Catalogue.of(APPS[:1], VARIANTS[1:2], [profile("a-l", "a100:3g", 0.02), profile("a-l", "a100:1g", 0.05)])
    only = Outlook(alone, ControllerSettings(load_failure_hold=40.0))
    only.failed("a-l", "a100", NOW)
    assert only.problem((), (), NOW + 1.0).catalogue.profiles == alone.profiles, "there is nothing else"


@pytest.mark.parametrize(
    ("apps", "slices", "enough"), [(5, (1,), 5), (5, (1, 1), 3), (5, (2, 3), 1), (2, (1, 2, 1), 1), (9, (1,), 8)]
)
def test_a_unit_holds_as_many_variants_as_it_takes_for_every_app_to_be_hosted(
    apps: int, slices: tuple[int, ...], enough: int
) -> None:
    catalogue = Catalogue.of([App(name=f"a{i}", slo=0.1) for i in range(apps)], [], [])
    devices = [
        Device(name=f"d{i}", type="gpu", slices=tuple(Slice(f"1g.{j}", "1g") for j in range(count)))
        for i, count in enumerate(slices)
    ]
    as_needed = Outlook(catalogue, ControllerSettings(variants_per_device=None))
    assert as_needed.problem(devices, (), NOW).variants_per_device == enough
    assert as_needed.problem((), (), NOW).variants_per_device == min(8, apps)
    fixed = Outlook(catalogue, ControllerSettings(variants_per_device=4))
    assert fixed.problem(devices, (), NOW).variants_per_device == 4


@pytest.mark.parametrize(("chosen", "most"), [({}, 27), ({"a": 2.0}, 36), ({"b": 9.0}, 27)])
def test_a_plan_covers_its_demand_over_all_classes_with_its_headroom(chosen: dict[str, float], most: int) -> None:
    """12 queries/s with half as much again, or twice, as the planner chose; a burst is half as much again as that."""
    for count, bursting in ((most, ()), (most + 1, ("a",))):
        found = outlook(headroom=1.5)
        problem = found.problem((), (), NOW)
        answer = Allocation(placements=(), served={}, objective=0.0, bound=0.0, headroom=chosen)
        assert found.planned(problem, answer) == {"a": 12.0, "b": 4.0}
        found.counted(DemandCounted("a", count, 0.5), 1004.0)
        assert found.bursting(1004.0) == bursting


def test_where_settings_say_nothing_of_what_a_plan_may_cost_it_may_cost_what_a_problem_that_says_nothing_may() -> None:
    said = {"price": 1.0, "max_loads": None, "money_weight": 0.0, "budget": None, "strict_on_demand": 0.0}
    assert limits_of(PlanLimitFields()) == limits_of(PlanLimits()) == {**said, "loads": "beside"}
    assert limits_of(PlanLimitFields(), "free") == {**said, "loads": "free"}
    other = {"price": 2.0, "max_loads": 3, "money_weight": 0.5, "budget": 7.0, "strict_on_demand": 0.25}
    assert limits_of(PlanLimitFields.model_validate({**other, "loads": "exclusive"}), "free") == {
        **other,
        "loads": "exclusive",
    }


B_SLOWER = {("b-o", "cpu"): 16.0, ("b-o", "gpu"): 1.5}
FLEET = (Device(name="g", type="gpu"), Device(name="c", type="cpu"))


def slowed(*kinds: str) -> Outlook:
    """b-o takes 0.32 s on processors and 0.21 on GPUs, of an SLO of 0.3; a-s takes 0.06 of 0.2."""
    found = outlook(load_failure_hold=40.0)
    found.measured(LatencyMeasured("a-s", "cpu", 1, 0.06, 50), NOW)
    for kind in kinds:
        profiled = CATALOGUE.profiles["b-o", kind].curve("median")(1)
        found.measured(LatencyMeasured("b-o", kind, 1, profiled * B_SLOWER["b-o", kind], 50), NOW)
    return found


def test_what_is_measured_too_slow_is_passed_over_while_its_app_has_anything_else() -> None:
    known = slowed("gpu").problem(FLEET, (), NOW).latency_factor
    assert known == {("a-s", "cpu"): pytest.approx(6.0), ("b-o", "gpu"): pytest.approx(1.5)}


def test_an_app_that_is_measured_too_slow_everywhere_is_planned_with_where_it_answers_within_its_slo() -> None:
    """Half the SLO over 0.14 s: whom nobody plans with nobody times, and it would be left out for good."""
    found = slowed("gpu", "cpu")
    known = found.problem(FLEET, (), NOW + 39.0).latency_factor
    assert known["b-o", "cpu"] == pytest.approx(16.0)
    assert known["b-o", "gpu"] == pytest.approx(0.15 / 0.14)
    assert known["b-o", "gpu"] * 0.14 <= 0.15
    shared = outlook(load_failure_hold=40.0, variants_per_device=2)
    shared.measured(LatencyMeasured("b-o", "cpu", 1, 0.12, 50), NOW)
    shared.measured(LatencyMeasured("b-o", "gpu", 1, 0.21, 50), NOW)
    known = shared.problem(FLEET, (), NOW + 99.0).latency_factor
    assert known["b-o", "cpu"] * 0.02 == pytest.approx(0.1)
    assert known["b-o", "gpu"] == pytest.approx(1.5), "never fitted a third of the SLO, by its profile"


def test_variants_that_are_made_up_leave_nothing_behind() -> None:
    known, flooded = slowed("cpu"), slowed("cpu")
    for number in range(100):
        flooded.measured(LatencyMeasured(f"made-up-{number}", "cpu", 1, 0.1, 50), NOW)
    assert held(flooded) == held(known)


def held(found: Outlook) -> list[int]:
    """How much it keeps of each kind."""
    return [len(kept) for kept in vars(found).values() if isinstance(kept, dict)]


def test_an_app_of_several_slos_is_to_fit_the_tightest() -> None:
    found = outlook()
    for variant, seconds in (("a-s", 0.15), ("a-l", 0.125)):
        found.measured(LatencyMeasured(variant, "cpu", 1, seconds, 50), NOW)
    known = found.problem(FLEET, (), NOW).latency_factor
    assert known == {("a-s", "cpu"): pytest.approx(0.1 / 0.01), ("a-l", "cpu"): pytest.approx(0.1 / 0.05)}


def test_what_no_more_answers_within_its_slo_is_tried_again_after_a_while_where_its_app_has_nothing_else() -> None:
    found = slowed("gpu", "cpu")
    without_gpu = FLEET[1:]
    assert found.problem(without_gpu, (), NOW + 39.9).latency_factor["b-o", "cpu"] == pytest.approx(16.0)
    assert ("b-o", "cpu") not in found.problem(without_gpu, (), NOW + 40.0).latency_factor
    found.measured(LatencyMeasured("b-o", "cpu", 1, 0.32, 1), NOW + 50.0)
    assert found.problem(without_gpu, (), NOW + 89.9).latency_factor["b-o", "cpu"] == pytest.approx(16.0)
    assert ("b-o", "cpu") in found.problem((), (), NOW + 99.0).latency_factor, "there is nothing to try it on"


SETTINGS = LatencySettings(threshold=0.25, batches=3.0, fade=0.5, lowest=0.5, highest=4.0)
SLOW = Catalogue.of(
    [App(name="s", slo=2.0)], [Variant(name="v", app="s", accuracy=0.9)], [profile("v", "cpu", 0.25, 0.5)]
)


def factors() -> LatencyFactors:
    return LatencyFactors(SLOW, "median", SETTINGS)


def took(seconds: float, batches: int = 3, rows: int = 1) -> LatencyMeasured:
    return LatencyMeasured("v", "cpu", rows, seconds, batches)


def test_a_factor_is_acted_on_from_enough_batches_on_and_beyond_the_threshold_only() -> None:
    found = factors()
    assert found.handle(took(0.3125)) is None, "a quarter more is not beyond it"
    assert found.factors == {}
    found = factors()
    assert found.handle(took(0.375, 2)) is None
    assert found.handle(took(0.375, 1)) == 1.5
    assert found.handle(took(0.75, 1, rows=2)) is None, "the same of two rows, and of more as of two"
    assert found.handle(took(0.75, 1, rows=9)) is None
    assert found.handle(took(0.46875, 60)) is None, "1.875 is a quarter more than 1.5"
    assert found.factors == {("v", "cpu"): 1.5}
    assert found.handle(took(0.5, 60)) == pytest.approx(2.0)
    assert found.handle(took(0.296875, 60)) == 1.0, "near enough to the profile"
    assert found.factors == {}


@pytest.mark.parametrize(("seconds", "factor"), [(9.0, 4.0), (0.01, 0.5), (0.1875, None), (0.125, 0.5), (1.0, 4.0)])
def test_factors_have_bounds(seconds: float, factor: float | None) -> None:
    assert factors().handle(took(seconds)) == factor


@pytest.mark.parametrize(("seconds", "late", "ratio"), [(0.625, 0.125, 2.0), (0.625, 0.5, None), (0.125, 0.1, 0.5)])
def test_what_a_host_is_late_is_no_fault_of_the_profile_as_far_as_it_explains_more(
    seconds: float, late: float, ratio: float | None
) -> None:
    assert factors().handle(took(seconds), late) == ratio


def test_newer_reports_count_for_more() -> None:
    found = factors()
    found.handle(took(0.25, 2))  # weight 3/4
    assert found.handle(took(0.5, 1)) == pytest.approx((0.75 * 0.5 + 0.5 * 2.0) / 0.875)


def test_reports_that_say_nothing_are_ignored_and_what_was_measured_of_another_profile_is_forgotten() -> None:
    found = factors()
    for nothing in (took(0.0), took(-1.0), took(5.0, 0), took(5.0, rows=0)):
        assert found.handle(nothing) is None
    assert found.handle(took(0.5)) == 2.0
    found.registered(SLOW)
    assert found.factors == {("v", "cpu"): 2.0}
    found.registered(Catalogue.of(SLOW.apps.values(), SLOW.variants.values(), [profile("v", "cpu", 0.5)]))
    assert found.factors == {}
    assert found.handle(took(0.5)) is None, "as profiled now"
