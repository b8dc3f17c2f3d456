"""``sluice explain``: why variants were not hosted, by the settings that the planner goes by."""

from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.commands.reading.explain import excluded
from sluicegate.sluice.settings.settings import settings_of
from tests.harness import toy_catalogue

OUTCOME = Outcome(query_id="1", app="toy", kind=OutcomeKind.ANSWERED, arrival=0.0, deadline=1.0, at=0.5, accuracy=0.7)
NONE_FITS = "no batch of it fits within half the SLO here"


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        # By the 95th percentile 16 rows take 1.1 * 4.75 times as long as one by the median, and 4 rows 1.1 * 1.75.
        ({}, (612, 306)),
        ({"planner": {"quantile": "median"}}, (674, 337)),
        ({"slo_s": {"toy": 0.02}}, (416, None)),
        ({"fake_gpu": "a100x2"}, (612, 306)),
        ({"devices": [{"name": "d0", "type": "tpu"}]}, (None, None)),
    ],
)
def test_a_variant_that_was_not_hosted_is_judged_as_the_planner_judges_it(
    tmp_path: Path, changes: dict[str, Any], rates: tuple[int | None, ...]
) -> None:
    save_catalogue(tmp_path, toy_catalogue(), {})
    settings = settings_of("test", {"home": tmp_path, "catalogue": tmp_path, **changes})
    placement = Placement("d0", "toy", ("toy-v0",), 1.0, 1)
    found = excluded(settings, OUTCOME, Plan(epoch=Epoch(1, 1), created=1.0, placements=(placement,)))
    whys = [why.partition(": ")[2].partition(";")[0] for _, why in sorted(found)]
    fits = "a device carries {} rows/s of it"
    assert whys == [NONE_FITS if rate is None else fits.format(rate) for rate in rates]
