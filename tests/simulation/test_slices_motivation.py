"""The published motivation (PROTEAN, Fig. 2), exactly: bursts of four and of six on one GPU."""

import numpy as np
import pytest

from planner.geometry.tables import parse_geometry, table_of
from policies.placement.dispatch import RoundRobin
from policies.placement.strategies import strategy
from profiles.slowdown import SlowdownTable, VariantDemand
from simulator.slices.cluster import Rules
from simulator.slices.figures import latencies
from simulator.slices.workload import Batch, Workload
from simulator.slices.world import World

GB = 1 << 30
SOLO = 0.1


def compliance(placement: str, geometry: str, classes: str, rdf: dict[str, float], fbr: float) -> float:
    """Share of strict batches of one burst that end within three times their time alone."""
    known = SlowdownTable(
        {n: VariantDemand(name=n, solo=SOLO, memory_bytes=3 * GB, rdf=rdf, fbr=fbr) for n in ("strict", "other")}
    )
    batches = tuple(
        Batch(i, "strict" if c == "S" else "other", c == "S", 0.0, np.zeros(1), 1.0) for i, c in enumerate(classes)
    )
    rules = Rules(make_queue=lambda: strategy(placement, known), geometry=parse_geometry(geometry))
    world = World(
        Workload(batches, 1.0, "strict", ((0.0, "other"),)), known, table_of("a100"), 1, rules, dispatch=RoundRobin()
    )
    world.run()
    assert len(world.ended) == len(batches)
    return latencies(world.ended, known, strict=True, warm_up=0.0).within(3 * SOLO)


HEAVY = {"7g": 1.0, "4g": 1.5, "3g": 2.15}
LIGHT = {"7g": 1.0, "4g": 1.05, "3g": 1.2}


@pytest.mark.parametrize(
    ("placement", "geometry", "expected"),
    [
        ("fifo-shared", "7g", 0.0),
        ("round-robin-shared", "4g+3g", 0.5),
        ("class-slices", "4g+3g", 1.0),
        ("fifo-time-shared", "7g", 0.5),
    ],
)
def test_figure_2b(placement: str, geometry: str, expected: float) -> None:
    assert compliance(placement, geometry, "BBSS", HEAVY, 0.8) == expected


@pytest.mark.parametrize(
    ("placement", "geometry", "misses"),
    [
        ("fifo-shared", "7g", False),
        ("round-robin-shared", "4g+3g", False),
        ("class-slices", "4g+3g", False),
        ("fifo-time-shared", "7g", True),
        ("round-robin-time-shared", "4g+3g", True),
    ],
)
def test_figure_2a(placement: str, geometry: str, misses: bool) -> None:
    assert (compliance(placement, geometry, "BSBSBS", LIGHT, 0.2) < 0.99) is misses
