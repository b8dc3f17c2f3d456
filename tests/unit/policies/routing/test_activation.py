"""Two-step activation: acknowledgements, epochs, dead devices, the bounded wait."""

from dataclasses import replace

from sluicegate.domain.actions import Activate, ActivationAction, WakeAt
from sluicegate.domain.events import PlanAcknowledged, PlanPublished, Woke
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.policies.routing.activation import ANSWER_S, Activation


def plan(number: int, *where: tuple[str, str], term: int = 1, share: float = 0.5, app: str = "a") -> Plan:
    return Plan(
        epoch=Epoch(term, number),
        created=0.0,
        placements=tuple(Placement(device, app, (variant,), share, 8) for device, variant in where),
    )


def ack(device: str, number: int, *variants: str, failed: tuple[str, ...] = (), term: int = 1) -> PlanAcknowledged:
    return PlanAcknowledged(device, Epoch(term, number), variants, failed)


def routed(actions: list[ActivationAction]) -> list[tuple[int, list[tuple[str, str]]]]:
    return [
        (a.plan.epoch.number, sorted((p.device, p.variants[0]) for p in a.plan.placements))
        for a in actions
        if isinstance(a, Activate)
    ]


def active_on(*where: tuple[str, str], stays: bool = False) -> Activation:
    """``stays``: slices go on with what they hold while they load."""
    activation = Activation("a", lambda held, coming: stays)
    activation.handle(PlanPublished(plan(1, *where)), 0.0)
    for device, variant in where:
        activation.handle(ack(device, 1, variant), 0.1)
    assert activation.pending is None
    return activation


def test_the_first_plan_grows_with_each_device_that_is_ready() -> None:
    activation = Activation("a", lambda held, coming: False)
    assert routed(activation.handle(PlanPublished(plan(1, ("d1", "v"), ("d2", "v"))), 0.0)) == []
    assert routed(activation.handle(ack("d1", 1, "v"), 0.1)) == [(1, [("d1", "v")])]
    assert routed(activation.handle(ack("d1", 1, "v"), 0.2)) == []
    assert routed(activation.handle(ack("d2", 1, "v"), 0.3)) == [(1, [("d1", "v"), ("d2", "v")])]


def test_a_plan_waits_for_every_device_of_the_app() -> None:
    activation = active_on(("d1", "v"), ("d2", "v"))
    assert activation.handle(PlanPublished(plan(2, ("d1", "w"), ("d2", "w"))), 1.0) == [WakeAt(6.0)]
    assert activation.handle(ack("d1", 2, "w"), 1.5) == []
    assert routed(activation.handle(ack("d2", 2, "w"), 2.0)) == [(2, [("d1", "w"), ("d2", "w")])]


def test_acknowledgements_that_overtake_their_plan_count() -> None:
    activation = active_on(("d1", "v"))
    assert activation.handle(ack("d2", 3, "w"), 0.9) == []
    activation.handle(PlanPublished(plan(2, ("d1", "w"))), 1.0)
    assert routed(activation.handle(PlanPublished(plan(3, ("d2", "w"), ("d1", "v"))), 1.1)) == []
    assert routed(activation.handle(ack("d1", 3, "v"), 1.2)) == [(3, [("d1", "v"), ("d2", "w")])]


def test_after_the_wait_what_is_ready_is_used_and_the_rest_joins_later() -> None:
    activation = active_on(("d1", "v"), ("d2", "v"))
    activation.handle(PlanPublished(plan(2, ("d1", "w"), ("d2", "w"))), 1.0)
    activation.handle(ack("d1", 2, "w"), 1.5)
    assert activation.handle(Woke(), 3.0) == [WakeAt(6.0)]
    assert routed(activation.handle(Woke(), 6.0)) == [(2, [("d1", "w")])]
    assert routed(activation.handle(ack("d2", 2, "w"), 7.0)) == [(2, [("d1", "w"), ("d2", "w")])]
    assert activation.pending is None


def test_the_old_plan_stays_while_nothing_of_the_new_one_is_ready() -> None:
    activation = active_on(("d1", "v"))
    activation.handle(PlanPublished(plan(2, ("d1", "w"))), 1.0)
    assert activation.handle(Woke(), 6.0) == []
    assert activation.handle(ack("d1", 2, failed=("w",)), 7.0) == []
    assert activation.active is not None and activation.active.epoch.number == 1


def test_a_device_that_failed_to_load_is_left_out_and_delays_nobody() -> None:
    activation = active_on(("d1", "v"), ("d2", "v"))
    activation.handle(PlanPublished(plan(2, ("d1", "w"), ("d2", "w"))), 1.0)
    activation.handle(ack("d1", 2, failed=("w",)), 1.5)
    assert routed(activation.handle(ack("d2", 2, "w"), 2.0)) == [(2, [("d2", "w")])]


def test_lower_epochs_are_refused_term_first() -> None:
    activation = active_on(("d1", "v"))
    assert activation.handle(PlanPublished(plan(1, ("d2", "w"))), 1.0) == []
    assert activation.handle(PlanPublished(plan(1, ("d2", "w"), ("d1", "v"), term=2)), 1.0) == [WakeAt(6.0)]
    assert activation.handle(PlanPublished(plan(9, ("d3", "w"))), 1.1) == []
    assert activation.handle(ack("d3", 9, "w"), 1.2) == []
    assert activation.pending is not None and activation.pending.epoch == Epoch(2, 1)


