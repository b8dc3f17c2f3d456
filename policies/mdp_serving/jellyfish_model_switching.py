"""One variant for a load, batches up to a limit: Jellyfish+ and ModelSwitching, as pure rules.

Both decide by the load alone, and then serve first come, first served, up to ``limit`` queries at a time. The choice is
a function of its own, so that the same rule can run on one central queue (as published) or on each worker's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from sluicegate.domain.actions import StationAction
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Hosted
from sluicegate.domain.query import Query
from sluicegate.policies.batching.base import QueueingPolicy
from sluicegate.policies.mdp_serving.load_estimator import LoadWindow

JELLYFISH_HEADROOM = 1.05


@dataclass(frozen=True, slots=True)
class Fixed:
    """A variant (None where nothing is hosted) and the largest batch it may run."""

    hosted: Hosted | None
    limit: int


def fastest(hosted: Sequence[Hosted]) -> Hosted | None:
    """By batch 1."""
    return min(hosted, key=lambda h: (h.curve.seconds[0], -h.accuracy), default=None)


def jellyfish(hosted: Sequence[Hosted], slo: float, worker_qps: float) -> Fixed:
    """The most accurate variant with a batch b within half the SLO that sustains 1.05 times the load, and its largest.

    The fastest, with its largest batch within half the SLO, where none does (Jellyfish, RTSS 2022, as RAMSIS has it).
    """
    for h in sorted(hosted, key=lambda h: -h.accuracy):
        enough = [
            b for b, s in enumerate(h.curve.seconds, 1) if s <= slo / 2 and b / s >= JELLYFISH_HEADROOM * worker_qps
        ]
        if enough:
            return Fixed(h, enough[-1])
    last = fastest(hosted)
    return Fixed(last, max(1, last.curve.largest_within(slo / 2)) if last else 0)


def model_switching(hosted: Sequence[Hosted], slo: float, qps: float, capable: Mapping[str, float]) -> Fixed:
    """The most accurate variant that answers ``qps`` with few enough violations, by ``capable`` (variant -> queries/s).

    The fastest where none does (Zhang et al., HotCloud 2020). The batch is the largest within half the SLO.
    """
    able = [h for h in hosted if capable.get(h.variant, 0.0) >= qps]
    chosen = max(able, key=lambda h: h.accuracy) if able else fastest(hosted)
    return Fixed(chosen, max(1, chosen.curve.largest_within(slo / 2)) if chosen else 0)


class _FixedChoice(QueueingPolicy):
    """Base of the two: estimates the load, chooses, runs what is queued at once. Not a policy by itself."""

    __slots__ = ("_load", "_qps", "workers")

    def __init__(self, *, workers: int = 1, qps: float | None = None, window_s: float = 0.5) -> None:
        super().__init__()
        if workers < 1 or not window_s > 0.0 or (qps is not None and not qps >= 0.0):
            raise ConfigurationError(
                f"{self.name}: workers {workers}, qps {qps}, window_s {window_s}; give positive ones"
            )
        self.workers = workers
        self._qps = qps
        self._load = LoadWindow(window_s)

    def choice(self, qps: float) -> Fixed:
        """For a load of the whole app."""
        raise NotImplementedError

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Run at once what fits."""
        qps = self._qps if self._qps is not None else self._load.rate(now) * self.workers
        fixed = self.choice(qps)
        assert fixed.hosted is not None  # decide is called only while something is hosted
        limit = min(max(fixed.limit, self.queue.items[0].rows), fixed.hosted.curve.max_batch)
        rows = self.queue.fit(limit)
        if rows:
            self.run(rows, actions, fixed.hosted)
        else:
            self.run(self.largest_on_time(limit, now), actions, fastest(self.hosted))

    @override
    def arrived(self, query: Query, now: float, actions: list[StationAction]) -> None:
        """Count it."""
        super().arrived(query, now, actions)
        self._load.add(now, query.rows)

    @override
    def hosting_changed(self) -> None:
        """Heads are given up only where even the fastest variant cannot save them."""
        quickest = fastest(self.hosted)
        self.seconds = quickest.curve.seconds if quickest else ()


class JellyfishPlus(_FixedChoice):
    """The most accurate variant that keeps up within half the SLO."""

    name = "jellyfish-plus"
    __slots__ = ()

    @override
    def choice(self, qps: float) -> Fixed:
        """By the rule above."""
        return jellyfish(self.hosted, self.slo, qps / self.workers)


class ModelSwitching(_FixedChoice):
    """The most accurate variant measured to violate less than 1 % at this load. ``capable``: variant -> queries/s."""

    name = "model-switching"
    __slots__ = ("capable",)

    def __init__(
        self,
        *,
        capable: Mapping[str, float] | None = None,
        workers: int = 1,
        qps: float | None = None,
        window_s: float = 0.5,
    ) -> None:
        super().__init__(workers=workers, qps=qps, window_s=window_s)
        self.capable = dict(capable or {})

    @override
    def choice(self, qps: float) -> Fixed:
        """By the rule above."""
        return model_switching(self.hosted, self.slo, qps, self.capable)


class PublishedModelSwitching(ModelSwitching):
    """As RAMSIS's artifact has it: the batch limit is that of the variant that Jellyfish+ would take, whatever runs."""

    name = "model-switching-published"
    __slots__ = ()

    @override
    def choice(self, qps: float) -> Fixed:
        """By the rule above."""
        plain = jellyfish(self.hosted, self.slo, qps / self.workers)
        return Fixed(super().choice(qps).hosted, plain.limit)
