"""The papers' figures by name, and the files that one of them writes."""

import html
import json
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from reproduce.__main__ import ALL, PAPERS, cpu_s, main
from reproduce.drawing import panels
from reproduce.figure import Options, Result, TraceOptions
from reproduce.infaas import figures as infaas
from reproduce.protean import tables
from reproduce.ramsis import figures as ramsis
from reproduce.spread_drop.figures import COUNTED, figure_3, figure_5, said_6


def test_every_figure_has_a_name_of_its_own() -> None:
    assert len(ALL) == sum(map(len, PAPERS.values()))
    assert {"proteus-4", "proteus-loads", "protean-t4", "spread-drop-3", "infaas-5-free", "ramsis-12"} <= ALL.keys()


def test_a_figure_is_a_page_a_picture_and_its_raw_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce", "spread-drop-4", "spread-drop-5", "--quick", "--out", str(tmp_path)])
    assert main() == 0
    names = {f"spread-drop-{number}{end}" for number in (4, 5) for end in (".html", ".png", ".json")}
    assert {file.name for file in tmp_path.iterdir()} == names
    rows = json.loads((tmp_path / "spread-drop-4.json").read_text())
    assert [row["balanced"] for row in rows if row["arrivals"] in (8, 9, 16, 17)] == [0, 1, 1, 2]
    page = (tmp_path / "spread-drop-4.html").read_text()
    assert "python -m reproduce spread-drop-4 --quick" in page
    assert "<svg" in page


def test_an_unknown_figure_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce", "proteus-44"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "proteus-44" in capsys.readouterr().err


NEEDY = ["proteus-4", "proteus-6", "proteus-10", "ramsis-5", "infaas-5", "infaas-7"]


@pytest.mark.parametrize("figure", NEEDY)
@pytest.mark.parametrize("there", [None, "none"])
def test_data_that_are_not_there_are_told_in_one_line_with_how_to_get_them(
    figure: str, there: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if there:
        monkeypatch.setenv("SLUICE_DATA", str(tmp_path / there))
    else:
        monkeypatch.delenv("SLUICE_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["reproduce", figure, "--quick", "--processes", "1", "--out", str(tmp_path)])
    assert main() == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"{figure}: ") and (str(tmp_path / "none") if there else "SLUICE_DATA is not set") in told
    paper, artifact = ("proteus", "UMass-LIDS/Proteus") if "proteus" in figure else ("ramsis", "dmmendo/RAMSIS")
    assert artifact in told and "docs/guide/scenarios.md" in told
    assert (f"has no {paper}" in told) == bool(there)


def test_figures_that_need_no_data_are_made_beside_those_that_lack_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLUICE_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["reproduce", "ramsis-7", "infaas", "--quick", "--out", str(tmp_path)])
    assert main() == 2
    assert {file.stem for file in tmp_path.iterdir()} == {"infaas-6"}
    lacking = [line.split(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert lacking == ["ramsis-7", "infaas-5", "infaas-5-free", "infaas-5-surface", "infaas-7"]


def test_what_a_figure_says_of_its_numbers_is_counted_from_them() -> None:
    (spread, _) = figure_3(Options(seeds=2, quick=True)).notes
    assert "in 8 of 8 runs" in spread
    gamma = [
        {"load": 0.5, "early-drop": 0.01, "aimd": 0.02, "deadline": 0.02, COUNTED: 0.0},
        {"load": 0.9, "early-drop": 0.09, "aimd": 0.12, "deadline": 0.03, COUNTED: 0.0},
    ]
    _, by_slo, counted, _ = said_6(gamma)
    assert "50 %: early drop 0.5x, AIMD 1.0x; 90 %: early drop 3.0x, AIMD 4.0x" in by_slo
    assert "fewer at 1 of 2 loads" in by_slo
    assert counted.endswith("none to compare with, in so short runs.")
    gamma[1][COUNTED] = 0.03
    assert said_6(gamma)[2].endswith("counted so: 90 %: early drop 3.0x, AIMD 4.0x.")


def test_a_seed_draws_other_arrivals_for_selection_tables_too(
    sluice_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(sluice_data))
    place = TraceOptions(panel="image, 150", at=(2000.0,))
    jobs: list[ramsis.Job] = []

    def here(number: str, asked: list[ramsis.Job], processes: int) -> list[ramsis.Point]:
        del number, processes
        jobs.extend(asked)
        return ramsis.compute(asked[0])

    monkeypatch.setattr(ramsis, "computed", here)
    first, again, other = (ramsis.figure("7", Options(seed=s, seconds=1.0, trace=place)).rows for s in (0, 0, 3))
    assert {(job.seed, job.seconds) for job in jobs} == {(0, 1), (3, 1)}
    assert [r["accuracy"] for r in first] == [r["accuracy"] for r in again] != [r["accuracy"] for r in other]


@pytest.mark.thorough
def test_selection_tables_are_run_on_as_many_draws_as_are_asked_for(
    sluice_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(sluice_data))
    place = TraceOptions(panel="image, 150", at=(2000.0,))
    monkeypatch.setattr(
        ramsis, "computed", lambda number, asked, processes: [p for job in asked for p in ramsis.compute(job)]
    )

    def accuracies(seed: int, seeds: int | None) -> list[float]:
        made = ramsis.figure("7", Options(seed=seed, seeds=seeds, seconds=1.0, trace=place))
        return [row["accuracy"] for row in made.rows]

    third, fourth = accuracies(3, None), accuracies(4, 1)
    assert third != fourth
    assert accuracies(3, 2) == pytest.approx([(a + b) / 2 for a, b in zip(third, fourth, strict=True)])


def model_less_seconds(options: Options) -> float:
    alone, _ = infaas.figure_7(options).rows
    return float(alone["GPU seconds"]) / 2


@pytest.mark.thorough
def test_model_less_serving_is_run_for_as_long_as_is_asked(sluice_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(sluice_data))
    assert model_less_seconds(Options(seeds=1, seconds=20.0)) == 20.0
    assert infaas.figure_5(Options(seeds=1, seconds=20.0)).title.startswith("Figure 5. 10,277 queries")


@pytest.mark.thorough
def test_model_less_serving_is_run_for_long_unless_it_is_to_be_quick(
    sluice_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(sluice_data))
    assert model_less_seconds(Options(quick=True)) == 60.0
    assert model_less_seconds(Options(seeds=1)) > 200.0
    runs = infaas.played(Options(quick=True))
    assert {(len(found), len(found[0].by_tick)) for found in runs.values()} == {(1, 60)}
    short, usual = infaas.figure_6(Options(seconds=60.0)).rows, infaas.figure_6(Options()).rows
    assert all(a != b for a, b in zip(short[1:], usual[1:], strict=True))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[(f"--{name}", value) for name in ("seeds", "processes", "speed", "phases") for value in ("0", "-1", "two")],
        ("--seed", "-1"),
        *[("--seconds", value) for value in ("-3", "0.5", "nan", "inf", "ten")],
        ("--at", "60,x"),
    ],
)
def test_a_number_that_means_nothing_is_refused_with_its_option(
    option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce", "spread-drop-4", "--quick", "--out", str(tmp_path), option, value])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"argument {option}: must be" in capsys.readouterr().err


def test_a_file_that_is_not_among_the_papers_data_is_named_and_other_figures_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "proteus").mkdir()
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path))
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["reproduce", "proteus-10", "spread-drop-4", "--quick", "--out", str(out)])
    assert main() == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("proteus-10: ") and "has no proteus/milp_oracle.json" in told
    assert {file.stem for file in out.iterdir()} == {"spread-drop-4"}


