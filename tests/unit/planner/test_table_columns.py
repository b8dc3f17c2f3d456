"""Columns of tables: which variants share a slice, which app gets which slice, at which share, for what is promised."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Plan
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.load_curve import pieces, promises
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel
from sluicegate.planner.policy_tables.table_requests import TableRules, questions
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.planner.registry import planner
from sluicegate.profiles.catalogue.catalogue import Catalogue

MB = 1 << 20
SPEED = {"cpu": 1.0, "gpu": 0.2}
SIZES = {"small": (0.7, 0.01, 50), "mid": (0.8, 0.03, 100), "beaten": (0.75, 0.04, 100), "big": (0.9, 0.08, 400)}


def catalogue() -> Catalogue:
    apps, variants, profiles = [], [], []
    for app in ("a", "b"):
        apps.append(App(name=app, slo=0.1))
        for name, (accuracy, seconds, memory) in SIZES.items():
            variants.append(Variant(name=f"{app}-{name}", app=app, accuracy=accuracy))
            for kind, factor in SPEED.items():
                points = (
                    BatchLatency(1, factor * seconds, factor * seconds),
                    BatchLatency(8, 5 * factor * seconds, 5 * factor * seconds),
                )
                profiles.append(
                    Profile(variant=f"{app}-{name}", device_type=kind, points=points, memory_bytes=memory * MB)
                )
    return Catalogue.of(apps, variants, profiles)


def ask(cpus: int, gpus: int = 0, *, memory: int = 0, **qps: float) -> Problem:
    devices = [Device(name=f"cpu{i:02d}", type="cpu", memory_bytes=memory) for i in range(cpus)]
    devices += [Device(name=f"gpu{i:02d}", type="gpu") for i in range(gpus)]
    demands = tuple(AppDemand(app=app, qps=q, slo=0.1) for app, q in qps.items())
    return Problem(demands=demands, devices=tuple(devices), catalogue=catalogue(), tables=TableRules())


def units(answer: Allocation) -> Counter[tuple[str, str]]:
    """Slices by app and kind of device."""
    return Counter((p.app, p.device[:3]) for p in answer.placements)


def test_equal_workers_share_equally_and_hold_the_whole_front() -> None:
    answer = planner("allocation").allocate(ask(4, a=50.0))
    assert {p.variants for p in answer.placements} == {("a-big", "a-mid", "a-small")}
    assert {p.share for p in answer.placements} == {0.25}
    assert answer.served == {"a": 1.0}
    assert 0.7 / 0.9 <= answer.objective <= answer.bound <= 1.0
    assert answer.loads == 12


@pytest.mark.parametrize(("share", "qps"), [(0.3, 60.0), (0.5, 100.0), (0.7, 100.0)])
def test_tables_are_made_for_what_is_placed_and_for_no_more_than_all(share: float, qps: float) -> None:
    problem = ask(2, a=100.0)
    placements = tuple(replace(p, share=share) for p in planner("allocation").allocate(problem).placements)
    plan = Plan(epoch=Epoch(1, 1), created=0.0, placements=placements, demand={"a": 100.0})
    (question,) = questions(plan, problem.catalogue, problem.devices, {}, TableRules())
    assert question.model.qps == pytest.approx(qps)
    uneven = replace(plan, placements=(placements[0], replace(placements[1], share=3 * share)))
    (question,) = questions(uneven, problem.catalogue, problem.devices, {}, TableRules())
    assert question.model.qps == pytest.approx(min(400.0 * share, 100.0))


def test_where_memory_is_short_the_load_says_which_variants_are_held() -> None:
    """Two of three fit: the accurate ones while there is little to do, a fast one where there is much."""
    calm = planner("allocation").allocate(ask(2, memory=510 * MB, a=4.0))
    busy = planner("allocation").allocate(ask(2, memory=510 * MB, a=150.0))
    (held,), (held_busy,) = ({p.variants for p in answer.placements} for answer in (calm, busy))
    assert held == ("a-big", "a-mid")
    assert "a-small" in held_busy
    assert busy.served == {"a": 1.0}


def test_faster_workers_take_more_and_the_split_does_not_follow_the_demand() -> None:
    shares = [
        {p.device: p.share for p in planner("allocation").allocate(ask(2, 2, a=qps)).placements}
        for qps in (100.0, 130.0)
    ]
    assert shares[0] == shares[1]
    assert shares[0]["gpu00"] == pytest.approx(5.0 * shares[0]["cpu00"])
    assert sum(shares[0].values()) == pytest.approx(1.0)


def test_apps_get_the_kind_that_pays_for_them() -> None:
    """By proportion both apps would have part of each kind; the busy one gains most from the fast workers."""
    answer = planner("allocation").allocate(ask(3, 2, a=300.0, b=20.0))
    assert units(answer)["a", "gpu"] == 2
    assert units(answer)["b", "cpu"] >= 1
    assert min(answer.served.values()) == 1.0
    assert answer.headroom["a"] > 1.0


def test_devices_follow_demand_and_stay_where_they_can() -> None:
    first = planner("allocation").allocate(ask(10, a=100.0, b=100.0))
    changed = replace(ask(10, a=420.0, b=20.0), previous=first.placements)
    second = planner("allocation").allocate(changed)
    gained = units(second)["a", "cpu"] - units(first)["a", "cpu"]
    assert gained > 0
    before = {p.device: p.app for p in first.placements}
    assert sum(p.app != before[p.device] for p in second.placements) == gained
    assert second.loads == 3 * gained


def test_shortage_is_shared_fairly() -> None:
    answer = planner("allocation").allocate(ask(4, a=2000.0, b=2000.0))
    assert units(answer) == {("a", "cpu"): 2, ("b", "cpu"): 2}
    assert answer.served["a"] < 1.0
    assert answer.served["a"] == pytest.approx(answer.served["b"])


def test_an_app_with_little_demand_still_gets_a_worker() -> None:
    answer = planner("allocation").allocate(ask(3, a=1000.0, b=0.001))
    assert Counter(p.app for p in answer.placements) == {"a": 2, "b": 1}
    assert answer.served["a"] < 1.0


def test_with_fewer_workers_than_apps_none_goes_without() -> None:
    problem = replace(ask(1, a=20.0, b=5.0), variants_per_device=2)
    answer = planner("allocation").allocate(problem)
    assert {p.app for p in answer.placements} == {"a", "b"}
    assert min(answer.served.values()) == 1.0
    plan = Plan(epoch=Epoch(1, 1), created=0.0, placements=answer.placements, demand={"a": 20.0, "b": 5.0})
    assert (
        questions(plan, problem.catalogue, problem.devices, {}, TableRules()) == ()
    )  # no table knows of the other app


def test_no_device_or_no_feasible_variant_is_no_placement() -> None:
    assert planner("allocation").allocate(ask(0, a=5.0)).placements == ()
    impossible = replace(ask(2), demands=(AppDemand(app="a", qps=5.0, slo=0.001),))
    answer = planner("allocation").allocate(impossible)
    assert answer.placements == ()
    assert answer.served == {"a": 0.0}


def classes(cpus: int, **qps: float) -> Problem:
    """App a, with the SLOs ``tight`` 40 ms and ``loose`` 400 ms."""
    slos = {"tight": 0.05, "loose": 0.4}
    demands = tuple(AppDemand(app="a", qps=q, slo=slos[name]) for name, q in qps.items())
    return replace(ask(cpus), demands=demands)


def test_each_slo_class_gets_slices_of_its_own() -> None:
    answer = planner("allocation").allocate(classes(6, tight=80.0, loose=80.0))
    tight = [p for p in answer.placements if p.slo == 0.05]
    loose = [p for p in answer.placements if p.slo == 0.4]
    assert len(tight) + len(loose) == 6
    assert len(tight) > len(loose)  # little slack needs more workers for the same demand
    assert sum(p.share for p in tight) == pytest.approx(0.5)
    assert sum(p.share for p in loose) == pytest.approx(0.5)


def test_with_fewer_slices_than_classes_the_tightest_slo_is_kept_for_all() -> None:
    (only,) = planner("allocation").allocate(classes(1, tight=5.0, loose=5.0)).placements
    assert (only.slo, only.share) == (0.05, 1.0)
    assert only.variants == ("a-mid", "a-small")  # the big one is not in time for the tight queries


@pytest.mark.parametrize(
    ("cpus", "asked", "made"),
    [
        (1, ("tight", "loose"), {0.05}),
        (2, ("tight",), {0.05}),
        (2, ("loose",), {0.4}),
        (2, ("tight", "loose"), {0.05, 0.4}),
    ],
)
def test_tables_are_made_for_the_slo_that_slices_were_rated_for(
    cpus: int, asked: tuple[str, ...], made: set[float]
) -> None:
    """The app's own is 100 ms."""
    problem = classes(cpus, **dict.fromkeys(asked, 5.0))
    placements = planner("allocation").allocate(problem).placements
    plan = Plan(epoch=Epoch(1, 1), created=0.0, placements=placements, demand={"a": 5.0 * len(asked)})
    found = questions(plan, problem.catalogue, problem.devices, {}, TableRules())
    assert {q.shelf.slo for q in found} == {p.slo for p in placements} == made
    assert all(q.model.slo < q.shelf.slo for q in found)


