"""What devices hold that the demand does not need: two apps of unlike load on devices of unlike kind."""

from collections import Counter

import pytest

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.registry import planner
from sluicegate.profiles.catalogue.catalogue import Catalogue

ACCURACY = {"low": 0.7, "mid": 0.85, "high": 0.95}
SECONDS = {"low": 0.01, "mid": 0.02, "high": 0.1}
CATALOGUE = Catalogue.of(
    [App(name=app, slo=0.5) for app in ("busy", "calm")],
    [Variant(name=f"{app}-{v}", app=app, accuracy=a) for app in ("busy", "calm") for v, a in ACCURACY.items()],
    [
        Profile(variant=f"{app}-{v}", device_type=kind, points=(BatchLatency(1, part * s, part * s),))
        for app in ("busy", "calm")
        for v, s in SECONDS.items()
        for kind, part in (("gpu", 0.1), ("old", 1.0))
        if (v, kind) != ("high", "old")
    ],
)


def asked(busy: float, calm: float, gpus: int, old: int, **more: object) -> Problem:
    devices = tuple(Device(name=f"{kind}{i}", type=kind) for kind, n in (("gpu", gpus), ("old", old)) for i in range(n))
    demands = (AppDemand(app="busy", qps=busy, slo=0.5), AppDemand(app="calm", qps=calm, slo=0.5))
    return Problem(demands=demands, devices=devices, catalogue=CATALOGUE, **more)  # type: ignore[arg-type]


def held(busy: float, calm: float, gpus: int, old: int, **more: object) -> Counter[tuple[str, str]]:
    """How many devices of each kind hold each variant."""
    found = planner("allocation").allocate(asked(busy, calm, gpus, old, **more))
    assert set(found.served.values()) == {1.0}
    return Counter((p.device[:3], *p.variants) for p in found.placements)


def test_an_idle_device_holds_what_loses_no_accuracy_or_the_least_and_helps_who_has_least_to_spare() -> None:
    """Both apps are answered by their best on a GPU each; nothing as good runs on the old ones."""
    assert held(70.0, 10.0, 2, 3) == {
        ("gpu", "busy-high"): 1, ("gpu", "calm-high"): 1, ("old", "busy-mid"): 3,
    }  # fmt: skip
    assert held(70.0, 10.0, 6, 0) == {("gpu", "busy-high"): 5, ("gpu", "calm-high"): 1}


@pytest.mark.parametrize("more", [{"money_weight": 0.01}, {"budget": 2.0}])
def test_where_money_counts_idle_devices_stay_empty(more: dict[str, float]) -> None:
    assert sum(held(70.0, 10.0, 2, 3, **more).values()) == 2


def test_an_idle_device_keeps_what_it_holds_that_is_of_use() -> None:
    before = (Placement("old1", "calm", ("calm-low",), 0.0, 1),)
    assert held(70.0, 10.0, 2, 3, previous=before)["old", "calm-low"] == 1


def test_without_assignment_an_idle_device_answers_nothing_either() -> None:
    found = planner("allocation-without-assignment").allocate(asked(70.0, 10.0, 2, 3))
    assert {(p.device[:3], p.share) for p in found.placements} == {("gpu", 1.0), ("old", 0.0)}
