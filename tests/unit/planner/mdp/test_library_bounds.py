"""Which loads a library of tables covers, and what its tables are made of."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from pydantic import ValidationError

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import MAX_WORKERS, Candidate, SelectionModel
from sluicegate.planner.policy_tables.keys import Shelf
from sluicegate.planner.policy_tables.table_fields import TableFields
from sluicegate.planner.policy_tables.table_library import build_library, peak_rate
from sluicegate.planner.policy_tables.table_requests import (
    LibraryRules,
    TableRules,
    front,
    model_of,
    questions,
    rules_of,
)
from sluicegate.profiles.catalogue.catalogue import Catalogue

SMALL = Candidate("small", 0.6, (0.01, 0.016, 0.025))
LARGE = Candidate("large", 0.9, (0.03, 0.05, 0.07))


def model(**changes: Any) -> SelectionModel:
    usual: dict[str, Any] = {"variants": (SMALL, LARGE), "slo": 0.06, "workers": 3, "qps": 0.0, "grid": 6, "queue": 3}
    return SelectionModel(**{**usual, **changes})


def test_the_peak_is_what_all_workers_answer_with_the_best_batch_that_is_in_time() -> None:
    assert peak_rate(model()) == pytest.approx(3 * 2 / 0.016)
    assert peak_rate(model(slo=0.016)) == pytest.approx(3 * 2 / 0.016)
    assert peak_rate(model(slo=0.015)) == pytest.approx(3 / 0.01)
    assert peak_rate(model(queue=1)) == pytest.approx(3 / 0.01)
    assert peak_rate(model(dispatch="weighted", share=0.2)) == pytest.approx(5 * 2 / 0.016)
    assert peak_rate(model(slo=0.005)) == 0.0


def test_a_library_ends_at_the_load_whose_violations_are_just_tolerated() -> None:
    promised = generate(model().at(200.0)).table.expected.violation
    assert 0.0 < promised < 0.5
    for tolerated, loads in ((promised, [200.0]), (promised * 0.999, [])):
        rules = LibraryRules(max_violation=tolerated)
        assert [t.qps for t in build_library(model(), lowest=200.0, highest=200.0, rules=rules)] == loads


def test_a_library_begins_at_a_fiftieth_of_the_peak_and_tolerates_violations_up_to_its_end() -> None:
    made = build_library(model(), app="a", worker_class="cpu", rules=LibraryRules(spacing=0.5, max_violation=1.0))
    assert [t.qps for t in made] == pytest.approx([7.5, 375.0])
    assert {(t.app, t.worker_class) for t in made} == {("a", "cpu")}
    low = build_library(model(), highest=5.0, rules=LibraryRules(spacing=0.5))
    assert [t.qps for t in low] == [5.0], "a fiftieth of the peak lies above it"


def test_loads_between_are_halved_until_neighbours_are_as_close_in_accuracy_as_was_asked_for() -> None:
    rules = LibraryRules(spacing=0.08, max_violation=0.25)
    made = build_library(model(), lowest=10.0, highest=330.0, rules=rules)
    loads = [t.qps for t in made]
    assert loads[0] == 10.0 and loads == sorted(loads) and len(loads) > 4
    gaps = [abs(a.expected.accuracy - b.expected.accuracy) for a, b in pairwise(made)]
    near = [b - a <= 0.002 * loads[-1] for a, b in pairwise(loads)]
    assert all(gap <= 0.08 or close for gap, close in zip(gaps, near, strict=True))
    assert all(t.expected.violation <= 0.25 for t in made)
    beyond = generate(model().at(loads[-1] + 0.01 * 330.0)).table.expected.violation
    assert loads[-1] == 330.0 or beyond > 0.25


def test_loads_are_no_closer_than_a_thousandth_of_the_highest_and_no_more_than_so_many() -> None:
    """Halved while they are more than two thousandths of 104 apart: a quarter is, an eighth is not."""
    close = LibraryRules(spacing=1e-4, max_violation=1.0)
    loads = [t.qps for t in build_library(model(), lowest=100.0, highest=104.0, rules=close)]
    assert loads == [100.0 + i / 8 for i in range(33)]
    few = LibraryRules(spacing=1e-4, max_violation=1.0, most=6)
    assert len(build_library(model(), lowest=100.0, highest=104.0, rules=few)) == 6


def test_a_range_of_loads_that_is_none_is_refused() -> None:
    for lowest, highest in ((-1.0, 20.0), (20.0, 19.0), (0.0, 0.0)):
        with pytest.raises(InvalidInputError, match="is no range that 3 workers can serve"):
            build_library(model(), lowest=lowest, highest=highest)


def test_how_close_tables_are_and_what_they_tolerate_has_bounds() -> None:
    LibraryRules(spacing=1e-4, max_violation=1e-9)
    LibraryRules(spacing=1.0, max_violation=1.0)
    for wrong in ({"spacing": 0.9e-4}, {"spacing": 1.01}, {"max_violation": 0.0}, {"max_violation": 1.01}):
        with pytest.raises(InvalidInputError, match=f"^{next(iter(wrong))}"):
            LibraryRules(**wrong)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("hop_s", (0.0, 9.0), (-0.001, inf)),
        ("margin", (1.0, 10.0), (0.99, 10.01)),
        ("violation_price", (0.0, 50.0, 1e9), (-0.001, 1.1e9, inf)),
        ("grid", (1, 1000), (0, 1001)),
        ("arrival_shape", (0.05, 100.0), (0.049, 100.1)),
        ("phases", (1, 16), (0, 17)),
        ("turns_s", (0.0, 1.0), (-0.001, 1.001)),
        ("watch_s", (0.001, 600.0), (0.0, inf)),
        ("spacing", (1e-4, 1.0), (0.9e-4, 1.01)),
        ("max_violation", (1e-9, 1.0), (0.0, 1.01)),
    ],
)
def test_settings_of_tables_have_bounds(name: str, taken: tuple[float, ...], refused: tuple[float, ...]) -> None:
    for value in taken:
        assert getattr(TableFields.model_validate({name: value}), name) == value
    for value in refused:
        with pytest.raises(ValidationError, match=name):
            TableFields.model_validate({name: value})


def test_phases_are_told_apart_only_where_all_that_wait_are_served_also_late() -> None:
    assert TableFields(phases=2).phases == 2
    assert TableFields(phases=1, batching="variable", late="drop").late == "drop"
    for other in ({"batching": "variable"}, {"late": "drop"}):
        with pytest.raises(ValidationError, match="are told apart only with batching maximal and late serve"):
            TableFields.model_validate({"phases": 2, **other})


def test_tables_are_made_as_their_settings_say_and_where_these_say_nothing_as_without_any() -> None:
    fields = TableFields(
        hop_s=0.25, margin=1.5, criterion="decision", violation_price=0.75, grid=7, arrival_shape=0.5,
        batching="variable", late="drop", watch_s=33.0, spacing=0.125, max_violation=0.375,
    )  # fmt: skip
    assert rules_of(fields, guard_s=0.125, margin=None) == TableRules(
        hop_s=0.25, guard_s=0.125, margin=1.5, criterion="decision", violation_price=0.75, grid=7, arrival_shape=0.5,
        batching="variable", late="drop", watch_s=33.0, library=LibraryRules(spacing=0.125, max_violation=0.375),
    )  # fmt: skip
    silent = TableFields(phases=3)
    assert rules_of(silent, guard_s=0.005, margin=None) == TableRules(phases=3)
    assert rules_of(silent, guard_s=0.005, margin=1.25) == TableRules(phases=3, margin=1.25)


def profile(variant: str, kind: str, one: float, many: float, largest: int = 40) -> Profile:
    """Seconds at the median; a tenth more at the 95th percentile."""
    points = (BatchLatency(1, one, 1.1 * one), BatchLatency(largest, many, 1.1 * many))
    return Profile(variant=variant, device_type=kind, points=points)


CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.5), App(name="b", slo=0.3)],
    [
        Variant(name="v", app="a", accuracy=0.7),
        Variant(name="w", app="a", accuracy=0.9),
        Variant(name="x", app="b", accuracy=0.8),
    ],
    [
        profile("v", "cpu", 0.01, 0.4),
        profile("w", "cpu", 0.02, 0.8),
        profile("v", "gpu", 0.001, 0.04),
        profile("v", "gpu:3g", 0.002, 0.08, 4),
        profile("x", "cpu", 0.03, 0.09, 3),
    ],
)
RULES = TableRules(hop_s=0.02, guard_s=0.03, margin=1.5)


def test_a_table_plans_with_batches_of_32_at_most_at_the_latencies_that_were_measured_times_the_margin() -> None:
    v, w = front(CATALOGUE, "a", "cpu", {("v", "cpu"): 1.75, ("w", "gpu"): 9.0}, RULES)
    assert (v.name, w.name, len(v.latency), len(w.latency)) == ("v", "w", 32, 32)
    assert (v.latency[0], w.latency[0]) == (pytest.approx(0.01 * 1.1 * 1.5 * 1.75), pytest.approx(0.02 * 1.1 * 1.5))
    (only,) = front(CATALOGUE, "a", "cpu", {("v", "cpu"): 2.5}, RULES)
    assert only.name == "w", "the other is slower now, and less accurate"
    (hosted,) = front(CATALOGUE, "a", "cpu", {}, RULES, hosted={"v", "x"}, largest=5)
    assert (hosted.name, len(hosted.latency)) == ("v", 5)
    assert len(front(CATALOGUE, "a", "cpu", {}, RULES, largest=99)[0].latency) == 32


def test_a_table_plans_with_the_slo_less_what_hops_and_the_worker_take_and_with_variants_in_time_for_it() -> None:
    rules = TableRules(hop_s=1 / 128, guard_s=3 / 128)
    both = (Candidate("s", 0.6, (1 / 64, 1 / 16)), Candidate("l", 0.9, (1 / 32,)))
    found = model_of(both, 1 / 16, 4, rules)
    assert found is not None
    assert (found.slo, found.workers, found.qps, found.variants) == (1 / 32, 4, 0.0, both)
    tight = model_of(both, 0.0624, 4, rules)
    assert tight is not None and tight.variants == both[:1]
    assert model_of(both, 3 / 64, 4, rules) is not None
    assert model_of(both, 0.0468, 4, rules) is None
    assert model_of(both, 1 / 32, 4, rules) is None


CUT = Device(name="g", type="gpu", slices=(Slice("3g.0", "3g"), Slice("4g.4", "4g")))
DEVICES = (CUT, Device(name="c0", type="cpu"), Device(name="c1", type="cpu"), Device(name="c2", type="cpu"))


def plan(*placements: Placement) -> Plan:
    return Plan(epoch=Epoch(2, 5), created=9e8, placements=placements, demand={"a": 80.0, "b": 6.0})


def test_kinds_of_workers_of_unequal_shares_are_asked_for_each_at_its_mean_share() -> None:
    asked = questions(
        plan(
            Placement("g", "a", ("v",), 0.4, 4, "3g.0"),
            Placement("c0", "a", ("v", "w"), 0.1, 8),
            Placement("c1", "a", ("w", "v"), 0.3, 6),
            Placement("c2", "b", ("x",), 0.5, 2),
        ),
        CATALOGUE,
        DEVICES,
        {("v", "gpu:3g"): 1.25, ("w", "gpu:3g"): 3.0},
        RULES,
    )
    cpu, cut, other = asked
    assert [q.shelf for q in asked] == [Shelf("a", "cpu", 0.5), Shelf("a", "gpu:3g", 0.5), Shelf("b", "cpu", 0.3)]
    assert (cpu.model.dispatch, cpu.model.share) == ("weighted", pytest.approx(0.25))
    assert (cut.model.dispatch, cut.model.share) == ("weighted", pytest.approx(0.5))
    assert cpu.model.qps == cut.model.qps == pytest.approx(80.0 * 0.8)
    assert (cpu.model.workers, cut.model.workers, other.model.workers) == (3, 3, 1)
    assert [len(q.model.variants[0].latency) for q in asked] == [6, 4, 2], "the smallest batch of all that host it"
    assert (cut.slowdown, cpu.slowdown) == ({"v": 1.25}, {})
    assert (other.model.dispatch, other.model.share, other.model.qps) == ("round_robin", None, 3.0)


def test_shares_that_come_to_more_than_all_are_all_of_the_load() -> None:
    placed = (Placement("c0", "a", ("v",), 0.75, 8), Placement("c1", "a", ("v",), 0.5, 8))
    (asked,) = questions(plan(*placed), CATALOGUE, DEVICES, {}, RULES)
    assert (asked.model.qps, asked.model.share) == (80.0, pytest.approx(0.5))


def test_a_slice_without_profiles_of_its_own_goes_by_those_of_its_device() -> None:
    (asked,) = questions(plan(Placement("g", "a", ("v",), 1.0, 8, "4g.4")), CATALOGUE, DEVICES, {}, RULES)
    assert asked.shelf == Shelf("a", "gpu:4g", 0.5)
    assert asked.model.variants[0].latency[0] == pytest.approx(0.001 * 1.1 * 1.5)


def test_what_hosts_nothing_nobody_or_several_apps_is_no_worker_of_a_table() -> None:
    mine = Placement("c0", "a", ("v",), 0.5, 8)
    strange = (
        Placement("c1", "a", ("v",), 0.25, 8),
        Placement("c1", "b", ("x",), 0.25, 8),
        Placement("c2", "a", (), 0.5, 8),
        Placement("g", "a", ("v",), 0.0, 8, "3g.0"),
        Placement("unknown", "a", ("v",), 0.5, 8),
        Placement("g", "none", ("v",), 0.5, 8, "4g.4"),
    )
    (asked,) = questions(plan(mine, *strange), CATALOGUE, DEVICES, {}, RULES)
    assert (asked.shelf, asked.model.workers, asked.model.qps) == (Shelf("a", "cpu", 0.5), 1, 40.0)


def test_more_equal_workers_than_a_model_takes_are_as_many_as_it_takes_at_their_part_of_the_load() -> None:
    count = MAX_WORKERS + 250
    many = [Device(name=f"n{i}", type="cpu") for i in range(count)]
    placed = [Placement(d.name, "a", ("v",), 1.0 / count, 8) for d in many]
    (asked,) = questions(plan(*placed), CATALOGUE, many, {}, TableRules(phases=4))
    assert (asked.model.workers, asked.model.phases) == (1000, 4)
    assert asked.model.qps == pytest.approx(80.0 * 0.8)
    (asked,) = questions(plan(*placed[:3]), CATALOGUE, many, {}, TableRules(phases=4))
    assert (asked.model.workers, asked.model.phases) == (3, 3)


@pytest.mark.parametrize(
    ("shape", "workers", "phases"), [(0.5, 2, 1), (0.5, 3, 1), (0.5, 6, 3), (1.5, 3, 1), (1.5, 2, 2), (0.5, 1, 1)]
)
def test_as_many_phases_are_told_apart_as_the_arrivals_at_a_worker_have_whole_stages(
    shape: float, workers: int, phases: int
) -> None:
    devices = [Device(name=f"n{i}", type="cpu") for i in range(workers)]
    placed = [Placement(d.name, "a", ("v",), 1.0 / workers, 8) for d in devices]
    (asked,) = questions(plan(*placed), CATALOGUE, devices, {}, TableRules(phases=4, arrival_shape=shape))
    assert asked.model.phases == phases
    generate(replace(asked.model, grid=4, queue=2))
