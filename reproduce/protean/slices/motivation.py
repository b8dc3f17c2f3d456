"""PROTEAN's motivation (Fig. 2): one burst of strict and best-effort batches on one GPU, by way to place them.

The first experiment has six batches that hardly disturb each other, the second four that do.
"""

from collections.abc import Mapping

import numpy as np

from reproduce.protean.baselines import strategy
from reproduce.protean.gpu_choice import RoundRobin
from reproduce.protean.slices.cluster import Rules
from reproduce.protean.slices.figures import latencies
from reproduce.protean.slices.workload import Batch, Workload
from reproduce.protean.slices.world import World
from sluicegate.planner.geometry.mig_tables import GB, parse_geometry, table_of
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand

SOLO = 0.1
LIGHT: Mapping[str, float] = {"7g": 1.0, "4g": 1.05, "3g": 1.2}
HEAVY: Mapping[str, float] = {"7g": 1.0, "4g": 1.5, "3g": 2.15}
WAYS: Mapping[str, tuple[str, str]] = {
    "no sharing": ("fifo-time-shared", "7g"),
    "MIG only": ("round-robin-time-shared", "4g+3g"),
    "MPS only": ("fifo-shared", "7g"),
    "MPS + MIG": ("round-robin-shared", "4g+3g"),
    "smart MPS + MIG": ("class-slices", "4g+3g"),
}
"""Placement and geometry by the paper's names."""


def burst_compliance(placement: str, geometry: str, classes: str, rdf: Mapping[str, float], fbr: float) -> float:
    """Share of the strict batches (``S``, others ``B``) of one burst that end within three times their time alone."""
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
    return latencies(world.ended, known, strict=True, warm_up=0.0).within(3 * SOLO)


def figure_2(way: str) -> tuple[float, float]:
    """(2a, 2b): compliance of ``way``, one of WAYS, without and with disturbance."""
    placement, geometry = WAYS[way]
    return (
        burst_compliance(placement, geometry, "BSBSBS", LIGHT, 0.2),
        burst_compliance(placement, geometry, "BBSS", HEAVY, 0.8),
    )