def test_a_malformed_profile_is_told_from_the_processes_that_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ramsis").mkdir()
    (tmp_path / "ramsis" / "profiles.json").write_text("{}")
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path))
    out = ["--quick", "--processes", "1", "--panel", "image, 150", "--at", "2000", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["reproduce", "ramsis-7", *out])
    assert main() == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("ramsis-7: ")


def test_what_is_said_of_the_worst_ten_is_counted_from_the_rows() -> None:
    made = figure_5(Options(quick=True))
    full = [row["arrivals"] for row in made.rows if row["early-drop"] == 10]
    assert full and made.notes[-1] == f"Early drop misses ten of ten at {', '.join(map(str, full))} arrivals in P."
    kept, possible = (sum(row[name] <= 5 for row in made.rows) for name in ("weakly-hard", "bound"))
    assert f"kept at {kept} rates, by the lower bound at {possible} at most" in made.notes[1]


def command_of(page: Path) -> list[str]:
    """Of a page's foot, as a shell reads it."""
    (told,) = re.findall("(python -m reproduce .*?); ", html.unescape(page.read_text()))
    return shlex.split(told)[3:]


def nothing_made(options: Options) -> Result:
    del options
    drawing, _ = panels(1, 1, 1.0, 1.0)
    return Result("nothing", "", [("nothing", drawing)], [], [])


@pytest.mark.parametrize(
    "asked",
    [
        ["--quick", "ramsis-5", "ramsis-6", "--panel", "image, 150", "--at", "60,70.5"],
        ["--seconds", "240", "--seeds", "2", "ramsis-5", "ramsis-6"],
    ],
)
def test_a_page_tells_the_command_that_makes_it_alone(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce", *asked, "--out", str(tmp_path / "a b")])
    seen: list[tuple[str, Options]] = []

    def made(name: str, options: Options) -> Result:
        seen.append((name, options))
        return nothing_made(options)

    for name in ("ramsis-5", "ramsis-6"):
        monkeypatch.setitem(ALL, name, partial(made, name))
    assert main() == 0
    for name, options in seen[:]:
        again = command_of(tmp_path / "a b" / f"{name}.html")
        monkeypatch.setattr(sys, "argv", ["reproduce", *again])
        assert main() == 0
        assert seen.pop() == (name, options)


def test_the_time_of_a_page_counts_the_processes_that_made_it() -> None:
    before = cpu_s()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert cpu_s() - before >= 0.3


def test_a_page_says_where_others_made_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(options: Options) -> Result:
        tables.vision("vgg19", options)
        return nothing_made(options)

    monkeypatch.setattr(tables, "compared", lambda *_: {})
    for name in ("protean-5", "protean-6"):
        monkeypatch.setitem(ALL, name, made)
    monkeypatch.setattr(sys, "argv", ["reproduce", "protean-5", "protean-6", "--seed", "977", "--out", str(tmp_path)])
    assert main() == 0
    tables.vision.cache_clear()
    said = ["runs that figures made before" in (tmp_path / f"protean-{n}.html").read_text() for n in (5, 6)]
    assert said == [False, True]


def test_an_option_without_effect_is_said_to_have_none_and_is_not_told_as_what_made_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["spread-drop-4", "--quick", "--seeds", "3", "--seconds", "5", "--panel", "image, 150"]
    monkeypatch.setattr(sys, "argv", ["reproduce", *asked, "--out", str(tmp_path)])
    assert main() == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "without effect" in line]
    assert said == ["spread-drop-4: without effect here: --seeds, --seconds, --panel"]
    assert command_of(tmp_path / "spread-drop-4.html") == ["spread-drop-4", "--quick", "--out", str(tmp_path)]
