"""Scenarios made into systems: each field in the engine's unit, and what does not fit together refused."""

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fold import OutcomeFold
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, LengthPoints, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.query import Goal, Query
from sluicegate.policies.promises.keeper import Hops
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.profiles.formats.proteus_csv import load_proteus
from sluicegate.profiles.formats.ramsis_json import load_ramsis
from sluicegate.simulator.bound import Bound
from sluicegate.simulator.engine.elastic_control import CapacityModel
from sluicegate.simulator.engine.faults import ExecutorFailure
from sluicegate.simulator.engine.system_model import Draws, SystemModel, Timing
from sluicegate.simulator.engine.varied_queries import OwnWish
from sluicegate.simulator.scenario import build, build_control, catalogue_of, experiment, mdp_scenario, scenario_of
from sluicegate.simulator.scenario.build_control import controller_settings
from sluicegate.simulator.scenario.experiment import (
    Run,
    figures_of,
    mean_bound,
    notes_on,
    together,
    with_distances,
)
from sluicegate.simulator.scenario.scenario_fields import PlannerSpec, PoliciesSpec
from sluicegate.simulator.scenario.scenario_file import overridden, with_setting


def document(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "duration_s": 10,
        "apps": {"a": {"slo_ms": 100}, "b": {"slo_ms": 400}},
        "catalogue": {
            "variants": [
                {"name": "v", "app": "a", "accuracy": 0.9, "latency_ms": {"cpu": {1: 10, 4: [20, 30]}}},
                {"name": "w", "app": "b", "accuracy": 0.6, "load_s": 2.5, "latency_ms": {"cpu": {1: [25, 20]}}},
            ]
        },
        "devices": [{"type": "cpu", "count": 2}],
        "traces": {"qps": [5, 20]},
    }
    return {**base, **more}


def built(**more: Any) -> SystemModel:
    return build(scenario_of(document(**more)), lambda: 0.0)


def test_seconds_of_the_engine_are_the_milliseconds_and_seconds_of_the_file() -> None:
    simulation = {
        "to_router_ms": 1,
        "to_device_ms": 2,
        "hop_spread_ms": 4,
        "control_ms": 8,
        "heartbeat_s": 0.25,
        "warm_up_s": 3.5,
        "drain_s": 77,
    }
    timing = Timing(
        to_router=0.001, to_device=0.002, spread=0.004, control=0.008, heartbeat=0.25, warm_up=3.5, drain=77.0
    )
    system = built(simulation=simulation, policies={"admission": "deadline"})
    assert system.timing == timing
    assert system.admission.hops == Hops(0.007), "in all, at most"
    assert built(policies={"admission": None}).admission.make_policy is None, "everything is let in"


@pytest.mark.parametrize(("load_s", "warm_up"), [(2.5, 5.0), (3.0, 5.0), (3.25, 5.25)])
def test_a_system_is_warmed_up_for_five_seconds_or_two_more_than_its_slowest_load(
    load_s: float, warm_up: float
) -> None:
    catalogue = overridden(document(), {"catalogue.variants.1.load_s": load_s})["catalogue"]
    assert built(catalogue=catalogue).timing.warm_up == warm_up
    assert built(catalogue=catalogue, simulation={"warm_up_s": 0.0}).timing.warm_up == 0.0


def test_profiles_are_in_seconds_and_bytes_by_ascending_size_and_length_and_no_p95_is_below_its_median() -> None:
    variant = {
        "name": "v",
        "app": "a",
        "accuracy": 0.9,
        "memory_mb": 3,
        "load_s": 1.5,
        "length": 64,
        "latency_ms": {"cpu": {4: [20, 30], 1: 10}, "gpu": {1: [8, 6]}},
        "shorter_latency_ms": {16: {"cpu": {1: 6}}, 8: {"cpu": {1: 4}, "gpu": {1: 2}}},
    }
    catalogue = catalogue_of(scenario_of(document(apps={"a": {"slo_ms": 100}}, catalogue={"variants": [variant]})))
    profile = catalogue.profiles["v", "cpu"]
    assert profile == Profile(
        variant="v",
        device_type="cpu",
        points=(BatchLatency(1, 0.01, 0.01), BatchLatency(4, 0.02, 0.03)),
        memory_bytes=3 << 20,
        load=1.5,
        length=64,
        shorter=(
            LengthPoints(8, (BatchLatency(1, 0.004, 0.004),)),
            LengthPoints(16, (BatchLatency(1, 0.006, 0.006),)),
        ),
    )
    other = catalogue.profiles["v", "gpu"]
    assert other.points == (BatchLatency(1, 0.008, 0.008),)
    assert [each.length for each in other.shorter] == [8]


