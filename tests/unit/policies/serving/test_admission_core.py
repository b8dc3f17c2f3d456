"""The door: who is let in, ended, held or told twice, what is counted, and what is announced."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sluicegate.domain.actions import Accept, Announce, End, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import DemandCounted, MarginsTold, Overlapped, PlanAcknowledged, PlanPublished, TooLarge
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import NO_PROMISE, App, Promise, QueryClass
from sluicegate.domain.models.profile import FIRST_GUARD, LEAST_GUARD, PACE_GUARD, BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Goal, Query
from sluicegate.policies.admission.registry import admission
from sluicegate.policies.admission.sustainable import SustainableAdmission
from sluicegate.policies.serving.admission import (
    SETTLED,
    AdmissionCore,
    AdmissionCoreAction,
    AdmissionEvent,
    AdmissionRules,
    Came,
    DemandAsked,
    Duplicate,
    Flaw,
    Looked,
    PartHeld,
    RouterHeard,
    Serve,
)
from sluicegate.policies.serving.routed import COMING_BACK, PATIENCE, SILENCE
from sluicegate.profiles.catalogue.catalogue import Catalogue

T = 5000.0
STEADY = 40.0
"""What the clock that does not jump says at T."""
SLO = 0.5
PROMISE = Promise(max_consecutive=1)
RULES = AdmissionRules(make_policy=admission("deadline"), dedupe_entries=100)


def catalogue(promise: Promise = NO_PROMISE) -> Catalogue:
    """App "a" with SLO classes and two variants, app "b" with one and another SLO."""
    apps = [App(name="a", slo=SLO, promise=promise, slo_classes=(0.1, 0.4)), App(name="b", slo=3.0)]
    variants = [
        Variant(name="good", app="a", accuracy=0.9),
        Variant(name="quick", app="a", accuracy=0.7),
        Variant(name="other", app="b", accuracy=0.8),
    ]
    seconds = {"good": 0.1, "quick": 0.02, "other": 0.3}
    profiles = [
        Profile(variant=v, device_type="cpu", points=(BatchLatency(1, s, s), BatchLatency(2, 1.5 * s, 1.5 * s)))
        for v, s in seconds.items()
    ]
    return Catalogue.of(apps, variants, profiles)


class Door:
    """A core that serves, with a router of each app heard at the start unless ``routed`` is off."""

    def __init__(
        self,
        rules: AdmissionRules = RULES,
        *,
        promise: Promise = NO_PROMISE,
        routed: bool = True,
    ) -> None:
        self.core = AdmissionCore([Device(name="d0", type="cpu"), Device(name="d1", type="cpu")], rules)
        self.first = self.told(Serve(catalogue(promise).registered, STEADY), T)
        self.number = 0
        if routed:
            for app in ("a", "b"):
                self.told(RouterHeard(app, STEADY), T)

    def told(self, event: AdmissionEvent, now: float) -> Sequence[AdmissionCoreAction]:
        return list(self.core.handle(event, now))

    def came(
        self,
        now: float,
        app: str = "a",
        *,
        wait: float = SLO,
        flaw: Flaw | None = None,
        place: int = -1,
        **more: object,
    ) -> Sequence[AdmissionCoreAction]:
        self.number += 1
        query = Query(f"q{self.number}", app, now, now + wait, source="/me")
        for name, value in more.items():
            setattr(query, name, value)
        return self.told(Came(query, self.number if place < 0 else place, now - T + STEADY, flaw), now)


def kinds(actions: Sequence[AdmissionCoreAction]) -> list[object]:
    return [(a.kind, a.reason) if isinstance(a, End) else type(a) for a in actions]


def test_who_comes_in_time_is_let_in_and_who_does_not_is_ended_unless_its_stream_was_promised_something() -> None:
    plain, promised = Door(), Door(promise=PROMISE)
    assert kinds(plain.came(T)) == [Accept]
    assert kinds(plain.came(T + 2, arrival=T, deadline=T + 1)) == [(OutcomeKind.EXPIRED, None)]
    assert kinds(promised.came(T + 2, arrival=T, deadline=T + 1)) == [Accept]
    assert kinds(plain.came(T, wait=1e9)) == [(OutcomeKind.REJECTED, Reason.INVALID)]


def test_where_two_doors_let_in_the_same_each_promise_is_not_to_be_counted_on_until_two_slos_later() -> None:
    plain, door = Door(), Door(promise=PROMISE)
    assert plain.told(Overlapped(), T) == []
    spoken = door.told(Overlapped(), T + 1)
    assert [(a.subject, a.state) for a in spoken if isinstance(a, Announce)] == [("app:a", "safe_mode")]
    assert spoken[-1] == WakeAt(T + 1 + 2 * SLO)
    early = door.told(Looked(STEADY + 1.5), T + 1.5)
    assert [a for a in early if isinstance(a, Announce)] == [] and WakeAt(T + 1 + 2 * SLO) in early
    over = door.told(Looked(STEADY + 1 + 2 * SLO), T + 1 + 2 * SLO)
    assert [(a.subject, a.state) for a in over if isinstance(a, Announce)][-1] == ("app:a", "promise_kept")
    door.told(Serve(catalogue(PROMISE).only({"b"}).registered, STEADY), T + 5)
    assert door.told(Overlapped(), T + 6) == [], "it is served no more"


def test_an_id_that_was_used_gets_a_dead_letter_and_the_same_record_read_again_does_not() -> None:
    door = Door()
    assert kinds(door.came(T, id="x", place=7)) == [Accept]
    assert kinds(door.came(T + 1, id="x", place=8)) == [Duplicate]
    assert kinds(door.came(T + 1, id="x", place=7)) == [Accept]
    assert kinds(door.came(T + 1, id="x", place=8, source="/you")) == [Accept]
    assert kinds(door.came(T + 1, "b", id="x", place=9)) == [Accept]


def test_what_is_wrong_is_rejected_once_and_counts_for_nothing() -> None:
    door = Door()
    wrong = Flaw(Reason.INVALID, "inputs: missing")
    (end,) = door.came(T, id="x", place=1, flaw=wrong)
    assert isinstance(end, End)
    assert (end.kind, end.reason, end.detail) == (OutcomeKind.REJECTED, Reason.INVALID, "inputs: missing")
    assert kinds(door.came(T, id="x", place=2, flaw=wrong)) == [Duplicate]
    assert door.told(DemandAsked(0.5), T + 0.5)[0] == DemandCounted("a", 0, 0.5, ())


def test_demand_is_counted_in_rows_by_class_whatever_becomes_of_it_and_taken_once() -> None:
    door = Door()
    door.came(T, rows=3, wait=0.2)
    door.came(T, rows=2, wait=0.45)
    door.came(T + 2, rows=5, arrival=T, deadline=T + 0.45)  # expired
    door.came(T, "b", rows=7)
    assert door.told(DemandAsked(0.25), T + 1) == [
        DemandCounted("a", 10, 0.25, ((0.1, 3), (0.4, 7))),
        DemandCounted("b", 7, 0.25, ()),
    ]
    assert [c.count for c in door.told(DemandAsked(0.5), T + 2) if isinstance(c, DemandCounted)] == [0, 0]


def test_of_a_retired_app_every_query_is_refused_and_what_was_held_is_given_up() -> None:
    door = Door(routed=False)
    door.came(T, wait=9.0)
    gone = door.told(Serve(catalogue().only({"b"}).registered, STEADY + 1), T + 1)
    assert kinds(gone)[0] == (OutcomeKind.REJECTED, Reason.NOTHING_ROUTES)
    (end,) = door.came(T + 1)
    assert isinstance(end, End)
    assert end.reason is Reason.UNKNOWN_APP and "a is served no more" in (end.detail or "")
    assert door.told(DemandAsked(0.5), T + 2)[0] == DemandCounted("a", 1, 0.5, ((0.4, 1),)), "that of before"
    door.told(Serve(catalogue().registered, STEADY + 3), T + 3)
    door.told(RouterHeard("a", STEADY + 3), T + 3)
    assert kinds(door.came(T + 3)) == [Accept]


def test_an_app_that_was_never_registered_is_a_defect_and_the_story_is_told() -> None:
    with pytest.raises(IllegalEventError, match=r"of nobody at 5000[\s\S]*Serve"):
        Door().came(T, "nobody")


def test_what_goals_ask_is_held_against_what_is_served_now() -> None:
    door = Door()
    assert kinds(door.came(T, goal=Goal(accuracy=0.95))) == [(OutcomeKind.REJECTED, Reason.INFEASIBLE)]
    whole = catalogue()
    best = replace(whole.variants["good"], name="best", accuracy=0.97)
    profile = replace(whole.profiles["good", "cpu"], variant="best")
    more = Catalogue.of(whole.apps.values(), [*whole.variants.values(), best], [*whole.profiles.values(), profile])
    door.told(Serve(more.registered, STEADY), T)
    assert kinds(door.came(T, goal=Goal(accuracy=0.95))) == [Accept]


def test_what_nobody_routes_is_held_said_and_given_up_and_goes_on_when_a_router_is_heard() -> None:
    door = Door(routed=False)
    assert door.first == [WakeAt(T + SILENCE)]
    assert door.came(T + 0.5, wait=0.7) == [WakeAt(T + 1.2)]
    assert door.came(T + 0.5, wait=60.0) == []
    assert kinds(door.told(Looked(STEADY + 1.2), T + 1.2)) == [(OutcomeKind.EXPIRED, None), WakeAt]
    at_silence = door.told(Looked(STEADY + SILENCE), T + SILENCE)
    assert [a.subject for a in at_silence if isinstance(a, Announce)] == ["routing:a", "routing:b"]
    assert at_silence[-1] == WakeAt(T + 0.5 + PATIENCE)
    given_up = door.told(Looked(STEADY + 0.5 + PATIENCE), T + 0.5 + PATIENCE)
    assert kinds(given_up) == [(OutcomeKind.REJECTED, Reason.NOTHING_ROUTES)]
    door.came(T + 3, wait=60.0)
    back = door.told(RouterHeard("a", STEADY + 3.5), T + 3.5)
    assert [type(a) for a in back[:2]] == [Accept, Announce]
    assert back[2:] == [], "what was held would have been looked at before it can be silent again"
    assert kinds(door.came(T + 4)) == [Accept]


def test_a_promise_is_not_broken_in_silence_where_nobody_routes_yet() -> None:
    door = Door(routed=False, promise=PROMISE)
    door.came(T + 0.5, wait=0.2)
    door.came(T + 0.5, wait=0.3)
    door.came(T + 0.5, app="b", wait=0.35)
    door.came(T + 0.5, wait=0.1, query_class=QueryClass.BEST_EFFORT)
    assert kinds(door.told(Looked(STEADY + 0.61), T + 0.61))[0] == (OutcomeKind.EXPIRED, None), "in no stream"
    said = door.told(Looked(STEADY + 0.9), T + 0.9)
    spoken = [(a.subject, a.state) for a in said if isinstance(a, Announce)]
    assert spoken == [("app:a", "safe_mode")]
    assert [type(a) for a in said if not isinstance(a, WakeAt)] == [Announce, End, End, End]
    written = T + 1.0 + 2 * SLO
    assert door.told(RouterHeard("a", STEADY + 1.0), T + 1.0) == [WakeAt(written)], "its outcomes are still to be"
    assert door.told(RouterHeard("a", STEADY + 1.5), T + 1.5) == []
    before = door.told(Looked(STEADY + 1.9), T + 1.9)
    assert [a for a in before if isinstance(a, Announce)] == []
    said = door.told(Looked(STEADY + 1.0 + 2 * SLO), written)
    spoken = [(a.subject, a.state) for a in said if isinstance(a, Announce)]
    assert spoken == [("routing:b", "nothing_routes"), ("app:a", "promise_kept")]
    assert door.told(RouterHeard("a", STEADY + 2.1), T + 2.1) == []


def test_queries_missed_anew_while_those_of_before_are_written_keep_the_promise_from_being_counted_on() -> None:
    door = Door(routed=False, promise=PROMISE)
    door.came(T, wait=0.2)
    door.told(Looked(STEADY + 0.2), T + 0.2)
    door.told(RouterHeard("a", STEADY + 0.3), T + 0.3)
    for served in (catalogue(PROMISE).only({"b"}), catalogue(PROMISE)):
        door.told(Serve(served.registered, STEADY + 0.4), T + 0.4)
    door.came(T + 0.4, wait=0.3)
    anew = door.told(Looked(STEADY + 0.7), T + 0.7)
    assert kinds(anew)[0] == (OutcomeKind.EXPIRED, None), "it is told already"
    over = door.told(Looked(STEADY + 0.3 + 2 * SLO), T + 0.3 + 2 * SLO)
    assert [a for a in over if isinstance(a, Announce)] == []
    door.told(RouterHeard("a", STEADY + 1.4), T + 1.4)
    over = door.told(Looked(STEADY + 1.4 + 2 * SLO), T + 1.4 + 2 * SLO)
    assert ("app:a", "promise_kept") in [(a.subject, a.state) for a in over if isinstance(a, Announce)]


def test_steps_of_the_wall_clock_do_not_make_routers_silent() -> None:
    door = Door()
    stepped = Query("late", "a", T + 3600, T + 3601)
    assert kinds(door.told(Came(stepped, 1, STEADY + COMING_BACK - 1), T + 3600)) == [Accept]
    again = Query("later", "a", T, T + 1)
    assert kinds(door.told(Came(again, 2, STEADY + COMING_BACK), T)) == [], "held: a look is asked for already"


def test_bounds_follow_the_plan_in_force() -> None:
    def made() -> SustainableAdmission:
        return SustainableAdmission(bound=None)

    door = Door(AdmissionRules(make_policy=made, by_plan=True))
    assert door.core.follows_plans
    assert {kinds(door.came(T + i / 1000))[-1] for i in range(50)} == {Accept}, "before a plan nothing is limited"
    plan = Plan(epoch=Epoch(1, 1), created=T, placements=(Placement("d0", "a", ("good",), 1.0, 2),), demand={"a": 1.0})
    door.told(PlanPublished(plan), T + 1)
    assert {kinds(door.came(T + 1 + i / 1000))[-1] for i in range(50)} == {Accept}, "nor while it is staged"
    door.told(PlanAcknowledged("d0", Epoch(1, 1), ("good",)), T + 2)
    ended = [kinds(door.came(T + 2 + i / 1000))[-1] for i in range(50)]
    assert (OutcomeKind.REJECTED, Reason.OVER_SUSTAINABLE_RATE) in ended
    assert ended[0] is Accept
    assert {kinds(door.came(T + 2 + i / 1000, "b"))[-1] for i in range(50)} == {Accept}, "the other app has no plan yet"


def test_what_slices_show_and_which_partitions_are_read_here_change_the_bound_downwards_at_once_upwards_later() -> None:
    policy = SustainableAdmission(bound=None)
    door = Door(AdmissionRules(make_policy=lambda: policy, by_plan=True), promise=PROMISE)
    plan = Plan(epoch=Epoch(1, 1), created=T, placements=(Placement("d0", "a", ("quick",), 1.0, 2),), demand={"a": 1.0})
    door.told(PlanPublished(plan), T)
    door.told(PlanAcknowledged("d0", Epoch(1, 1), ("quick",)), T)
    door.told(Looked(STEADY + SETTLED), T + SETTLED)

    def bound() -> tuple[int, float]:
        found = policy.bound_of("a", 1)
        assert found is not None
        return found

    at_first = bound()
    now = T + 10.0
    assert not door.told(MarginsTold("d1", "whole", (("quick", 0.8),)), now), "nothing of the app is there"
    assert not door.told(MarginsTold("d0", "elsewhere", (("quick", 0.8),)), now), "no slice that is known"
    door.told(MarginsTold("d0", "whole", (("quick", 0.1),)), now)
    assert bound() == at_first, "both count until the slice goes by it"
    door.told(Looked(STEADY + 10.0 + SETTLED), now + SETTLED)
    shown = bound()
    assert shown[0] == at_first[0] == 4, "no less than profiled"
    assert shown[1] == pytest.approx(at_first[1] * LEAST_GUARD / PACE_GUARD)
    door.told(MarginsTold("d0", "whole", (("quick", 1.25),)), now + 20.0)
    assert bound() == (4, pytest.approx(1.25 * at_first[1] * FIRST_GUARD / PACE_GUARD))
    assert not door.told(PartHeld("a", 1.0), now + 20.5) and not door.told(PartHeld("a", 0.0), now + 20.5)
    assert bound()[0] == 4, "all are read here already, and of none nothing can be let in"
    door.told(PartHeld("a", 0.5), now + 21.0)
    assert bound()[0] == 2
    door.told(PartHeld("a", 1.0), now + 30.0)
    assert bound()[0] == 2, "who read the others may have let in as much just now"
    door.told(Looked(STEADY + 40.0 + SETTLED), now + 30.0 + SETTLED)
    assert bound()[0] == 4


def test_only_what_is_chosen_is_served_and_what_is_too_large_is_rejected() -> None:
    door = Door(AdmissionRules(only=frozenset({"b"})))
    assert door.core.chosen(["a", "b"]) == ["b"]
    assert kinds(door.came(T, "b", wait=-5.0)) == [Accept], "without a policy everything goes on"
    big = Query("big", "b", T, T + 1)
    assert door.told(TooLarge(big, "2 MiB"), T) == [End(big, OutcomeKind.REJECTED, Reason.TOO_LARGE, "2 MiB")]
    with pytest.raises(IllegalEventError):
        door.came(T, "a")


def shared_door(promise: Promise = NO_PROMISE) -> Door:
    """Clients of "a" share what one device serves with "good": two rows in 0.15 s, of which 85% are let in."""
    door = Door(AdmissionRules(shares={}), promise=promise)
    assert door.core.shares_out
    placed = (Placement("d0", "a", ("good",), 1.0, 2),)
    door.told(PlanPublished(Plan(epoch=Epoch(1, 1), created=T, placements=placed, demand={"a": 1.0})), T)
    return door


def test_who_asks_for_more_than_its_share_is_told_so_and_a_flood_is_not_all_demand() -> None:
    door = shared_door()
    assert kinds(door.came(T + 0.0, rows=30)) == [Accept], "nobody else asks"
    (refused,) = door.came(T + 0.1, rows=7, source="/you")
    assert isinstance(refused, End)
    assert (refused.kind, refused.reason) == (OutcomeKind.REJECTED, Reason.OVER_SHARE)
    assert (refused.detail or "").startswith("/you asks for more than its share")
    assert kinds(door.came(T + 0.2, rows=5, source="/you")) == [Accept]
    assert kinds(door.came(T + 0.3, rows=1000, source="")) == [(OutcomeKind.REJECTED, Reason.OVER_SHARE)]
    told = [c for c in door.told(DemandAsked(0.5), T + 0.5) if isinstance(c, DemandCounted)]
    assert [c.count for c in told] == [2 * (30 + 7 + 5), 0], "of a flood as much as the others ask"
    assert [rows for _, rows in told[0].classes] == [30 + 7 + 5], "by class only what others ask"
    assert kinds(door.came(T + 0.6, "b", rows=1000, source="/you")) == [Accept], "another app is another matter"


def test_a_flood_smaller_than_what_others_ask_counts_whole_and_once() -> None:
    door = shared_door()
    door.came(T, rows=12)
    assert kinds(door.came(T + 0.1, rows=11, source="/new")) == [(OutcomeKind.REJECTED, Reason.OVER_SHARE)]
    first, second = (door.told(DemandAsked(0.5), T + after)[0] for after in (0.5, 1.0))
    assert isinstance(first, DemandCounted)
    assert isinstance(second, DemandCounted)
    assert (first.count, second.count) == (12 + 11, 0)


def test_clients_of_a_promised_app_and_of_one_that_no_plan_serves_have_no_shares() -> None:
    for door in (shared_door(PROMISE), Door(AdmissionRules(shares={"/me": 2.0}))):
        assert kinds(door.came(T, rows=30)) == [Accept]
        assert kinds(door.came(T + 0.1, rows=1000, source="/you")) == [Accept]


def test_without_shares_nobody_is_over_his() -> None:
    door = Door(AdmissionRules())
    assert not door.core.shares_out
    for source in ("/me", "/you"):
        assert kinds(door.came(T, rows=1000, source=source)) == [Accept]


def test_without_a_policy_what_is_past_its_deadline_is_not_held_for_a_router() -> None:
    door = Door(AdmissionRules(), routed=False)
    assert kinds(door.came(T, wait=-0.5)) == [(OutcomeKind.EXPIRED, None)]
    assert kinds(door.came(T, wait=0.0)) == [(OutcomeKind.EXPIRED, None)]
    assert door.came(T, wait=0.25) == [WakeAt(T + 0.25)]


@pytest.mark.parametrize(
    ("weights", "times"), [({"/big": 3.0}, (2.0, 5.0)), ({"/me": 3.0}, (0.2, 0.5)), ({}, (0.75, 1.25))]
)
def test_weights_make_the_shares_of_clients(weights: dict[str, float], times: tuple[float, float]) -> None:
    door = Door(AdmissionRules(shares=weights))
    placed = (Placement("d0", "a", ("good",), 1.0, 2),)
    door.told(PlanPublished(Plan(epoch=Epoch(1, 1), created=T, placements=placed, demand={"a": 1.0})), T)
    got = {"/big": 0, "/me": 0}
    for number in range(200):
        for source in got:
            got[source] += kinds(door.came(T + number / 20, source=source)) == [Accept]
    assert times[0] <= got["/big"] / got["/me"] <= times[1]
    assert sum(got.values()) == pytest.approx(10.0 * 0.85 * 2 / 0.15, rel=0.15), "what is let in of that in 10 s"


def test_an_app_that_is_routed_again_is_looked_at_when_its_router_may_be_silent_again() -> None:
    door = Door(routed=False)
    said = door.told(Looked(STEADY + SILENCE), T + SILENCE)
    assert kinds(said) == [Announce, Announce], "nothing is due before a router is heard"
    assert door.told(RouterHeard("b", STEADY + 3.0), T + 3.0) == [
        Announce("routing:b", "routed", "a router of b lives"),
        WakeAt(T + 3.0 + SILENCE),
    ]
    assert door.told(RouterHeard("b", STEADY + 3.5), T + 3.5) == []
