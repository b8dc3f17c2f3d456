"""One app on K equal workers: selection tables against rules that fix a variant, on the same arrivals.

Tables run on the workers' own queues behind a round robin, the rules on one central queue, as each is published.
Service times are the profile's p95, or drawn around its median. Loads are estimated over half a second by all, and all
may take an estimate that is up to ``TOLERANCE`` too high for the load that a table or a variant is for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from reproduce.ramsis.round_robin_workers import serve_by_workers
from sluicegate.domain.events import Hosted
from sluicegate.domain.table import SelectionTable
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel, candidates, pareto_front
from sluicegate.policies.mdp_serving.jellyfish_model_switching import Fixed, jellyfish, model_switching
from sluicegate.policies.mdp_serving.table_policy import TableSelection
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.engine.service_times import ServiceMode, ServiceTimes
from sluicegate.simulator.scenario.central_queue import Served, capable_loads, serve_centrally

Times = NDArray[np.float64]
Rule = Literal["jellyfish-plus", "model-switching", "model-switching, mended"]
WINDOW = 0.5
TOLERANCE = 0.05
"""Of what is estimated, relative: half a second of arrivals is not exact."""
_STEP = 0.02


@dataclass(frozen=True, slots=True)
class Found:
    """A rule's result at one load. ``accuracy``: mean over queries on time; ``violation``: share of queries that were
    not."""

    accuracy: float
    violation: float
    queries: int


@dataclass(frozen=True)
class World:
    """What is profiled for one app on one kind of worker, and what it asks. ``slo``: seconds."""

    catalogue: Catalogue
    app: str
    kind: str
    slo: float
    service: ServiceMode
    only: tuple[str, ...] = ()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The Pareto front (of ``only`` these variants, if any are named)."""
        found = candidates(self.catalogue, self.app, self.kind)
        return pareto_front([v for v in found if not self.only or v.name in self.only])

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """The same, as a slice hosts them: most accurate first."""
        return tuple(
            Hosted(v.name, v.accuracy, self.catalogue.profiles[v.name, self.kind].curve("p95", 32))
            for v in reversed(self.candidates)
        )

    def model(self, workers: int, qps: float = 0.0, *, margin: float = 1.0) -> SelectionModel:
        """The question for a table."""
        slowed = tuple(Candidate(v.name, v.accuracy, tuple(margin * s for s in v.latency)) for v in self.candidates)
        return SelectionModel(variants=slowed, slo=self.slo, workers=workers, qps=qps)

    def seconds(self, rng: Generator) -> Callable[[str, int], float]:
        """Service times."""
        return ServiceTimes(self.catalogue, self.service, rng).of(self.kind)

    def capable(self, workers: int, loads: Sequence[float], rng: Generator, seconds: float) -> dict[str, float]:
        """What each variant is capable of on one central queue, of ``loads``; see ``capable_loads``."""
        service = self.seconds(rng)
        return capable_loads(self.hosted, loads, rng, slo=self.slo, workers=workers, service=service, seconds=seconds)


def by_tables(
    world: World,
    arrivals: Times,
    tables: Sequence[SelectionTable],
    rng: Generator,
    *,
    qps: float | None = None,
    margin: float = 1.0,
    phase_delay: float | None = None,
) -> Found:
    """Tables of one library. ``qps``: the load, where workers are told; ``phase_delay``: as in ``serve_by_workers``."""
    tally = serve_by_workers(
        arrivals,
        slo=world.slo,
        workers=tables[0].workers,
        hosted=world.hosted,
        make_policy=lambda: TableSelection(tables=tables, qps=qps, margin=margin, tolerance=TOLERANCE),
        service=world.seconds(rng),
        phase_delay=phase_delay,
    )
    return Found(tally.accuracy, tally.violation, tally.queries)


def by_rule(
    world: World,
    arrivals: Times,
    workers: int,
    rule: Rule,
    rng: Generator,
    *,
    capable: dict[str, float] | None = None,
    qps: float | None = None,
) -> Found:
    """A rule on one central queue. ``capable``: for model switching, what ``capable_loads`` found."""
    hosted = world.hosted

    def choose(load: float) -> Fixed:
        plain = jellyfish(hosted, world.slo, load / workers)
        if rule == "jellyfish-plus":
            return plain
        chosen = model_switching(hosted, world.slo, load, capable or {})
        # As published the limit is that of the variant that Jellyfish+ would take, whichever is chosen.
        return chosen if rule.endswith("mended") else Fixed(chosen.hosted, plain.limit)

    known: dict[int, Served] = {}

    def at(now: float) -> Served:
        step = int(now / _STEP)
        if step not in known:
            load = qps if qps is not None else windowed(arrivals, now) / (1.0 + TOLERANCE)
            fixed = choose(load)
            assert fixed.hosted is not None  # a world hosts something
            known[step] = Served(fixed.hosted.variant, fixed.hosted.accuracy, fixed.limit)
        return known[step]

    result = serve_centrally(arrivals, slo=world.slo, workers=workers, rule=at, service=world.seconds(rng))
    return Found(result.accuracy, result.violation, result.queries)


def windowed(arrivals: Times, now: float) -> float:
    """Queries a second over the last half second (less at the very start)."""
    count = np.searchsorted(arrivals, now, side="right") - np.searchsorted(arrivals, now - WINDOW)
    return float(count) / min(WINDOW, max(now, _STEP))
