"""The moments at which one who wants to lead claims, renews, leads and steps down."""

from dataclasses import replace

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import Ticked
from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import Epoch
from sluicegate.planner.control.events import PlanRead, SafeMode
from sluicegate.planner.control.leader_lease import (
    CaughtUp,
    Lead,
    LeaderLease,
    LeaseRead,
    StepDown,
    Stopping,
    TermSeen,
    Write,
    leaps,
    valid,
)
from tests.unit.test_planner_core import World, plans

NOW = 500.0


def leading() -> LeaderLease:
    """In term 1, by a claim that was sent at NOW and read half a second later."""
    found = LeaderLease("me", lease=3.0)
    assert found.handle(Ticked(), NOW - 9.0) == [], "what stands on the log is not known yet"
    claim = Lease(term=1, holder="me", claims=(0, 0))
    assert found.handle(CaughtUp(), NOW) == [Write(claim)]
    assert found.handle(LeaseRead(claim), NOW + 0.5) == [Lead(1, "", False)]
    return found


def test_a_claim_that_is_not_read_back_within_the_lease_is_repeated_in_a_higher_term() -> None:
    found = LeaderLease("me", lease=3.0)
    found.handle(CaughtUp(), NOW)
    assert found.handle(Ticked(), NOW + 2.9) == []
    again = Lease(term=2, holder="me", claims=(0, 0))
    assert found.handle(Ticked(), NOW + 3.0) == [Write(again)]
    assert found.handle(Ticked(), NOW + 5.9) == []
    renewal = Lease(term=2, holder="me", renewals=1)
    assert found.handle(LeaseRead(again), NOW + 5.95) == [Write(renewal)], "sent too long ago to be believed"
    assert not found.leads(NOW + 5.95)
    assert found.handle(LeaseRead(renewal), NOW + 6.0) == [Lead(2, "", False)]


def test_it_renews_every_third_and_leads_for_nine_tenths_of_the_lease_from_when_it_wrote() -> None:
    found = leading()
    assert found.leads(NOW + 2.6)
    assert not found.leads(NOW + 2.7)
    assert found.handle(Ticked(), NOW + 0.9) == []
    first, second, third = (Lease(term=1, holder="me", renewals=n) for n in (1, 2, 3))
    assert found.handle(Ticked(), NOW + 1.0) == [Write(first)]
    assert found.handle(LeaseRead(first), NOW + 1.9) == []
    assert found.leads(NOW + 3.6) and not found.leads(NOW + 3.7)
    assert found.handle(Ticked(), NOW + 2.0) == [Write(second)]
    assert found.handle(Ticked(), NOW + 3.6) == [Write(third)]
    assert found.handle(Ticked(), NOW + 3.7) == [StepDown("the lease could not be renewed in time")]
    assert found.handle(LeaseRead(second), NOW + 4.0) == [Lead(1, "", True)], "nobody else has led"
    assert found.leads(NOW + 4.6) and not found.leads(NOW + 4.7)


@pytest.mark.parametrize(("released", "waits", "before"), [(False, 3.0, "she"), (True, 0.0, "")])
def test_it_claims_a_lease_after_the_holders_silence_or_at_once_where_it_was_given_back(
    released: bool, waits: float, before: str
) -> None:
    found = LeaderLease("me", lease=3.0)
    found.handle(LeaseRead(Lease(term=4, holder="she", claims=(0, 0))), NOW - 5.0)
    said = found.handle(LeaseRead(Lease(term=4, holder="she", renewals=1, released=released)), NOW)
    assert said == found.handle(Ticked(), NOW) == [], "not before all that stands there was read"
    claim = Lease(term=5, holder="me", claims=(4, 1))
    if not released:
        assert found.handle(CaughtUp(), NOW + 1.0) == []
        assert found.handle(Ticked(), NOW + 1.0 + waits - 0.1) == []
        assert found.handle(Ticked(), NOW + 1.0 + waits) == [Write(claim)]
    else:
        assert found.handle(CaughtUp(), NOW + 1.0) == [Write(claim)]
    assert found.handle(LeaseRead(claim), NOW + 1.5 + waits) == [Lead(5, before, False)]


def test_it_steps_down_when_another_claims_and_is_no_leader_until_it_claims_again() -> None:
    found = leading()
    theirs = Lease(term=2, holder="she", claims=(1, 0))
    assert found.handle(LeaseRead(theirs), NOW + 0.75) == [StepDown("she holds term 2")]
    assert not found.leads(NOW + 0.75)
    assert found.newest == theirs
    assert found.handle(Ticked(), NOW + 3.7) == []
    mine = Lease(term=3, holder="me", claims=(2, 0))
    assert found.handle(Ticked(), NOW + 3.75) == [Write(mine)]
    assert found.handle(LeaseRead(mine), NOW + 4.0) == [Lead(3, "she", False)]