def test_an_app_without_a_variant_is_named_whatever_the_other_variants_are_of(tmp_path: Path) -> None:
    apps = [App(name=name, slo=0.1) for name in ("a", "m", "z")]
    variants = [Variant(name=f"{app}-v", app=app, accuracy=0.5, nominal=True) for app in ("a", "z")]
    profiles = [Profile(variant=v.name, device_type="cpu", points=(BatchLatency(1, 0.01, 0.02),)) for v in variants]
    save_catalogue(tmp_path / "c", Catalogue.of(apps, variants, profiles), {})
    folder = {"format": "sluice", "path": str(tmp_path / "c")}
    with pytest.raises(ConfigurationError, match=r"apps\.m: the catalogue has no variant of it"):
        catalogue_of(scenario_of(document(apps=None, catalogue=folder)))
    catalogue = catalogue_of(scenario_of(document(apps={"z": None}, catalogue=folder)))
    assert ([*catalogue.apps], [*catalogue.variants], [*catalogue.profiles]) == (["z"], ["z-v"], [("z-v", "cpu")])


def test_what_some_queries_ask_of_their_own_is_in_seconds_and_without_a_goal_where_none_is_asked() -> None:
    wishes = [
        {"share": 0.25, "latency_ms": 40, "client": "c", "priority": 2, "rows": 3},
        {"share": 0.5, "accuracy": 0.7},
    ]
    system = built(apps={"a": {"slo_ms": 100, "queries": wishes}, "b": {"slo_ms": 400}})
    assert system.asked == {
        "a": (
            OwnWish(share=0.25, slo=0.04, priority=2, client="c", rows=3),
            OwnWish(share=0.5, goal=Goal(accuracy=0.7)),
        )
    }
    assert system.admission.shares == {}, "clients and priorities are told apart"
    plain = built(apps={"a": {"slo_ms": 100, "queries": wishes[1:]}, "b": {"slo_ms": 400}})
    assert plain.admission.shares is None


def test_an_executor_fails_on_the_slice_that_is_named_or_on_all_and_starts_in_the_seconds_given() -> None:
    failures = [{"device": "cpu1", "at_s": 3, "slice": "whole"}, {"device": "cpu*", "at_s": 4}]
    faults = built(simulation={"executor_failures": failures, "executor_start_s": 1.5}).faults
    assert faults.executors == (ExecutorFailure("cpu1", 3.0, "whole"), ExecutorFailure("cpu*", 4.0, ""))
    assert faults.executor_start_s == 1.5


@pytest.mark.parametrize(
    ("cut", "part"), [({"geometry": "4g"}, "3g.4"), ({"slices": [{"name": "s", "profile": "4g"}]}, "s")]
)
def test_a_slice_of_a_gpu_that_nobody_measured_is_reckoned_from_the_whole_one_however_it_was_cut(
    cut: dict[str, Any], part: str
) -> None:
    variants = [{"name": "v", "app": "a", "accuracy": 0.9, "latency_ms": {"a100": {1: 10}}}]
    system = built(
        catalogue={"variants": variants},
        apps={"a": {"slo_ms": 100}},
        devices=[{"type": "a100", **cut}],
        slices={"rdf": {"4g": 1.5}, "executors": {"a100:4g": 2}},
        simulation={"executor_failures": [{"device": "a1000", "at_s": 1, "slice": part}]},
    )
    profile = system.catalogue.profiles["v", "a100:4g"]
    assert profile.points[0].median == pytest.approx(2 * 0.015) and profile.executors == 2


def test_devices_have_what_the_file_says_in_bytes_and_money() -> None:
    devices = [
        {"type": "cpu", "memory_mb": 5, "price": 1.5, "spot": True},
        {"type": "cpu", "slices": [{"name": "left", "memory_mb": 2}, {"name": "right", "memory_mb": 3}]},
    ]
    first, second = built(devices=devices).devices
    assert (first.memory_bytes, first.price, first.spot) == (5 << 20, 1.5, True)
    assert (second.memory_bytes, second.price, second.spot) == (0, 0.0, False)
    assert [(part.name, part.memory_bytes) for part in second.slices] == [("left", 2 << 20), ("right", 3 << 20)]


