"""Whatever terms strangers write of leases and plans, a planner leads again in one that follows both."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import FAR, MAX_TERM, Epoch, follows, term_follows
from sluicegate.planner.control.events import PlanRead
from sluicegate.planner.control.leader_lease import LeaseRead
from tests.unit.test_planner_core import LEASE, World, plans

terms = st.integers(1, MAX_TERM)


@given(terms, st.integers(-3 * FAR, 3 * FAR))
def test_for_any_two_terms_there_is_one_behind_either_that_follows_both(one: int, off: int) -> None:
    other = min(MAX_TERM, max(1, one + off))
    behind = [1 + term % MAX_TERM for term in (one, other)]
    assert any(term_follows(term, one) and term_follows(term, other) for term in behind)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from((1, 2, FAR // 2, FAR - 1, FAR, FAR + 1)), st.booleans())))
def test_whatever_terms_strangers_have_written_of_leases_and_plans_one_leads_again(
    steps: list[tuple[bool, int, bool]],
) -> None:
    """Up or down, by what is just taken or not."""
    world = World()
    world.beat("d0")
    world.run(1.0, "d0")
    in_force = plans(world.said)[-1]
    world.said.clear()
    for of_plan, far, up in steps:
        term = max(1, in_force.epoch.term + (far if up else -far))
        made_up = replace(in_force, epoch=Epoch(term, 7), placements=())
        if of_plan:
            in_force = made_up if follows(made_up.epoch, in_force.epoch) else in_force
            world.tell(PlanRead(made_up))
        else:
            world.tell(LeaseRead(Lease(term=term, holder="x", renewals=far)))
        for plan in plans(world.said):
            in_force = plan if follows(plan.epoch, in_force.epoch) else in_force
        world.said.clear()
    world.run(LEASE + 2.0, "d0")
    for plan in plans(world.said):
        in_force = plan if follows(plan.epoch, in_force.epoch) else in_force
    assert world.core.leads(world.now)
    assert in_force.placements
    assert in_force.epoch.term <= MAX_TERM
