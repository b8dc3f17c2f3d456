"""Numbers of the models that planners and policies are given: each tried at its bounds, inside, beyond, and as none."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, LengthPoints, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.capacity.autoscaling import ScalingSettings
from sluicegate.planner.mdp.mdp_model import (
    MAX_PHASES,
    MAX_QUEUE,
    MAX_SLACK_BINS,
    MAX_VARIANTS,
    MAX_WORKERS,
    Candidate,
    SelectionModel,
)
from sluicegate.planner.model_less.scaling_problem import ScalingVariant
from sluicegate.planner.policy_tables.table_requests import LibraryRules
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.problems.problem_checks import check
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slowdown import VariantDemand
from sluicegate.simulator.arrivals.rates import MAX_QPS, Rates
from sluicegate.simulator.arrivals.shares import named_shares, zipf_shares

TINY = 1e-12
POINTS = (BatchLatency(1, 0.01, 0.02), BatchLatency(4, 0.03, 0.05))
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.3), App(name="b", slo=0.6)],
    [Variant(name="av", app="a", accuracy=0.9), Variant(name="bv", app="b", accuracy=0.4)],
    [Profile(variant=name, device_type="cpu", points=POINTS) for name in ("av", "bv")],
)
PROBLEM = Problem(
    demands=(AppDemand(app="a", qps=3.0, slo=0.3), AppDemand(app="b", qps=5.0, slo=0.6)),
    devices=(Device(name="d0", type="cpu"), Device(name="d1", type="gpu")),
    catalogue=CATALOGUE,
)
MODEL = SelectionModel(
    variants=(Candidate("v", 0.6, (0.01, 0.02)), Candidate("w", 0.9, (0.03, 0.05))), slo=0.15, workers=2, qps=20.0
)
PROFILE = Profile(variant="v", device_type="cpu", points=POINTS)
DEMAND = VariantDemand(name="v", solo=0.1, memory_bytes=5, rdf={"3g": 2.0}, fbr=0.3, fbr_by_profile={"3g": 0.6})
SCALED = ScalingVariant(name="v", app="a", latency=0.1, capacity=5.0, cost=1.0)

Make = Callable[[Any], object]


def demanded(**change: Any) -> None:
    check(replace(PROBLEM, demands=(PROBLEM.demands[0], replace(PROBLEM.demands[1], **change))))


def device(**change: Any) -> None:
    check(replace(PROBLEM, devices=(PROBLEM.devices[0], replace(PROBLEM.devices[1], **change))))


def posed(**change: Any) -> None:
    check(replace(PROBLEM, **change))


def candidate(accuracy: float, latency: tuple[float, ...]) -> None:
    replace(MODEL, variants=(MODEL.variants[0], Candidate("c", accuracy, latency)))


def many(count: int) -> tuple[Candidate, ...]:
    return tuple(Candidate(f"v{i}", 0.5, (0.1,)) for i in range(count))


NONE = (nan, inf, -inf)
NOT_NEGATIVE: tuple[Sequence[Any], Sequence[Any]] = ((0.0, TINY, 1e9), (-TINY, *NONE))
POSITIVE: tuple[Sequence[Any], Sequence[Any]] = ((TINY, 1e9), (0.0, -1.0, *NONE))

TABLE: list[tuple[str, Make, Sequence[Any], Sequence[Any]]] = [
    ("demands[b].qps", lambda x: demanded(qps=x), *NOT_NEGATIVE),
    ("demands[b].slo", lambda x: demanded(slo=x), *POSITIVE),
    ("demands[b].headroom", lambda x: demanded(headroom=x), (1.0, 9.0), (1.0 - TINY, *NONE)),
    ("demands[b].spread", lambda x: demanded(spread=x), *NOT_NEGATIVE),
    ("demands[b].min_accuracy", lambda x: demanded(min_accuracy=x), *NOT_NEGATIVE),
    ("demands[b].weight", lambda x: demanded(weight=x), *POSITIVE),
    ("demands[a]", lambda x: demanded(app=x), ("b", "c"), ("a",)),
    ("devices[d1].price", lambda x: device(price=x), *NOT_NEGATIVE),
    ("devices[d1].memory_bytes", lambda x: device(memory_bytes=x), (0, 1 << 50), (-1,)),
    ("devices[d0]", lambda x: device(name=x), ("d1",), ("d0",)),
    ("latency_factor[bv@cpu]", lambda x: posed(latency_factor={("av", "cpu"): 1.0, ("bv", "cpu"): x}), *POSITIVE),
    ("stood[b]", lambda x: posed(stood={"a": 1.0, "b": x}), *NOT_NEGATIVE),
    ("price", lambda x: posed(price=x), *NOT_NEGATIVE),
    ("money_weight", lambda x: posed(money_weight=x), *NOT_NEGATIVE),
    ("strict_on_demand", lambda x: posed(strict_on_demand=x), (0.0, 1.0), (-TINY, 1.0 + TINY, *NONE)),
    ("budget", lambda x: posed(budget=x), (None, 0.0, 5.0), (-TINY, *NONE)),
    ("variants_per_device", lambda x: posed(variants_per_device=x), (1, 8), (0, -1)),
    ("max_loads", lambda x: posed(max_loads=x), (None, 0, 3), (-1,)),
    ("slo", lambda x: replace(MODEL, slo=x), (TINY, 9.0), (0.0, -1.0, *NONE)),
    ("arrival_shape", lambda x: replace(MODEL, arrival_shape=x), (0.05, 9.0), (0.05 - TINY, 0.0, -1.0, *NONE)),
    ("qps", lambda x: replace(MODEL, qps=x), *NOT_NEGATIVE),
    ("violation_price", lambda x: replace(MODEL, violation_price=x), *NOT_NEGATIVE),
    ("share", lambda x: replace(MODEL, share=x), (None,), (0.5,)),
    ("share", lambda x: replace(MODEL, dispatch="weighted", share=x), (TINY, 1.0), (None, 0.0, 1.0 + TINY, nan)),
    ("phases", lambda x: replace(MODEL, phases=x, late="drop"), (1,), (2,)),
    ("phases", lambda x: replace(MODEL, phases=x, batching="variable"), (1,), (2,)),
    ("dispatch", lambda x: replace(MODEL, dispatch=x), ("round_robin", "random"), ("robin",)),
    ("late", lambda x: replace(MODEL, late=x), ("serve", "drop"), ("keep",)),
    ("workers", lambda x: replace(MODEL, workers=x), (1, MAX_WORKERS), (0, MAX_WORKERS + 1, 1.0)),
    ("queue", lambda x: replace(MODEL, queue=x), (1, MAX_QUEUE), (0, MAX_QUEUE + 1, 1.0)),
    ("phases", lambda x: replace(MODEL, phases=x), (1, MAX_PHASES), (0, MAX_PHASES + 1, 1.0)),
    ("grid", lambda x: replace(MODEL, grid=x), (1, MAX_SLACK_BINS, "model"), (0, MAX_SLACK_BINS + 1, 1.0, "x")),
    ("variants", lambda x: replace(MODEL, variants=MODEL.variants[:1] * x), (1,), (0, 2)),
    ("variants", lambda x: replace(MODEL, variants=many(x)), (MAX_VARIANTS,), (MAX_VARIANTS + 1,)),
    ("variants.c.accuracy", lambda x: candidate(x, (0.1,)), (0.0, 1.0), (-TINY, 1.0 + TINY, nan)),
    ("variants.c.latency", lambda x: candidate(0.5, x), ((0.1,),), ((),)),
    ("variants.c.latency[2]", lambda x: candidate(0.5, (0.1, x)), (0.1, 0.2), (0.1 - TINY, 0.0, *NONE)),
    ("spacing", lambda x: LibraryRules(spacing=x), (1e-4, 1.0), (1e-4 - TINY, 1.0 + TINY, nan)),
    ("max_violation", lambda x: LibraryRules(max_violation=x), (TINY, 1.0), (0.0, 1.0 + TINY, nan)),
    ("v.latency", lambda x: replace(SCALED, latency=x), *POSITIVE),
    ("v.capacity", lambda x: replace(SCALED, capacity=x), *POSITIVE),
    ("v.resources", lambda x: replace(SCALED, resources=x), *POSITIVE),
    ("v.cost", lambda x: replace(SCALED, cost=x), *NOT_NEGATIVE),
    ("v.cost", lambda x: replace(SCALED, load=x), *NOT_NEGATIVE),
    ("scaling", lambda x: ScalingSettings(keep_alive=x), *NOT_NEGATIVE),
    ("scaling", lambda x: ScalingSettings(least=x, most=3), (0, 3), (-1, 4)),
    ("v.solo", lambda x: replace(DEMAND, solo=x), *POSITIVE),
    ("v.memory_bytes", lambda x: replace(DEMAND, memory_bytes=x), (0, 1 << 50), (-1,)),
    ("v.rdf.3g", lambda x: replace(DEMAND, rdf={"3g": x}), *POSITIVE),
    ("v.fbr.7g", lambda x: replace(DEMAND, fbr=x), *NOT_NEGATIVE),
    ("v.fbr.3g", lambda x: replace(DEMAND, fbr_by_profile={"3g": x}), *NOT_NEGATIVE),
    ("v.batch", lambda x: replace(DEMAND, batch=x), (1, 64), (0, -1)),
    ("points[4].median", lambda x: replace(PROFILE, points=(POINTS[0], BatchLatency(4, x, 0.1))), *POSITIVE),
    ("points[4].p95", lambda x: replace(PROFILE, points=(POINTS[0], BatchLatency(4, 0.1, x))), *POSITIVE),
    ("points.batch", lambda x: replace(PROFILE, points=(POINTS[0], BatchLatency(x, 1.0, 1.0))), (2, 9), (1, 0)),
    ("points.batch", lambda x: replace(PROFILE, points=(BatchLatency(x, 1.0, 1.0),)), (1,), (0, -1)),
    ("profile v@cpu", lambda x: replace(PROFILE, points=x), (POINTS,), ((),)),
    ("shorter.length", lambda x: replace(PROFILE, length=8, shorter=(LengthPoints(x, POINTS),)), (1, 7), (0, 8, 9)),
    (
        "shorter.length",
        lambda x: replace(PROFILE, length=8, shorter=(LengthPoints(3, POINTS), LengthPoints(x, POINTS))),
        (4,),
        (3, 2),
    ),
    ("rates.qps", lambda x: Rates.stepped([1.0, x]), (0.0, MAX_QPS), (-TINY, MAX_QPS * (1 + TINY), *NONE)),
    ("step", lambda x: Rates.stepped([1.0, 2.0], x), (TINY, 9e8), (0.0, -1.0, 1e9, nan)),
    ("rates.edges", lambda x: Rates(np.array([0.0, x, 2.0]), np.ones(2)), (TINY, 1.5), (0.0, 2.0, 3.0, *NONE)),
    ("rates.edges", lambda x: Rates(np.array([x, 1.0]), np.ones(1)), (0.0,), (TINY, -1.0, nan)),
    ("rates", lambda x: Rates(np.arange(x + 1.0), np.ones(2)), (2,), (1, 3)),
    ("rates", lambda x: Rates(np.arange(x + 1.0), np.ones(x)), (1, 2), (0,)),
    ("shares.zipf", lambda x: zipf_shares(2, x), (0.0, 50.0), (-TINY, 50.0 + 1e-9, *NONE)),
    ("shares", lambda x: zipf_shares(x), (1, 9), (0, -1)),
    ("shares", lambda x: named_shares(["a", "b"], {"a": x}), (TINY, 5.0), (0.0, -1.0, *NONE)),
    ("shares.c", lambda x: named_shares(["a", "b"], {"a": 1.0, x: 2.0}), ("b",), ("c",)),
]


@pytest.mark.parametrize(
    ("field", "make", "taken", "refused"), TABLE, ids=[f"{i}-{row[0]}" for i, row in enumerate(TABLE)]
)
def test_a_number_is_taken_within_its_bounds_and_refused_beyond_them_by_its_name(
    field: str, make: Make, taken: Sequence[Any], refused: Sequence[Any]
) -> None:
    for value in taken:
        make(value)
    for value in refused:
        with pytest.raises(InvalidInputError) as caught:
            make(value)
        assert caught.value.field == field


def test_an_app_may_be_asked_for_twice_only_in_two_classes_or_where_slos_are_told_apart() -> None:
    first, second = PROBLEM.demands[0], replace(PROBLEM.demands[0], slo=0.9)
    with pytest.raises(InvalidInputError, match="listed twice"):
        check(replace(PROBLEM, demands=(first, second)))
    check(replace(PROBLEM, demands=(first, second)), by_slo=True)
    with pytest.raises(InvalidInputError, match="listed twice"):
        check(replace(PROBLEM, demands=(first, replace(first, qps=9.0))), by_slo=True)
    check(replace(PROBLEM, demands=(first, replace(first, query_class=QueryClass.BEST_EFFORT))))


def test_shares_are_those_of_the_weights_in_the_order_of_the_apps() -> None:
    assert named_shares(["x", "y", "z"], {"z": 3.0, "x": 1.0}).tolist() == [0.25, 0.0, 0.75]
    assert zipf_shares(3, 1.0).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert zipf_shares(4, 0.0).tolist() == [0.25] * 4
