"""A slice follows plans: loads, switches, forgets, acknowledges."""

from collections.abc import Sequence

import pytest

from sluicegate.domain.actions import Acknowledge, Host, Load, Retire, StagingAction, Unload, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import HostingChanged, LoadEnded, PlanPublished, Retired, Woke
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import NO_PROMISE, App, Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Query
from sluicegate.policies.batching.spread import GreedySpread
from sluicegate.policies.placement.model_staging import Staging
from sluicegate.policies.promises.history import MissHistory
from sluicegate.profiles.catalogue.catalogue import Catalogue

DEVICE = Device(name="d0", type="cpu", memory_bytes=100)


def catalogue(promise: Promise = NO_PROMISE) -> Catalogue:
    variants = [Variant(name=n, app=n[0], accuracy=a) for n, a in (("a1", 0.7), ("a2", 0.9), ("b1", 0.8), ("b2", 0.6))]
    points = (BatchLatency(1, 0.01, 0.02), BatchLatency(8, 0.05, 0.08))
    profiles = [Profile(variant=v.name, device_type="cpu", points=points, memory_bytes=60) for v in variants]
    return Catalogue.of([App(name="a", slo=0.2, promise=promise), App(name="b", slo=0.3)], variants, profiles)


def plan(number: int, *placements: tuple[str, tuple[str, ...]]) -> PlanPublished:
    return plan_of(number, 4, *placements)


def plan_of(number: int, max_batch: int, *placements: tuple[str, tuple[str, ...]]) -> PlanPublished:
    placed = tuple(Placement("d0", app, variants, 1.0, max_batch) for app, variants in placements)
    return PlanPublished(Plan(epoch=Epoch(1, number), created=0.0, placements=placed))


def staging(memory: int = 1000, promise: Promise = NO_PROMISE) -> Staging:
    return Staging(DEVICE, Slice(memory_bytes=memory), catalogue(promise), grace=2.0)


def of(kind: type, actions: Sequence[StagingAction]) -> list[StagingAction]:
    return [a for a in actions if isinstance(a, kind)]


def settle(machine: Staging, event: PlanPublished, now: float = 0.0) -> list[StagingAction]:
    """Every action from ``event`` on, each load succeeding."""
    seen: list[StagingAction] = []
    waiting = list(machine.handle(event, now))
    while waiting:
        action = waiting.pop(0)
        seen.append(action)
        if isinstance(action, Load):
            waiting += machine.handle(LoadEnded(action.variant, ok=True), now)
    return seen


def test_a_variant_is_hosted_only_once_it_is_loaded() -> None:
    machine = staging()
    actions = machine.handle(plan(1, ("a", ("a1",))), 0.0)
    assert actions == [Load("a1", 8)]
    then = machine.handle(LoadEnded("a1", ok=True), 1.0)
    (host,) = of(Host, then)
    assert isinstance(host, Host)
    assert [h.variant for h in host.change.hosted] == ["a1"]
    assert host.change.hosted[0].curve.max_batch == 8  # whatever is answered within the SLO, not the plan's 4
    assert of(Acknowledge, then) == [Acknowledge(Epoch(1, 1), ("a1",), ())]


def test_the_old_variant_is_forgotten_only_after_the_new_one_is_hosted() -> None:
    machine = staging()
    settle(machine, plan(1, ("a", ("a1",))))
    actions = settle(machine, plan(2, ("a", ("a2",))))
    kinds = [type(a) for a in actions]
    assert kinds.index(Load) < kinds.index(Host) < kinds.index(Unload)
    assert machine.loaded == ("a2",)


def test_where_memory_is_short_the_old_variant_goes_first() -> None:
    machine = staging(memory=100)
    settle(machine, plan(1, ("a", ("a1",))))
    actions = machine.handle(plan(2, ("a", ("a2",))), 0.0)
    kinds = [type(a) for a in actions]
    assert kinds.index(Unload) < kinds.index(Load)