def test_what_a_promise_needs_is_that_its_app_may_have_so_many_rows_and_that_a_bound_is_announced() -> None:
    promise = {"app": "b", "mcd": 2, "rows": [3, 5], "queries": 70, "share_of_bound": 0.5}
    system = built(promise=promise, policies={"admission": "sustainable"})
    assert (system.catalogue.apps["a"].max_rows, system.catalogue.apps["b"].max_rows) == (
        App(name="a", slo=1.0).max_rows,
        max(5, App(name="b", slo=1.0).max_rows),
    )
    load = system.load
    assert load is not None
    assert (load.app, load.queries, load.rows, load.share) == ("b", 70, (3, 5), 0.5)
    assert system.admission.by_plan and system.rules.bound == ("b",)
    for policies in ({}, {"admission": None}):
        with pytest.raises(ConfigurationError, match=r"only policies\.admission: sustainable"):
            built(promise=promise, policies=policies)


@pytest.mark.parametrize(
    ("app", "changes", "said"),
    [
        ("c", {}, r"promise\.app: 'c' is none of those registered first, a, b"),
        ("b", {"at_start": False}, r"promise\.app: 'b' is none of those registered first, a"),
        ("b", {"class": "best_effort"}, r"promise\.app: 'b' is best effort, and only .*"),
        ("b", {"queries": [{"share": 0.1}]}, r"apps\.b\.queries: .*; leave them out"),
    ],
)
def test_only_a_strict_app_that_is_there_from_the_start_is_asked_at_its_bound(
    app: str, changes: dict[str, Any], said: str
) -> None:
    promise = {"promise": {"app": app, "mcd": 2}, "policies": {"admission": "sustainable"}}
    apps = {"a": {"slo_ms": 100}, "b": {"slo_ms": 400, **changes}}
    with pytest.raises(ConfigurationError, match=f"^{said}$"):
        built(apps=apps, registrations=[{"app": "b", "at_s": 3}], **promise)


@pytest.mark.parametrize("wrong", ["novalue", "=3", "  =3", "="])
def test_a_setting_without_a_name_or_a_value_is_refused_as_such(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="give name=value"):
        with_setting(document(), wrong)


def test_a_value_may_hold_the_sign_and_a_name_may_stand_in_blanks() -> None:
    assert with_setting(document(), " name = a=b")["name"] == "a=b"
    assert with_setting(document(), "devices.0.count=3")["devices"][0]["count"] == 3


def test_a_parameter_sets_each_field_that_it_stands_for_and_nothing_of_what_was_given_is_changed() -> None:
    given = document(parameters={"workers": ["devices.0.count", "planner.planners"]}, planner={"planners": 2})
    made = overridden(given, {"workers": 7, "traces": {"seed": 3}})
    assert (made["devices"][0]["count"], made["planner"], made["traces"]) == (
        7,
        {"planners": 7},
        {"qps": [5, 20], "seed": 3},
    )
    assert (given["devices"][0]["count"], given["planner"], given["traces"]) == (2, {"planners": 2}, {"qps": [5, 20]})


@pytest.mark.parametrize(("name", "part"), [("devices.1.count", "1"), ("devices.-1.count", "-1"), ("devices.x", "x")])
def test_a_setting_of_an_element_that_is_not_there_says_which_and_how_many_there_are(name: str, part: str) -> None:
    with pytest.raises(ConfigurationError, match=f"there is no element '{part}'; the list has 1"):
        overridden(document(), {name: 1})


def test_nothing_is_set_inside_a_number_in_a_list() -> None:
    with pytest.raises(ConfigurationError, match="'deep' cannot be set inside a plain value"):
        overridden(document(), {"traces.qps.0.deep": 1})


def test_what_is_drawn_for_arrivals_service_and_the_market_is_drawn_from_streams_of_their_own() -> None:
    streams = (experiment._ARRIVALS, experiment._SERVICE, build_control._MARKET)
    assert len({*streams}) == 3