def test_slices_stay_with_the_class_that_they_served() -> None:
    first = planner("allocation").allocate(classes(6, tight=80.0, loose=80.0))
    again = replace(classes(6, tight=10.0, loose=600.0), previous=first.placements)
    before = {p.device: p.slo for p in first.placements}
    second = planner("allocation").allocate(again)
    moved = sum(p.slo != before[p.device] for p in second.placements)
    counts = [Counter(p.slo for p in a.placements)[0.05] for a in (first, second)]
    assert moved == counts[0] - counts[1] > 0


FRONT = tuple(
    Candidate(name, accuracy, tuple(s * (0.5 + 0.5 * b) for b in range(1, 17)))
    for name, accuracy, s in (("s", 0.7, 0.01), ("m", 0.8, 0.03), ("b", 0.9, 0.06))
)


def test_a_curve_is_concave_and_no_better_than_the_tables_it_stands_for() -> None:
    model = SelectionModel(variants=FRONT, slo=0.1, workers=2, qps=0.0)
    curve = pieces(model, best=0.9, max_violation=0.05)
    assert len(curve) > 3
    worths = [p.worth for p in curve]
    assert worths == sorted(worths, reverse=True) and worths[-1] > 0.0
    load = earned = 0.0
    for piece in curve:
        load, earned = load + piece.qps, earned + piece.qps * piece.worth
        exact = generate(replace(model, qps=2 * load)).table.expected
        worth = exact.accuracy * (1 - exact.violation) / 0.9 - exact.violation
        assert earned / load == pytest.approx(worth, abs=0.01)