def test_a_failed_load_keeps_the_old_variant_and_is_reported() -> None:
    machine = staging()
    settle(machine, plan(1, ("a", ("a1",))))
    machine.handle(plan(2, ("a", ("a2",))), 0.0)
    then = machine.handle(LoadEnded("a2", ok=False), 0.0)
    assert then == [Acknowledge(Epoch(1, 2), (), ("a2",))]
    assert machine.loaded == ("a1",)
    assert machine.hosted_apps == ("a",)


def test_an_older_epoch_is_refused() -> None:
    machine = staging()
    settle(machine, plan(5, ("a", ("a1",))))
    assert machine.handle(plan(4, ("b", ("b1",))), 0.0) == []
    assert machine.handle(plan(5, ("b", ("b1",))), 0.0) == []
    assert machine.hosted_apps == ("a",)


def test_an_app_that_leaves_is_served_until_routers_had_time_to_switch() -> None:
    machine = staging()
    settle(machine, plan(1, ("a", ("a1",))))
    actions = settle(machine, plan(2, ("b", ("b1",))), now=10.0)
    assert WakeAt(12.0) in actions
    assert machine.wants("a")
    assert machine.handle(Woke(), 11.0) == [WakeAt(12.0)]
    assert machine.handle(Woke(), 12.0) == [Retire("a")]
    gone = machine.handle(Retired("a"), 12.5)
    assert of(Unload, gone) == [Unload("a1")]
    assert not machine.wants("a")


def test_an_app_that_leaves_is_served_while_what_takes_its_place_is_loaded() -> None:
    machine = staging()
    settle(machine, plan(1, ("a", ("a1",))))
    assert machine.handle(plan(2, ("b", ("b1",))), 10.0) == [Load("b1", 8)]
    assert machine.handle(Woke(), 60.0) == []
    assert machine.hosted_apps == ("a",)
    assert WakeAt(72.0) in machine.handle(LoadEnded("b1", ok=True), 70.0)
    assert machine.handle(Woke(), 71.0) == [WakeAt(72.0)]
    assert machine.handle(Woke(), 72.0) == [Retire("a")]


def test_an_app_that_comes_back_in_time_is_not_retired() -> None:
    machine = staging()
    settle(machine, plan(1, ("a", ("a1",))))
    settle(machine, plan(2, ("b", ("b1",))), now=10.0)
    settle(machine, plan(3, ("a", ("a1",)), ("b", ("b1",))), now=11.0)
    assert machine.handle(Woke(), 20.0) == []
    assert machine.handle(Retired("a"), 20.0) == []
    assert machine.wants("a")


def test_an_app_that_comes_back_and_leaves_again_is_served_for_as_long_anew() -> None:
    machine = staging()
    settle(machine, plan(1, ("a", ("a1",))))
    settle(machine, plan(2, ("b", ("b1",))), now=10.0)
    assert Retire("a") in machine.handle(Woke(), 12.0), "and its queue is not empty yet"
    settle(machine, plan(3, ("a", ("a1",)), ("b", ("b1",))), now=13.0)
    assert WakeAt(16.0) in settle(machine, plan(4, ("b", ("b1",))), now=14.0)
    assert machine.handle(Retired("a"), 15.0) == []
    assert machine.wants("a")
    assert machine.handle(Woke(), 16.0) == [Retire("a")]
    assert of(Unload, machine.handle(Retired("a"), 16.5)) == [Unload("a1")]


def test_a_load_that_was_not_asked_for_is_illegal() -> None:
    with pytest.raises(IllegalEventError):
        staging().handle(LoadEnded("a1", ok=True), 0.0)


def test_a_plan_that_counts_on_larger_batches_changes_nothing() -> None:
    machine = staging()
    settle(machine, plan_of(1, 2, ("a", ("a1",))))
    actions = settle(machine, plan_of(2, 8, ("a", ("a1",))))
    assert of(Load, actions) == of(Host, actions) == []


def aside(actions: Sequence[StagingAction]) -> dict[str, bool]:
    """By app, whether it gives way from now on."""
    return {a.change.app: a.change.aside for a in actions if isinstance(a, Host)}


