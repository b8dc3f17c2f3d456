"""The benchmark of batching rules: its bounds bound, its figures are those of the tracker, and it resumes."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import bench.batching as bench
from bench.batching import (
    ARRIVALS,
    CURVES,
    RULES,
    Cell,
    Results,
    clairvoyant,
    fluid_bound,
    judged,
    known,
    measure,
    one_line_a_cell,
    read,
    times,
)
from reproduce.spread_drop.trial import DROPPED, ON_TIME, Trial, try_alone
from sluicegate.domain.events import Hosted
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.promises.tracker import MissTracker
from sluicegate.policies.serving.slice_scheduler import Station

CELLS = [
    Cell(arrivals, curve, slo, load)
    for arrivals in ARRIVALS
    for curve in CURVES
    for slo, load in ((2, 0.9), (4, 1.2), (10, 0.7))
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_no_rule_misses_fewer_than_the_clairvoyant_bound(cell: Cell) -> None:
    _, found = measure((cell, 150, 3))
    least = found["clairvoyant"]["violations"]
    assert set(found) == {*RULES, "clairvoyant", "fluid"}
    assert all(found[rule]["violations"] >= least - 1e-9 for rule in RULES)


@pytest.mark.parametrize("first", [0.012, 0.002], ids=["some gain", "hardly any"])
def test_the_default_rule_serves_all_of_the_capacity_at_three_times_it_even_where_batches_gain_little(
    first: float,
) -> None:
    slo, seconds = 0.5, tuple(s for b in range(64) if (s := first + 0.008 * b) <= 0.5)
    capacity = max(b / s for b, s in enumerate(seconds, 1) if s <= slo / 2)
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1 / (3 * capacity), 4000)).tolist()
    queries = [Query("", "app", at, at + slo) for at in arrivals]
    trial = try_alone(Station(batching("adaptive")), queries, (Hosted("v", 0.9, LatencyCurve(seconds)),), slo)
    assert trial.fates.count(ON_TIME) / arrivals[-1] > 0.98 * capacity


def test_the_bounds_allow_the_largest_batch_that_a_deadline_bears() -> None:
    cell = Cell("uniform", "affine", 2, 1.0)
    assert len(cell.seconds) == 25
    assert cell.capacity == pytest.approx(8 / 0.017)
    assert clairvoyant(cell, [0.0] * 30) == pytest.approx(5 / 30)


def test_at_a_constant_rate_the_fluid_bound_is_nothing_up_to_capacity_and_the_excess_above_it() -> None:
    assert fluid_bound(Cell("uniform", "linear", 4, 1.0)) == pytest.approx(0.0)
    assert fluid_bound(Cell("uniform", "linear", 4, 1.2)) == pytest.approx(1 - 1 / 1.2)


def test_arrivals_are_equal_for_equal_seeds_and_have_the_rate_of_the_cell() -> None:
    for arrivals in ARRIVALS:
        cell = Cell(arrivals, "affine", 10, 0.8)
        at = times(cell, 20_000, 1)
        assert at == times(cell, 20_000, 1) != times(cell, 20_000, 2)
        assert len(at) / (at[-1] - at[0]) == pytest.approx(cell.rate, rel=0.2 if arrivals == "gamma" else 0.05)


def test_misses_are_judged_as_the_tracker_judges_them() -> None:
    fates = [DROPPED if i % 7 in (0, 1, 3) or 60 < i < 80 else ON_TIME for i in range(300)]
    tracker = MissTracker([10])
    for fate in fates:
        tracker.record(fate != ON_TIME)
    found = judged(Trial(bytearray(fates), batches=[(0.0, 1, 1.0)], ended=2.0))
    assert (found["mcd"], found["worst_10"]) == (tracker.mcd, tracker.worst[10])
    assert judged(Trial(bytearray([ON_TIME] * 20), batches=[(0.0, 1, 1.0)], ended=2.0))["mcd"] == 0


def test_a_run_that_was_broken_off_is_read_again_and_a_line_cut_short_is_not(tmp_path: Path) -> None:
    cell, by = CELLS[0], bench.made_by(RULES)
    _, found = measure((cell, 50, 0))
    whole = bench.line((cell, 50, 0), by, found)
    other = bench.line((cell, 50, 1), bench.made_by(["eager"]), {"eager": found["eager"]})
    path = tmp_path / "batching.jsonl"
    path.write_text(f"{whole}\n{other}\n{whole[:100]}")
    wanted = {(cell, 50, 0), (cell, 50, 1), (cell, 99, 0)}
    assert list(read(path, wanted, by)) == [((cell, 50, 0), found)]
    assert list(read(tmp_path / "none", wanted, by)) == []


def told(out: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    """What a run of one cell reports."""
    monkeypatch.setattr(bench, "ARRIVALS", ("gamma",))
    monkeypatch.setattr(bench, "CURVES", {"affine": CURVES["affine"]})
    monkeypatch.setattr(bench, "SLOS", (4,))
    monkeypatch.setattr(bench, "LOADS", (1.0,))
    monkeypatch.setattr(bench, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(bench, "draw", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["batching", "--workers", "1", "--out", str(out), *options])
    bench.main()
    return (out / "batching.txt").read_text()


def test_what_a_rule_of_other_options_or_other_sources_left_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "rule.py"
    monkeypatch.setattr(bench, "SOURCES", (source,), raising=False)
    run = partial(told, tmp_path, monkeypatch, "--queries", "900", "--seeds", "1", "--rules", "static")
    lines = []
    for size, content in ((8, "one"), (8, "one"), (4, "one"), (4, "two")):
        monkeypatch.setitem(bench.RULES, "static", ("static", {"size": size}))
        source.write_text(content)
        run()
        lines.append(len((tmp_path / "batching.jsonl").read_text().splitlines()))
    assert lines == [1, 1, 2, 3]


def test_other_queries_and_seeds_of_what_is_known_of_the_other_rules_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_of = ["--known", str(tmp_path / "batching.json"), "--rules"]
    run = partial(told, tmp_path, monkeypatch)
    assert "SAME ARRIVALS" not in run("--queries", "900", "--seeds", "2", "--rules", ",".join(RULES))
    assert "SAME ARRIVALS" not in run("--queries", "900", "--seeds", "2", *known_of, "adaptive")
    others = ", ".join(rule for rule in RULES if rule != "adaptive")
    said = f"NOT ON THE SAME ARRIVALS, of 900 queries and 2 seeds: {others}\n"
    assert said in run("--queries", "800", "--seeds", "2", *known_of, "adaptive")
    assert "2 seeds: adaptive\n" in run("--queries", "900", "--seeds", "2", *known_of, others.replace(", ", ","))
    (tmp_path / "old.json").write_text(json.dumps({**json.loads((tmp_path / "batching.json").read_text()), "runs": {}}))
    old = ["--known", str(tmp_path / "old.json"), "--rules", "adaptive"]
    assert f"of queries and seeds unknown: {others}\n" in run("--queries", "900", "--seeds", "2", *old)


def test_what_is_known_of_other_rules_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = told(tmp_path, monkeypatch, "--queries", "900", "--seeds", "1", "--rules", "adaptive")
    assert "of 40000 queries and 5 seeds: static" in said


def test_one_rule_measured_anew_is_reported_beside_what_is_known_of_the_others(tmp_path: Path) -> None:
    cell, all_rules = Cell("gamma", "affine", 4, 1.0), Results()
    for seed in range(2):
        all_rules.add(*measure((cell, 200, seed)))
    path = tmp_path / "batching.json"
    path.write_text(one_line_a_cell(all_rules.summary()))
    anew = Results(known(path))
    for seed in range(2):
        anew.add(*measure((cell, 200, seed), ["adaptive"]))
    assert anew.summary()["cells"] == all_rules.summary()["cells"]
    assert anew.margin(cell)[0] == pytest.approx(all_rules.margin(cell)[0], abs=1e-5)
