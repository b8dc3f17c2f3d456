"""Two models on one GPU that becomes two under load, against a GPU for each: the simulation behind INFaaS' figure 7.

Rules. Batches of both models that run on a GPU at the same time slow each other down by the bandwidth they ask for
(``sluicegate.profiles.catalogue.slowdown.eta``), in proportion to how much of the time the other runs. With sharing
every GPU there is hosts both models and takes an equal part of the queries; a further GPU comes by the rules for
workers (``WorkerScaling``), half a minute after it was asked for, and goes after a minute in which one would have been
used below 80 %. Queries wait at most until their SLO. Rates, SLO and bandwidth are synthetic: neither model's profile
was published.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from sluicegate.domain.fleet.instance import InstanceState
from sluicegate.planner.capacity.worker_count import USED, AddWorker, WorkerBeat, WorkerScaling, WorkerTick
from sluicegate.policies.model_less.instance_states import instance_state
from sluicegate.profiles.catalogue.slowdown import eta

WINDOWS = 10
START, PATIENCE = 30, 60
MOST = 2


@dataclass(frozen=True, slots=True)
class Tenant:
    """A model on a shared GPU.

    ``rate``: queries/s alone on a GPU; ``fbr``: share of its bandwidth that a batch asks for; ``slo``: seconds.
    """

    name: str
    share: float
    rate: float
    latency: float
    fbr: float
    slo: float


TENANTS = (
    Tenant("inception-resnet-v2", 0.8, 420.0, 0.045, 0.75, 0.15),
    Tenant("mobilenet-v1", 0.2, 2000.0, 0.006, 0.50, 0.15),
)


@dataclass(slots=True)
class Shared:
    """What sharing came to. ``gpu_seconds``: paid; ``gpus``: by second, paid. ``answered`` in time of ``asked``."""

    asked: float = 0.0
    answered: float = 0.0
    gpu_seconds: float = 0.0
    gpus: list[int] = field(default_factory=list)
    by_tick: list[tuple[float, float]] = field(default_factory=list)
    latencies: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By model and window: seconds, and how many queries were answered with them."""

    def p99(self, tenant: Tenant) -> float:
        """Seconds within which 99 % of a model's answers came."""
        found = sorted(self.latencies[tenant.name])
        counted = np.cumsum([n for _, n in found])
        return found[int(np.searchsorted(counted, 0.99 * counted[-1]))][0]

    def rate(self, tenant: Tenant) -> float:
        """A model's answers a second."""
        return sum(n for _, n in self.latencies[tenant.name]) / len(self.by_tick)

    @property
    def violations(self) -> float:
        """Of all queries, 0..1."""
        return 1.0 - self.answered / self.asked


class Gpus:
    """One run over ``rates`` (queries/s by second). ``exclusive``: a GPU for each model, always."""

    def __init__(self, rates: NDArray[np.float64], rng: np.random.Generator, *, exclusive: bool) -> None:
        self._rates = rates
        self._counts = {t: rng.poisson(np.repeat(t.share * rates / WINDOWS, WINDOWS)) for t in TENANTS}
        self._exclusive = exclusive
        self._ready = 1
        self._starting: deque[int] = deque()
        self._calm = 0
        self._waiting = dict.fromkeys(TENANTS, 0.0)
        self._busy = dict.fromkeys(TENANTS, 0.0)
        self._states = dict.fromkeys(TENANTS, InstanceState.ACTIVE)
        self._scaling = WorkerScaling()

    def run(self) -> Shared:
        """All of it."""
        found = Shared()
        for tick in range(len(self._rates)):
            while self._starting and self._starting[0] <= tick:
                self._starting.popleft()
                self._ready += 1
            asked = float(sum(c[tick * WINDOWS : (tick + 1) * WINDOWS].sum() for c in self._counts.values()))
            answered = sum(self._window(tick * WINDOWS + w, found) for w in range(WINDOWS))
            found.asked += asked
            found.answered += answered
            found.by_tick.append((asked, answered))
            found.gpus.append(len(TENANTS) if self._exclusive else self._ready + len(self._starting))
            found.gpu_seconds += found.gpus[-1]
            if not self._exclusive:
                self._scale(tick)
        return found

    def _window(self, window: int, found: Shared) -> float:
        answered = 0.0
        busy = {}
        for tenant, counts in self._counts.items():
            rate = self._rate(tenant)
            waiting = self._waiting[tenant] + float(counts[window])
            served = min(waiting, rate / WINDOWS)
            answered += served
            busy[tenant] = served * WINDOWS / rate
            patience = max(0.0, tenant.slo - tenant.latency * self._slowdown(tenant))
            before = self._waiting[tenant]
            self._waiting[tenant] = min(waiting - served, rate * patience)
            queue = 0.5 * (before + self._waiting[tenant]) / rate
            took = queue + tenant.latency * self._slowdown(tenant)
            found.latencies.setdefault(tenant.name, []).append((took, served))
        self._busy = busy
        return answered

    def _slowdown(self, tenant: Tenant) -> float:
        if self._exclusive:
            return 1.0
        together = sum(self._busy[other] for other in TENANTS if other is not tenant)
        beside = eta(1.0, tenant.fbr, sum(other.fbr for other in TENANTS if other is not tenant))
        return 1.0 + min(1.0, together) * (beside - 1.0)

    def _rate(self, tenant: Tenant) -> float:
        return tenant.rate / self._slowdown(tenant) * (1 if self._exclusive else self._ready)

    def _scale(self, tick: int) -> None:
        here = slice(tick * WINDOWS, (tick + 1) * WINDOWS)
        alone = sum(float(self._counts[t][here].sum()) / t.rate for t in TENANTS)
        for tenant in TENANTS:
            self._states[tenant] = instance_state(
                loaded=True,
                qps=float(self._counts[tenant][here].sum()) / self._ready,
                peak=tenant.rate,
                latency=tenant.latency * self._slowdown(tenant),
                profiled=tenant.latency,
                before=self._states[tenant],
            )
        states = {t.name: s for t, s in self._states.items()}
        for i in range(self._ready):
            self._scaling.handle(WorkerBeat(f"gpu{i}", "gpu", min(1.0, alone / self._ready), states), float(tick))
        asked_for = [a for a in self._scaling.handle(WorkerTick(), float(tick)) if isinstance(a, AddWorker)]
        if asked_for and self._ready + len(self._starting) < MOST:
            self._starting.append(tick + START)
        self._calm = self._calm + 1 if self._ready > 1 and alone <= USED * (self._ready - 1) else 0
        if self._calm >= PATIENCE:
            self._ready -= 1
            self._calm = 0


def saved(shared: Shared, exclusive: Shared) -> float:
    """Share of GPU time that sharing does without."""
    return 1.0 - shared.gpu_seconds / exclusive.gpu_seconds if exclusive.gpu_seconds else -inf