def test_a_variant_is_switched_to_by_batches_of_up_to_thirty_two_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    points = (BatchLatency(1, 0.01, 0.02), BatchLatency(40, 0.1, 0.41))
    catalogue = Catalogue.of(
        [App(name="a", slo=2.0)],
        [Variant(name="v", app="a", accuracy=0.5)],
        [Profile(variant="v", device_type="cpu", points=points)],
    )
    hosted: list[Any] = []

    def capable(each: list[Any], *_: Any, **__: Any) -> dict[str, float]:
        hosted.extend(each)
        return {"v": 5.0}

    monkeypatch.setattr(mdp_scenario, "capable_loads", capable)
    devices = built().devices
    mdp_scenario.switching_batching("model-switching", {}, catalogue, devices, ["a"])
    (one,) = hosted
    assert one.curve.max_batch == 32
    assert one.curve(32) == pytest.approx(0.02 + 31 / 39 * 0.39)


def test_planners_that_fail_and_devices_that_two_would_drive_are_named() -> None:
    failing = {"failures": [{"planner": "planner1", "at_s": 3}]}
    with pytest.raises(ConfigurationError, match=r"planner\.failures: 'planner1' is none of planner0"):
        built(planner=failing).make_control()
    assert built(planner={**failing, "planners": 2}).make_control().epochs == 0
    devices = [{"type": "cpu"}, {"type": "cpu", "name": "s", "spot": True}]
    notices = {"notices": [{"device": "cpu0", "at_s": 1, "deadline_s": 2}]}
    with pytest.raises(ConfigurationError, match=r"procurement\.notices: 'cpu0' is no spot device"):
        built(devices=devices, procurement={**notices, "on_demand_price": 2.0}).make_control()
    with pytest.raises(ConfigurationError, match=r"scaling\.spare: 's0' is a spot device"):
        built(devices=devices, procurement={"on_demand_price": 2.0}, scaling={"spare": ["s0"]}).make_control()
    assert built(devices=devices, scaling={"spare": ["s0"]}).make_control().nondeterministic == 0


def test_units_hold_one_variant_each_unless_the_allocation_shares_them_or_the_file_says_how_many() -> None:
    def held(**spec: Any) -> int | None:
        return controller_settings(PlannerSpec(**spec)).variants_per_device

    assert (held(), held(name="greedy-fill"), held(name="greedy-fill", variants_per_device=3)) == (None, 1, 3)
    assert held(variants_per_device=2) == 2
    settings = controller_settings(PlannerSpec(period_s=7.5, burst_interval_s=0.5, device_timeout_s=3.5, headroom=1.25))
    assert (settings.plan_period, settings.burst_interval, settings.device_timeout) == (7.5, 0.5, 3.5)
    assert settings.headroom == 1.25


SUMMARY = replace(OutcomeFold().summary(2.0), queries=10, answered_on_time=4, late=2, violation_ratio=0.6, p50_ms=12.0)


def run(seed: int, **changes: Any) -> Run:
    given: dict[str, Any] = {"summary": SUMMARY, "epochs": 7, "solve_s": (), "wall_s": 2.0, "seed": seed}
    return Run(**{**given, **changes})


def test_figures_of_a_run_are_by_name_with_solves_in_milliseconds() -> None:
    figures = figures_of(SUMMARY, (0.25, 0.5, 0.75), 3.0, 11)
    assert (figures["queries"], figures["late"], figures["violation_ratio"], figures["p50_ms"]) == (10, 2, 0.6, 12.0)
    assert figures["planner"] == {"solves": 3, "p50_ms": 500.0, "p95_ms": pytest.approx(725.0)}
    assert (figures["wall_s"], figures["seed"]) == (3.0, 11)
    assert figures_of(SUMMARY, (), 3.0, 11)["planner"]["solves"] == 0
    assert {"cost", "bound", "promises"}.isdisjoint(run(1).figures())
    assert run(1, cost=0.0).figures()["cost"] == 0.0