def test_more_workers_in_turns_promise_more_each_and_counts_between_powers_of_two_cost_nothing() -> None:
    one, two, three = (promises(SelectionModel(variants=FRONT, slo=0.1, workers=k, qps=0.0)) for k in (1, 2, 3))
    assert three is two
    for few, more in zip(one, two, strict=True):
        assert more.accuracy - more.violation >= few.accuracy - few.violation - 1e-9


def test_an_app_none_of_whose_variants_is_ever_right_keeps_no_other_from_being_served() -> None:
    problem = ask(3, a=40.0, b=20.0)
    wrong = {n: replace(v, accuracy=0.0) if v.app == "b" else v for n, v in problem.catalogue.variants.items()}
    answer = planner("allocation").allocate(replace(problem, catalogue=replace(problem.catalogue, variants=wrong)))
    assert answer.served["a"] == 1.0


def test_bad_demand_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="qps"):
        planner("allocation").allocate(ask(1, a=float("nan")))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 6), st.integers(0, 4), st.floats(0.0, 500.0), st.floats(0.0, 500.0))
@pytest.mark.parametrize("name", ["allocation", "greedy-fill"])
def test_every_slice_has_one_app_and_shares_add_up(name: str, cpus: int, gpus: int, a: float, b: float) -> None:
    problem = ask(cpus, gpus, a=a, b=b)
    answer = planner(name).allocate(problem)
    assert len({p.device for p in answer.placements}) == len(answer.placements) <= cpus + gpus
    for app in ("a", "b"):
        shares = [p.share for p in answer.placements if p.app == app]
        assert not shares or sum(shares) == pytest.approx(answer.served[app], abs=1e-4)
    assert planner(name).allocate(problem) == answer
