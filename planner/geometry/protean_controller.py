"""PROTEAN's rule in a running system: every ``period`` seconds a wish for each GPU, and which become changes.

Rules:
- The geometry wished for a GPU is ``sluicegate.planner.geometry.protean_geometry``'s for its strict and its best-effort
  variant, those that take most of its queries by the plan in force; where it has none of a class, those that take most
  anywhere, and where nobody has, the most accurate of the app that is asked most. Without an app of each class nothing
  is wished for.
- Best-effort queries that are on a GPU at a time: those that come while one full batch runs and the next is gathered,
  averaged over ticks. Where nobody has the app that is asked, each GPU's part of them.
- Slices run one batch at a time: beside another, a batch takes as long as both. That is an FBR of 1.
- A GPU may be cut so if its type has slices for both geometries. Wishes are counted and turns given by
  ``sluicegate.planner.geometry.reconfigurator``; a turn is given back when a change ends, in whichever way.

After PROTEAN (Middleware 2024), Algorithm 2, corrected.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sluicegate.domain.fleet.device import Device, Slice, profile_type
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.models.profile import Profile, Quantile
from sluicegate.domain.plan import Plan
from sluicegate.planner.geometry.gpu_pools import can_be_cut, recut
from sluicegate.planner.geometry.mig_tables import TABLES, Geometry
from sluicegate.planner.geometry.protean_geometry import LARGE, SMALL, BestEffortForecast, desired_geometry
from sluicegate.planner.geometry.reconfigurator import Desired, Drain, GpuJoined, GpuLeft, Reconfigurator
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slowdown import WHOLE_GPU, SlowdownTable, VariantDemand

_ALONE = 1.0
"""FBR of a batch that has its slice for itself while it runs."""
_BATCHES = 2.0
"""Full batches whose time a query is on a GPU for: the one that runs and the one that forms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """Settings of PROTEAN's rule. ``period``: seconds between wishes. ``multiplier``: slowdown that best effort may
    bear on small slices."""

    period: float = 2.0
    patience: int = 3
    fraction: float = 0.3
    multiplier: float = 3.0
    quantile: Quantile = "median"


class ProteanRule:
    """Of one leader's term. Ask it at any time: it says nothing before the next tick is due."""

    def __init__(self, settings: RuleSettings | None) -> None:
        self._settings = settings or RuleSettings()
        self._turns = self._none()
        self._there: dict[str, Geometry] = {}
        self._forecasts: dict[str, BestEffortForecast] = {}
        self._next = 0.0

    def tick(
        self,
        devices: Sequence[Device],
        plan: Plan | None,
        catalogue: Catalogue,
        now: float,
        *,
        changing: Collection[str],
        let_be: Collection[str],
    ) -> dict[str, tuple[Slice, ...]]:
        """Slices that GPUs are to have from now on. ``changing``: being cut; ``let_be``: not to be cut for now."""
        if now < self._next or plan is None:
            return {}
        self._next = now + self._settings.period
        gpus = {d.name: d for d in devices if _can_follow(d)}
        self._meet(gpus)
        inherited = set(changing).difference(self._turns.in_flight)
        asked = _Asked(plan, catalogue, self._settings.quantile)
        found: dict[str, tuple[Slice, ...]] = {}
        for name, device in gpus.items():
            wanted = self._wish(device, asked, 1.0 / len(gpus))
            full = inherited and len(inherited) + len(self._turns.in_flight) >= self._turns.limit
            if wanted is None or full or name in changing or name in let_be:
                continue
            for action in self._turns.handle(Desired(name, wanted), now):
                assert isinstance(action, Drain)
                found[name] = recut(device, action.target, TABLES[device.type]).slices
        return found

    def ended(self, name: str) -> None:
        """A change of this GPU ended, or was refused: what it has now is told with the next tick."""
        if self._there.pop(name, None) is not None:
            self._turns.handle(GpuLeft(name), 0.0)

    def begin(self) -> None:
        """A term begins: nothing is counted, and no turn is out."""
        self._turns = self._none()
        self._there.clear()

    def _none(self) -> Reconfigurator:
        return Reconfigurator({}, patience=self._settings.patience, fraction=self._settings.fraction)

    def _meet(self, gpus: Mapping[str, Device]) -> None:
        """GPUs that came, went, or were cut by somebody else."""
        now = {name: TABLES[d.type].ordered([s.profile for s in d.slices]) for name, d in gpus.items()}
        for name in [n for n, geometry in self._there.items() if now.get(n) != geometry]:
            self.ended(name)
        for name, geometry in now.items():
            if name not in self._there:
                self._there[name] = geometry
                self._turns.handle(GpuJoined(name, geometry), 0.0)
        self._forecasts = {name: self._forecasts.get(name, BestEffortForecast()) for name in now}

    def _wish(self, device: Device, asked: "_Asked", part: float) -> Geometry | None:
        strict, other = (asked.demand(c, device) for c in (QueryClass.STRICT, QueryClass.BEST_EFFORT))
        if strict is None or other is None:
            return None
        at_a_time = asked.rate(device.name, part) * _BATCHES * other.solo
        return desired_geometry(
            SlowdownTable({strict.name: strict, other.name: other}),
            TABLES[device.type],
            strict=strict.name,
            best_effort=other.name,
            queries=self._forecasts[device.name].update(at_a_time),
            multiplier=self._settings.multiplier,
        )