def test_an_app_without_a_promise_gives_way_where_it_leaves_and_where_it_comes_as_a_promised_one_leaves() -> None:
    """Measured once: turns of an app that a plan had taken away broke the promise of the one that came."""
    machine = staging(promise=Promise(max_consecutive=1))  # of "a"
    assert aside(settle(machine, plan(1, ("b", ("b1",))))) == {"b": False}
    assert aside(settle(machine, plan(2, ("a", ("a1",))), now=10.0)) == {"b": True, "a": False}
    assert aside(settle(machine, plan(3, ("a", ("a1",)), ("b", ("b1",))), now=11.0)) == {"b": False}
    machine.handle(plan(4, ("a", ("a1",))), 20.0)
    machine.handle(Retired("b"), 30.0)
    assert aside(settle(machine, plan(5, ("b", ("b1",))), now=40.0)) == {"b": True}
    assert aside(machine.handle(Retired("a"), 50.0))["b"] is False


def shared(number: int, *shares: tuple[str, float], app: str = "a") -> PlanPublished:
    """``app`` on these devices in these shares; of the other app nothing."""
    placed = tuple(Placement(device, app, (f"{app}1",), share, 4) for device, share in shares)
    return PlanPublished(Plan(epoch=Epoch(1, number), created=0.0, placements=placed))


def hosted(actions: Sequence[StagingAction]) -> HostingChanged:
    (host,) = of(Host, actions)
    assert isinstance(host, Host)
    return host.change


PROMISED = Promise(weakly_hard=(WeaklyHard(4, 12),))


def test_a_promised_app_keeps_its_part_by_the_plans_turns_and_as_much_as_each_peer_while_routers_switch() -> None:
    machine = staging(promise=PROMISED)
    first = hosted(settle(machine, shared(1, ("d0", 0.25), ("d1", 0.75)), now=10.0))
    assert (first.promise, first.peers) == (PROMISED, (("d0", "whole"), ("d1", "whole")))
    assert first.part == Promise(weakly_hard=(WeaklyHard(1, 3),))  # three of twelve turns, and of the misses one
    assert (first.loose, first.aside, first.slo) == (False, False, 0.2)

    second = settle(machine, shared(2, ("d0", 0.5), ("d2", 0.5)), now=20.0)
    assert WakeAt(23.0) in second  # a1 takes a second to load on d2, and routers two to switch
    both = hosted(second)
    assert both.peers == (("d0", "whole"), ("d1", "whole"), ("d2", "whole"))
    assert both.own == PROMISED.among(3) == Promise(weakly_hard=(WeaklyHard(1, 5),))
    assert machine.handle(Woke(), 22.9) == [WakeAt(23.0)]
    alone = hosted(machine.handle(Woke(), 23.0))
    assert alone.peers == (("d0", "whole"), ("d2", "whole")) and alone.part == PROMISED.over(2)
    assert machine.handle(Woke(), 30.0) == []


def test_a_part_by_the_turns_of_a_plan_is_kept_only_once_routers_have_switched_whatever_they_did_before() -> None:
    """A slice once took its part while the stream still came to it alone: the plan before the last had these turns."""
    machine = staging(promise=PROMISED)
    settle(machine, shared(1, ("d0", 0.75), ("d1", 0.25)), now=10.0)
    settle(machine, shared(2, ("d0", 1.0)), now=20.0)
    third = hosted(settle(machine, shared(3, ("d0", 0.75), ("d1", 0.25)), now=21.5))
    assert third.part == PROMISED.among(2) == Promise(weakly_hard=(WeaklyHard(2, 11),))
    for now in (22.0, 23.0, 24.4):
        assert of(Host, machine.handle(Woke(), now)) == []
    assert hosted(machine.handle(Woke(), 24.5)).part == Promise(weakly_hard=(WeaklyHard(3, 9),))


def test_who_is_new_to_a_promised_app_keeps_no_more_than_beside_those_that_had_it_until_routers_have_switched() -> None:
    machine = staging(promise=PROMISED)
    settle(machine, shared(1, ("d1", 0.5), ("d2", 0.5)), now=10.0)
    new = hosted(settle(machine, shared(2, ("d0", 0.5), ("d1", 0.5)), now=20.0))
    assert len(new.peers) == 3 and new.part == PROMISED.among(3)
    assert hosted(machine.handle(Woke(), 23.0)).part == PROMISED.over(2)


