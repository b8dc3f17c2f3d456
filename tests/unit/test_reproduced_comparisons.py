"""What figures compare differs by what they say, and pages say what was done."""

import pytest

from reproduce.figure import Options
from reproduce.protean import vision
from reproduce.protean.runs import scenario
from reproduce.protean.slices.slices_experiment import workload_of
from reproduce.protean.slices.systems import world_of
from reproduce.protean.tables import wiki
from reproduce.proteus import ablation
from reproduce.proteus.workloads import Workload
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.registry import planner
from sluicegate.profiles.catalogue.catalogue import Catalogue

SECONDS = {"fast": 0.01, "good": 0.04}
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.1)],
    [Variant(name="fast", app="a", accuracy=0.8), Variant(name="good", app="a", accuracy=0.9)],
    [Profile(variant=v, device_type="cpu", points=(BatchLatency(1, s, s),)) for v, s in SECONDS.items()],
)
"""100 queries/s at 0.8 or 25 at 0.9 a device."""
BURSTY = Problem(
    demands=(AppDemand(app="a", qps=90.0, slo=0.1, spread=0.5),),
    devices=tuple(Device(name=f"d{i}", type="cpu") for i in range(4)),
    catalogue=CATALOGUE,
)

PROTEANS = ("protean", "protean-queue", "joint-geometry", "protean-published", "spot-only")


def test_what_takes_a_part_of_the_program_away_takes_away_nothing_else() -> None:
    work = Workload("", {}, mean={"a": 90.0}, peak={"a": 90.0})
    chosen = {}
    for system in ablation.mended():
        made = system.planner(work) if system.planner else planner(system.overrides.get("planner.name", "allocation"))
        chosen[system.name] = made.allocate(BURSTY).headroom
    whole = chosen.pop(ablation.ALL_PARTS)
    assert {name: held == whole for name, held in chosen.items()} == {
        "Sluicegate": False,
        "headroom at its price": False,
        **{f"without {part}": True for part in ablation.PARTS},
    }


def test_whose_share_of_a_gain_is_what_is_told_from_one_start() -> None:
    wiki = scenario("protean-wiki", 1.0, systems=dict.fromkeys(PROTEANS))
    begun = {name: world_of(wiki, name, workload_of(wiki, 0), 0).gpus[0].geometry for name in PROTEANS}
    assert begun == dict.fromkeys(PROTEANS, ("4g", "3g"))


def test_what_a_page_says_of_a_cut_is_what_its_worlds_do(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"gpus": {"count": 20}, "reconfiguration": {"reshape_s": 5.0}, "workload": {"redraw_s": 7.0}}
    monkeypatch.setattr(vision, "wiki", lambda strict, options, **changes: wiki(strict, options, **changes, **slow))
    made = vision.reconfiguration(Options(seconds=1.0))
    (table,) = made.tables
    assert [row[2] for row in table.rows[:2]] == ["5 s and the drain", "at most 6 of 20"]
    assert "every 7 s" in made.intro and "protean as 4g+3g" in made.intro
