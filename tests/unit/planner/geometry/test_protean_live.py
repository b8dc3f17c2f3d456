"""PROTEAN's rule in a running system: GPUs cut between two geometries as best-effort queries come and go."""

from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.planner.geometry.gpu_pools import sliced
from sluicegate.planner.geometry.protean_controller import ProteanRule, RuleSettings, _Asked
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


NOW = 1.7e9
HEARD = Plan(epoch=Epoch(1, 1), created=NOW, placements=(), demand={"strict": 60.0, "loose": 10.0})
GPUS = tuple(sliced(f"g{i}", "a100", ("7g",)) for i in range(3))


def ticked(
    rule: ProteanRule, at: float, *, devices: tuple[Device, ...] = GPUS, changing: str = "", let_be: str = ""
) -> dict[str, list[str]]:
    """Profiles of what is to be cut; ``changing`` and ``let_be``: names, one after the other."""
    told = rule.tick(devices, HEARD, served(), NOW + at, changing=changing.split(), let_be=let_be.split())
    return {name: [part.profile for part in parts] for name, parts in told.items()}


def test_the_rule_counts_a_wish_once_a_period_and_then_cuts_as_many_as_have_turns() -> None:
    rule = ProteanRule(RuleSettings(period=4.0))
    assert rule.tick(GPUS, None, served(), NOW, changing=(), let_be=()) == {}
    assert [ticked(rule, at) for at in (0.0, 3.9, 4.0, 7.9)] == [{}] * 4
    assert ticked(rule, 8.0) == {"g0": list(SMALL)}
    assert [ticked(rule, at, changing="g0") for at in (12.0, 16.0, 20.0, 24.0)] == [{}] * 4, "one turn of three GPUs"
    rule.ended("g0")
    cut = (sliced("g0", "a100", SMALL), *GPUS[1:])
    assert ticked(rule, 28.0, devices=cut) == {"g1": list(SMALL)}
    wide = ProteanRule(RuleSettings(patience=1, fraction=0.7))
    assert ticked(wide, 0.0) == {"g0": list(SMALL), "g1": list(SMALL)}


def test_what_may_not_be_cut_now_or_cannot_be_cut_so_is_passed_over() -> None:
    hasty = RuleSettings(patience=1)
    assert ticked(ProteanRule(hasty), 0.0, let_be="g0 g1") == {"g2": list(SMALL)}
    assert ticked(ProteanRule(hasty), 0.0, changing="g1") == {}, "begun by another: it has the only turn"
    more = tuple(sliced(f"g{i}", "a100", ("7g",)) for i in range(7))
    begun = ticked(ProteanRule(hasty), 0.0, changing="g1", devices=more)
    assert begun == {"g0": list(SMALL)}, "of seven GPUs two have turns, and another began one of them"
    assert [*ticked(ProteanRule(hasty), 0.0, devices=more)] == ["g0", "g1"]
    other = (sliced("a0", "a30", ("4g",)), Device(name="c0", type="cpu"), GPUS[2])
    assert ticked(ProteanRule(hasty), 0.0, devices=other) == {"g2": list(SMALL)}
    former = ProteanRule(hasty)
    assert ticked(former, 0.0) == {"g0": list(SMALL)}
    former.begin()
    assert ticked(former, 2.0) == {"g0": list(SMALL)}, "in a new term no turn is out"


def test_a_full_batch_is_what_ends_in_half_the_slo_and_its_slowdown_is_that_of_this_batch() -> None:
    known = served()
    tight = replace(known, apps={**known.apps, "strict": replace(known.apps["strict"], slo=0.25)})
    gpu = Device(name="g0", type="a100", slices=())
    full = _Asked(HEARD, known, "median").demand(QueryClass.STRICT, gpu)
    half = _Asked(HEARD, tight, "median").demand(QueryClass.STRICT, gpu)
    none = _Asked(HEARD, replace(tight, apps={**known.apps, "strict": replace(known.apps["strict"], slo=0.01)}), "p95")
    least = none.demand(QueryClass.STRICT, gpu)
    assert full and half and least
    assert (full.batch, half.batch, least.batch) == (8, 4, 1)
    assert [d.solo for d in (full, half, least)] == pytest.approx([0.225, 0.125, 0.05])
    assert (full.name, full.memory_bytes, full.fbr, full.rdf["7g"]) == ("strict", 6 * GB, 1.0, 1.0)
    part = known.profiles["strict", "a100:3g"].curve("median")
    assert half.rdf["3g"] == pytest.approx(part(4) / 0.125)
    loose = _Asked(HEARD, known, "median").demand(QueryClass.BEST_EFFORT, gpu)
    assert loose is not None and (loose.name, loose.batch) == ("loose", 8)
    assert loose.solo == pytest.approx(0.45)


def test_the_variant_of_a_class_is_the_gpus_busiest_else_anybodys_else_the_best_of_the_app_asked_most() -> None:
    base = served()
    variants = {
        name: replace(base.variants["strict"], name=name, app=name[0], accuracy=accuracy)
        for name, accuracy in (("a-good", 0.9), ("a-poor", 0.6), ("b-good", 0.8), ("b-poor", 0.5))
    }
    profile = base.profiles["strict", "a100"]
    apps = {app: replace(base.apps["strict"], name=app) for app in "ab"}
    known = Catalogue(apps, variants, {(name, "a100"): replace(profile, variant=name) for name in variants})

    def variant(*placements: Placement, a: float = 10.0, b: float = 30.0) -> str:
        plan = replace(HEARD, placements=placements, demand={"a": a, "b": b})
        found = _Asked(plan, known, "median").demand(QueryClass.STRICT, Device(name="g0", type="a100"))
        return found.name if found else ""

    mine = Placement("g0", "a", ("a-poor",), 0.9, 8, "4g.0")
    beside = Placement("g0", "b", ("b-poor", "b-good"), 0.25, 8, "3g.4")
    assert variant(mine, beside) == "a-poor"  # 9 of ten, and 7.5 of thirty
    assert variant(mine, replace(beside, share=0.5)) == "b-poor"
    assert variant(replace(mine, device="g1"), replace(beside, device="g2")) == "a-poor"
    assert variant(replace(mine, share=0.01), replace(beside, device="g2")) == "a-poor"
    assert (variant(), variant(a=31.0)) == ("b-good", "a-good")