def test_the_same_peers_in_another_plan_are_news_only_where_their_turns_are() -> None:
    machine = staging(promise=PROMISED)
    settle(machine, shared(1, ("d0", 0.5), ("d1", 0.5)), now=10.0)
    assert of(Host, settle(machine, shared(2, ("d1", 0.5), ("d0", 0.5)), now=11.0)) == []
    again = settle(machine, shared(3, ("d0", 0.25), ("d1", 0.75)), now=12.0)
    assert hosted(again).part == PROMISED.among(2)  # the turns of either plan
    assert of(WakeAt, again) == [WakeAt(14.0)]  # nothing is new
    assert hosted(machine.handle(Woke(), 14.0)).part == Promise(weakly_hard=(WeaklyHard(1, 3),))


def test_what_was_promised_nothing_has_no_peers_and_what_asks_for_best_effort_is_loose() -> None:
    machine = staging(promise=PROMISED)
    change = hosted(settle(machine, shared(1, ("d0", 0.5), ("d1", 0.5), app="b"), now=10.0))
    assert (change.peers, change.part, change.loose, change.slo) == ((), None, False, 0.3)
    apps = [App(name="a", slo=0.2), App(name="b", slo=0.3, query_class=QueryClass.BEST_EFFORT)]
    known = catalogue()
    loose = Catalogue.of(apps, known.variants.values(), known.profiles.values())
    other = Staging(DEVICE, Slice(memory_bytes=1000), loose, grace=2.0)
    assert hosted(settle(other, shared(1, ("d0", 1.0), app="b"))).loose
    assert not hosted(settle(other, shared(2, ("d0", 1.0)))).loose


def test_a_promised_app_has_its_peers_beside_one_that_was_promised_nothing() -> None:
    known = catalogue()
    apps = [App(name="a", slo=0.2), App(name="b", slo=0.3, promise=PROMISED)]
    promised = Catalogue.of(apps, known.variants.values(), known.profiles.values())
    machine = Staging(DEVICE, Slice(memory_bytes=1000), promised, grace=2.0)
    placed = [Placement(*who, share, 4) for who, share in (
        (("d0", "a", ("a1",)), 1.0), (("d0", "b", ("b1",)), 0.25), (("d1", "b", ("b1",)), 0.75),
    )]  # fmt: skip
    seen = settle(machine, PlanPublished(Plan(epoch=Epoch(1, 1), created=5.0, placements=tuple(placed))), now=10.0)
    peers = {host.change.app: host.change.peers for host in of(Host, seen) if isinstance(host, Host)}
    assert peers == {"a": (), "b": (("d0", "whole"), ("d1", "whole"))}


def test_several_variants_are_hosted_the_most_accurate_first_and_one_that_failed_is_left_out() -> None:
    machine = staging()
    change = hosted(settle(machine, plan(1, ("a", ("a1", "a2")))))
    assert [h.variant for h in change.hosted] == ["a2", "a1"]
    other = staging()
    assert other.handle(plan(1, ("a", ("a1", "a2"))), 0.0) == [Load("a1", 8)]
    assert other.handle(LoadEnded("a1", ok=False), 0.0) == [Load("a2", 8)]
    then = other.handle(LoadEnded("a2", ok=True), 0.0)
    assert [h.variant for h in hosted(then).hosted] == ["a2"]
    assert then[-1] == Acknowledge(Epoch(1, 1), ("a2",), ("a1",))


def test_no_more_is_forgotten_than_makes_room_and_what_is_left_goes_on() -> None:
    """A slice of 190 holds three of 60; the fourth needs one of them gone."""
    machine = staging(memory=190)
    settle(machine, plan(1, ("a", ("a1", "a2")), ("b", ("b1",))))
    actions = machine.handle(plan(2, ("b", ("b2",))), 10.0)
    kinds = [type(a) for a in actions if not isinstance(a, WakeAt)]
    assert kinds == [Host, Unload, Load]
    assert of(Unload, actions) == [Unload("a1")] and [h.variant for h in hosted(actions).hosted] == ["a2"]
    assert machine.hosted_apps == ("a", "b") and machine.loaded == ("a2", "b1")


