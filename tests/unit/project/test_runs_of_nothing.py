"""Campaigns that would try nothing, or never begin, are refused: nothing tried is not all well."""

import sys

import pytest

from tests.chaos import run as chaos
from tests.explore import run as explore


@pytest.mark.parametrize("campaign", [chaos, explore], ids=["chaos", "explore"])
@pytest.mark.parametrize("asked", [["--seeds", "0"], ["--seeds", "-3"], ["--parallel", "0"]], ids="-".join)
def test_a_campaign_without_seeds_or_processes_is_refused(
    campaign: object, asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def runs(*_: object, **__: object) -> None:
        raise AssertionError("it began")

    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(sys, "argv", ["run", *asked])
    monkeypatch.setattr(campaign, "Console", runs)
    with pytest.raises(SystemExit) as refused:
        campaign.main()  # type: ignore[attr-defined]
    assert refused.value.code == 2
    assert "--seeds and --parallel: give 1 or more" in capsys.readouterr().err
