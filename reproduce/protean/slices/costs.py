"""What capacity costs under revocations, without any load: nodes, a market and a bill."""

from collections.abc import Mapping

import numpy as np

from reproduce.protean.gpu_choice import RoundRobin
from reproduce.protean.slices.cluster import Rules
from reproduce.protean.slices.spot import BoughtNodes, SpotMarket
from reproduce.protean.slices.workload import Workload
from reproduce.protean.slices.world import World
from sluicegate.planner.capacity.procurement import Mode, Prices
from sluicegate.planner.geometry.mig_tables import TABLES
from sluicegate.policies.placement.strict import StrictFirst
from sluicegate.profiles.catalogue.slowdown import SlowdownTable

PROBABILITIES = (0.0, 0.354, 0.708)
"""Of a revocation in an interval, from low to high (PROTEAN, section 5)."""


class _NoQueue:
    """Makes queues for a world without batches."""

    def __call__(self) -> StrictFirst:
        return StrictFirst(SlowdownTable({}))


def bill(
    mode: Mode, market: SpotMarket, prices: Prices, *, nodes: int, hours: float, seed: int, core: int = 0
) -> float:
    """Money for ``hours`` of ``nodes`` GPUs."""
    seconds = 3600.0 * hours
    bought = BoughtNodes(mode, market, prices, np.random.default_rng(seed), core=core)
    world = World(
        Workload((), seconds, "", ()),
        SlowdownTable({}),
        TABLES["a100"],
        nodes,
        Rules(make_queue=_NoQueue(), geometry=("7g",)),
        dispatch=RoundRobin(),
        nodes=bought,
    )
    world.run_until(seconds)
    return bought.meter.total(seconds)


def savings(
    prices: Prices,
    *,
    interval_s: float = 600.0,
    notice_s: float = 60.0,
    nodes: int = 8,
    hours: float = 240.0,
    seed: int = 0,
) -> Mapping[float, Mapping[str, float]]:
    """By probability: ``hybrid`` against on demand, and ``spot_only`` against the hybrid (shares saved, 0..1)."""
    found = {}
    for probability in PROBABILITIES:
        market = SpotMarket(p_rev=probability, interval_s=interval_s, notice_s=notice_s)
        costs = {
            mode: bill(mode, market, prices, nodes=nodes, hours=hours, seed=seed)
            for mode in ("on-demand", "hybrid", "spot-only")
        }
        found[probability] = {
            "hybrid": 1.0 - costs["hybrid"] / costs["on-demand"],
            "spot_only": 1.0 - costs["spot-only"] / costs["hybrid"],
        }
    return found
