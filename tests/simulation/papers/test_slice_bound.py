"""What no system exceeds on sliced GPUs: not the best of all ways to run a few batches, nor any rule at all."""

from collections.abc import Sequence
from itertools import permutations, product
from math import floor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reproduce.protean.baselines import STRATEGIES, strategy
from reproduce.protean.gpu_choice import DISPATCHES
from reproduce.protean.slice_bound import facets_of, most_on_time
from reproduce.protean.slices.cluster import Ended, Rules
from reproduce.protean.slices.workload import Batch, Workload
from reproduce.protean.slices.world import World
from sluicegate.planner.geometry.mig_tables import TABLES, Geometry
from sluicegate.policies.placement.slice_choice import SliceLoad
from sluicegate.policies.placement.slice_queue_port import Assigned, Waiting
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand

GB = 1 << 30
A100 = TABLES["a100"]
GEOMETRIES: tuple[Geometry, ...] = (("7g",), ("4g", "3g"), ("3g", "3g"))
RDF = {"7g": 1.0, "4g": 1.3, "3g": 1.6, "2g": 2.3, "1g": 4.4}


def table(fbr: float, memory_gb: float) -> SlowdownTable:
    of = VariantDemand(name="m", solo=0.1, memory_bytes=int(memory_gb * GB), rdf=RDF, fbr=fbr, batch=4)
    return SlowdownTable({"m": of})


def workload(arrivals: Sequence[tuple[float, int]]) -> Workload:
    """Batches of (formed at, rows), whose queries came up to 50 ms before."""
    found = []
    for key, (at, rows) in enumerate(sorted(arrivals)):
        came = at - np.linspace(0.05, 0.0, rows)
        found.append(Batch(key, "m", True, at, came, 0.2 + 0.8 * rows / 4))
    return Workload(tuple(found), 1.0 + max(at for at, _ in arrivals), "m", ((0.0, "m"),))


class Told:
    """A queue that puts each batch on the slice it is told, in the order it is told, one at a time or together."""

    name = "told"

    def __init__(self, where: dict[int, int], order: Sequence[int], *, shared: bool) -> None:
        self._where, self._order, self._shared = where, list(order), shared
        self._there: dict[int, Waiting] = {}

    def arrived(self, item: Waiting, slices: Sequence[SliceLoad]) -> None:
        self._there[item.key] = item

    def next(self, slices: Sequence[SliceLoad]) -> Assigned | None:
        size = KNOWN[0].demands["m"].memory_bytes
        blocked: set[int] = set()
        for key in [k for k in self._order if k in self._where]:
            at = self._where[key]
            free = slices[at].free_bytes >= size and (self._shared or not slices[at].residents)
            if key in self._there and free and at not in blocked:
                self._order.remove(key)
                return Assigned(self._there.pop(key), at, slices[at].profile)
            blocked.add(at)
        return None

    def drain(self) -> list[Waiting]:
        return []

    @property
    def queued(self) -> int:
        return len(self._there)


KNOWN: list[SlowdownTable] = [table(0.6, 3.0)]
"""The table that ``Told`` reads; one at a time."""


class ByTable:
    """Each batch to its GPU."""

    def __init__(self, where: Sequence[int]) -> None:
        self._where = where

    def choose(self, item: Waiting, gpus: Sequence[object]) -> int:
        return self._where[item.key]


def on_time(ended: Sequence[Ended], slo: float) -> int:
    return sum(int((e.at - e.batch.arrivals <= slo + 1e-9).sum()) for e in ended)


