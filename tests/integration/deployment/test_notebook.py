"""The notebook runs from top to bottom, as it stands."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.thorough
def test_the_notebook_runs_and_says_what_each_way_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    document = json.loads((ROOT / "examples" / "accuracy_scaling.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    said = capsys.readouterr().out
    assert said.count("right in time") == 3
    assert names["found"].keys() == {"all variants", "best alone", "fastest alone"}
