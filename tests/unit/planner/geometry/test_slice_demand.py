"""From what arrived to a geometry problem.

Forecasts that remember, reserves in proportion, plans that follow the SLO.
"""

from pathlib import Path

import pytest
import yaml

from reproduce.protean.geometry_demand import SliceDemand, SliceForecast, first_cut, lasting, slack_left, slice_problem
from reproduce.protean.slices.slices_fields import slice_scenario
from sluicegate.domain.models.app import QueryClass
from sluicegate.planner.geometry.geometry_search import GeometrySettings
from sluicegate.planner.geometry.gpu_pools import sliced
from sluicegate.planner.geometry.joint_plan import plan_geometry
from sluicegate.planner.geometry.mig_tables import parse_geometry, table_of

WIKI = Path(__file__).parents[4] / "examples" / "scenarios" / "protean-wiki.yaml"
TABLE = slice_scenario(yaml.safe_load(WIKI.read_text())).table()
A100 = table_of("a100")


def plan(
    strict: str, others: dict[str, float], *, start: str, changes: int | None = None
) -> dict[str, tuple[str, ...]]:
    devices = tuple(sliced(f"g{i}", "a100", parse_geometry(start)) for i in range(8))
    problem = slice_problem(SliceDemand(strict, 20.0, others), TABLE, A100, devices, multiplier=3.0)
    chosen = GeometrySettings(max_changes=changes, change_weight=0.05, quality=slack_left, shared=True)
    return dict(plan_geometry(problem, chosen).changes)


def test_best_effort_variants_are_remembered_longer_than_an_interval() -> None:
    forecast = SliceForecast("s", alpha=0.5, others_alpha=0.1)
    first = forecast.update(10.0, {"a": 10.0})
    assert first == SliceDemand("s", 10.0, {"a": 10.0})
    second = forecast.update(20.0, {"b": 10.0})
    assert second.strict_mean == pytest.approx(15.0)
    assert second.others == pytest.approx({"a": 9.0, "b": 1.0})
    for _ in range(60):
        last = forecast.update(20.0, {"b": 10.0})
    assert set(last.others) == {"b"}


def test_the_reserve_keeps_the_proportions_and_exceeds_what_there_is() -> None:
    devices = tuple(sliced(f"g{i}", "a100", ("4g", "3g")) for i in range(8))
    asked = slice_problem(SliceDemand("vgg19", 10.0, {"mobilenet": 30.0}), TABLE, A100, devices, multiplier=3.0)
    hard = {d.app: d.qps for d in asked.demands if d.query_class is QueryClass.STRICT}
    reserve = {d.app: d.qps for d in asked.demands if d.query_class is QueryClass.BEST_EFFORT}
    assert hard == {"vgg19": 10.0, "mobilenet": 30.0}
    assert reserve["mobilenet"] == pytest.approx(3 * reserve["vgg19"])
    assert min(plan_geometry(asked, GeometrySettings(shared=True)).counts.whole.served) < 1.0


def test_small_slices_give_way_to_large_ones_where_bursts_need_them_two_gpus_at_a_time() -> None:
    changes = plan("vgg19", {"mobilenet": 20.0}, start="4g+2g+1g")
    assert len(changes) == 2
    assert set(changes.values()) == {("4g", "3g")}
    assert plan("vgg19", {"mobilenet": 20.0}, start="4g+3g") == {}


def test_a_strict_variant_that_bears_little_crowding_has_the_second_largest_slice_all_the_same() -> None:
    # 3g slows it by 1.85: too much beside others, and without 3g only half of a cut GPU would serve it.
    assert set(plan("gpt2", {"mobilenet": 20.0}, start="4g+2g+1g").values()) == {("4g", "3g")}


def test_without_best_effort_a_variant_that_wastes_slices_gets_whole_gpus() -> None:
    changes = plan("dpn92", {}, start="4g+3g", changes=8)
    assert set(changes.values()) == {("7g",)}


def test_geometries_that_the_next_variant_has_no_room_on_are_not_planned_with() -> None:
    three = ("3g", "2g", "2g")
    kept = lasting(A100, TABLE, "vgg19", ["dpn92", "resnet50", "googlenet"], multiplier=3.0).undominated
    assert ("4g", "3g") in kept
    assert three not in kept, "a batch of 13.7 GB fits on its 3g alone"
    assert three in lasting(A100, TABLE, "vgg19", ["resnet50", "googlenet"], multiplier=3.0).undominated


def test_geometries_that_take_much_smaller_strict_bursts_are_not_planned_with() -> None:
    # Whole GPUs end two times two batches of 13.7 GB within 0.54 s, 4g+3g two and one.
    kept = lasting(A100, TABLE, "dpn92", [], multiplier=3.0)
    assert kept.undominated == (("7g",),)
    assert first_cut(kept, TABLE, "dpn92", multiplier=3.0) == ("7g",)
    # Both end four of VGG19, 4g+2g+1g three; of those that do, 4g+3g ends most in a second.
    kept = lasting(A100, TABLE, "vgg19", [], multiplier=3.0)
    assert {("7g",), ("4g", "3g")} <= set(kept.undominated)
    assert ("4g", "2g", "1g") not in kept.undominated
    assert first_cut(kept, TABLE, "vgg19", multiplier=3.0) in {("4g", "3g"), ("3g", "2g", "2g")}
