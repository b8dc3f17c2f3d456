"""Nothing is decided otherwise than it was, unless somebody meant it: see ``tests.models.recorded_decisions``."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from sluicegate.planner.registry import PLANNERS
from tests.models.recorded_cores import cores
from tests.models.recorded_decisions import CLUSTERS, MOVED, PLANNED, models, planned, record, table_of, worlds

LONG = {(name, "several variants") for name in PLANNED if name != "allocation"}
LONG |= {(name, "unlike money") for number, name in enumerate(PLANNED) if number % 3}


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        pytest.param(name, cluster, marks=pytest.mark.thorough if (name, cluster) in LONG else ())
        for name in PLANNED
        for cluster in CLUSTERS
    ],
)
def test_planners_answer_as_they_did(name: str, cluster: str) -> None:
    assert planned(name, cluster) == record()["planners"][name][cluster], MOVED


@pytest.mark.parametrize("name", models())
def test_tables_choose_as_they_did(name: str) -> None:
    assert table_of(models()[name]) == record()["tables"][name], MOVED


SUMS = """
import numpy as np
from threadpoolctl import threadpool_info
rows = np.random.default_rng(5).random((64, 997))
print(*{library.get("architecture") for library in threadpool_info()}, (rows @ rows.T).tobytes().hex())
"""


def sums_in(environment: Mapping[str, str]) -> tuple[str, str]:
    """Which kernels a process takes there, and what sums come to, to the last digit."""
    told = subprocess.run(
        [sys.executable, "-c", SUMS], check=True, capture_output=True, text=True, env=environment
    ).stdout.split()
    return told[0], told[-1]


@pytest.mark.thorough
@pytest.mark.parametrize(("kernels", "needs"), [("Sandybridge", "avx"), ("Haswell", "avx2"), ("SkylakeX", "avx512f")])
def test_other_last_digits_change_no_decision(kernels: str, needs: str) -> None:
    """OpenBLAS adds up in another order on each kind of processor."""
    if kernels in {library.get("architecture") for library in threadpool_info()}:
        pytest.skip(f"{kernels} is what this processor takes anyway, and all other tests with it")
    told = Path("/proc/cpuinfo")
    if not told.exists() or needs not in told.read_text():
        pytest.skip(f"this processor has no {needs}")
    here = Path(__file__)
    files = [str(here), str(here.parents[1] / "test_unequal_worlds.py")]
    again = [sys.executable, "-m", "pytest", "-q", "-k", "as_it_went or planners_answer or tables_choose", *files]
    other = {**os.environ, "OPENBLAS_CORETYPE": kernels}
    taken, digits = sums_in(other)
    assert taken == kernels and digits != sums_in(os.environ)[1], "it adds up as this process does: nothing is compared"
    subprocess.run(again, check=True, cwd=here.parents[3], env=other)


def test_each_is_told_from_the_others() -> None:
    """Two worlds that come to the same would say nothing of what they differ in."""
    known = record()
    digests = {name: {k: v for k, v in one.items() if k != "cost"} for name, one in known["worlds"].items()}
    same = [
        (one, other) for i, one in enumerate(digests) for other in [*digests][i + 1 :] if digests[one] == digests[other]
    ]
    assert same == []
    assert known["worlds"].keys() == worlds().keys()
    assert known["planners"].keys() == {*PLANNED} < PLANNERS.keys()
    assert known["tables"].keys() == models().keys()
    assert {core for one in known["worlds"].values() for core in one["cores"]} == cores().keys()
    assert len({json.dumps(one, sort_keys=True) for one in known["tables"].values()}) == len(known["tables"])