class _Asked:
    """What a plan in force says of each GPU's queries."""

    def __init__(self, plan: Plan, catalogue: Catalogue, quantile: Quantile) -> None:
        self._demand = {app: qps for app, qps in plan.demand.items() if app in catalogue.apps}
        self._catalogue = catalogue
        self._quantile = quantile
        self._parts: dict[str, dict[str, float]] = {}
        self._most: dict[tuple[QueryClass, str], tuple[float, str]] = {}
        self._known: dict[tuple[str, str], VariantDemand | None] = {}
        for p in plan.placements:
            if p.variants and p.app in catalogue.apps:
                parts = self._parts.setdefault(p.app, {})
                parts[p.device] = parts.get(p.device, 0.0) + p.share
                mine = (p.share * self._demand.get(p.app, 0.0), p.variants[0])
                for where in (p.device, ""):
                    key = (catalogue.apps[p.app].query_class, where)
                    self._most[key] = max(mine, self._most.get(key, mine))

    def rate(self, device: str, otherwise: float) -> float:
        """Best-effort queries/s that come to ``device``, those included that the plan cannot serve.

        ``otherwise``: part of those that nobody serves.
        """
        total = 0.0
        for app, qps in self._demand.items():
            if self._catalogue.apps[app].query_class is QueryClass.BEST_EFFORT:
                parts = self._parts.get(app, {})
                served = sum(parts.values())
                total += qps * (parts.get(device, 0.0) / served if served > 0.0 else otherwise)
        return total

    def demand(self, query_class: QueryClass, device: Device) -> VariantDemand | None:
        """Of the variant that takes most of the GPU's queries of a class, else of anybody's, else would."""
        found = self._most.get((query_class, device.name)) or self._most.get((query_class, ""))
        variant = found[1] if found else self._best(query_class, device.type)
        key = (variant, device.type)
        if key not in self._known:
            self._known[key] = _demand(self._catalogue, variant, device.type, self._quantile)
        return self._known[key]

    def _best(self, query_class: QueryClass, kind: str) -> str:
        """The most accurate variant of the app that is asked most; "" where the class has none."""
        apps = [name for name, app in self._catalogue.apps.items() if app.query_class is query_class]
        asked = max(apps, key=lambda app: self._demand.get(app, 0.0), default="")
        return next((v.name for v in self._catalogue.of_app(asked) if (v.name, kind) in self._catalogue.profiles), "")


def _can_follow(device: Device) -> bool:
    return can_be_cut(device) and all(TABLES[device.type].valid(g) for g in (SMALL, LARGE))


def _demand(catalogue: Catalogue, variant: str, kind: str, quantile: Quantile) -> VariantDemand | None:
    """Full batches of a variant, from its profiles on the GPU's slices; None where it has none on the whole GPU."""
    whole = _profile(catalogue, variant, kind, WHOLE_GPU) or catalogue.profiles.get((variant, kind))
    known = catalogue.variants.get(variant)
    if whole is None or known is None:
        return None
    parts = {p: found for p in TABLES[kind].profiles if (found := _profile(catalogue, variant, kind, p)) is not None}
    curve = whole.curve(quantile)
    most = min([whole.max_batch, *(p.max_batch for p in parts.values())])
    batch = max(1, min(most, curve.largest_within(catalogue.apps[known.app].slo / 2.0)))
    solo = curve(batch)
    return VariantDemand(
        name=variant,
        solo=solo,
        memory_bytes=whole.memory_bytes,
        rdf={WHOLE_GPU: 1.0, **{p: found.curve(quantile)(batch) / solo for p, found in parts.items()}},
        fbr=_ALONE,
        batch=batch,
    )


def _profile(catalogue: Catalogue, variant: str, kind: str, part: str) -> Profile | None:
    return catalogue.profiles.get((variant, profile_type(kind, part)))
