"""Scenario files: validated whole, refused in one line, overridden by name."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from reproduce.protean.slices.slices_fields import BOUND, KIND, slice_scenario
from reproduce.protean.slices.systems import system_of
from sluicegate.domain.errors import ConfigurationError, SluiceError
from sluicegate.domain.models.app import QueryClass
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.profiles.formats.bounded_yaml import parsed
from sluicegate.simulator.engine.faults import Faults
from sluicegate.simulator.engine.system_model import Timing
from sluicegate.simulator.scenario import (
    build,
    catalogue_of,
    devices_of,
    overridden,
    read_scenario,
    scenario_of,
    source_of,
    with_setting,
)
from sluicegate.simulator.scenario.experiment import mean_and_half_width, run_once, systems_of
from tests.harness import toy_catalogue

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "scenarios"


def _document(**more: Any) -> dict[str, Any]:
    base = {
        "duration_s": 10,
        "apps": {"a": {"slo_ms": 100}},
        "catalogue": {
            "variants": [
                {"name": "v", "app": "a", "accuracy": 0.9, "latency_ms": {"cpu": {1: 10, 4: [20, 30]}}},
            ]
        },
        "devices": [{"type": "cpu", "count": 2}],
        "traces": {"qps": [5, 20]},
    }
    return {**base, **more}


def test_what_a_scenario_leaves_out_is_what_the_engine_takes_by_itself() -> None:
    system = build(scenario_of(_document()), lambda: 0.0)
    assert (system.timing, system.faults) == (Timing(), Faults())
    assert (system.service, system.slow_probability, system.slow_factor) == ("median", 0.0, 1.0)


def test_faults_last_until_they_are_said_to_end_or_for_ever() -> None:
    """Each with a time of its own: two of each kind."""
    devices = [{"device": "cpu0", "at_s": 1.0, "until_s": 3.0}, {"device": "cpu1", "at_s": 2.0}]
    simulation = {
        "failures": devices,
        "stragglers": [{**one, "factor": 1.5} for one in devices],
        "starved_hosts": [{**one, "delay_ms": 250.0} for one in devices],
    }
    faults = build(scenario_of(_document(simulation=simulation)), lambda: 0.0).faults
    for kind in (faults.failures, faults.stragglers, faults.starved):
        assert [(one.device, one.at, one.until) for one in kind] == [("cpu0", 1.0, 3.0), ("cpu1", 2.0, math.inf)]
    assert {one.delay for one in faults.starved} == {0.25} and {one.factor for one in faults.stragglers} == {1.5}


def _file(folder: Path, text: str) -> Path:
    path = folder / "s.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_inline_scenario_says_what_it_says() -> None:
    scenario = scenario_of(
        _document(
            apps={
                "a": {
                    "slo_ms": 100,
                    "class": "best_effort",
                    "min_accuracy": 0.5,
                    "promise": {"max_consecutive": 2, "weakly_hard": [{"m": 1, "k": 5}]},
                }
            }
        )
    )
    catalogue = catalogue_of(scenario)
    app = catalogue.apps["a"]
    assert (app.slo, app.query_class, app.min_accuracy) == (0.1, QueryClass.BEST_EFFORT, 0.5)
    assert app.promise.max_consecutive == 2
    assert (app.promise.weakly_hard[0].m, app.promise.weakly_hard[0].k) == (1, 5)
    profile = catalogue.profiles["v", "cpu"]
    assert profile.curve("median").seconds == pytest.approx((0.01, 0.01333, 0.01667, 0.02), rel=1e-3)
    assert profile.curve("p95")(4) == 0.03
    assert profile.load == 1.0
    assert [d.name for d in devices_of(scenario)] == ["cpu0", "cpu1"]


def test_queries_carry_as_many_rows_as_their_app_takes() -> None:
    asks = {"slo_ms": 100, "max_rows": 17, "queries": [{"share": 0.1, "rows": 17}]}
    assert catalogue_of(scenario_of(_document(apps={"a": asks}))).apps["a"].max_rows == 17


def test_devices_of_one_type_are_numbered_through() -> None:
    devices = [{"type": "cpu", "count": 2}, {"type": "cpu"}, {"type": "gpu4", "count": 2}, {"type": "cpu", "name": "x"}]
    named = [d.name for d in devices_of(scenario_of(_document(devices=devices)))]
    assert named == ["cpu0", "cpu1", "cpu2", "gpu40", "gpu41", "x0"]
    clash = [{"type": "cpu", "name": "c", "count": 12}, {"type": "cpu", "name": "c1"}]
    with pytest.raises(ConfigurationError, match="c10"):
        devices_of(scenario_of(_document(devices=clash)))


def test_settings_reach_into_mappings_and_lists() -> None:
    document = with_setting(_document(), "devices.0.count=5")
    document = with_setting(document, "policies.batching=eager")
    document = with_setting(document, "policies.batching.guard=0.1")
    document = with_setting(document, "traces.qps=[1, 2]")
    scenario = scenario_of(document)
    assert scenario.devices[0].count == 5
    assert scenario.policies.batching.name == "eager"
    assert scenario.policies.batching.options == {"guard": 0.1}
    assert scenario.traces.qps == (1.0, 2.0)
    assert _document() == overridden(_document(), {})


@pytest.mark.parametrize(
    "wrong", ["novalue", "=3", "devices.7.count=1", "devices.x=1", "devices.²=1", "duration_s.deep=1", "a=[1"]
)
def test_a_wrong_setting_is_one_line(wrong: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        scenario_of(with_setting(_document(), wrong))
    assert "\n" not in str(caught.value)


_LATER: list[dict[str, Any]] = [{"at_s": 5, "app": "a"}]


def _spell(section: str, field: str, **what: Any) -> dict[str, Any]:
    return {section: {field: [{"at_s": 5, "until_s": 4, **what}]}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"typo": 1}, "typo: is unknown$"),
        ({"plannr": {}}, r"plannr: is unknown; did you mean planner\?"),
        ({"planner": {"perod_s": 1}}, r"planner.perod_s: is unknown; did you mean period_s\?"),
        ({"devices": [{"type": "cpu", "cuont": 2}]}, r"devices.0.cuont: is unknown; did you mean count\?"),
        ({"apps": {"planner": {"clas": "strict"}}}, r"apps.planner.clas: is unknown; did you mean class\?"),
        ({"devices": []}, "devices"),
        ({"devices": [{"type": "cpu", "count": 0}]}, "devices.0.count"),
        ({"traces": {"qps": [5, 20], "process": "zipf"}}, "traces.process"),
        ({"traces": {"format": "counts"}}, "needs a path"),
        ({"catalogue": {"format": "inline"}}, "lists its variants"),
        ({"catalogue": {"format": "sluice"}}, "needs a path"),
        *(
            ({section: {"format": kind, "path": path}}, f"^scenario: {section}.path: .* cannot be the path of a file")
            for section, kind in (("traces", "arrivals"), ("traces", "counts"), ("catalogue", "ramsis-json"))
            for path in ("a" * 256, "a\0b", "a/" * 2048 + "a")
        ),
        ({"systems": {"s": {"seed": 1}}}, "systems: s.seed: all systems are compared with the same seeds"),
        ({"duration_s": -1}, "duration_s"),
        ({"duration_s": float("nan")}, "duration_s"),
        ({"planner": {"headroom": 0.5}}, "planner.headroom"),
        (
            {"apps": {"a": {"slo_ms": 1, "promise": {"weakly_hard": [{"m": 5, "k": 5}]}}}},
            "apps.a.promise.weakly_hard.0: .*5 misses among 5 queries promise nothing",
        ),
        ({"simulation": {"service": "guess"}}, "simulation.service"),
        ({"apps": {"a": {"slo_ms": 0}}}, "apps.a.slo_ms"),
        (
            _spell("simulation", "failures", device="cpu0"),
            "simulation.failures.0.until_s: .*4 is not after at_s, 5: give",
        ),
        (_spell("simulation", "stragglers", device="cpu0", factor=2, at_s=4), r"simulation.stragglers.0.until_s"),
        (_spell("simulation", "starved_hosts", device="cpu0", delay_ms=2), r"simulation.starved_hosts.0.until_s"),
        (_spell("planner", "failures", planner="planner0"), r"planner.failures.0.until_s"),
        (_spell("planner", "failures", planner="planner0"), r"until_s: 4 is not after"),
        ({"policies": {"batching": 5}}, r"policies.batching: give a name, or \{name: ..., option: value\}$"),
        ({"planner": {"latency_s": "x"}}, r"scenario: planner.latency_s: [^;:\[]*, or Input should be 'measured'$"),
        ({"planner": "allocation"}, "planner: must be a mapping, name: value$"),
        ({"traces": {"qps": 5}}, r"traces.qps: must be a list, \[a, b\]$"),
        ({"apps": {"a": {"slo_ms": 1, "variants": []}}}, "apps.a.variants: must not be empty$"),
        ({"apps": {"a": {"slo_ms": 1, "at_start": "maybe"}}}, "apps.a.at_start: must be true or false$"),
        ({"devices": [{"type": "a b"}]}, "devices.0.type: is not written in letters, digits, "),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        scenario_of(_document(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"apps": {"b": {"slo_ms": 1}}}, "apps.a.slo_ms"),
        ({"apps": {"a": None}}, "apps.a.slo_ms"),
        ({"apps": {"a": {"slo_ms": 1}, "b": {"slo_ms": 1}}}, "apps.b: not in the catalogue"),
        ({"devices": [{"type": "tpu"}]}, "nothing is profiled on type 'tpu'"),
        ({"policies": {"batching": "nope"}}, "nope"),
        ({"policies": {"routing": {"name": "weighted", "x": 1}}}, "no option 'x'"),
        ({"planner": {"name": "nope"}}, "nope"),
        ({"planner": {"name": "alocation"}}, r"planner 'alocation' is unknown; .*; did you mean allocation\?$"),
        ({"traces": {"format": "generator", "qps": [1, 1e10]}}, r"qps: .*; give \[low, high\], 0 <= .* <= 1e\+09$"),
        ({"simulation": {"failures": [{"device": "gpu", "at_s": 1}]}}, "'gpu'; there are cpu0, cpu1$"),
        ({"planner": {"demand": {"beta": 1}}}, "planner.demand.beta"),
        ({"simulation": {"failures": [{"device": "gpu*", "at_s": 1}]}}, "no device is called 'gpu"),
        ({"simulation": {"shared": ["nope"]}}, r"simulation.shared: no device is of type 'nope'; there are "),
        ({"slices": {"executors": {"nope:3g": 2}}}, r"slices.executors: no device is of type 'nope:3g'; "),
        ({"slices": {"executors": {"cpu:3g": 2}}}, r"slices.executors: no device is of type 'cpu:3g'; there are cpu$"),
        ({"slices": {"rdf": {"3g": 2}}}, r"^slices.rdf: no GPU here has slices of profile '3g'$"),
        (
            {"devices": [{"type": "cpu", "slices": [{"name": "s"}, {"name": "t", "profile": "cpu"}]}]},
            "^devices: nothing is profiled on type 'cpu:cpu'; the catalogue has cpu$",
        ),
        (
            {"simulation": {"executor_failures": [{"device": "cpu*", "at_s": 1, "slice": "3g.4"}]}},
            r"^simulation.executor_failures: cpu\* has no slice '3g.4'; there are whole$",
        ),
        (
            {"apps": {"a": {"slo_ms": 100, "queries": [{"share": 0.1, "rows": 16}, {"share": 0.1, "rows": 17}]}}},
            r"^apps.a.queries.1.rows: 17, and a query may carry 16: give fewer, or a greater apps.a.max_rows$",
        ),
        (
            {"apps": {"a": {"slo_ms": 100, "max_rows": 2, "queries": [{"share": 0.1, "rows": 3}]}}},
            r"^apps.a.queries.0.rows: 3, and a query may carry 2: ",
        ),
        ({"apps": {"a": {"slo_ms": 100, "lengths": [8, 64]}}}, "^apps.a.lengths: the latency of none of its variants"),
        ({"catalogue": {"format": "proteus-csv", "path": "/none", "options": {"x": 1}}}, "no such option"),
        (
            {"apps": {"a": {"slo_ms": 100, "min_accuracy": 0.91}}},
            r"^apps.a.min_accuracy: 0.91, and its best variant has 0.9: give that or less$",
        ),
        (
            {"apps": {"a": {"slo_ms": 100, "min_accuracy": 0.91, "at_start": False}}, "registrations": _LATER},
            "^apps.a.min_accuracy: 0.91",
        ),
        ({"registrations": [{**_LATER[0], "min_accuracy": 0.95}]}, "^registrations.0.min_accuracy: 0.95, "),
        (
            {"simulation": {"failures": [{"device": "cpu0", "at_s": 1}, {"device": "cpu1", "at_s": 10}]}},
            "^simulation.failures.1.at_s: 10 is not before the end, 10 s: give an earlier .*, or a longer duration_s$",
        ),
        ({"simulation": {"executor_failures": [{"device": "*", "at_s": 11}]}}, "simulation.executor_failures.0.at_s"),
        ({"simulation": {"stragglers": [{"device": "*", "factor": 2, "at_s": 11}]}}, "simulation.stragglers.0.at_s"),
        (
            {"simulation": {"starved_hosts": [{"device": "*", "delay_ms": 2, "at_s": 11}]}},
            "simulation.starved_hosts.0.at_s",
        ),
        ({"planner": {"failures": [{"planner": "planner0", "at_s": 11}]}}, "planner.failures.0.at_s"),
        ({"registrations": [{**_LATER[0], "at_s": 11}]}, "registrations.0.at_s"),
        ({"registrations": [{**_LATER[0], "at_s": 6}, {"at_s": 5, "app": "b"}]}, "^registrations.1.app: 'b'"),
        (
            {
                "devices": [{"type": "cpu"}, {"type": "cpu", "spot": True}],
                "procurement": {
                    "on_demand_price": 1,
                    "notices": [{"device": "cpu1", "at_s": 11, "deadline_s": 12}],
                },
            },
            "procurement.notices.0.at_s",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(changes: dict[str, Any], said: str) -> None:
    from sluicegate.simulator.scenario.experiment import run_once

    with pytest.raises(SluiceError, match=said) as caught:
        run_once(scenario_of(_document(**changes)), 0, lambda: 0.0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a list", "must be a mapping, name: value; is a list"),
        ("a: [1", "not YAML"),
        ("a: 1\na: 2\n", "line 2, column 1.: a key is given twice"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
        ("", "must be a mapping, name: value; the file is empty"),
        ("x: ${NOT_SET_ANYWHERE}/y", r"\$\{NOT_SET_ANYWHERE\} is not set"),
        ("x: ${SLUICE_DATA}/y", "papers' data"),
        (
            "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
            "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\n"
            "g: [*f,*f,*f,*f,*f,*f,*f,*f]\n",
            "aliases multiply",
        ),
        (
            "a: &a {k: 1, l: 2}\n"
            + "".join(f"{n}: &{n} {{<<: [{','.join([f'*{b}'] * 16)}]}}\n" for b, n in pairwise("abcdefg")),
            r"line \d, column \d+.: .*aliases multiply",
        ),
        ("a: &a {<<: [*a, *a], b: 1}", "not YAML"),
        ("a: " + "[" * 3000 + "]" * 3000, "not YAML|nested"),
    ],
)
def test_a_hostile_file_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_scenario(_file(tmp_path, text), {})
    assert "\n" not in str(caught.value)


def test_keys_are_merged_where_they_are_few() -> None:
    text = "a: &a {k: 1, l: 2}\nb: &b {<<: *a, l: 3}\nc: {<<: [*a, *b], m: 4}\n"
    assert parsed(text, "it") == {"a": {"k": 1, "l": 2}, "b": {"k": 1, "l": 3}, "c": {"k": 1, "l": 2, "m": 4}}


def test_only_true_and_false_are_booleans() -> None:
    text = "off: off\nno: [yes, On, n]\nreal: [true, False, TRUE]\nothers: [1, null, 1e3, 0x10, ~]\n"
    assert parsed(text, "it") == {
        "off": "off",
        "no": ["yes", "On", "n"],
        "real": [True, False, True],
        "others": [1, None, "1e3", 16, None],
    }


def test_variables_and_relative_paths_are_resolved(tmp_path: Path) -> None:
    path = _file(tmp_path, "catalogue:\n  path: ${HERE}/c\ntraces: {path: t.csv}\n")
    document = read_scenario(path, {"HERE": "/data"})
    assert document["catalogue"]["path"] == "/data/c"
    assert document["traces"]["path"] == str(tmp_path / "t.csv")


def test_paths_in_systems_are_beside_the_file_too(tmp_path: Path) -> None:
    text = """
        parameters: {trace: [traces.path]}
        systems:
          dotted: {traces.path: one.csv, catalogue.format: path}
          nested: {traces: {path: two.csv, format: counts}, catalogue: {path: ../c}}
          standing: {trace: three.csv}
          absolute: {traces.path: /data/four.csv}
          none: null
    """
    read = read_scenario(_file(tmp_path, text), {})
    assert read["systems"] == {
        "dotted": {"traces.path": str(tmp_path / "one.csv"), "catalogue.format": "path"},
        "nested": {
            "traces": {"path": str(tmp_path / "two.csv"), "format": "counts"},
            "catalogue": {"path": str(tmp_path / "../c")},
        },
        "standing": {"trace": str(tmp_path / "three.csv")},
        "absolute": {"traces.path": "/data/four.csv"},
        "none": None,
    }
    assert read["parameters"] == {"trace": ["traces.path"]}


def test_systems_are_the_scenarios_or_policies_by_name() -> None:
    document = _document(
        policies={"batching": {"name": "deadline", "guard_s": 0.001}},
        systems={"quick": {"planner.period_s": 2, "policies": {"batching": "eager"}}},
    )
    assert list(systems_of(document, None)) == ["quick"]
    assert list(systems_of(_document(), None)) == ["base"]
    chosen = systems_of(document, ["quick", "eager", "base", "greedy-fill"])
    assert scenario_of(chosen["quick"]).planner.period_s == 2
    assert scenario_of(chosen["quick"]).policies.batching.name == "eager"
    assert scenario_of(chosen["eager"]).policies.batching.options == {}
    assert scenario_of(chosen["base"]).policies.batching.options == {"guard_s": 0.001}
    assert scenario_of(chosen["greedy-fill"]).planner.name == "greedy-fill"
    with pytest.raises(ConfigurationError, match="neither a system nor a policy"):
        systems_of(document, ["nope"])
    with pytest.raises(ConfigurationError, match=r"choose of quick, .*; did you mean quick\?$"):
        systems_of(document, ["quik"])
    with pytest.raises(ConfigurationError, match="twice"):
        systems_of(document, ["quick", "quick"])


def test_the_least_accuracy_is_that_of_the_variants_that_are_registered() -> None:
    known = [("small", 0.5), ("large", 0.9)]
    variants = [{"name": name, "app": "a", "accuracy": x, "latency_ms": {"cpu": {1: 5}}} for name, x in known]
    asked = {"slo_ms": 100, "min_accuracy": 0.6, "variants": ["small"]}
    document = _document(catalogue={"variants": variants}, apps={"a": asked})
    with pytest.raises(ConfigurationError, match=r"^apps.a.min_accuracy: 0.6, and its best variant has 0.5"):
        build(scenario_of(document), lambda: 0.0)
    for reached in ({"variants": ["large"]}, {"min_accuracy": 0.5}, {"variants": None}):
        build(scenario_of(overridden(document, {"apps.a": reached})), lambda: 0.0)


def test_what_lasts_beyond_the_end_may_begin_before_it() -> None:
    lasting = {"device": "cpu0", "at_s": 1.9, "until_s": 30.0}
    document = _document(duration_s=2, simulation={"failures": [lasting]})
    assert run_once(scenario_of(document), 1, lambda: 0.0).summary.queries > 0


def test_a_run_is_bounded_and_drawn_where_that_is_asked_for() -> None:
    scenario = scenario_of(_document(duration_s=2))
    plain = run_once(scenario, 1, lambda: 0.0)
    assert plain.bound is None and plain.series is None
    asked = run_once(scenario, 1, lambda: 0.0, with_series=True, with_bound=True)
    assert asked.bound is not None and asked.series is not None
    assert replace(asked, bound=None, series=None) == plain and plain.promises is None


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_the_bound_is_of_the_wishes_that_the_run_draws(spread: float) -> None:
    """Half the queries of "a" and a fifth of those of "b" ask for what nothing can do; all others are in time."""
    quick = {"accuracy": 0.9, "latency_ms": {"cpu": {1: 5, 8: 10}}}
    document = _document(
        duration_s=2,
        apps={
            "a": {"slo_ms": 500, "queries": [{"share": 0.5, "latency_ms": 6}]},
            "b": {"slo_ms": 400, "queries": [{"share": 0.2, "latency_ms": 4}]},
        },
        catalogue={"variants": [{"name": f"{app}-v", "app": app, **quick} for app in "ab"]},
        devices=[{"type": "cpu", "count": 8}],
        policies={"batching": "eager"},
        traces={"qps": [20, 20], "generator": {"noise": 0, "spikes": 0}},
        simulation={"to_device_ms": 2, "hop_spread_ms": spread},
    )
    for seed in range(2):
        run = run_once(scenario_of(document), seed, lambda: 0.0, with_bound=True)
        assert run.bound is not None and run.bound.certain
        assert 0.0 < run.bound.violation_ratio == pytest.approx(run.summary.violation_ratio, abs=1e-9)


def test_the_best_variant_of_an_app_is_the_best_that_is_registered_whatever_comes_and_goes() -> None:
    """Of "a" all that is right in time is right of the small one, also where "b" comes anew; a large one comes late."""
    known = [("small", "a", 0.5, 5), ("large", "a", 1.0, 10), ("b-v", "b", 0.9, 5)]
    variants = [
        {"name": name, "app": app, "accuracy": accuracy, "load_s": 0.1, "latency_ms": {"cpu": {1: ms, 8: 4 * ms}}}
        for name, app, accuracy, ms in known
    ]
    document = _document(
        catalogue={"variants": variants},
        apps={"a": {"slo_ms": 500, "variants": ["small"]}, "b": {"slo_ms": 400}},
        traces={"qps": [20, 20], "generator": {"noise": 0, "spikes": 0}},
    )
    larger = [{"at_s": 9.9, "app": "a", "variants": ["large"]}]
    for registrations, least in (([], 1.0), ([{"at_s": 0.01, "app": "b"}], 1.0), (larger, 0.99)):
        run = run_once(scenario_of({**document, "registrations": registrations}), 1, lambda: 0.0, with_bound=True)
        assert run.bound is not None
        assert least <= run.summary.relative_right_in_time <= run.bound.relative_right_in_time == 1.0
        assert run.summary.right_in_time <= run.bound.right_in_time + 1e-9
        assert registrations is larger or run.bound.right_in_time < 0.9, "what is never registered is of no use"


def test_confidence_intervals_are_students() -> None:
    mean, half = mean_and_half_width([1.0, 2.0, 3.0, float("nan")])
    assert mean == 2.0
    assert half == pytest.approx(4.3027 / np.sqrt(3), rel=1e-4)
    assert np.isnan(mean_and_half_width([1.0])[1])


EVERY = pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.stem)


@EVERY
def test_every_example_says_what_it_is_and_so_do_its_systems(path: Path) -> None:
    document = read_scenario(path, {"SLUICE_DATA": "/papers", "SLUICE_HOME": "/home"})
    if document.get("kind") == KIND:
        slices = slice_scenario(document)
        assert slices.description
        assert all(system_of(slices, label) for label in slices.systems if label != BOUND)
        return
    assert scenario_of(document).description
    for one in systems_of(document, None).values():
        assert scenario_of(one).devices


@EVERY
def test_every_example_has_its_apps_and_their_arrivals(
    path: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    needs = "${SLUICE_DATA}" in path.read_text()
    given = {"SLUICE_DATA": str(request.getfixturevalue("sluice_data"))} if needs else {}
    save_catalogue(tmp_path / "registered", toy_catalogue(apps=("clouds",)), {})
    document = read_scenario(path, given | {"SLUICE_HOME": str(tmp_path)})
    if document.get("kind") == KIND:
        return
    base = scenario_of(document)
    for one in systems_of(document, None).values():
        catalogue = catalogue_of(scenario_of(one))
        source = source_of(scenario_of(one), catalogue, np.random.default_rng(0))
        assert source.apps == tuple(catalogue.apps) if base.apps is None else tuple(base.apps)


def test_an_example_needs_no_data(tmp_path: Path) -> None:
    document = read_scenario(EXAMPLES / "small.yaml", {})
    assert yaml.safe_load((EXAMPLES / "small.yaml").read_text())["name"] == scenario_of(document).name == "small"
