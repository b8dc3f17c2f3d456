"""What commands say to a file: no bars, and no lines that a bar leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.settings.settings import Settings
from tests.harness import toy_catalogue


@pytest.mark.parametrize("made", [False, True])
def test_making_models_says_one_line_and_finding_them_none(
    made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLUICE_HOME", raising=False)

    def ensure(_: Path, told: Callable[[str, float], None], **__: object) -> Catalogue:
        for part in range(4 if made else 0):
            told(f"model {part}", part / 4)
        return toy_catalogue(("digits", "signals"))

    monkeypatch.setattr("sluicegate.executors.demo_catalogue.ensure_demo_catalogue", ensure)
    open_catalogue(Settings(home=tmp_path))
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == ("making the demo's models, once: under a minute on two idle cores\n" if made else "")
