"""The papers' figures by name, and the files that one of them writes."""

import json
import sys
from pathlib import Path

import pytest

from reproduce.__main__ import ALL, PAPERS, main


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


@pytest.mark.parametrize("figure", ["proteus-4", "ramsis-5"])
def test_data_that_are_not_where_they_are_said_to_be_are_told_in_one_line(
    figure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "argv", ["reproduce", figure, "--quick", "--processes", "1", "--out", str(tmp_path)])
    assert main() == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"{figure}: ") and str(tmp_path / "none") in told and "point to a copy of" in told
