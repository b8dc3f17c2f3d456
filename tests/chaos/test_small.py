"""A few faults with each thorough run of the suite; ``make chaos`` runs all of them, many times."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.cells import CELLS
from tests.chaos.faulty import DIES
from tests.chaos.run import run_cell

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]


@pytest.mark.parametrize(
    ("name", "told", "starts"),
    [
        ("worker-kill-before-commit", ["kill-before-commit is armed", DIES.decode().strip()], 2),
        ("full-disk", ["full-disk is armed", "resumed: decisions are written again"], 1),
    ],
)
async def test_nothing_is_lost_and_promises_are_kept_or_announced(
    name: str, told: list[str], starts: int, kafka_url: str, sluice_home: Path, tmp_path: Path
) -> None:
    del kafka_url  # skips where there is no Kafka; each cell has a broker of its own
    cell = replace(CELLS[name], window=7.0)
    verdict = await run_cell(cell, tmp_path, sluice_home, seeds=1, rate=80.0)
    assert verdict.queries > 100
    assert verdict.faults == (), verdict
    (hit,) = verdict.hits
    log = (tmp_path / f"{hit}.log").read_text()
    assert [log.count(line) for line in told] == [1] * len(told), "the fault happened, and was felt"
    assert log.count("Ctrl-C stops") == starts