def best_of_all(work: Workload, known: SlowdownTable, gpus: int, slo: float) -> float:
    """Share on time of the best of all geometries, assignments and orders."""
    KNOWN[0] = known
    keys = range(len(work.batches))
    size = known.demands["m"].memory_bytes
    best = 0
    for geometry in GEOMETRIES:
        parts = [i for i, p in enumerate(sorted(geometry, key=lambda p: A100.profile(p).memory_bytes))
                 if A100.profile(p).memory_bytes >= size]  # fmt: skip
        for places in product(list(product(range(gpus), parts)), repeat=len(keys)):
            for order, shared in product(permutations(keys), (False, True)):
                queues = iter(
                    [
                        Told({k: places[k][1] for k in keys if places[k][0] == g}, order, shared=shared)
                        for g in range(gpus)
                    ]
                )  # fmt: skip
                rules = Rules(make_queue=lambda queues=queues: next(queues), geometry=geometry)  # type: ignore[misc]
                world = World(work, known, A100, gpus, rules, dispatch=ByTable([g for g, _ in places]))
                world.run()
                best = max(best, on_time(world.ended, slo))
    return best / sum(b.rows for b in work.batches)


batches = st.lists(st.tuples(st.floats(0.0, 0.4).map(lambda x: round(x, 3)), st.integers(1, 4)), min_size=1)


@given(batches.filter(lambda b: len(b) <= 3), st.floats(0.2, 1.2), st.sampled_from([2.0, 7.8, 13.7]),
       st.floats(1.1, 3.5), st.integers(1, 2))  # fmt: skip
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_the_best_of_all_ways_to_run_a_few_batches_is_not_above_the_bound(
    arrivals: list[tuple[float, int]], fbr: float, memory_gb: float, multiplier: float, gpus: int
) -> None:
    known, work = table(fbr, memory_gb), workload(arrivals)
    bound = most_on_time(work.batches, known, A100, gpus=gpus, multiplier=multiplier)
    assert best_of_all(work, known, gpus, 0.1 * multiplier) <= bound + 1e-9


@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 4)), min_size=1, max_size=80),
    st.sampled_from(sorted(STRATEGIES)),
    st.sampled_from(sorted(DISPATCHES)),
    st.sampled_from([g for g in A100.undominated if g[0] in ("7g", "4g", "3g")]),
    st.floats(0.2, 1.2),
    st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_no_rule_exceeds_the_bound(
    arrivals: list[tuple[float, int]], placement: str, dispatch: str, geometry: Geometry, fbr: float, gpus: int
) -> None:
    known, work = table(fbr, 7.8), workload(arrivals)
    rules = Rules(make_queue=lambda: strategy(placement, known), geometry=geometry)
    world = World(work, known, A100, gpus, rules, dispatch=DISPATCHES[dispatch](known))
    world.run()
    share = on_time(world.ended, 0.3) / sum(b.rows for b in work.batches)
    assert share <= most_on_time(work.batches, known, A100, gpus=gpus, multiplier=3.0) + 1e-9


@pytest.mark.parametrize("gpus", [1, 3])
def test_the_bound_knows_an_overload(gpus: int) -> None:
    """60 full batches at once: in 0.3 s the best geometry does so many, and a sixteenth more by whole intervals."""
    known, work = table(0.6, 2.0), workload([(1.0, 4)] * 60)
    bound = most_on_time(work.batches, known, A100, gpus=gpus, multiplier=3.0)
    rate = max(sum(1.0 / (0.1 * RDF[p] * 0.6) for p in g if 0.1 * RDF[p] <= 0.3) for g in A100.undominated)
    assert floor(0.3 * rate) * gpus / 60 <= bound + 1e-9
    assert bound <= 1.1 * 0.3 * rate * gpus / 60


def test_weights_are_of_geometries_and_of_nothing_more() -> None:
    facets = facets_of(A100)
    heaviest = {g: max(sum(w[p] for p in g) for w in facets) for g in A100.undominated}
    assert all(h <= 1.0 + 1e-9 for h in heaviest.values())
    assert heaviest[("7g",)] == pytest.approx(1.0)
    for impossible in (("4g", "4g"), ("7g", "1g"), ("3g", "3g", "1g"), ("2g",) * 4):
        assert max(sum(w[p] for p in impossible) for w in facets) > 1.0 + 1e-9, impossible