def test_it_claims_a_term_above_that_of_a_record_in_its_name_which_it_did_not_write() -> None:
    """Its own renewals would all be behind that one."""
    found = leading()
    assert found.handle(Ticked(), NOW + 1.0) == [Write(Lease(term=1, holder="me", renewals=1))]
    forged = Lease(term=1, holder="me", renewals=2**53 - 1)
    down = StepDown("a stranger in its name holds term 1")
    assert found.handle(LeaseRead(forged), NOW + 1.25) == [down]
    assert found.handle(LeaseRead(Lease(term=1, holder="me", renewals=1)), NOW + 1.5) == []
    assert found.handle(Ticked(), NOW + 4.0) == [], "as long as another might lead by it"
    claim = Lease(term=2, holder="me", claims=(1, 2**53 - 1))
    assert found.handle(Ticked(), NOW + 4.25) == [Write(claim)]
    assert found.handle(LeaseRead(claim), NOW + 4.5) == [Lead(2, "me", True)]


def test_who_ends_in_good_order_gives_the_lease_back_and_claims_no_more() -> None:
    found = leading()
    released = Lease(term=1, holder="me", renewals=1, released=True)
    assert found.handle(Stopping(), NOW + 0.75) == [Write(released)]
    assert not found.leads(NOW + 0.75)
    assert found.handle(LeaseRead(released), NOW + 1.0) == []
    assert found.handle(Ticked(), NOW + 99.0) == []
    idle = LeaderLease("me", lease=3.0)
    assert idle.handle(Stopping(), NOW) == []


def test_a_term_of_a_plan_that_was_seen_is_below_that_of_a_claim() -> None:
    found = LeaderLease("me", lease=3.0)
    assert found.handle(TermSeen(7), NOW) == []
    assert found.handle(CaughtUp(), NOW) == [Write(Lease(term=8, holder="me", claims=(0, 0)))]


NEWEST = Lease(term=5, holder="she", renewals=2)


@pytest.mark.parametrize(
    ("lease", "counts"),
    [
        (Lease(term=6, holder="me", claims=(5, 2)), True),
        (Lease(term=6, holder="me", claims=(5, 1)), False),
        (Lease(term=5, holder="me", claims=(5, 2)), False),
        (Lease(term=5, holder="she", renewals=3), True),
        (Lease(term=5, holder="she", renewals=2), False),
        (Lease(term=5, holder="me", renewals=3), False),
        (Lease(term=5, holder="she", renewals=3, released=True), True),
        (Lease(term=6, holder="me", renewals=1), True),
        (Lease(term=4, holder="she", renewals=9), False),
        (Lease(term=5 + 10**6, holder="me", claims=(5, 2)), True),
        (Lease(term=6 + 10**6, holder="me", claims=(5, 2)), False),
    ],
)
def test_a_record_counts_upon_the_newest_that_it_names_or_renews(lease: Lease, counts: bool) -> None:
    assert valid(lease, NEWEST) is counts
    assert valid(lease, None)
    assert leaps(lease, NEWEST) is (lease.term > 5 + 10**6)


def test_nothing_of_a_term_renews_what_was_given_back() -> None:
    given_back = Lease(term=5, holder="she", renewals=2, released=True)
    assert not valid(Lease(term=5, holder="she", renewals=3), given_back)
    assert valid(Lease(term=6, holder="she", claims=(5, 2)), given_back)


def test_who_leads_again_after_another_goes_on_from_that_others_plan() -> None:
    world = World()
    world.run(1.0, "d0", "d1")
    own, held = world.core.controller.plan, world.core._lease.newest
    assert own is not None and held is not None
    world.tell(LeaseRead(Lease(term=held.term + 1, holder="other", claims=held.place)))
    assert not world.core.leads(world.now)
    others = tuple(replace(p, share=0.125, max_batch=3) for p in own.placements)
    world.tell(PlanRead(replace(own, epoch=Epoch(held.term + 1, 3), placements=others)))
    said = world.run(5.0, "d0", "d1")
    first = plans(said)[0]
    assert first.epoch == Epoch(held.term + 2, 1)
    assert first.placements == others
    assert Announce("planner", "took_over", f"term {held.term + 2} follows other") in said


def test_a_promise_that_is_broken_or_kept_again_is_said_on_the_status_topic() -> None:
    broken = SafeMode("web", "d4", True, "d4 was lost")
    assert broken.said == Announce("app:web", "safe_mode", "d4 was lost")
    assert replace(broken, on=False, detail="d4 is back").said == Announce("app:web", "promise_kept", "d4 is back")
