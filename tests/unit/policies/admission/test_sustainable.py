"""Admission within the sustainable rate: modes, hysteresis, fairness, and that the bound is exact."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.actions import Accept, AdmissionAction, Announce, Expire, Reject
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived, MarginsTold
from sluicegate.domain.fleet.device import WHOLE, Device
from sluicegate.domain.models.app import App, Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import FIRST_GUARD, PACE_GUARD, BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.outcome import Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Query
from sluicegate.policies.admission.registry import admission
from sluicegate.policies.admission.rows_taken import Taken
from sluicegate.policies.admission.sustainable import Limits, SustainableAdmission
from sluicegate.policies.admission.sustained_rates import limits, sustained
from sluicegate.policies.placement.hosted_variants import Hosting
from sluicegate.policies.promises.keeper import NO_HOPS
from sluicegate.policies.promises.margins import UNKNOWN
from sluicegate.policies.promises.window_limiter import PlaceLimit, WindowLimiter
from sluicegate.profiles.catalogue.catalogue import Catalogue


def ask(policy: SustainableAdmission, at: float, client: str = "") -> list[AdmissionAction]:
    return policy.handle(Arrived(Query("q", "a", at, at + 1.0, stream=client)), at)


def states(actions: list[AdmissionAction]) -> list[str]:
    return [a.state for a in actions if isinstance(a, Announce)]


def test_enforce_rejects_what_is_over_and_says_so_once() -> None:
    policy = SustainableAdmission(bound=2, window_s=1.0, calm=3)
    answers = [ask(policy, 0.1 * i) for i in range(5)]
    assert [isinstance(a[-1], Accept) for a in answers] == [True, True, False, False, False]
    assert [states(a) for a in answers] == [[], [], ["over_sustainable_rate"], [], []]
    rejected = answers[2][-1]
    assert isinstance(rejected, Reject) and rejected.reason is Reason.OVER_SUSTAINABLE_RATE
    assert policy.over("a")
    later = [ask(policy, 2.0 + i) for i in range(4)]
    assert [states(a) for a in later] == [[], [], ["within_sustainable_rate"], []]


def test_observe_accepts_everything_and_announces() -> None:
    policy = SustainableAdmission(bound=1, window_s=1.0, mode="observe")
    answers = [ask(policy, 0.1 * i) for i in range(4)]
    assert all(isinstance(a[-1], Accept) for a in answers)
    assert [s for a in answers for s in states(a)] == ["over_sustainable_rate"]


def test_degrade_asks_for_faster_variants_before_it_rejects() -> None:
    policy = SustainableAdmission(bound=2, window_s=1.0, mode="degrade", degraded_bound=4)
    answers = [ask(policy, 0.1 * i) for i in range(6)]
    assert [isinstance(a[-1], Accept) for a in answers] == [True] * 4 + [False] * 2
    assert [s for a in answers for s in states(a)] == ["degrade"]


def test_unless_told_otherwise_faster_variants_are_taken_to_sustain_twice_as_much() -> None:
    policy = SustainableAdmission(bound=3, window_s=1.0, mode="degrade")
    answers = [ask(policy, 70.0 + 0.01 * i) for i in range(8)]
    assert [isinstance(a[-1], Accept) for a in answers] == [True] * 6 + [False] * 2
    found = policy.limits_of("a")
    assert found is not None
    assert (found.places, found.degraded) == ((PlaceLimit(3),), (PlaceLimit(6),))
    assert (found.window_s, found.degraded_s) == (1.0, 1.0)


def test_who_asks_has_the_weight_that_was_given() -> None:
    """Two sources ask for a window of 24 each, once a millisecond; one of them counts three times as much."""
    policy = SustainableAdmission(bound=24, window_s=0.024, weights={"/heavy": 3.0})
    had = {"/light": 0, "/heavy": 0}
    for step in range(4000):
        now = 1700.3 + 0.001 * step
        for source in had:
            said = policy.handle(Arrived(Query("q", "a", now, now + 1.0, source=source)), now)
            had[source] += isinstance(said[-1], Accept) and step >= 2000
    assert sum(had.values()) == pytest.approx(2000, rel=0.05)
    assert had["/heavy"] == pytest.approx(1500, rel=0.1)


@pytest.mark.parametrize("options", [{"bound": -1}, {"window_s": 0.0}, {"calm": 0}, {"weights": {"/s": 0.0}}])
def test_what_limits_nothing_in_no_time_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="sustainable admission"):
        admission("sustainable", **options)()


def test_a_rate_of_nothing_and_one_that_no_variant_betters_are_allowed() -> None:
    assert isinstance(ask(SustainableAdmission(bound=0, degraded_bound=0, calm=1), 70.0)[-1], Reject)
    policy = SustainableAdmission(bound=1, degraded_bound=1, mode="degrade")
    assert [isinstance(ask(policy, 70.0 + i / 8)[-1], Accept) for i in range(2)] == [True, False]


def test_what_is_over_is_told_with_the_bound_and_its_window() -> None:
    policy = SustainableAdmission(bound=5, window_s=0.25)
    answers = [policy.handle(Arrived(Query("q", "a", 70.0, 71.0, 2)), 70.0) for _ in range(3)]
    announced, refused = answers[2]
    assert isinstance(announced, Announce) and isinstance(refused, Reject)
    assert refused.detail == "more than 2 queries of 2 rows within 250 ms"
    assert (announced.subject, announced.data) == ("app:a", {"bound": 5.0, "window_s": 0.25})


def test_windows_are_of_arrivals_and_a_door_that_is_late_makes_none_of_them_longer() -> None:
    """Both arrive a window apart but are looked at together; who claims to come later than now comes now."""
    policy = SustainableAdmission(bound=1, window_s=1.0)
    for arrival, fits in ((70.0, True), (71.0, True), (71.5, False), (99.0, True), (72.5, False)):
        said = policy.handle(Arrived(Query("q", "a", arrival, 200.0)), 72.0)
        assert isinstance(said[-1], Accept) is fits, arrival


def test_a_clock_that_is_set_back_neither_closes_the_door_nor_opens_it_wider() -> None:
    policy = SustainableAdmission(bound=2, window_s=1.0)
    for start in (1.7e9, 1.7e9 - 3600.0, 1.7e9 - 3600.5, 1.7e9 - 7200.0):
        let_in = [isinstance(ask(policy, start + 0.25 * i)[-1], Accept) for i in range(12)]
        assert all(sum(let_in[i : i + 4]) <= 2 for i in range(12)) and sum(let_in[4:]) == 4
    before = [isinstance(ask(policy, 1.7e9 - 9000.0 + 0.1 * i)[-1], Accept) for i in range(2)]
    late = policy.handle(Arrived(Query("q", "a", 1.7e9 - 9005.0, 1.7e9)), 1.7e9 - 8999.7)
    assert before == [False, False] and isinstance(late[-1], Reject)  # it came late, and counts now


def test_beside_another_plan_both_are_sustained_in_windows_that_are_as_long_as_the_longer_ones() -> None:
    here, there = PlaceLimit(8, ((2, 6),), ("d0", "whole")), PlaceLimit(9, ((2, 6),), ("d1", "whole"))
    old = Limits((here,), 0.5, (here,), 0.25, lambda _stream: ("d0", "whole"), 1.0)
    new = Limits((here, there), 0.25, (there,), 0.75, lambda _stream: ("d1", "whole"), 2.0)
    both = old.beside(new)
    begun = PlaceLimit(9, (), ("d1", "whole"))
    assert (both.places, both.degraded) == ((here, begun), (here, begun))
    assert (both.window_s, both.degraded_s, both.slo) == (0.5, 0.75, 2.0)
    assert both.place_of("s") == ("d1", "whole")


def test_a_part_is_of_the_rows_of_every_place_and_never_more() -> None:
    whole = Limits((PlaceLimit(9), PlaceLimit(8)), 0.5, (PlaceLimit(30),), 0.25, slo=1.0)
    for share, rows, degraded in ((1 / 3, [3, 2], [10]), (0.5, [4, 4], [15]), (1.0, [9, 8], [30])):
        part = whole.part(share)
        assert [place.batch for place in part.places] == rows
        assert [place.batch for place in part.degraded] == degraded
        assert (part.window_s, part.degraded_s, part.slo) == (0.5, 0.25, 1.0)


def test_how_large_queries_may_be_is_said_of_what_the_mode_keeps_to() -> None:
    wide = Limits((PlaceLimit(8), PlaceLimit(6)), 0.5, (PlaceLimit(12),), 0.25)
    policies = {mode: SustainableAdmission(bound=None, mode=mode) for mode in ("enforce", "degrade", "observe")}
    for policy in policies.values():
        assert policy.taken("a", 4) is None and policy.bound_of("a", 1) is None
        policy.resize("a", wide)
    found = {mode: policy.taken("a", 9) for mode, policy in policies.items()}
    assert found == {"enforce": Taken(6, 1, 0.5), "degrade": Taken(9, 1, 0.25), "observe": None}
    assert policies["enforce"].taken("a", 3) == Taken(3, 2, 0.5)
    assert policies["enforce"].taken("a", 0) == Taken(0, 0, 0.5)


def test_a_deadline_that_passed_is_rejected_first_and_takes_no_place() -> None:
    policy = SustainableAdmission(bound=1, window_s=1.0)
    (late,) = policy.handle(Arrived(Query("q", "a", 0.0, 0.5)), 0.6)
    assert isinstance(late, Expire)
    assert isinstance(ask(policy, 0.7)[-1], Accept)


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.sampled_from((0.0, 0.01, 0.1, 0.3, 1.0)), max_size=80),
    clients=st.lists(st.sampled_from("abc"), min_size=80, max_size=80),
    bound=st.integers(0, 6),
)
def test_no_window_ever_holds_more_than_the_bound(gaps: list[float], clients: list[str], bound: int) -> None:
    policy = SustainableAdmission(bound=bound, window_s=1.0)
    admitted: list[float] = []
    now = 0.0
    for gap, client in zip(gaps, clients, strict=False):
        now += gap
        if isinstance(ask(policy, now, client)[-1], Accept):
            admitted.append(now)
    for start in admitted:
        assert sum(start <= at and at - start < 1.0 for at in admitted) <= bound


def test_limits_change_with_the_plan() -> None:
    policy = SustainableAdmission(bound=2, window_s=1.0)
    assert [isinstance(ask(policy, 0.1 * i)[-1], Accept) for i in range(3)] == [True, True, False]
    policy.resize("a", Limits((PlaceLimit(4),), 1.0, (PlaceLimit(8),), 1.0))
    assert [isinstance(ask(policy, 0.4 + 0.1 * i)[-1], Accept) for i in range(3)] == [True, True, False]


def test_apps_have_windows_of_their_own() -> None:
    policy = SustainableAdmission(bound=1, window_s=1.0)
    other = Arrived(Query("q", "b", 0.1, 1.0))
    assert [isinstance(ask(policy, 0.0)[-1], Accept), isinstance(policy.handle(other, 0.1)[-1], Accept)] == [True, True]
    assert isinstance(ask(policy, 0.2)[-1], Reject)
    assert not policy.over("b")


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="enforce"):
        admission("sustainable", mode="ignore")
    with pytest.raises(ConfigurationError, match="bound"):
        admission("sustainable", bound=4, degraded_bound=2)


PROMISE = Promise(weakly_hard=(WeaklyHard(2, 6),))


def hosting(slo: float, latencies: dict[str, tuple[float, ...]], beside: QueryClass = QueryClass.STRICT) -> Hosting:
    """Variants APP-NAME@TYPE with so many seconds by rows. Batches have shown that they last so long at most.

    ``beside``: the class of "b".
    """
    profiles: list[Profile] = []
    variants: list[Variant] = []
    for key, seconds in latencies.items():
        name, _, kind = key.partition("@")
        points = tuple(BatchLatency(b, s / FIRST_GUARD, s / FIRST_GUARD) for b, s in enumerate(seconds, 1))
        profiles.append(Profile(variant=name, device_type=kind, points=points))
        if name not in {v.name for v in variants}:
            variants.append(Variant(name=name, app=name[0], accuracy=0.9 - 0.1 * len(variants)))
    apps = [App(name="a", slo=slo, promise=PROMISE), App(name="b", slo=2 * slo, query_class=beside)]
    catalogue = Catalogue.of([a for a in apps if a.name in {v.app for v in variants}], variants, profiles)
    devices = [Device(name=f"{kind}{i}", type=kind) for kind in catalogue.device_types for i in range(2)]
    world = Hosting(catalogue, devices, "p95")
    for device in devices:
        world.margins(MarginsTold(device.name, device.slices[0].name, tuple((v.name, 1.0) for v in variants)))
    return world


def kept(world: Hosting, *placements: tuple[str, tuple[str, ...], float]) -> SustainableAdmission:
    """What admission keeps "a" to. Placements: device, variants, share."""
    placed = tuple(Placement(d, v[0][0], v, share, 8) for d, v, share in placements)
    plan = Plan(epoch=Epoch(1, 1), created=0.0, placements=placed)
    policy = SustainableAdmission(bound=None)
    app = world.catalogue.apps["a"]
    found = limits(app, sustained(app, world, plan, NO_HOPS), plan)
    assert found is not None
    policy.resize("a", found)
    return policy


def test_two_rows_take_two_places() -> None:
    """Batches of 1 s and 4 rows, two misses in six: 6 queries of one row a window, 3 of two, 1 of three."""
    policy = kept(hosting(2.0, {"a@cpu": (1.0,) * 4}), ("cpu0", ("a",), 1.0))
    assert [policy.bound_of("a", rows) for rows in (1, 2, 3, 4, 5)] == [(n, 1.0) for n in (6, 3, 1, 1, 0)]


def test_a_query_that_asks_for_less_than_its_slo_is_not_what_the_bound_was_made_for() -> None:
    world = hosting(2.0, {"a@cpu": (1.0,) * 4})

    def decided(policy: SustainableAdmission, latency: float) -> AdmissionAction:
        return policy.handle(Arrived(Query("q", "a", 5.0, 5.0 + latency)), 5.0)[-1]

    policy = kept(world, ("cpu0", ("a",), 1.0))
    less = decided(policy, 1.9)
    assert isinstance(less, Reject) and less.reason is Reason.INFEASIBLE
    assert "2000 ms" in less.detail and "1900 ms" in less.detail
    assert isinstance(decided(policy, 1.99), Accept)  # clocks
    assert isinstance(decided(policy, 2.5), Accept)
    loose = Query("q", "a", 5.0, 5.5, query_class=QueryClass.BEST_EFFORT)
    assert isinstance(policy.handle(Arrived(loose), 5.0)[-1], Accept)
    policy.mode = "observe"
    assert isinstance(decided(policy, 1.0), Accept)


def test_a_slice_that_another_app_shares_sustains_what_the_cycle_leaves() -> None:
    world = hosting(6.0, {"a@cpu": (1.0,) * 3, "b@cpu": (2.0, 2.0, 5.0)})
    alone = kept(world, ("cpu0", ("a",), 1.0))
    shared = kept(world, ("cpu0", ("a",), 1.0), ("cpu0", ("b",), 1.0))
    assert alone.bound_of("a", 1) == (4, 1.0)
    assert shared.bound_of("a", 1) == (4, 3.0)


def test_best_effort_without_a_promise_is_kept_to_nothing_and_takes_no_turns() -> None:
    world = hosting(6.0, {"a@cpu": (1.0,) * 3, "b@cpu": (2.0, 2.0, 5.0)}, QueryClass.BEST_EFFORT)
    for placed in ((("b", "cpu0"),), (("a", "cpu0"), ("b", "cpu0"))):
        placements = tuple(Placement(device, app, (app,), 1.0, 8) for app, device in placed)
        plan = Plan(epoch=Epoch(1, 1), created=0.0, placements=placements)
        loose = sustained(world.catalogue.apps["b"], world, plan, NO_HOPS)
        assert loose == () and limits(world.catalogue.apps["b"], loose, plan) is None
    (strict,) = sustained(world.catalogue.apps["a"], world, plan, NO_HOPS)
    assert strict.place == ("cpu0", WHOLE) and strict.share.others_s == 0.0


def test_doors_that_share_the_partitions_let_in_no_more_than_one_alone() -> None:
    world = hosting(6.0, {"a@cpu": (1.0,) * 7})
    found = kept(world, ("cpu0", ("a",), 1.0)).limits_of("a")
    assert found is not None
    parts = [found.part(share).places[0] for share in (1 / 4, 1 / 4, 1 / 2)]
    assert [p.batch for p in parts] == [1, 1, 3]
    assert sum(p.bound(1) for p in parts) <= found.places[0].bound(1) == 10


def test_an_app_on_unequal_slices_is_dealt_out_by_its_shares_and_each_bears_its_turns() -> None:
    """A gpu with batches of 8 rows in the time of the cpu's 2. Of four turns the gpu has three; each may miss one."""
    world = hosting(4.0, {"a@cpu": (1.0,) * 2, "a@gpu": (1.0,) * 8})
    equal = kept(world, ("cpu0", ("a",), 0.5), ("gpu0", ("a",), 0.5))
    unequal = kept(world, ("cpu0", ("a",), 0.2), ("gpu0", ("a",), 0.6))
    assert equal.bound_of("a", 1) == (6, 1.0)  # one miss in three on each: 3 on the cpu
    assert unequal.bound_of("a", 1) == (13, 1.0)  # one miss in five on the gpu: 10 of 13


