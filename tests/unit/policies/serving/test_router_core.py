"""The router of one app: what is held, routed and ended, in which order, and what is asked and announced meanwhile."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sluicegate.domain.actions import Activate, Announce, End, Send, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import (
    Arrived,
    DeviceReported,
    DeviceSeen,
    Overlapped,
    PlanAcknowledged,
    PlanPublished,
    TooLarge,
    Woke,
    WorkTopicGone,
)
from sluicegate.domain.fleet.device import Device, Slice, profile_type
from sluicegate.domain.models.app import NO_PROMISE, App, Promise, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Goal, Query
from sluicegate.policies.routing.activation import WAIT_S
from sluicegate.policies.routing.registry import routing
from sluicegate.policies.serving.router import (
    ASK_AGAIN,
    Ignore,
    LookedUp,
    LookUp,
    RouterAction,
    RouterCore,
    RouterEvent,
    RouterRules,
    Want,
)
from sluicegate.profiles.catalogue.catalogue import Catalogue

T = 1000.0
SLO = 0.5
PROMISE = Promise(max_consecutive=2)


def catalogue(promise: Promise = NO_PROMISE) -> Catalogue:
    """App "a" with "good" (slow) and "quick"; app "b" with a variant of its own."""
    apps = [App(name="a", slo=SLO, promise=promise), App(name="b", slo=2.0)]
    variants = [
        Variant(name="good", app="a", accuracy=0.9),
        Variant(name="quick", app="a", accuracy=0.7),
        Variant(name="other", app="b", accuracy=0.8),
    ]
    seconds = {"good": 0.2, "quick": 0.05, "other": 0.1}
    profiles = [
        Profile(variant=v, device_type="cpu", points=(BatchLatency(1, s, s), BatchLatency(4, 2 * s, 2 * s)), load=s)
        for v, s in seconds.items()
    ]
    profiles.append(Profile(variant="good", device_type=profile_type("cpu", "1g"), points=(BatchLatency(1, 5.0, 5.0),)))
    return Catalogue.of(apps, variants, profiles)


class Router:
    """A core, and all that it said."""

    def __init__(
        self, promise: Promise = NO_PROMISE, *, policy: str = "weighted", on_demand: bool = False, proven: str = "d0 d1"
    ) -> None:
        known = catalogue(promise)
        self.core = RouterCore(
            known.apps["a"],
            catalogue=known,
            devices=[Device(name=f"d{i}", type="cpu", price=1.0 + i) for i in range(3)],
            rules=RouterRules(make_policy=routing(policy), on_demand=on_demand),
        )
        self.told(LookedUp(tuple(proven.split())), T)
        self.number = 0

    def told(self, event: RouterEvent, now: float) -> Sequence[RouterAction]:
        return list(self.core.handle(event, now))

    def came(self, now: float, deadline: float | None = None, **more: object) -> Sequence[RouterAction]:
        self.number += 1
        query = Query(f"q{self.number}", "a", now, now + SLO if deadline is None else deadline)
        for name, value in more.items():
            setattr(query, name, value)
        return self.told(Arrived(query), now)

    def planned(self, now: float, *placed: tuple[str, str, float], number: int = 1) -> Sequence[RouterAction]:
        """A plan of (device, variant, share), acknowledged at once by all that it names."""
        actions = list(self.told(PlanPublished(plan(*placed, number=number)), now))
        for device, variant, _ in placed:
            actions += self.told(PlanAcknowledged(device, Epoch(1, number), (variant,)), now)
        return actions


def plan(*placed: tuple[str, str, float], number: int = 1, app: str = "a") -> Plan:
    placements = tuple(Placement(device, app, (variant,), share, 4) for device, variant, share in placed)
    return Plan(epoch=Epoch(1, number), created=T, placements=placements, demand={app: 10.0})


def ends(actions: Sequence[RouterAction]) -> list[tuple[str, OutcomeKind, Reason | None]]:
    return [(a.query.id, a.kind, a.reason) for a in actions if isinstance(a, End)]


def sent(actions: Sequence[RouterAction]) -> list[tuple[str, str]]:
    return [(a.query.id, a.device) for a in actions if isinstance(a, Send)]


def states(actions: Sequence[RouterAction]) -> list[str]:
    return [a.state for a in actions if isinstance(a, Announce)]


def test_queries_wait_for_the_first_plan_and_leave_in_their_order_after_it_took_force() -> None:
    router = Router()
    assert [router.came(T + i / 100, T + 9 - i) for i in range(3)] == [
        [WakeAt(T + 9)],
        [WakeAt(T + 8)],
        [WakeAt(T + 7)],
    ]
    actions = router.planned(T + 1, ("d0", "good", 1.0))
    taken = [type(a) for a in actions]
    assert taken.index(Activate) < taken.index(Send)
    assert sent(actions) == [("q1", "d0"), ("q2", "d0"), ("q3", "d0")]
    assert router.core.held == 0
    assert sent(router.came(T + 2)) == [("q4", "d0")]


def test_what_is_held_expires_at_its_own_deadline_and_the_next_one_is_woken_for() -> None:
    router = Router()
    router.came(T, T + 3)
    router.came(T, T + 2)
    assert router.told(Woke(), T + 1.99) == [WakeAt(T + 2)], "asked again: a shell keeps one timer"
    assert ends(router.told(Woke(), T + 2)) == [("q2", OutcomeKind.EXPIRED, None)]
    assert router.told(Woke(), T + 2.5) == [WakeAt(T + 3)]
    assert ends(router.told(Woke(), T + 3.5)) == [("q1", OutcomeKind.EXPIRED, None)]
    assert router.told(Woke(), T + 4) == []


def test_a_query_past_its_deadline_ends_here_unless_its_stream_was_promised_something() -> None:
    plain, promised = Router(), Router(PROMISE)
    for router in (plain, promised):
        router.planned(T, ("d0", "good", 1.0))
    assert ends(plain.came(T + 5, T + 5)) == [("q1", OutcomeKind.EXPIRED, None)]
    assert ends(plain.came(T + 6, T + 5)) == [("q2", OutcomeKind.EXPIRED, None)]
    assert sent(promised.came(T + 5, T + 4)) == [("q1", "d0")]


def test_a_promise_is_announced_before_it_may_break_once_and_is_kept_again_with_capacity() -> None:
    router = Router(PROMISE)
    first = router.came(T + 1, T + 1)
    assert [type(a) for a in first] == [Announce, End]
    assert states(first) == ["safe_mode"]
    assert states(router.came(T + 2, T + 2)) == [], "once"
    assert states(router.planned(T + 3, ("d1", "quick", 1.0))) == ["promise_kept"]
    gone = router.told(PlanPublished(plan(number=2)), T + 4)
    assert states(gone) == []
    dropped = router.came(T + 5)
    assert states(dropped) == ["safe_mode"]
    assert ends(dropped) == [("q3", OutcomeKind.DROPPED, Reason.NO_CAPACITY)]


def test_best_effort_queries_and_apps_without_a_promise_announce_nothing() -> None:
    assert states(Router(PROMISE).came(T, T, query_class=QueryClass.BEST_EFFORT)) == []
    assert states(Router().came(T, T)) == []
    assert Router().told(Overlapped(), T) == []


def test_where_two_routers_send_the_same_the_promise_is_not_to_be_counted_on_until_two_slos_after_the_last() -> None:
    router = Router(PROMISE)
    router.planned(T, ("d0", "good", 1.0))
    first = router.told(Overlapped(), T + 1)
    assert states(first) == ["safe_mode"] and first[-1] == WakeAt(T + 1 + 2 * SLO)
    assert router.told(Overlapped(), T + 1.5) == [WakeAt(T + 1.5 + 2 * SLO)], "once, and longer"
    assert router.told(Woke(), T + 1 + 2 * SLO) == [WakeAt(T + 1.5 + 2 * SLO)]
    assert states(router.told(Woke(), T + 1.5 + 2 * SLO)) == ["promise_kept"]
    assert router.told(Woke(), T + 9) == []


def test_of_two_reasons_not_to_count_on_a_promise_both_must_be_gone() -> None:
    missed_first, sent_twice_first = Router(PROMISE), Router(PROMISE)
    assert states(missed_first.came(T + 1, T + 1)) == ["safe_mode"]
    assert states(missed_first.told(Overlapped(), T + 2)) == []
    assert states(missed_first.planned(T + 2.5, ("d0", "good", 1.0))) == [], "copies are under way yet"
    assert states(missed_first.told(Woke(), T + 2 + 2 * SLO)) == ["promise_kept"]
    assert states(sent_twice_first.told(Overlapped(), T + 1)) == ["safe_mode"]
    assert states(sent_twice_first.came(T + 1, T + 1)) == []
    assert states(sent_twice_first.told(Woke(), T + 1 + 2 * SLO)) == [], "nothing is hosted yet"
    assert states(sent_twice_first.planned(T + 3, ("d0", "good", 1.0))) == ["promise_kept"]


def test_a_plan_that_names_a_device_without_a_work_topic_waits_for_the_look_and_is_ignored_if_that_stays_so() -> None:
    router = Router()
    assert router.told(PlanPublished(plan(("d2", "good", 0.5), ("d0", "good", 0.5))), T) == [LookUp(("d2",))]
    assert router.told(LookedUp(("d1",)), T + 1) == [Ignore(Epoch(1, 1), ("d2",))]
    router.told(PlanPublished(plan(("d2", "good", 1.0), number=2)), T + 2)
    router.told(LookedUp(("d2",)), T + 3)
    followed = router.told(PlanAcknowledged("d2", Epoch(1, 2), ("good",)), T + 3)
    assert [a.plan.epoch for a in followed if isinstance(a, Activate)] == [Epoch(1, 2)]


def test_a_plan_of_other_apps_needs_no_proof_and_leaves_queries_waiting() -> None:
    router = Router()
    strange = plan(("d2", "other", 1.0), app="b")
    assert [type(a) for a in router.told(PlanPublished(strange), T)] == [Activate]
    assert [type(a) for a in router.came(T + 1)] == [WakeAt]


def test_the_policy_is_told_of_devices_and_of_how_they_were_cut() -> None:
    router = Router(policy="accuracy-first")
    router.planned(T, ("d0", "good", 0.5), ("d1", "quick", 0.5))
    assert sent(router.came(T + 1)) == [("q1", "d0")], "the more accurate"
    router.told(DeviceReported("d0", "whole", queued=40, busy_for=9.0), T + 1)
    assert sent(router.came(T + 1)) == [("q2", "d1")]


def test_a_device_that_was_cut_otherwise_is_as_fast_as_its_slices_are() -> None:
    router = Router(policy="accuracy-first")
    sliced = Placement("d1", "a", ("good",), 0.5, 4, slice="g0")
    whole = Placement("d0", "a", ("quick",), 0.5, 4)
    router.told(PlanPublished(Plan(epoch=Epoch(1, 1), created=T, placements=(whole, sliced), demand={"a": 1.0})), T)
    for device in ("d0", "d1"):
        router.told(PlanAcknowledged(device, Epoch(1, 1), ("good", "quick")), T)
    assert sent(router.came(T)) == [("q1", "d1")]
    router.told(DeviceSeen("d1", "cpu", "i1", slices=(Slice("g0", "1g"),)), T + 2)
    assert sent(router.came(T + 2)) == [("q2", "d0")], "on such a slice it takes longer than there is"


def test_goals_narrow_where_a_query_goes_and_what_meets_none_is_dropped_or_asked_for() -> None:
    router, asking = Router(), Router(on_demand=True)
    for one in (router, asking):
        one.planned(T, ("d0", "quick", 1.0))
        assert sent(one.came(T, goal=Goal(model="quick"))) == [("q1", "d0")]
    lacking = router.came(T, goal=Goal(accuracy=0.8))
    assert ends(lacking) == [("q2", OutcomeKind.DROPPED, Reason.NO_CAPACITY)]
    named = router.came(T, goal=Goal(model="good", cost=0.3))
    told = [[a.detail for a in actions if isinstance(a, End)] for actions in (lacking, named)]
    assert told == [
        ["no device hosts a variant with accuracy 0.8 now, which the plan decides"],
        ["no device hosts good at cost 0.3 now, which the plan decides"],
    ]
    assert asking.came(T, T + 9, goal=Goal(accuracy=0.8)) == [Want("good"), WakeAt(T + 9)]
    assert asking.came(T + 0.5, T + 8, goal=Goal(model="good")) == [WakeAt(T + 8)], "not twice within a second"
    assert asking.came(T + ASK_AGAIN, T + 9, goal=Goal(model="good")) == [Want("good")]
    assert sent(asking.came(T + 1)) == [("q5", "d0")], "who needs nothing of it does not wait"
    followed = asking.planned(T + 2, ("d0", "quick", 0.5), ("d1", "good", 0.5), number=2)
    assert sent(followed) == [("q2", "d1"), ("q3", "d1"), ("q4", "d1")]
    assert ends(asking.came(T + 3, goal=Goal(accuracy=0.95))) == [("q6", OutcomeKind.DROPPED, Reason.NO_CAPACITY)]


def test_what_is_asked_for_and_does_not_come_expires() -> None:
    router = Router(on_demand=True)
    router.planned(T, ("d0", "quick", 1.0))
    router.came(T, T + 1, goal=Goal(accuracy=0.8))
    again = router.planned(T + 0.5, ("d1", "quick", 1.0), number=2)
    assert WakeAt(T + 1) in again, "held again, not dropped"
    assert ends(router.told(Woke(), T + 1)) == [("q1", OutcomeKind.EXPIRED, None)]


def test_routes_change_with_the_promise_and_a_retired_app_goes_on_as_it_was() -> None:
    router = Router()
    router.planned(T, ("d0", "good", 0.75), ("d1", "good", 0.25))
    router.told(catalogue(PROMISE).registered, T + 1)
    assert router.core.policy.name == "streams"
    turns = [device for _, device in sent([a for _ in range(8) for a in router.came(T + 1)])]
    assert [turns[:4].count("d0"), turns[4:].count("d0")] == [3, 3], "in turn, as their shares are"
    router.told(catalogue().only({"b"}).registered, T + 2)
    assert router.core.policy.name == "streams"
    router.told(catalogue().registered, T + 3)
    assert router.core.policy.name == "weighted"
    assert sent(router.came(T + 3)) == [("q9", "d0")]


def test_a_variant_that_is_registered_after_the_plan_that_hosts_it_is_counted_on_from_then() -> None:
    router = Router(policy="accuracy-first")
    router.told(catalogue().only({"a"}).registered, T)
    better = Variant(name="better", app="a", accuracy=0.95)
    router.planned(T, ("d0", "better", 0.5), ("d1", "good", 0.5))
    whole = catalogue()
    profile = replace(whole.profiles["quick", "cpu"], variant="better")
    more = Catalogue.of(whole.apps.values(), [*whole.variants.values(), better], [*whole.profiles.values(), profile])
    router.told(more.registered, T + 1)
    assert {device for _, device in sent([*router.came(T + 1), *router.came(T + 2)])} == {"d0"}
    assert sent(router.came(T + 2, goal=Goal(accuracy=0.92))) == [("q3", "d0")]


def test_what_is_too_large_fails_and_counts_for_the_promise() -> None:
    for router, before in ((Router(), []), (Router(PROMISE), ["safe_mode"])):
        router.planned(T, ("d0", "good", 1.0))
        query = Query("big", "a", T, T + 1)
        router.told(Arrived(query), T)
        actions = router.told(TooLarge(query, "2 MiB; at most 1"), T)
        assert states(actions) == before
        assert actions[-1] == End(query, OutcomeKind.FAILED, Reason.TOO_LARGE, "2 MiB; at most 1")
        (*_, end) = router.told(WorkTopicGone(query, "device.d0.work does not exist"), T)
        assert end == End(query, OutcomeKind.FAILED, Reason.DEVICE_LOST, "device.d0.work does not exist")


def test_what_cannot_be_sent_puts_a_promise_off_for_two_slos_and_says_why() -> None:
    router = Router(PROMISE)
    router.planned(T, ("d0", "good", 1.0))
    big, late = Query("big", "a", T, T + 1), Query("late", "a", T, T + 1)
    said, wake, _ = router.told(TooLarge(big, "2 MiB; at most 1"), T + 1)
    told = "queries are missed before any worker gets them: 2 MiB; at most 1"
    assert (said, wake) == (Announce("app:a", "safe_mode", told), WakeAt(T + 1 + 2 * SLO))
    assert states(router.told(WorkTopicGone(late, "device.d0.work does not exist"), T + 1.5)) == []
    assert states(router.told(Woke(), T + 1 + 2 * SLO)) == []
    assert router.told(Woke(), T + 1.5 + 2 * SLO) == [
        Announce("app:a", "promise_kept", "queries are lost on their way no more")
    ]
    assert states(router.told(TooLarge(replace(big, query_class=QueryClass.BEST_EFFORT), ""), T + 9)) == []


def test_a_query_that_is_held_cannot_come_again_and_the_story_is_told() -> None:
    router = Router()
    query = Query("twice", "a", T, T + 1)
    router.told(PlanPublished(plan(("d0", "good", 1.0))), T)
    router.told(Arrived(query), T)
    with pytest.raises(IllegalEventError, match=r"twice comes again at 1000\.5[\s\S]*PlanPublished"):
        router.told(Arrived(query), T + 0.5)
    assert router.core.held == 1


def test_only_where_nothing_is_held_does_what_comes_go_on_at_once() -> None:
    router, wanting = Router(), Router(on_demand=True)
    assert not router.core.at_once, "there is no plan"
    for one in (router, wanting):
        one.planned(T, ("d0", "quick", 1.0))
    assert router.core.at_once
    assert not wanting.core.at_once, "a variant may have to be waited for"
    wanting.came(T, goal=Goal(accuracy=0.85))
    assert wanting.core.held == 1
    router.came(T, goal=Goal(accuracy=0.85))
    assert router.core.held == 0


def test_a_plan_whose_devices_do_not_answer_is_followed_with_those_that_did() -> None:
    router = Router()
    router.told(PlanPublished(plan(("d0", "good", 0.5), ("d1", "good", 0.5))), T)
    router.told(PlanAcknowledged("d1", Epoch(1, 1), ("good",)), T)
    assert sent(router.came(T + 0.1)) == [("q1", "d1")], "the first plan with its first placement"
    router.told(PlanPublished(plan(("d0", "quick", 0.5), ("d1", "quick", 0.5), number=2)), T + 1)
    router.told(Woke(), T + 1 + WAIT_S)
    assert sent(router.came(T + 1 + WAIT_S)) == [("q2", "d1")], "where nothing is ready the old plan stays"


def test_a_router_does_not_begin_by_a_plan_that_hosts_nothing_at_all() -> None:
    """A system that was stopped in good order leaves such a plan behind: its devices left before its planner did."""
    begun, serving, crowded, restarted = Router(), Router(), Router(), Router()
    serving.planned(T, ("d0", "good", 1.0))
    assert sent(serving.came(T + 0.5)) == [("q1", "d0")]
    restarted.planned(T, ("d0", "good", 1.0))
    for router in (begun, serving, restarted):
        router.told(PlanPublished(plan(number=2)), T + 1)
    elsewhere = replace(plan(("d0", "other", 1.0), app="b"), demand={"a": 10.0, "b": 10.0})
    crowded.told(PlanPublished(elsewhere), T + 1)
    assert begun.came(T + 1.1) == [WakeAt(T + 1.1 + SLO)]
    assert ends(serving.came(T + 1.1)) == [("q2", OutcomeKind.DROPPED, Reason.NO_CAPACITY)], "its devices were lost"
    assert restarted.came(T + 1.1) == [WakeAt(T + 1.1 + SLO)], "it read all of them before its first query"
    restarted.told(PlanPublished(plan(number=3)), T + 1.15)
    assert sent(restarted.planned(T + 1.2, ("d0", "good", 1.0), number=4)) == [("q1", "d0")]
    asking = Router(on_demand=True)
    asking.planned(T, ("d0", "quick", 1.0))
    asking.told(PlanPublished(plan(number=2)), T + 1)
    assert Want("good") in asking.came(T + 1.1, goal=Goal(accuracy=0.8)), "else nothing would ever be loaded"
    assert ends(crowded.came(T + 1.1)) == [("q1", OutcomeKind.DROPPED, Reason.NO_CAPACITY)], "the plan is for others"
    assert sent(begun.planned(T + 1.2, ("d0", "good", 1.0), number=3)) == [("q1", "d0")]


def told_of(router: Router, device: str, overdue: float, now: float) -> None:
    router.told(DeviceReported(device, "whole", 3, 0.0, overdue), now)


def test_a_device_whose_batch_is_overdue_gets_nothing_until_it_advances_again() -> None:
    router = Router()
    router.planned(T, ("d0", "good", 0.75), ("d1", "quick", 0.25))
    told_of(router, "d0", 0.4, T + 1)
    assert {device for _ in range(8) for _, device in sent(router.came(T + 1))} == {"d1"}
    told_of(router, "d1", 0.0, T + 1.5)
    assert sent(router.came(T + 1.5))[0][1] == "d1"
    told_of(router, "d0", 0.0, T + 2)
    assert {device for _ in range(8) for _, device in sent(router.came(T + 2))} == {"d0", "d1"}


def test_where_all_are_overdue_they_are_asked_as_the_plan_says() -> None:
    router = Router()
    router.planned(T, ("d0", "good", 0.75), ("d1", "quick", 0.25))
    for device in ("d0", "d1"):
        told_of(router, device, 0.4, T + 1)
    gone = [device for _ in range(8) for _, device in sent(router.came(T + 1))]
    assert (gone.count("d0"), gone.count("d1")) == (6, 2)


def test_a_plan_that_comes_meanwhile_is_followed_without_what_is_overdue() -> None:
    router = Router()
    router.planned(T, ("d0", "good", 1.0))
    told_of(router, "d0", 0.4, T + 1)
    router.planned(T + 1, ("d0", "good", 0.5), ("d1", "quick", 0.5), number=2)
    assert {device for _ in range(8) for _, device in sent(router.came(T + 1))} == {"d1"}


def test_streams_that_were_promised_something_stay_where_they_are() -> None:
    router = Router(PROMISE)
    router.planned(T, ("d0", "good", 0.5), ("d1", "quick", 0.5))
    before = [device for _ in range(4) for _, device in sent(router.came(T, stream="a"))]
    told_of(router, before[0], 0.4, T + 1)
    assert [device for _ in range(4) for _, device in sent(router.came(T + 1, stream="a"))] == before


@pytest.mark.parametrize(
    ("promise", "coming", "waits"),
    [
        (NO_PROMISE, "b", 0.5),  # d0 goes on with a while it loads for b
        (PROMISE, "b", 5.0),  # a promised stream's turns go by the newest plan
        (NO_PROMISE, "a", 0.5),
        (PROMISE, "a", 0.5),
    ],
)
def test_a_slice_that_loads_for_another_app_serves_on_unless_a_promise_goes_by_the_newest_plan(
    promise: Promise, coming: str, waits: float
) -> None:
    router = Router(promise, proven="d0 d1 d2")
    router.planned(T, ("d0", "good", 0.5), ("d1", "quick", 0.5))
    loads = Placement("d0", coming, ("other" if coming == "b" else "quick",), 1.0, 4)
    kept = tuple(Placement(device, "a", ("quick",), 0.5, 4) for device in ("d1", "d2"))
    newer = Plan(epoch=Epoch(1, 2), created=T, placements=(loads, *kept), demand={"a": 10.0, "b": 1.0})
    (wakes,) = [a for a in router.told(PlanPublished(newer), T + 9) if isinstance(a, WakeAt)]
    assert wakes.at == T + 9 + waits
    router.told(PlanAcknowledged("d1", Epoch(1, 2), ("quick",)), T + 9.1)
    router.told(Woke(), T + 9 + waits)
    devices = {device for i in range(8) for _, device in sent(router.came(T + 9 + waits + i / 100, stream=f"s{i}"))}
    assert devices == ({"d1"} if waits == 5.0 else {"d0", "d1"})
