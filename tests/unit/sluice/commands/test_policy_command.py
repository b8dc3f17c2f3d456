"""``sluice policy``: what it prints, what it refuses, and how."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.policy_tables.table_codec import decode
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.commands.offline import policy

app = typer.Typer()
policy.register(app)


@app.callback()
def root() -> None:
    """A command line with a single group needs a root to keep its name."""


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["policy", *arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def question(tmp_path: Path) -> list[str]:
    """Two variants on a catalogue of ours, 4 workers."""
    points = {"small": (0.004, 0.012), "large": (0.02, 0.07)}
    catalogue = Catalogue.of(
        [App(name="digits", slo=0.1)],
        [Variant(name="small", app="digits", accuracy=0.8), Variant(name="large", app="digits", accuracy=0.95)],
        [
            Profile(variant=name, device_type="cpu", points=(BatchLatency(1, one, one), BatchLatency(8, eight, eight)))
            for name, (one, eight) in points.items()
        ],
    )
    save_catalogue(tmp_path / "catalogue", catalogue, models={})
    return ["--profiles", str(tmp_path / "catalogue"), "--app", "digits", "--slo-ms", "100"]


def test_generate_prints_what_is_promised(question: list[str], tmp_path: Path) -> None:
    file = tmp_path / "made" / "digits.table"
    load = ["--workers", "4", "--qps", "120", "--grid", "40"]
    found: dict[str, Any] = json.loads(run("generate", *question, *load, "--out", str(file), "--json"))
    assert {"expected_accuracy", "expected_violation", "states", "cpu_s", "table"} <= set(found)
    assert 0.8 <= found["expected_accuracy"] <= 0.95
    assert 0.0 <= found["expected_violation"] < 0.05
    assert found["states"] == 8 * 41 + 1
    table = decode(file.read_bytes())
    assert found["table"]["file"] == str(file)
    assert [code for row in found["table"]["actions"] for code in row] == list(table.actions)
    assert table.variants == ("small", "large")


def test_generate_says_it_in_words_too(question: list[str]) -> None:
    text = run("generate", *question, "--workers", "4", "--qps", "120", "--grid", "20")
    for name in ("expected_accuracy", "expected_violation", "states", "cpu_s", "table"):
        assert name in text


def test_generate_says_where_a_load_is_more_than_the_workers_can_hold(question: list[str]) -> None:
    said = " ".join(run("generate", *question, "--workers", "1", "--qps", "9000", "--grid", "10").split())
    assert "9000 queries/s are more than 1 such workers can hold" in said
    assert "can hold" not in run("generate", *question, "--workers", "4", "--qps", "120", "--grid", "10")


def test_an_slo_that_no_variant_meets_is_said_to_be_that(question: list[str], tmp_path: Path) -> None:
    asked = [*question[:-1], "3", "--workers", "4", "--grid", "10"]
    why = "3 ms are less than any variant takes: 'small' takes 4 ms for one query"
    said = " ".join(run("generate", *asked, "--qps", "10").split())
    assert f"nothing is in time: {why}" in said and "can hold" not in said
    assert run("library", *asked, "--out", str(tmp_path), code=2).split() == f"error slo: {why}".split()
    sized = [*question[:-1], "3", "--qps", "10", "--accuracy", "0.9", "--most", "2", "--grid", "10"]
    assert why in " ".join(run("size", *sized, code=1).split())


def test_show_draws_the_table(question: list[str], tmp_path: Path) -> None:
    file = tmp_path / "digits.table"
    run("generate", *question, "--workers", "4", "--qps", "120", "--grid", "20", "--out", str(file))
    text = run("show", str(file))
    assert "0 small" in text
    assert "1 large" in text
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(run("show", str(file), "--json"))["table"]["variants"] == ["small", "large"]


def test_size_finds_the_fewest_workers(question: list[str]) -> None:
    targets = ["--qps", "200", "--accuracy", "0.9", "--max-violation", "0.001", "--grid", "20"]
    found = json.loads(run("size", *question, *targets, "--json"))
    meets = {t["workers"]: t["accuracy"] >= 0.9 and t["violation"] <= 0.001 for t in found["tried"]}
    assert meets[found["workers"]]
    assert not meets[found["workers"] - 1]


def test_size_says_when_there_are_never_enough(question: list[str]) -> None:
    run("size", *question, "--qps", "5000", "--accuracy", "0.9", "--most", "3", "--grid", "10", code=1)


def test_library_writes_tables_by_load(question: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    found = json.loads(run("library", *question, "--workers", "4", "--grid", "20", "--out", str(folder), "--json"))
    tables = [decode(path.read_bytes()) for path in sorted(folder.iterdir())]
    assert [t.qps for t in tables] == [row["qps"] for row in found["tables"]]
    assert len(tables) > 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--qps", "nan"], "qps"),
        (["--qps", "-1"], "qps"),
        (["--grid", "fine"], "grid"),
        (["--grid", "0"], "grid"),
        (["--criterion", "best"], "criterion"),
        (["--dispatch", "weighted"], "share"),
        (["--slo-ms", "0"], "slo"),
        (["--workers", "0"], "workers"),
        (["--app", "letters"], "letters"),
        (["--phases", "5"], "phases"),
        (["--arrival-shape", "1e6"], "arrival_shape"),
        (["--price", "1e300"], "violation_price"),
    ],
)
def test_bad_questions_end_with_one_line(question: list[str], changed: list[str], said: str) -> None:
    text = run("generate", *question, "--workers", "4", "--qps", "10", *changed, code=2)
    assert said in text
    assert len(text.strip().splitlines()) == 1


def test_a_profile_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    batch = '{"p50": 1.0, "p95": NaN}'
    model = f'{{"accuracy": 50, "batches": {{"1": {batch}}}}}'
    text = f'{{"format": "ramsis-profiles/1", "tasks": {{"image": {{"m": {model}}}}}}}'
    (tmp_path / "profiles.json").write_text(text)
    arguments = ["--profiles", str(tmp_path / "profiles.json"), "--app", "image", "--slo-ms", "100"]
    said = run("generate", *arguments, "--workers", "1", "--qps", "1", code=2)
    assert "error" in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"SLT1" + b"0" * 60, b"\x00" * 200])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.table").write_bytes(content)
    assert "error x.table: table" in run("show", str(tmp_path / "x.table"), code=2)