def test_a_faster_variant_lets_more_in_while_what_waits_may_still_run_on_the_better_one() -> None:
    """Batches of 1 s and 2 rows, of 0.5 s and 4."""
    world = hosting(4.0, {"a-good@cpu": (1.0, 1.0), "a-fast@cpu": (0.5,) * 4})
    policy = kept(world, ("cpu0", ("a-good", "a-fast"), 1.0))
    found = policy.limits_of("a")
    assert found is not None
    assert policy.bound_of("a", 1) == (3, 1.0)
    assert ([limit.bound(1) for limit in found.degraded], found.degraded_s) == ([6], 0.5)


def test_until_batches_were_seen_to_run_long_their_pace_is_what_hardly_any_exceeds_less_what_few_take() -> None:
    world = hosting(2.0, {"a@cpu": (1.0,) * 4})
    shown = kept(world, ("cpu0", ("a",), 1.0))
    assert world.margins(MarginsTold("cpu0", WHOLE, (("a", UNKNOWN),)))
    at_first = kept(world, ("cpu0", ("a",), 1.0))
    assert shown.bound_of("a", 1) == (6, 1.0)
    assert at_first.bound_of("a", 1) == (6, pytest.approx(PACE_GUARD / FIRST_GUARD))
    assert world.margins(MarginsTold("cpu0", WHOLE, (("a", 1.0),)))
    assert kept(world, ("cpu0", ("a",), 1.0)).bound_of("a", 1) == (6, 1.0)