def test_means_over_seeds_have_half_widths_and_solves_and_seconds_add_up() -> None:
    other = replace(SUMMARY, queries=10, answered_on_time=8, late=2, violation_ratio=0.2)
    bounds = [
        Bound(violation_ratio=0.25, right_in_time=0.5, relative_right_in_time=0.75, certain=True),
        Bound(violation_ratio=0.5, right_in_time=0.25, relative_right_in_time=0.5, certain=False),
    ]
    runs = [
        run(5, solve_s=(0.5,), cost=3.0, bound=bounds[0]),
        run(8, summary=other, solve_s=(0.5, 0.5), cost=5.0, wall_s=3.0, bound=bounds[1]),
    ]
    found = together(runs)
    assert [found[name] for name in ("queries", "answered_on_time", "late", "p50_ms")] == [10, 6.0, 2, 12.0]
    assert (found["violation_ratio"], found["cost"], found["wall_s"]) == (pytest.approx(0.4), 4.0, 5.0)
    assert (found["seed"], found["seeds"], found["planner"]["solves"]) == (5, [5, 8], 3)
    assert found["ci95"]["cost"] == pytest.approx(12.7062 * 1.0, rel=1e-4), "Student's t of one degree, times 2 / 2"
    assert found["bound"] == {
        "violation_ratio": 0.375,
        "right_in_time": 0.375,
        "relative_right_in_time": 0.625,
        "certain": False,
    }
    assert mean_bound(bounds[:1])["certain"] is True
    assert "bound" not in together([run(5)]) and "cost" not in together([run(5)])


def test_the_distance_closed_is_of_what_lies_between_the_worst_system_and_the_bound() -> None:
    bound = {"right_in_time": 0.75}
    results: dict[str, dict[str, Any]] = {
        "worst": {"right_in_time": 0.25, "bound": bound},
        "half": {"right_in_time": 0.5, "bound": bound},
        "most": {"right_in_time": 0.625, "bound": bound},
        "unbounded": {"right_in_time": 0.7},
    }
    found = with_distances(results)
    assert [found[name].get("distance_closed") for name in results] == [0.0, 0.5, 0.75, None]
    assert "distance_closed" not in results["half"]
    alone = with_distances({"one": {"right_in_time": 0.75, "bound": bound}})["one"]["distance_closed"]
    assert isnan(alone), "nothing lies between"


def test_plans_that_a_limit_in_seconds_cut_off_are_told_by_system() -> None:
    runs = {"ours": [run(1, nondeterministic=2), run(2, nondeterministic=3)], "theirs": [run(1)]}
    assert notes_on(runs) == ["ours: 5 plans were cut off by a limit in seconds; the same seed may give another run"]


def test_what_is_more_than_a_bound_may_hold_in_memory_is_run_without_one_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for app in ("a", "b"):
        (tmp_path / f"{app}.txt").write_text("100\n200\n900\n")
    listed = {"format": "arrivals", "path": str(tmp_path)}
    for traces, expected in ((listed, 6), ({"qps": [5, 20], "generator": {"noise": 0, "spikes": 0}}, 125)):
        scenario = scenario_of(document(traces=traces))
        for most in (expected + 1, expected - 1):
            monkeypatch.setattr(experiment, "MOST_BOUNDED", most)
            one = experiment.run_once(scenario, 3, lambda: 0.0, with_bound=True)
            assert (one.bound is None, one.unbounded) == 2 * (most < expected,)
            assert one.summary.queries > 5
            told = ["no clairvoyant bound: it has all arrivals in memory, and is left out above " + str(most)]
            assert notes_on({"run": [one]}) == (told if one.unbounded else [])
        assert not experiment.run_once(scenario, 3, lambda: 0.0).unbounded, "nobody asked for one"


def test_solving_may_take_its_time_where_it_is_scaled_and_only_there_and_planners_fail_until_they_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(build_control, "PlannerCore", lambda _catalogue, **given: given)
    monkeypatch.setattr(build_control, "Controlled", lambda *given: made.append(given))
    failures = [{"planner": "planner0", "at_s": 3}, {"planner": "planner1", "at_s": 4, "until_s": 6}]
    spec = PlannerSpec(planners=2, failures=failures, latency_s=1.5, patience_s=2.5, lease_s=4.5)  # type: ignore[arg-type]
    scaled = PlannerSpec(scaling="greedy", patience_s=2.5, period_s=7.5)
    for one in (spec, scaled):
        given: dict[str, Any] = {"catalogue": built().catalogue, "devices": (), "hop": 0.25, "loads": "beside"}
        build_control.control(one, lambda: None, lambda: 0.0, tables=None, **given)  # type: ignore[arg-type, return-value]
    cores = [make_core("planner7.1") for make_core, *_ in made]
    assert [core["holder"] for core in cores] == ["planner7.1", "planner7.1"]
    assert [core["settings"].patience for core in cores] == [2.5, 20.0]
    assert [core["settings"].rules.plan_period for core in cores] == [10.0, 1.0]
    assert cores[0]["settings"].lease == 4.5
    model = made[0][2]
    assert (model.solve_s, model.hop_s, model.planners) == (1.5, 0.25, 2)
    assert [(f.device, f.at, f.until) for f in model.failures] == [("planner0", 3.0, inf), ("planner1", 4.0, 6.0)]