def test_a_newer_plan_replaces_the_pending_one() -> None:
    activation = active_on(("d1", "v"))
    activation.handle(PlanPublished(plan(2, ("d1", "w"))), 1.0)
    activation.handle(PlanPublished(plan(3, ("d1", "x"))), 2.0)
    assert activation.handle(ack("d1", 2, "w"), 2.1) == []
    assert activation.handle(Woke(), 5.5) == [WakeAt(6.0)]
    assert routed(activation.handle(ack("d1", 3, "x"), 5.8)) == [(3, [("d1", "x")])]


def test_plans_that_come_faster_than_variants_load_do_not_prolong_the_wait() -> None:
    activation = active_on(("d1", "v"), ("d2", "v"))
    for number in range(2, 7):
        activation.handle(PlanPublished(plan(number, ("d1", "w"), ("d2", "w"))), float(number - 1))
    assert activation.handle(ack("d1", 6, "w"), 5.5) == []
    assert routed(activation.handle(Woke(), 6.0)) == [(6, [("d1", "w")])]
    activation.handle(PlanPublished(plan(7, ("d1", "w"), ("d2", "w"))), 6.2)
    actions = activation.handle(PlanPublished(plan(8, ("d1", "x"), ("d2", "x"))), 6.5)
    assert actions == [WakeAt(11.2)]  # something of the sixth was used: the wait began anew


def test_a_plan_that_changes_shares_only_is_activated_at_once() -> None:
    activation = active_on(("d1", "v"), ("d2", "w"))
    actions = activation.handle(PlanPublished(plan(2, ("d2", "w"), ("d1", "v"), share=0.9)), 1.0)
    assert routed(actions) == [(2, [("d1", "v"), ("d2", "w")])]


def test_a_vanished_device_is_left_at_once() -> None:
    activation = active_on(("d1", "v"), ("d2", "v"))
    actions = activation.handle(PlanPublished(plan(2, ("d1", "w"))), 1.0)
    assert routed(actions) == [(1, [("d1", "v")])]
    assert actions[1:] == [WakeAt(6.0)]
    assert routed(activation.handle(ack("d1", 2, "w"), 2.0)) == [(2, [("d1", "w")])]


def test_an_app_whose_devices_all_vanished_turns_to_the_new_plan_at_once() -> None:
    activation = active_on(("d1", "v"))
    assert routed(activation.handle(PlanPublished(plan(2, ("d2", "w"))), 1.0)) == [(2, [("d2", "w")])]


def test_a_plan_without_the_app_is_activated_so_that_the_router_can_say_so() -> None:
    activation = active_on(("d1", "v"))
    actions = activation.handle(PlanPublished(plan(2, ("d1", "v"), app="other")), 1.0)
    assert [a.plan.of_app("a") for a in actions if isinstance(a, Activate)] == [()]


def test_a_slice_that_is_loading_goes_on_with_what_it_holds_for_what_it_was_given_before() -> None:
    activation = active_on(("d1", "v"), ("d2", "v"), stays=True)
    loading = replace(plan(2, ("d1", "w"), ("d2", "w"), share=0.4), demand={"a": 20.0})
    assert activation.active is not None
    assert activation.handle(PlanPublished(loading), 1.0) == [WakeAt(1.0 + ANSWER_S)]
    activation.handle(ack("d1", 2, "w"), 1.2)
    assert routed(activation.handle(Woke(), 1.0 + ANSWER_S)) == [(2, [("d1", "w"), ("d2", "v")])]
    assert [p.share for p in activation.active.placements] == [0.4, 0.5]
    more = replace(plan(3, ("d1", "w"), ("d2", "x"), share=0.4), demand={"a": 80.0})
    activation.handle(PlanPublished(more), 3.0)
    activation.handle(ack("d1", 3, "w"), 3.1)
    activation.handle(Woke(), 3.0 + ANSWER_S)
    assert [p.share for p in activation.active.placements] == [0.4, 0.5 * 20 / 80]
    assert routed(activation.handle(ack("d2", 3, "x"), 9.0)) == [(3, [("d1", "w"), ("d2", "x")])]
    assert activation.pending is None


def test_a_slice_that_loads_for_another_app_serves_this_one_until_it_is_done_or_all_are_ready() -> None:
    def swapped() -> Activation:
        activation = active_on(("d1", "v"), ("d2", "v"), stays=True)
        moved = plan(2, ("d1", "v"), ("d3", "w"))
        other = Placement("d2", "b", ("z",), 1.0, 8)
        activation.handle(PlanPublished(replace(moved, placements=(*moved.placements, other))), 1.0)
        activation.handle(ack("d1", 2, "v"), 1.1)
        activation.handle(Woke(), 1.0 + ANSWER_S)
        assert activation.active is not None
        assert [p.device for p in activation.active.of_app("a")] == ["d1", "d2"]
        return activation

    mine = swapped()
    mine.handle(ack("d2", 2, "z"), 4.0)
    assert mine.active is not None and [p.device for p in mine.active.of_app("a")] == ["d1"]
    mine = swapped()
    mine.handle(ack("d3", 2, "w"), 4.0)
    assert mine.active is not None and [p.device for p in mine.active.of_app("a")] == ["d1", "d3"]
    assert mine.pending is None


def test_a_slice_that_has_answered_a_plan_that_is_still_to_come_goes_on_with_what_it_holds_until_that_is_here() -> None:
    activation = active_on(("d1", "v"), ("d2", "v"), stays=True)
    activation.handle(PlanPublished(plan(2, ("d1", "w"), ("d2", "w"))), 1.0)
    assert activation.handle(ack("d2", 3, "x"), 1.1) == []
    assert activation.handle(ack("d1", 2, "w"), 1.2) == []
    assert routed(activation.handle(Woke(), 1.0 + ANSWER_S)) == [(2, [("d1", "w"), ("d2", "v")])]
