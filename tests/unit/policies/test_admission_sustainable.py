"""Admission within the sustainable rate: modes, hysteresis, fairness, and that the bound is exact."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.actions import Accept, AdmissionAction, Announce, Expire, Reject
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived, Hosted, HostedOn
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.admission.registry import admission
from sluicegate.policies.admission.sustainable import FairWindow, SustainableAdmission
from sluicegate.policies.admission.sustained_rates import sustained
from sluicegate.policies.serving.duty_cycle import turn_of


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


def test_a_deadline_that_passed_is_rejected_first_and_takes_no_place() -> None:
    policy = SustainableAdmission(bound=1, window_s=1.0)
    (late,) = policy.handle(Arrived(Query("q", "a", 0.0, 0.5)), 0.6)
    assert isinstance(late, Expire)
    assert isinstance(ask(policy, 0.7)[-1], Accept)


def test_a_greedy_client_leaves_others_their_share_and_may_use_what_they_leave() -> None:
    fair = FairWindow(10, 1.0)
    assert fair.admit("quiet", 0.0)
    taken = [fair.admit("greedy", 0.001 * i) for i in range(1, 20)]
    assert sum(taken) == 5
    assert sum(fair.admit("quiet", 0.1 + 0.001 * i) for i in range(10)) == 4
    alone = FairWindow(10, 1.0)
    assert sum(alone.admit("greedy", 0.001 * i) for i in range(20)) == 10


def test_many_clients_share_a_small_bound_without_starving_all() -> None:
    fair = FairWindow(3, 1.0)
    assert sum(fair.admit(str(i), 0.001 * i) for i in range(20)) == 3


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
    policy.resize("a", 4, 1.0)
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


def test_a_slice_that_others_share_sustains_what_its_turn_in_the_cycle_leaves() -> None:
    curves = {"a": LatencyCurve((1.0,) * 3), "b": LatencyCurve((2.0,) * 2)}
    promise = Promise(weakly_hard=(WeaklyHard(1, 3),))
    part = HostedOn("d0", "whole", (Hosted("v", 0.9, curves["a"]),))
    turn = turn_of("a", curves, {"a": 6.0, "b": 6.0})
    assert turn == (3, 2.0)
    alone = sustained([part], 6.0, promise)
    shared = sustained([part], 6.0, promise, {("d0", "whole"): turn})
    assert alone is not None and shared is not None
    assert (alone.bound, alone.window_s) == (4, 1.0)
    assert (shared.bound, shared.window_s) == (4, 3.0)


def test_an_app_on_unequal_slices_sustains_the_least_of_them_everywhere_and_more_on_its_faster_variants() -> None:
    """One miss in three. Batches of 1 s and 2 rows: 3 a window; of 0.5 s and 4 rows: 6 in half of one."""
    promise = Promise(weakly_hard=(WeaklyHard(2, 6),))
    good = Hosted("good", 0.9, LatencyCurve((1.0, 1.0)))
    fast = Hosted("fast", 0.7, LatencyCurve((0.5,) * 4))
    slower = Hosted("good", 0.9, LatencyCurve((1.5, 1.5)))
    alone = sustained([HostedOn("d0", "whole", (good,))], 4.0, promise)
    assert alone is not None
    assert (alone.bound, alone.window_s, alone.degraded) == (3, 1.0, 3)
    both = sustained([HostedOn("d0", "whole", (good, fast))], 4.0, promise)
    assert both is not None
    assert (both.bound, both.window_s, both.degraded) == (3, 1.0, 12)
    mixed = sustained([HostedOn("d0", "left", (good, fast)), HostedOn("d1", "whole", (slower, fast))], 4.0, promise)
    assert mixed is not None
    assert (mixed.bound, mixed.window_s) == (2 * 3, 1.5)  # (1, 3) on each
    assert mixed.degraded == 2 * 6 * 3  # 1.5 s are three windows of the faster variant