@pytest.mark.parametrize(
    ("catalogue", "said"),
    [
        ({"format": "sluice", "path": "/none", "options": {"x": 1}}, "sluice has no such option; it takes none"),
        ({**document()["catalogue"], "options": {"x": 1}}, "inline has no such option; it takes none"),
        ({"format": "ramsis-json", "path": "/none", "options": {"x": 1}}, "it takes .*max_batch"),
    ],
)
def test_an_option_that_a_reader_does_not_know_is_told_with_those_that_it_knows(
    catalogue: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        built(catalogue=catalogue, apps=None)


_NO_TIME = (nan, inf, -5, "x")
READERS: dict[str, tuple[Callable[..., Catalogue], dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]]]] = {
    "proteus-csv": (
        load_proteus,
        {
            "batch_sizes": (([1, 2], (4,)), (3, "12", ["x"], None)),
            "slo": ((0.2, "1x", {"bert": 2}), (0, nan, inf, [1], {"bert": -1})),
            "variants": (("model_variants",), (3, "", "../x", "a" * 201)),
            "families": ((["bert"], None), (3, "bert", [3])),
            "load": ((0, 3600.0), (3601, *_NO_TIME)),
        },
    ),
    "ramsis-json": (
        load_ramsis,
        {
            "tasks": ((["text"],), (3, "text", [3], None)),
            "models": (("all",), ("none", 3)),
            "table": (("measured", "artifact"), ("none", 3)),
            "max_batch": ((1, 33), ("x", 1.5, nan, None)),
            "slo": (({"text": 0.2},), (0.2, {"text": 0}, {"text": nan}, None)),
            "load": ((0, 3600.0), (3601, *_NO_TIME)),
        },
    ),
}
"""Options of readers of catalogues: values that each takes, and that it refuses."""


@pytest.mark.parametrize("kind", READERS)
def test_an_option_of_a_reader_takes_what_it_can_be_and_refuses_the_rest_by_its_name(kind: str) -> None:
    reader, options = READERS[kind]
    assert [*options] == [*signature(reader).parameters][1:]
    for option, (good, bad) in options.items():
        for value in (*good, *bad):
            with pytest.raises(ConfigurationError) as refused:
                built(catalogue={"format": kind, "path": "/none", "options": {option: value}})
            named = str(refused.value).startswith(f"catalogue.options.{option}: ")
            assert named is (value in bad), (option, value)


@pytest.mark.parametrize("geometry", ["nonsense", "7g+7g", "4g+4g"])
def test_a_gpu_that_cannot_be_cut_so_is_named_by_its_place_in_the_file(geometry: str) -> None:
    devices = [{"type": "cpu"}, {"type": "a100", "geometry": geometry}]
    with pytest.raises(ConfigurationError, match=r"^devices\.1\."):
        built(devices=devices)


def test_slices_are_rated_without_a_margin_unless_one_is_given_and_only_where_somebody_chooses() -> None:
    def rated(**policies: Any) -> Any:
        return mdp_scenario.rated_by(None, PoliciesSpec(**policies))

    plain, given = rated(batching="table"), rated(batching={"name": "table", "guard_s": 0.5, "margin": 1.25})
    assert (plain.hop_s, plain.guard_s, plain.margin) == (0.0, 0.0, 1.0)
    assert (given.hop_s, given.guard_s, given.margin) == (0.0, 0.5, 1.25)
    assert rated(batching="eager") is None