def test_a_promised_app_is_told_its_new_peers_while_one_of_its_variants_still_loads() -> None:
    """Routers switch as soon as others are ready: a slice that loads once kept the part of the plan before."""
    machine = staging(promise=PROMISED)
    settle(machine, shared(1, ("d0", 1.0)), now=10.0)
    placed = tuple(
        Placement(device, "a", variants, 0.5, 4) for device, variants in (("d0", ("a1", "a2")), ("d1", ("a1",)))
    )
    actions = machine.handle(PlanPublished(Plan(epoch=Epoch(1, 2), created=0.0, placements=placed)), 20.0)
    assert of(Load, actions) == [Load("a2", 8)]
    told = hosted(actions)
    assert told.peers == (("d0", "whole"), ("d1", "whole")) and told.own == PROMISED.among(2)
    assert [h.variant for h in told.hosted] == ["a1"]
    both = hosted(machine.handle(LoadEnded("a2", ok=True), 21.0))
    assert [h.variant for h in both.hosted] == ["a2", "a1"] and both.own == told.own


def test_a_promised_app_that_comes_back_before_it_has_left_is_told_that_its_streams_were_elsewhere() -> None:
    """A slice went on with its own count of a stream that had been missed elsewhere meanwhile."""
    policy = GreedySpread()
    machine = staging(promise=PROMISED)

    def follow(event: PlanPublished, now: float) -> MissHistory:
        for action in settle(machine, event, now=now):
            if isinstance(action, Host) and action.change.app == "a":
                policy.handle(action.change, now)
        return policy.history(Query("q", "a", now, now + 0.2, stream="camera", sequence=0))

    history = follow(shared(1, ("d0", 0.75), ("d1", 1e-9)), 10.0)
    history.record(False)
    assert follow(shared(2, ("d1", 1.0)), 20.0) is history and history.may_miss(), "what waits here is of before"
    back = follow(shared(3, ("d0", 0.75), ("d1", 1e-9)), 21.0)
    assert not back.may_miss()
    for _ in range(8):
        back.record(False)
    assert back.may_miss()
    assert follow(shared(4, ("d0", 0.75), ("d1", 1e-9)), 22.0) is back


def test_the_peers_of_a_plan_whose_loads_may_still_run_count_until_those_have_ended() -> None:
    machine = staging(promise=PROMISED)
    settle(machine, shared(1, ("d0", 1.0)), now=10.0)
    settle(machine, shared(2, ("d0", 0.5), ("d1", 0.5)), now=20.0)  # a second to load, and two to switch
    third = settle(machine, shared(3, ("d0", 0.25), ("d1", 0.75)), now=20.5)  # by which nothing is new
    assert of(WakeAt, third) == [WakeAt(23.0)]


def test_an_app_that_is_dropped_before_its_first_load_ends_is_forgotten() -> None:
    machine = staging()
    assert machine.handle(plan(1, ("a", ("a1",)), ("b", ("b1",))), 10.0) == [Load("a1", 8)]
    dropped = machine.handle(plan(2, ("b", ("b1",))), 11.0)
    assert hosted(dropped) == HostingChanged("a", (), 0.2) and not machine.wants("a")
    then = machine.handle(LoadEnded("a1", ok=True), 12.0)
    assert then == [Unload("a1"), Load("b1", 8)] and machine.loaded == ()
    assert machine.handle(plan(3, ("a", ("a1",)), ("b", ("b1",))), 12.5) == []  # b1 still loads
    assert machine.handle(LoadEnded("b1", ok=True), 13.0)[-1] == Load("a1", 8)


def test_an_app_that_is_dropped_with_one_variant_loaded_and_none_hosted_leaves_nothing_loaded() -> None:
    machine = staging()
    machine.handle(plan(1, ("a", ("a1", "a2"))), 10.0)
    machine.handle(LoadEnded("a1", ok=True), 11.0)
    assert Unload("a1") in machine.handle(plan(2, ("b", ("b1",))), 11.5)
    assert machine.handle(LoadEnded("a2", ok=True), 12.0) == [Unload("a2"), Load("b1", 8)]
