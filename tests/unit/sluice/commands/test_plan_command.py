"""``sluice plan``: what it prints, what it refuses, and how."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.simulator.scenario import read_scenario
from sluicegate.sluice.commands.offline import plan
from sluicegate.sluice.offline.problem_file import read_question

FIELDS = {"objective", "bound", "gap", "served_fraction", "placements", "solve_ms", "steps"}


CATALOGUE = Catalogue.of(
    [App(name="digits", slo=0.1)],
    [Variant(name="small", app="digits", accuracy=0.8), Variant(name="large", app="digits", accuracy=0.95)],
    [
        Profile(variant=name, device_type="cpu", points=(BatchLatency(1, s, s),), memory_bytes=memory, load=37.0)
        for name, s, memory in (("small", 0.001, 10), ("large", 0.01, 100))
    ],
)


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """One app with a fast and an accurate variant on a catalogue of ours, two devices."""
    save_catalogue(tmp_path / "catalogue", CATALOGUE, models={})
    path = tmp_path / "problem.yaml"
    path.write_text(
        "apps: [{name: digits, slo_ms: 100, demand_qps: 250}]\n"
        "pools: [{type: cpu, count: 2}]\n"
        "profiles: {format: catalogue, path: ${CATALOGUE_UNDER_TEST}}\n"
        "headroom: 1.0\n"
    )
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOGUE_UNDER_TEST", str(tmp_path / "catalogue"))


app = typer.Typer()
plan.register(app)


@app.callback()
def root() -> None:
    """A command line with a single command needs a root to keep its name."""


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def answer(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


def test_a_scenario_and_a_problem_that_are_taken_for_each_other_name_the_command_that_reads_them() -> None:
    examples = Path(__file__).resolve().parents[4] / "examples"
    scenario, question = examples / "scenarios" / "small.yaml", examples / "problems" / "two-apps.yaml"
    said = " ".join(run("--problem", str(scenario), code=2).split())
    assert said == f"error small.yaml: is a scenario; sluice simulate {scenario} runs it"
    with pytest.raises(ConfigurationError, match=f"is a problem; sluice plan --problem {question} plans it$"):
        read_scenario(question, {})


def test_json_says_what_is_hosted_and_how_good_it_is(problem: Path) -> None:
    found = answer("--problem", str(problem))
    assert found.keys() >= FIELDS
    # One device of each: 100 of the 250 queries/s by the large variant, the rest by one that is .8 of its .95.
    assert found["objective"] == pytest.approx((100 + 150 * 0.8 / 0.95) / 250)
    assert found["served_fraction"] == {"digits": 1.0}
    assert {(p["pool"], p["variant"], p["count"]) for p in found["placements"]} == {
        ("cpu", "large", 1),
        ("cpu", "small", 1),
    }
    assert sum(p["share"] for p in found["placements"]) == pytest.approx(1.0)
    told = found["apps"]["digits"]
    assert told["accuracy"] == pytest.approx((100 * 0.95 + 150 * 0.8) / 250)
    assert (told["best_accuracy"], told["demand_qps"]) == (0.95, 250.0)


def test_overrides_change_the_problem(problem: Path) -> None:
    found = answer("--problem", str(problem), "--set", "pools.cpu.count=3", "--set", "apps.digits.min_accuracy=0.9")
    assert [(p["variant"], p["count"]) for p in found["placements"]] == [("large", 3)]


def test_a_what_if_is_answered_beside_the_plan(problem: Path) -> None:
    found = answer("--problem", str(problem), "--what-if", "demand.digits=x2")
    assert found["what_if"]["objective"] < found["objective"]
    assert found["what_if"]["served_fraction"] == {"digits": 1.0}


def test_shortage_says_what_can_be_served(problem: Path) -> None:
    found = answer("--problem", str(problem), "--set", "apps.digits.demand_qps=4000")
    assert found["served_fraction"]["digits"] == pytest.approx(0.5)
    assert found["shortage"] == found["served_fraction"]


def test_the_table_explains_what_binds(problem: Path) -> None:
    shown = run("--problem", str(problem), "--explain")
    assert "queries/s" not in shown and "rows/s" in shown
    assert "pool cpu: all 2 devices are needed" in shown
    assert "spare" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "apps.digits.demand_qps=.nan"], "demand_qps"),
        (["--set", "apps.digits.demand_qps=-1"], "demand_qps"),
        (["--set", "apps.digits.slo_ms=0"], "slo_ms"),
        (["--set", "apps.other.slo_ms=5"], "there is no such entry"),
        (["--set", "headroom=0.5"], "headroom"),
        (["--set", "pools.cpu.type=tpu"], "is not profiled"),
        (["--set", "pools.cpu.count=1.5"], "count"),
        (["--set", "unheard=1"], "unheard"),
        (["--set", "headroom"], "key=value"),
        (["--what-if", "demand.digits=twice"], "needs a finite number"),
        (["--what-if", "pools.cpu=xnan"], "needs a finite number"),
        (["--what-if", "pools.cpu=xinf"], "needs a finite number"),
        (["--what-if", "pools.cpu=1e999"], "needs a finite number"),
        (["--what-if", "demand.digits=+inf"], "needs a finite number"),
        (["--what-if", "demand.nothing=x2"], "there is no such entry"),
        (["--what-if", "weather.digits=x2"], "demand.<app>=x2"),
        (["--planner", "oracle"], "unknown"),
        (["--set", "budget=-1"], "budget"),
        (["--set", "budget=9", "--planner", "scaling-ilp"], "budget: scaling-ilp knows none: choose another planner"),
        (["--set", "budget=9", "--set", "planner=scaling-greedy"], "budget: scaling-greedy knows none"),
        (["--set", "strict_on_demand=1.5"], "strict_on_demand"),
        (["--set", "previous=[{pool: cpu, variant: huge, count: 1}]"], "huge"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(problem: Path, arguments: list[str], said: str) -> None:
    shown = run("--problem", str(problem), *arguments, code=2)
    assert said in shown
    assert len(shown.strip().splitlines()) == 1


TWO_POOLS = (
    "--set",
    "pools=[{type: cpu, count: 2, price: 1.0}, {type: cpu, count: 2, price: 0.25, spot: true}]",
)


@pytest.mark.parametrize(
    ("option", "key", "ones"),
    [
        ("--what-if", "demand.words=300", "words#1 or words#2"),
        ("--what-if", "demand.words=+50", "words#1 or words#2"),
        ("--what-if", "pools.gpu=+2", "gpu#1 or gpu#2"),
        ("--set", "apps.words.slo_ms=50", "words#1 or words#2"),
    ],
)
def test_of_several_entries_of_a_name_none_is_changed_until_one_is_named(option: str, key: str, ones: str) -> None:
    assert ones in run("--problem", str(EXAMPLES / "two-apps.yaml"), option, key, code=2)
    none = read_question(EXAMPLES / "two-apps.yaml").problem
    one = read_question(
        EXAMPLES / "two-apps.yaml", ["apps.words#2.slo_ms=50"], ["demand.words#1=x2", "pools.gpu#2=+2"]
    ).problem
    assert [(d.app, d.qps, d.slo) for d in none.demands[1:]] == [("words", 200.0, 0.1), ("words", 100.0, 0.1)]
    assert [(d.app, d.qps, d.slo) for d in one.demands[1:]] == [("words", 400.0, 0.1), ("words", 100.0, 0.05)]
    assert [Counter(d.spot for d in p.devices if d.type == "gpu") for p in (none, one)] == [
        {False: 1, True: 2},
        {False: 1, True: 4},
    ]


def test_demand_that_is_multiplied_is_that_of_every_class_of_the_app() -> None:
    asked = read_question(EXAMPLES / "two-apps.yaml", (), ["demand.words=x1.5", "demand.images=x2"]).problem
    assert [(d.app, d.qps) for d in asked.demands] == [("images", 1200.0), ("words", 300.0), ("words", 150.0)]
    one = read_question(EXAMPLES / "two-apps.yaml", (), ["demand.words#2=x3"]).problem
    assert [d.qps for d in one.demands] == [600.0, 200.0, 300.0]


def used(found: dict[str, Any]) -> dict[str, int]:
    """Devices in use by pool."""
    counts: dict[str, int] = {}
    for p in found["placements"]:
        counts[p["pool"]] = counts.get(p["pool"], 0) + p["count"]
    return counts


def test_a_budget_is_kept_and_said_to_bind(problem: Path) -> None:
    rich = answer("--problem", str(problem), *TWO_POOLS)
    poor = answer("--problem", str(problem), *TWO_POOLS, "--set", "budget=0.8", "--explain")
    assert rich["cost_per_hour"] == pytest.approx(2.5)
    assert poor["cost_per_hour"] == pytest.approx(0.5)
    assert used(poor) == {"cpu#1": 2}
    assert poor["objective"] < rich["objective"]
    assert any("budget of 0.8" in line for line in poor["explain"]["binding"])


def test_what_money_is_worth_decides_what_is_bought(problem: Path) -> None:
    # The large variant on one device more adds 0.15 * 100 / 250 = 0.06, for 1.0 or 0.25 an hour.
    assert used(answer("--problem", str(problem), *TWO_POOLS, "--set", "money_weight=0.01")) == {"cpu#0": 1, "cpu#1": 2}
    assert used(answer("--problem", str(problem), *TWO_POOLS, "--set", "money_weight=0.1")) == {"cpu#1": 2}


def test_a_core_on_demand_serves_its_part_of_strict_demand(problem: Path) -> None:
    arguments = ("--problem", str(problem), *TWO_POOLS, "--set", "money_weight=0.1", "--set", "strict_on_demand=0.8")
    found = answer(*arguments)
    on_demand = sum(p["share"] for p in found["placements"] if p["pool"] == "cpu#0")
    assert on_demand >= 0.8 - 1e-9
    relaxed = answer(*arguments, "--set", "apps.digits.class=best_effort")
    assert used(relaxed) == {"cpu#1": 2}


def test_variants_beyond_a_pools_memory_are_not_placed(problem: Path) -> None:
    found = answer("--problem", str(problem), "--set", "pools.cpu.memory_bytes=50", "--set", "pools.cpu.count=9")
    assert {p["variant"] for p in found["placements"]} == {"small"}
    found = answer("--problem", str(problem), "--set", "pools.cpu.memory_bytes=100", "--set", "pools.cpu.count=9")
    assert {p["variant"] for p in found["placements"]} == {"large"}


def test_best_effort_gives_way_to_strict_demand(problem: Path) -> None:
    classes = (
        "apps=[{name: digits, slo_ms: 100, demand_qps: %s}, {name: digits, slo_ms: 100, demand_qps: 3000, class: %s}]"
    )
    both = answer("--problem", str(problem), "--set", classes % (1000, "best_effort"))
    assert both["served_fraction"]["digits"] == pytest.approx(0.5)
    assert both["served_by_class"] == {"digits": {"strict": 1.0, "best_effort": pytest.approx(1 / 3)}}


PREVIOUS = ("--set", "previous=[{pool: cpu, variant: small, count: 2}]")


def test_what_is_held_stays_where_loads_cost_more_than_they_gain_or_have_a_cap(problem: Path) -> None:
    free = answer("--problem", str(problem), *PREVIOUS, "--set", "loads=free")
    assert free["loads"] == 1
    dear = answer("--problem", str(problem), *PREVIOUS)
    capped = answer("--problem", str(problem), *PREVIOUS, "--set", "max_loads=0")
    for found in (dear, capped):
        assert found["loads"] == 0
        assert found["served_fraction"] == {"digits": 1.0}


def test_idle_devices_keep_what_they_hold(problem: Path) -> None:
    arguments = ("--problem", str(problem), "--set", "pools.cpu.count=6", "--set", "apps.digits.demand_qps=50")
    found = answer(*arguments, "--set", "previous=[{pool: cpu, variant: small, count: 5}]")
    assert {(p["variant"], p["count"]) for p in found["placements"]} == {("large", 1), ("small", 5)}
    assert found["loads"] == 1


def test_an_unset_variable_is_named(problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CATALOGUE_UNDER_TEST")
    assert "CATALOGUE_UNDER_TEST" in run("--problem", str(problem), code=2)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "apps: []\npools: []\nprofiles: {format: catalogue, path: x}", ""])
def test_files_that_are_no_problem_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert len(run("--problem", str(path), code=2).strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("\nprofiles:", "\nprofils:", r"profils: is unknown; did you mean profiles\?$"),
        ("demand_qps:", "demand:", r"apps\.0\.demand: is unknown; did you mean demand_qps\?$"),
    ],
)
def test_a_field_that_nobody_knows_is_told_with_the_nearest(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    asked = (EXAMPLES / "two-apps.yaml").read_text()
    assert right in asked
    (tmp_path / "bad.yaml").write_text(asked.replace(right, wrong))
    with pytest.raises(InvalidInputError, match=said):
        read_question(tmp_path / "bad.yaml")


@pytest.mark.parametrize("form", ["catalogue", "proteus-csv"])
@pytest.mark.parametrize(("path", "why"), [("x" * 300, "too long"), ("a/" * 3000, "too long"), ("a\\0b", "null byte")])
def test_a_path_of_profiles_that_no_file_can_have_is_refused_in_one_line(
    tmp_path: Path, form: str, path: str, why: str
) -> None:
    asked = (EXAMPLES / "two-apps.yaml").read_text()
    asked = asked[: asked.index("profiles:")] + f'profiles: {{format: {form}, path: "{path}"}}\n'
    (tmp_path / "bad.yaml").write_text(asked)
    with pytest.raises(ConfigurationError, match=rf"^profiles.path: .{{,100}} is no place to read from: .*{why}"):
        read_question(tmp_path / "bad.yaml")


EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "problems"


def test_the_shipped_example_is_planned_within_its_budget_and_core() -> None:
    found = answer("--problem", str(EXAMPLES / "two-apps.yaml"), "--explain")
    assert found["cost_per_hour"] <= 5.0
    assert found["served_by_class"]["words"]["strict"] == found["served_by_class"]["images"]["strict"] == 1.0
    assert {p["pool"] for p in found["explain"]["pools"]} == {"cpu", "gpu#1", "gpu#2"}
    away = sum(p["share"] for p in found["placements"] if p["pool"] == "gpu#2" and p["app"] == "images")
    assert away <= 0.5 + 1e-6
    assert found["explain"]["binding"]


CUT = str(EXAMPLES / "gpu-slices.yaml")


def test_gpus_are_cut_otherwise_within_their_limit_for_what_that_brings() -> None:
    found = answer("--problem", CUT)
    changed = {(g["before"], g["after"]): g["count"] for g in found["geometries"] if g["before"] != g["after"]}
    assert sum(changed.values()) == found["changes"] == 2
    assert sum(g["count"] for g in found["geometries"]) == 8
    assert found["served_fraction"]["words"] > found["without_changes"]["served_fraction"]["words"] + 0.05
    assert {p["slice"] for p in found["placements"]} >= {"4g", "3g", "1g"}
    shown = run("--problem", CUT, "--explain")
    assert "cutting 2 GPUs otherwise brings: words" in shown
    assert "how GPUs are cut" in shown


def test_slices_are_explained_by_the_name_of_their_pool() -> None:
    pools = "pools=[{type: a100, count: 2, geometry: 4g+3g, change_limit: 0}, {type: a100, count: 2, geometry: 4g+3g}]"
    found = answer("--problem", CUT, "--set", pools, "--explain")
    assert "a100#0 + a100#1:4g" in {p["pool"] for p in found["explain"]["pools"]}


def test_gpus_keep_their_slices_where_none_may_change() -> None:
    found = answer("--problem", CUT, "--set", "pools.a100.change_limit=0")
    assert found["geometries"] == [{"pool": "a100", "count": 8, "before": "4g+3g", "after": "4g+3g"}]
    assert found["served_fraction"] == found["without_changes"]["served_fraction"]


def test_pools_of_one_type_change_each_within_its_own_limit() -> None:
    pools = "pools=[{type: a100, count: 4, geometry: 4g+3g, change_limit: 0}, {type: a100, count: 4, geometry: 4g+3g}]"
    found = answer("--problem", CUT, "--set", pools)
    changed = {g["pool"]: g["count"] for g in found["geometries"] if g["before"] != g["after"]}
    assert changed == {"a100#1": 1}


def test_gpus_that_are_not_cut_yet_are_cut_in_any_way_at_no_cost() -> None:
    found = answer("--problem", CUT, "--set", "pools.a100.geometry=free")
    assert {g["before"] for g in found["geometries"]} == {None}
    assert found["changes"] == 0 and "without_changes" not in found
    assert found["served_fraction"] == {"chat": 1.0, "images": 1.0, "words": 1.0}


def test_what_slices_hold_is_known() -> None:
    held = "previous=[{pool: a100, slice: 4g, variant: images-small, count: 8}]"
    fixed = ("--set", "pools.a100.change_limit=0")
    known = answer("--problem", CUT, *fixed, "--set", held, "--set", "price=0.1")
    assert known["loads"] < answer("--problem", CUT, *fixed)["loads"]


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ("{type: a100, count: 2, geometry: 4g+4g}", "'4g+4g' fits on no a100"),
        ("{type: a100, count: 2, geometry: 5g}", "1g, 2g, 3g"),
        ("{type: a100, count: 2, geometry: x}", "x"),
        ("{type: a100, count: 2, change_limit: 1}", "has no geometry"),
        ("{type: a100, count: 2, geometry: 7g, change_limit: -1}", "change_limit"),
        ("{type: a100, count: 2, geometry: 7g, memory_bytes: 5}", "memory of their own"),
        ("{type: cpu, count: 2, geometry: 7g}", "cannot be cut"),
        ("{type: h100, count: 2, geometry: 7g}", "is not profiled"),
    ],
)
def test_a_pool_that_cannot_be_cut_so_is_refused_in_one_line(pool: str, said: str) -> None:
    shown = run("--problem", CUT, "--set", f"pools=[{pool}]", code=2)
    assert said in shown
    assert len(shown.strip().splitlines()) == 1


def test_the_published_cluster_is_planned_as_its_optimum_is_known(
    sluice_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(sluice_data))
    found = answer("--problem", str(EXAMPLES / "published-cluster.yaml"))
    assert found["objective"] == pytest.approx(0.9588309, abs=5e-4)
    assert set(found["served_fraction"].values()) == {1.0}


def test_what_needs_the_papers_data_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_DATA", raising=False)
    assert "SLUICE_DATA" in run("--problem", str(EXAMPLES / "published-cluster.yaml"), code=2)