def test_tables_are_made_for_the_loads_given_where_they_do_not_violate_too_much_else_as_a_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Told:
        def __init__(self, qps: float) -> None:
            self.qps = qps
            self.expected = self
            self.violation = qps / 100
            self.table = self

    held: list[dict[str, Any]] = []
    monkeypatch.setattr(mdp_scenario, "generate", lambda model, **_: Told(model.qps))
    monkeypatch.setattr(mdp_scenario, "build_library", lambda _model, **_: [Told(77.0)])
    monkeypatch.setattr(mdp_scenario, "TableSelection", lambda **given: held.append(given))
    system = built()
    for options in ({}, {"loads": [3, 5, 30], "max_violation": 0.05}, {"fixed_load": 3, "window_s": 0.75}):
        mdp_scenario.table_batching(options, system.catalogue, system.devices, ["a"])()
    assert [[table.qps for table in each["tables"]] for each in held] == [[77.0], [3.0, 5.0], [3.0]]
    assert [each["qps"] for each in held] == [None, None, 3.0]
    assert held[2]["window_s"] == 0.75 and "window_s" not in held[0]
    with pytest.raises(ConfigurationError, match="'many' is no number of queries/s"):
        mdp_scenario.table_batching({"loads": "many"}, system.catalogue, system.devices, ["a"])
    with pytest.raises(ConfigurationError, match="table has no such option"):
        mdp_scenario.table_batching({"x": 1}, system.catalogue, system.devices, ["a"])


@pytest.mark.parametrize("made_by_planners", [True, False])
@pytest.mark.parametrize("bad", ["abc", [1], None, nan])
@pytest.mark.parametrize("name", ["margin", "window_s", "spacing", "violation_price", "guard_s"])
def test_an_option_of_tables_that_is_no_number_is_named(name: str, bad: Any, made_by_planners: bool) -> None:
    two = [{"name": n, "app": "a", "accuracy": a, "latency_ms": {"cpu": {1: 9}}} for n, a in (("s", 0.5), ("l", 0.9))]
    tables = {"tables": {}} if made_by_planners else {}
    batching = {"name": "table", name: bad}
    with pytest.raises(ConfigurationError, match=name):
        built(apps={"a": {"slo_ms": 100}}, catalogue={"variants": two}, policies={"batching": batching}, **tables)


def test_all_that_drives_workers_knows_how_far_apart_their_heartbeats_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(build_control, "CapacityModel", lambda **model: made.append(model) or CapacityModel(**model))
    system = built(
        devices=[{"type": "cpu", "count": 4}, {"type": "cpu", "name": "spot", "spot": True}],
        planner={"scaling": "plan", "spare": ["cpu2"]},
        scaling={"spare": ["cpu3"]},
        procurement={"on_demand_price": 1.0},
        simulation={"heartbeat_s": 0.75},
    )
    system.make_control()
    assert [(model["driven"], model["heartbeat"]) for model in made] == [
        (("cpu2",), 0.75),
        (("cpu3",), 0.75),
        (("spot0",), 0.75),
    ]


def test_systems_that_are_compared_see_the_same_queries_whatever_else_is_drawn_in_them() -> None:
    asks = [{"share": 0.5, "latency_ms": 50}]
    variants = document()["catalogue"]["variants"]
    varied = [variants[0], {**variants[1], "length": 9, "shorter_latency_ms": {5: {"cpu": {1: 20}}}}]
    alone: dict[str, Any] = {
        "catalogue": {"variants": varied},
        "apps": {"a": {"slo_ms": 100}, "b": {"slo_ms": 400, "lengths": [5, 9], "queries": asks}},
        "simulation": {"service": "sampled"},
        "policies": {"admission": "sustainable"},
    }
    others: list[dict[str, Any]] = [
        {"simulation": {"service": "sampled", "hop_spread_ms": 5}},
        {"apps": {**alone["apps"], "a": {"slo_ms": 100, "queries": asks}}},
        {"promise": {"app": "a", "mcd": 2}},
    ]

    def drawn(what: str, **changes: Any) -> list[tuple[Any, ...]]:
        draws = Draws.of(built(**{**alone, **changes}), np.random.default_rng(5))
        service = draws.service.of("cpu")
        queries = [Query("", "b", 0.0, 0.4) for _ in range(20)]
        for query in queries:
            draws.varieties["b"].apply(query)
        return [(getattr(query, what), service("v", 4)) for query in queries]

    for what in ("deadline", "length"):
        plain = drawn(what)
        assert all(drawn(what, **more) == plain for more in others)
        assert len(set(plain)) > 10 and len({part for part, _ in plain}) == 2
    without = {**alone["apps"], "b": {"slo_ms": 400, "queries": asks}}
    assert drawn("deadline", apps=without) == drawn("deadline")
    without = {**alone["apps"], "b": {"slo_ms": 400, "lengths": [5, 9]}}
    assert drawn("length", apps=without) == drawn("length")
