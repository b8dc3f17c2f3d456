"""One slice at work under the virtual clock: the counterpart of the live slice runner, with the same policies inside.

It turns policy actions into happenings, and holds no decision. Loading goes on beside serving (``exclusive_loads``
False) or holds the executor up until it ends.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, assert_never

from sluicegate.domain.actions import (
    Acknowledge,
    Announce,
    Drop,
    Expire,
    Host,
    Load,
    Retire,
    Run,
    StagingAction,
    Unload,
    WakeAt,
)
from sluicegate.domain.events import (
    Arrived,
    Finished,
    LatencyMeasured,
    LoadEnded,
    PlanPublished,
    Retired,
    StagingEvent,
    StationEvent,
    TurnsTold,
    Woke,
)
from sluicegate.domain.fleet.device import Device, Slice, profile_type
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.domain.plan import Plan
from sluicegate.domain.query import Query
from sluicegate.policies.protocols import StagingPolicy, StationPolicy
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.engine.ledger import Ledger
from sluicegate.simulator.engine.processor_sharing import SharedProcessor
from sluicegate.simulator.engine.timeline import Timeline

_WOKE = Woke()


class SimulatedStation(StationPolicy, Protocol):
    """A station that can be emptied."""

    def drain(self, app: str) -> tuple[Query, ...]:
        """Take out what waits for ``app``."""
        ...

    def queued_of(self, app: str) -> int:
        """Queries of ``app`` waiting."""
        ...


class SimulatedStaging(StagingPolicy, Protocol):
    """A staging policy that says what it serves."""

    def wants(self, app: str) -> bool:
        """Whether queries of ``app`` can be answered here, now or once loading ends."""
        ...

    @property
    def hosted_apps(self) -> tuple[str, ...]:
        """Apps that something is hosted for."""
        ...


class SimulatedSlice:
    """``service``: seconds of (variant, rows) here, ``by_length``: curves of those whose inputs vary in length.

    ``processor``: compute shared with others, if any.
    """

    __slots__ = (
        "_acknowledge",
        "_busy_until",
        "_by_length",
        "_catalogue",
        "_device",
        "_exclusive",
        "_gone",
        "_kind",
        "_ledger",
        "_loading_until",
        "_measured",
        "_policy",
        "_processor",
        "_retiring",
        "_running",
        "_service",
        "_slowdown",
        "_started",
        "_timeline",
        "part",
        "staging",
        "station",
    )

    def __init__(
        self,
        *,
        device: Device,
        part: Slice,
        station: SimulatedStation,
        staging: SimulatedStaging,
        policy: str,
        timeline: Timeline,
        ledger: Ledger,
        catalogue: Catalogue,
        service: Callable[[str, int], float],
        by_length: Mapping[str, LatencyCurve] = MappingProxyType({}),
        acknowledge: Callable[[Acknowledge, float], None],
        slowdown: Callable[[float], float] | None = None,
        processor: SharedProcessor | None = None,
        exclusive_loads: bool = False,
    ) -> None:
        self.part = part
        self.station = station
        self.staging = staging
        self._device = device
        self._kind = profile_type(device.type, part.profile)
        self._by_length = by_length
        self._policy = policy
        self._timeline = timeline
        self._ledger = ledger
        self._catalogue = catalogue
        self._service = service
        self._acknowledge = acknowledge
        self._slowdown = slowdown
        self._processor = processor
        self._exclusive = exclusive_loads
        self._running: Run | None = None
        self._started = 0.0
        self._busy_until = 0.0
        self._loading_until = -1e300
        self._retiring: dict[str, None] = {}
        self._measured: dict[tuple[str, int], tuple[int, float]] = {}
        self._gone = False

    def arrived(self, query: Query, now: float, turn: int = -1) -> None:
        """A query came by the work topic, as number ``turn`` of those that its router sent (-1: not counted)."""
        self._do(self.station.handle(Arrived(query, turn), now), now)

    def turned(self, told: TurnsTold, now: float) -> None:
        """The router of an app has given so many turns."""
        self._tell(told, now)

    def plan(self, plan: Plan, now: float) -> None:
        """A plan was published."""
        self._do_staging(self.staging.handle(PlanPublished(plan), now), now)

    def busy_for(self, now: float) -> float:
        """Seconds until the running batch ends; 0 when idle."""
        return max(0.0, self._busy_until - now) if self._running is not None else 0.0

    def die(self) -> tuple[Query, ...]:
        """The worker is gone, and with it what it held; returns the queries that waited or ran. Use it no more."""
        self._gone = True
        lost: list[Query] = list(self._running.queries) if self._running is not None else []
        for app in self._catalogue.apps:
            lost += self.station.drain(app)
        self._running = None
        return tuple(lost)

    def take_measured(self) -> list[LatencyMeasured]:
        """Batch latencies since the last call, one mean a variant and size."""
        measured = [
            LatencyMeasured(variant, self._kind, rows, total / count, count)
            for (variant, rows), (count, total) in self._measured.items()
        ]
        self._measured.clear()
        return measured

    # -- the station

    def _tell(self, event: StationEvent, now: float) -> None:
        self._do(self.station.handle(event, now), now)

    def _do(self, actions: Sequence[Any], now: float) -> None:
        for action in actions:
            kind = type(action)
            if kind is Run:
                self._begin(action, now)
            elif kind is WakeAt:
                self._timeline.at(action.at, self._woke)
            elif kind is Expire:
                self._ledger.ended(action.query, OutcomeKind.EXPIRED, now)
            elif kind is Drop:
                self._ledger.ended(action.query, OutcomeKind.DROPPED, now, action.reason)
            elif kind is not Announce:
                raise TypeError(f"a station does not decide {action}")
        if self._retiring:
            self._try_to_retire(now)

    def _woke(self, _: object, now: float) -> None:
        if not self._gone:
            self._do(self.station.handle(_WOKE, now), now)

    def _begin(self, run: Run, now: float) -> None:
        seconds = self._service(run.variant, run.rows)
        curve = self._by_length.get(run.variant)
        if curve is not None:
            seconds *= curve.at(run.rows, run.length) / curve(run.rows)
        if self._slowdown is not None:
            seconds *= self._slowdown(now)
        starts = max(now, self._loading_until) if self._exclusive else now
        self._running = run
        self._started = now
        self._busy_until = starts + seconds
        if self._processor is None:
            self._timeline.at(starts + seconds, self._finished, run)
        else:
            self._processor.begin(seconds + (starts - now), self._finished, run, now)

    def _finished(self, run: Run, now: float) -> None:
        if self._running is not run:
            return  # died meanwhile
        self._running = None
        took = now - self._started
        self._ledger.answered(run, self._started, now, self._device.name, self.part.name, self._policy)
        key = (run.variant, run.rows)
        count, total = self._measured.get(key, (0, 0.0))
        curve = self._by_length.get(run.variant)
        told = took if curve is None else curve.as_of_longest(run.rows, run.length, took)
        self._measured[key] = (count + 1, total + told)
        self._tell(Finished(run.queries[0].app, run.variant, run.rows, took), now)

    # -- staging

    def _tell_staging(self, event: StagingEvent, now: float) -> None:
        self._do_staging(self.staging.handle(event, now), now)

    def _do_staging(self, actions: Sequence[StagingAction], now: float) -> None:
        for action in actions:
            match action:
                case Load(variant, _):
                    self._load(variant, now)
                case Unload():
                    pass
                case Host(change):
                    self._tell(change, now)
                case Acknowledge():
                    self._acknowledge(action, now)
                case Retire(app):
                    self._retiring[app] = None
                    self._try_to_retire(now)
                case WakeAt(at):
                    self._timeline.at(at, self._staging_woke)
                case _ as unreachable:
                    assert_never(unreachable)

    def _staging_woke(self, _: object, now: float) -> None:
        if not self._gone:
            self._tell_staging(_WOKE, now)

    def _try_to_retire(self, now: float) -> None:
        running = self._running.queries[0].app if self._running is not None else None
        for app in tuple(self._retiring):
            if app != running and not self.station.queued_of(app):
                del self._retiring[app]
                self._tell_staging(Retired(app), now)

    def _load(self, variant: str, now: float) -> None:
        profile = self._catalogue.profiles.get((variant, self._kind))
        if profile is None:
            profile = self._catalogue.profiles[variant, self._device.type]
        begins = max(now, self._busy_until) if self._exclusive and self._running is not None else now
        self._loading_until = begins + profile.load
        self._timeline.at(self._loading_until, self._loaded, variant)

    def _loaded(self, variant: str, now: float) -> None:
        if not self._gone:
            self._tell_staging(LoadEnded(variant, ok=True), now)
