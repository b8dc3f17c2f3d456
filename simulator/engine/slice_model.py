"""What runs batches on one slice, under the virtual clock: its times, and no rule.

Loading goes on beside serving, or (``exclusive_loads``) holds the executor up until it ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluicegate.domain.actions import Run
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.policies.placement.slice_queue import SliceSharing
from sluicegate.policies.serving.device_actions import LoadVariant, ReloadVariant
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BatchFailed,
    DeviceEvent,
    ExecutorEnded,
    ExecutorStarted,
    Failure,
    Loaded,
    Reloaded,
)
from sluicegate.simulator.engine.processor_sharing import SharedProcessor
from sluicegate.simulator.engine.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingModel:
    """What slices share, and how they become others.

    ``cuttable``: devices that plans may have cut otherwise, which takes ``step_s`` seconds for each slice that is made
    or destroyed. ``make_sharing``: of the queue before the slices of a device. ``instances``: by device and slice, what
    it shares with others of the device (MPS); those that are not named have their compute for themselves. ``parts``: by
    variant, the part of that which a batch takes; others take all. ``executors``: as ``DeviceRules`` has them.
    """

    cuttable: frozenset[str] = frozenset()
    step_s: float = 0.0
    make_sharing: Callable[[Device], SliceSharing | None] = lambda _device: None
    instances: Mapping[tuple[str, str], str] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    executors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceModel:
    """Times on a slice. ``service``: seconds of (variant, rows) there; ``load``: of loading a variant.

    ``service`` is of a batch alone, where ``executors`` run one each at the same time. ``by_length``: curves of
    variants whose inputs vary in length. ``slowdown``: factor on all batches at a time.
    ``processor``: compute shared with others, if any; ``parts``: of it, as ``SharingModel`` has them. ``start_s``:
    seconds that a process behind it takes to start again.
    """

    service: Callable[[str, int], float]
    load: Callable[[str], float]
    by_length: Mapping[str, LatencyCurve]
    slowdown: Callable[[float], float] | None
    processor: SharedProcessor | None
    parts: Mapping[str, float] = field(default_factory=dict)
    exclusive_loads: bool
    start_s: float
    executors: int = 1


class ModelledExecutor:
    """Number ``seat`` of slice ``part``; ``tell`` hears what has ended."""

    __slots__ = (
        "_began",
        "_busy_until",
        "_by_length",
        "_exclusive",
        "_life",
        "_load",
        "_loading_until",
        "_part",
        "_parts",
        "_processor",
        "_seat",
        "_service",
        "_slowdown",
        "_start_s",
        "_tell",
        "_timeline",
        "_under_way",
    )

    def __init__(
        self, part: str, seat: int, model: SliceModel, timeline: Timeline, tell: Callable[[DeviceEvent, float], None]
    ) -> None:
        self._part = part
        self._seat = seat
        self._service = model.service
        self._load = model.load
        self._by_length = model.by_length
        self._slowdown = model.slowdown
        self._processor = model.processor
        self._parts = model.parts
        self._exclusive = model.exclusive_loads
        self._timeline = timeline
        self._tell = tell
        self._busy_until = -1e300
        self._loading_until = -1e300
        self._start_s = model.start_s
        self._life = 0  # of its process; odd: it does not run
        self._began: float | None = None
        self._under_way: LoadVariant | ReloadVariant | None = None

    def run(self, run: Run, now: float) -> None:
        """Begin a batch."""
        seconds = self._service(run.variant, run.rows)
        if self._by_length and (curve := self._by_length.get(run.variant)) is not None:
            seconds *= curve.at(run.rows, run.length) / curve(run.rows)
        if self._slowdown is not None:
            seconds *= self._slowdown(now)
        self._began = now
        starts = max(now, self._loading_until) if self._exclusive else now
        self._busy_until = starts + seconds
        if self._processor is None:
            self._timeline.at(starts + seconds, self._ended, now)
        else:
            part = self._parts.get(run.variant, 1.0)
            self._processor.begin(seconds + (starts - now), self._ended, now, now, part)

    def load(self, asked: LoadVariant | ReloadVariant, now: float) -> None:
        """Begin a load."""
        begins = max(now, self._busy_until) if self._exclusive else now
        seconds = self._load(asked.variant)
        self._loading_until = begins + seconds
        self._under_way = asked
        self._timeline.at(begins + seconds, self._loaded, (asked, seconds, self._life))

    def dies(self, now: float) -> None:
        """Its process ends unasked, and what it runs and loads with it."""
        if self._life % 2:
            return
        self._life += 1
        began, self._began = self._began, None
        loading, self._under_way = self._under_way, None
        self._busy_until = self._loading_until = now
        if began is not None and self._processor is not None:
            self._processor.stop(self._ended, now)
        self._tell(ExecutorEnded(self._part, self._seat), now)
        if began is not None:
            why = "the executor's process is gone"
            self._tell(BatchFailed(self._part, why, Failure.BLAMELESS, self._seat), now)
        if loading is not None:
            told = Loaded if isinstance(loading, LoadVariant) else Reloaded
            self._tell(told(self._part, loading.variant, False, seat=self._seat), now)

    def restart(self, after: float, now: float) -> None:
        """Have it run again."""
        self._timeline.at(now + after + self._start_s, self._started)

    def close(self) -> None:
        """It is no more."""
        self._life, self._began = -1, None

    def _started(self, _: object, now: float) -> None:
        if self._life > 0:
            self._life += 1
            self._tell(ExecutorStarted(self._part, self._seat), now)

    def _ended(self, began: float, now: float) -> None:
        if began == self._began:  # else it died meanwhile
            self._began = None
            self._tell(BatchEnded(self._part, now - began, now - began, self._seat), now)

    def _loaded(self, load: tuple[LoadVariant | ReloadVariant, float, int], now: float) -> None:
        asked, seconds, life = load
        if life == self._life:
            self._under_way = None
            told = Loaded if isinstance(asked, LoadVariant) else Reloaded
            self._tell(told(self._part, asked.variant, True, seconds, self._seat), now)
