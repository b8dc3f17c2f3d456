"""What a second is, is nobody's business: rare queries of slow models are planned as many of quick ones are.

Rates below one a second, shares of nothing and thresholds beside 0 show here.
"""

from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.geometry.gpu_pools import sliced
from sluicegate.planner.geometry.joint_plan import plan_geometry
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.planner.registry import PLANNERS, planner
from sluicegate.profiles.catalogue.catalogue import Catalogue

SLOWER = 8192.0
"""A power of two: sums of what is multiplied by it are the same digits."""
SPEED = {"cpu": 5.0, "a100:4g": 1.4, "a100:3g": 1.9, "a100:7g": 1.0}
MODELS = {
    "images-small": (0.71, 4.0, 0.4, (1, 4, 8)), "images-large": (0.83, 11.0, 0.6, (1, 4)),
    "notes-brief": (0.55, 6.0, 0.3, (1, 2, 6)), "notes-full": (0.64, 17.0, 0.7, (1, 2)),
}  # fmt: skip
FLOOR = {("images", QueryClass.STRICT): 0.8}
"""Classes of an app that other variants answer: their parts of its demand show."""
QPS = {"images": (300.0, 90.0), "notes": (60.0, 20.0)}


def problem(slower: float, load: float) -> Problem:
    points = {
        name: tuple((b, 0.001 * slower * first * (1.0 + growth * (b - 1))) for b in batches)
        for name, (_, first, growth, batches) in MODELS.items()
    }
    catalogue = Catalogue.of(
        [App(name="images", slo=0.21 * slower), App(name="notes", slo=0.37 * slower)],
        [Variant(name=name, app=name.partition("-")[0], accuracy=accuracy) for name, (accuracy, *_) in MODELS.items()],
        [
            Profile(
                variant=name,
                device_type=kind,
                points=tuple(BatchLatency(b, part * s, 1.1 * part * s) for b, s in points[name]),
            )
            for name in MODELS
            for kind, part in SPEED.items()
        ],
    )
    demands = tuple(
        AppDemand(
            app=app.name,
            qps=load * qps / slower,
            slo=app.slo,
            headroom=1.1,
            query_class=query_class,
            min_accuracy=FLOOR.get((app.name, query_class), 0.0),
        )
        for app in catalogue.apps.values()
        for query_class, qps in zip(QueryClass, QPS[app.name], strict=True)
    )
    devices = (
        sliced("cut", "a100", ("4g", "3g")), sliced("whole", "a100", ("7g",)),
        *(Device(name=f"cpu{i}", type="cpu") for i in range(2)),
    )  # fmt: skip
    return Problem(demands=demands, devices=devices, catalogue=catalogue)


def same(one: Allocation, other: Allocation) -> None:
    assert [replace(p, share=0.0) for p in one.placements] == [replace(p, share=0.0) for p in other.placements]
    assert [p.share for p in one.placements] == pytest.approx([p.share for p in other.placements], abs=1e-6)
    assert one.served == pytest.approx(other.served)
    assert one.served_by_class == pytest.approx(other.served_by_class)
    assert (one.objective, one.bound) == pytest.approx((other.objective, other.bound), abs=1e-6)
    assert (one.loads, one.geometries) == (other.loads, other.geometries)


@pytest.mark.parametrize("load", [0.25, 4.0])
@pytest.mark.parametrize("name", sorted(name for name in PLANNERS if not name.endswith("-published")))
def test_rare_queries_of_slow_models_are_planned_as_many_of_quick_ones(name: str, load: float) -> None:
    """But as published: an artifact reckons with whole queries a second."""
    quick, slow = (planner(name).allocate(problem(slower, load)) for slower in (1.0, SLOWER))
    assert quick.placements
    same(quick, slow)


def test_gpus_are_cut_alike() -> None:
    quick, slow = (plan_geometry(problem(slower, 2.0)) for slower in (1.0, SLOWER))
    assert quick.changes
    assert (quick.changes, quick.geometries) == (slow.changes, slow.geometries)
    assert quick.gained == pytest.approx(slow.gained, abs=1e-6)
    assert (quick.objective, quick.bound) == pytest.approx((slow.objective, slow.bound), abs=1e-6)
