"""PROTEAN's rule in a running system: GPUs cut between two geometries as best-effort queries come and go."""

from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.planner.geometry.protean_controller import _Asked
from sluicegate.planner.geometry.protean_geometry import LARGE, SMALL
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slice_profiles import with_slices
from tests.models.recut_world import A100, GB, RecutWorld

SMALL_TEXT, LARGE_TEXT = "+".join(SMALL), "+".join(LARGE)


def served() -> Catalogue:
    """A strict variant that 3g slows by 1.7, and a best-effort one of 3 GB a batch, which 2g and 1g have room for."""

    def profile(name: str, seconds: float, memory: int) -> Profile:
        points = tuple(BatchLatency(b, seconds * (1 + b) / 2, seconds * (1 + b) / 2) for b in (1, 8))
        return Profile(variant=name, device_type="a100", points=points, memory_bytes=memory * GB)

    catalogue = Catalogue.of(
        [App(name="strict", slo=0.6), App(name="loose", slo=3.0, query_class=QueryClass.BEST_EFFORT)],
        [Variant(name=name, app=name, accuracy=0.9) for name in ("strict", "loose")],
        [profile("strict", 0.05, 6), profile("loose", 0.1, 3)],
    )
    return with_slices(catalogue, "a100", {p.name: p.compute for p in A100.profiles.values()}, rdf={})


def world(gpus: int = 4, cut_s: float | None = 2.0) -> RecutWorld:
    return RecutWorld({f"g{i}": "7g" for i in range(gpus)}, rule="protean", served=served(), cut_s=cut_s)


def test_some_best_effort_queries_get_small_slices_and_many_a_large_one() -> None:
    one = world()
    one.run(90, strict=60, loose=10)
    assert one.shapes() == [SMALL_TEXT] * 4
    assert min(one.plans[-1].served.values()) > 0.999
    before = one.cuts
    one.run(60, strict=60, loose=10)
    assert one.cuts == before
    one.run(180, strict=20, loose=200)
    assert LARGE_TEXT in one.shapes()


def test_without_best_effort_nothing_is_wished_for() -> None:
    one = RecutWorld({"g0": "7g"}, rule="protean")
    one.run(30, light=100, heavy=5)
    assert one.cuts == 0


def test_a_wish_counts_three_times_before_a_gpu_is_cut_and_one_is_cut_at_a_time() -> None:
    one = world()
    one.run(4, strict=60, loose=10)
    assert one.cuts == 0
    one.run(4, strict=60, loose=10)
    assert one.cuts == 1  # three ticks of two seconds; RecutWorld checks that never more than one is away


def test_a_gpu_that_cannot_be_cut_gives_its_turn_back() -> None:
    one = world()
    one.gpus["g3"].fault = one.gpus["g2"].fault = "in use by another process"
    one.run(90, strict=60, loose=10)
    assert "recut_failed" in one.states()
    assert one.shapes()[-2:] == ["7g", "7g"]
    assert "7g" not in one.shapes()[:2]


def test_a_lone_gpu_is_cut_too() -> None:
    one = world(gpus=1)
    one.run(60, strict=20, loose=5)
    assert one.shapes() != ["7g"]
    assert one.plans[-1].of_device("g0")


def test_the_next_leader_starts_no_change_while_an_inherited_one_runs() -> None:
    one = world(cut_s=None)
    one.run(20, strict=60, loose=10)
    assert len(one.asked) == 1
    actions = one.controller.lead(2, one.plans[-1], "term 2", one.now)
    assert actions
    one.run(20, strict=60, loose=10)
    assert len(one.asked) == 1


def test_best_effort_queries_are_counted_where_the_plan_sends_them() -> None:
    """60/s of which g0 takes two thirds of what is served, by two placements; a variant counts by what it takes."""
    placements = [
        Placement("g0", "loose", ("loose",), 0.1, 8, "2g.0"),
        Placement("g0", "loose", ("loose",), 0.3, 8, "1g.0"),
        Placement("g1", "loose", ("loose",), 0.2, 8, "2g.0"),
        Placement("g1", "strict", ("strict",), 1.0, 8, "4g.0"),
        Placement("g1", "gone", ("gone",), 1.0, 8, "1g.0"),
    ]
    plan = Plan(epoch=Epoch(1, 1), created=1.7e9, placements=tuple(placements), demand={"loose": 60.0, "strict": 9.0})
    asked = _Asked(plan, served(), "p95")
    assert [asked.rate(name, 0.5) for name in ("g0", "g1", "g2")] == pytest.approx([40.0, 20.0, 0.0])
    nowhere = _Asked(replace(plan, placements=()), served(), "p95")
    assert [nowhere.rate(name, part) for name, part in (("g0", 0.25), ("g1", 0.5))] == [15.0, 30.0]
    gpu = Device(name="g0", type="a100", slices=())
    found = [asked.demand(kind, gpu) for kind in (QueryClass.STRICT, QueryClass.BEST_EFFORT)]
    assert [demand.name if demand else None for demand in found] == ["strict", "loose"]


def test_a_plan_that_places_and_cuts_as_the_one_in_force_is_not_published_again() -> None:
    one = world(gpus=2)
    one.run(90, strict=60, loose=10)
    assert one.plans[-1].geometries
    before = len(one.plans)
    one.run(60, strict=60, loose=10)
    assert len(one.plans) == before