def test_while_plans_change_a_slice_that_begins_with_a_stream_is_given_what_it_serves_without_a_miss() -> None:
    """Measured once: what is missed at the bound was missed before the new slice had served K - m queries."""
    world = hosting(2.0, {"a@cpu": (1.0,) * 4})
    here, there = (kept(world, (device, ("a",), 1.0)).limits_of("a") for device in ("cpu0", "cpu1"))
    assert here is not None and there is not None

    def bound(found: Limits) -> int:
        return min(limit.bound(1) for limit in found.places)

    assert bound(here) == bound(there) == 6
    assert bound(here.beside(there)) == 4
    assert bound(here.beside(there).beside(there)) == 4
    assert bound(here.beside(here)) == 6


def test_what_cannot_be_kept_is_not_let_in() -> None:
    policy = kept(hosting(1.9, {"a@cpu": (1.0,)}), ("cpu0", ("a",), 1.0))
    assert policy.bound_of("a", 1) == (0, 1.0)
    assert isinstance(ask(policy, 0.0)[-1], Reject)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(1, 8), max_size=40),
    keyed=st.lists(st.booleans(), min_size=40, max_size=40),
    batch=st.integers(1, 24),
    pair=st.sampled_from(((0, 1), (1, 3), (2, 10), (4, 10), (2, 3))),
)
def test_a_window_of_rows_fits_exactly_where_the_batch_holds_all_that_may_not_be_missed(
    rows: list[int], keyed: list[bool], batch: int, pair: tuple[int, int]
) -> None:
    """By search: whichever floor(n m / K) of the n are missed, at worst the smallest, the others have room."""
    m, k = pair
    limiter = WindowLimiter([PlaceLimit(batch, (pair,), ("d", "s"))], 1.0)
    taken: list[int] = []
    for size, other in zip(rows, keyed, strict=False):
        tried = sorted([*taken, size])
        fits = sum(tried[len(tried) * m // k :]) <= batch
        assert limiter.admit(0.0, size, ("d", "s") if other else None) is fits
        if fits:
            taken.append(size)
