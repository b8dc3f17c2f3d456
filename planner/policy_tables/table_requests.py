"""Which tables a plan needs: one question for each app, kind of worker and SLO class that it hosts something for.

Rules.
- Workers are the slices that share a class's queries. Where their shares are equal each gets every K-th query; where
  they differ each kind is asked for at its mean share.
- A table may use the variants that all workers of its kind host, on the Pareto front, at the latencies that were
  measured, times ``margin``; it plans with the SLO less what hops (``hop_s``) and the worker itself (``guard_s``) take.
- Slices that several apps share have none: what they wait for each other no table knows.
- No question where nothing is hosted by all, or where no variant is in time even alone.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device, profile_type
from sluicegate.domain.plan import Placement, Plan
from sluicegate.planner.mdp.arrival_process import worker_arrivals
from sluicegate.planner.mdp.mdp_model import (
    MAX_WORKERS,
    Batching,
    Candidate,
    Criterion,
    Late,
    SelectionModel,
    candidates,
    non_decreasing,
    pareto_front,
)
from sluicegate.planner.policy_tables.keys import Shelf
from sluicegate.planner.policy_tables.table_fields import TableFields
from sluicegate.profiles.catalogue.catalogue import Catalogue

_EQUAL = 1e-6
_LARGEST = 32
"""Queries in a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryRules:
    """How close the tables of a library are. ``spacing``: accuracy (0..1) between neighbours; ``max_violation``: of the
    table for the highest load."""

    spacing: float = 0.01
    max_violation: float = 0.05
    most: int = 200

    def __post_init__(self) -> None:
        if not 1e-4 <= self.spacing <= 1.0:
            raise InvalidInputError("spacing", f"{self.spacing} is not in 0.0001..1")
        if not 0.0 < self.max_violation <= 1.0:
            raise InvalidInputError("max_violation", f"{self.max_violation} is not in (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """How tables are made for a live system. Seconds; ``margin``: factor on latencies; others as in the model.

    ``hop_s``: between a query's arrival and its place in a worker's queue; ``guard_s``: around an execution;
    ``watch_s``: over which promises are compared with what came of them.
    """

    hop_s: float = 0.005
    guard_s: float = 0.005
    margin: float = 1.03
    criterion: Criterion = "query"
    violation_price: float = 0.5
    grid: int = 100
    arrival_shape: float = 1.0
    batching: Batching = "maximal"
    late: Late = "serve"
    phases: int = 1
    watch_s: float = 10.0
    library: LibraryRules = field(default_factory=LibraryRules)


def rules_of(fields: TableFields, *, guard_s: float, margin: float | None) -> TableRules:
    """Rules as set; ``guard_s``, and ``margin`` where it is not that of the tables: of the workers' batching."""
    return TableRules(
        hop_s=fields.hop_s,
        guard_s=guard_s,
        margin=fields.margin if margin is None else margin,
        criterion=fields.criterion,
        violation_price=fields.violation_price,
        grid=fields.grid,
        arrival_shape=fields.arrival_shape,
        batching=fields.batching,
        late=fields.late,
        phases=fields.phases,
        watch_s=fields.watch_s,
        library=LibraryRules(spacing=fields.spacing, max_violation=fields.max_violation),
    )


@dataclass(frozen=True, slots=True)
class Question:
    """A table that a plan needs. ``model``: at the load that the plan was made for. ``slowdown``: measured over
    profiled latency, where not 1."""

    shelf: Shelf
    model: SelectionModel
    slowdown: Mapping[str, float] = field(default_factory=dict)


def questions(
    plan: Plan,
    catalogue: Catalogue,
    devices: Sequence[Device],
    latency_factor: Mapping[tuple[str, str], float],
    rules: TableRules,
) -> tuple[Question, ...]:
    """By shelf. Placements on unknown devices are passed over."""
    kinds = {(d.name, s.name): profile_type(d.type, s.profile) for d in devices for s in d.slices}
    types = {d.name: d.type for d in devices}
    classes: dict[tuple[str, float], list[tuple[str, str, Placement]]] = {}
    apps = Counter((p.device, p.slice) for p in plan.placements)
    for p in plan.placements:
        kind = kinds.get((p.device, p.slice))
        if (
            apps[p.device, p.slice] > 1
            or kind is None
            or not p.variants
            or p.share <= 0.0
            or p.app not in catalogue.apps
        ):
            continue
        slo = p.slo or catalogue.apps[p.app].slo
        classes.setdefault((p.app, slo), []).append((kind, types[p.device], p))
    found = []
    for (app, slo), placed in sorted(classes.items()):
        for kind in sorted({kind for kind, _, _ in placed}):
            model = _model(app, slo, kind, placed, plan, catalogue, latency_factor, rules)
            if model is not None:
                slowdown = {v.name: f for v in model.variants if (f := latency_factor.get((v.name, kind), 1.0)) != 1.0}
                found.append(Question(Shelf(app, kind, slo), model, slowdown))
    return tuple(found)


def _model(
    app: str,
    slo: float,
    kind: str,
    placed: Sequence[tuple[str, str, Placement]],
    plan: Plan,
    catalogue: Catalogue,
    latency_factor: Mapping[tuple[str, str], float],
    rules: TableRules,
) -> SelectionModel | None:
    mine = [p for k, _, p in placed if k == kind]
    profiled = kind if candidates(catalogue, app, kind) else next(t for k, t, _ in placed if k == kind)
    hosted = set(mine[0].variants).intersection(*(p.variants for p in mine))
    largest = max(1, min(p.max_batch for p in mine))
    variants = front(catalogue, app, profiled, latency_factor, rules, hosted=hosted, largest=largest)
    whole = sum(p.share for _, _, p in placed)
    shares = [p.share / whole for _, _, p in placed]
    workers = min(len(placed), MAX_WORKERS)
    equal = max(shares) - min(shares) <= _EQUAL
    model = model_of(variants, slo, workers, rules)
    if model is None:
        return None
    asked = replace(
        model,
        qps=plan.demand.get(app, 0.0) * min(whole, 1.0) * (workers / len(placed) if equal else 1.0),
        dispatch="round_robin" if equal else "weighted",
        share=None if equal else sum(p.share for p in mine) / len(mine) / whole,
    )
    return replace(asked, phases=_told_apart(asked, rules.phases) if equal else 1)


def _told_apart(model: SelectionModel, phases: int) -> int:
    """As many of ``phases`` as the arrivals at a worker have: none where their stages are not whole."""
    arrivals = worker_arrivals(model)
    return min(phases, model.workers, max(1, round(arrivals.shape))) if arrivals.staged else 1


def front(
    catalogue: Catalogue,
    app: str,
    kind: str,
    latency_factor: Mapping[tuple[str, str], float],
    rules: TableRules,
    *,
    hosted: Container[str] | None = None,
    largest: int = _LARGEST,
) -> tuple[Candidate, ...]:
    """Variants of ``app`` (or those ``hosted``) that none beats in accuracy and latency as measured, fastest first."""
    slowed = (
        _slowed(v, latency_factor.get((v.name, kind), 1.0))
        for v in candidates(catalogue, app, kind, largest=min(largest, _LARGEST), margin=rules.margin)
        if hosted is None or v.name in hosted
    )
    return pareto_front(tuple(slowed))


def model_of(variants: Sequence[Candidate], slo: float, workers: int, rules: TableRules) -> SelectionModel | None:
    """Of one of equal workers, without its load; None where no variant is in time."""
    left = slo - rules.hop_s - rules.guard_s
    in_time = tuple(v for v in variants if v.latency[0] <= left)
    if left <= 0.0 or not in_time:
        return None
    return SelectionModel(
        variants=in_time,
        slo=left,
        workers=workers,
        qps=0.0,
        criterion=rules.criterion,
        violation_price=rules.violation_price,
        grid=rules.grid,
        arrival_shape=rules.arrival_shape,
        batching=rules.batching,
        late=rules.late,
    )


def _slowed(v: Candidate, factor: float) -> Candidate:
    return Candidate(v.name, v.accuracy, non_decreasing(tuple(factor * s for s in v.latency)))
