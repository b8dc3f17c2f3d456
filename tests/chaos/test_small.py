"""A few faults with each thorough run of the suite; ``make chaos`` runs all of them, many times."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.cells import CELLS
from tests.chaos.run import run_cell

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]


@pytest.mark.parametrize("name", ["worker-kill-before-commit", "full-disk"])
async def test_nothing_is_lost_and_promises_are_kept_or_announced(
    name: str, kafka_url: str, sluice_home: Path, tmp_path: Path
) -> None:
    del kafka_url  # skips where there is no Kafka; each cell has a broker of its own
    cell = replace(CELLS[name], window=7.0)
    verdict = await run_cell(cell, tmp_path, sluice_home, seeds=1, rate=80.0)
    assert verdict.queries > 100
    assert verdict.faults == (), verdict
