"""The worker of one device: whether plans count on it, what it reads and answers, what it says of itself.

Rules.
- Each start has an incarnation. Only while the newest plan names it does the worker read work, from the plan's fence or
  the committed offset, whichever is later. A fence beyond what planners have swept there is not heeded: it was made up,
  and what lies below it is nobody's.
- A plan that names another incarnation, or none, after ours was named says that the planner has declared us dead and
  moved our queries to others: everything is abandoned, and the worker joins again under a new incarnation.
- A worker that stood still for longer than ``self_fence`` has the newest plan read before it answers or sends back
  anything: what the planner has moved to others meanwhile is theirs. It is read again where the worker stands still
  again before that is done.
- A worker that no plan has named yet, of a device that another runs, stands by: once plans do without the other they
  name this one. After ``_PATIENCE`` heartbeats it says so. It speaks for nothing but itself: what there is on the
  device, and that somebody leaves it, is for the other to say.
- A plan that names variants which are not known yet, or not profiled on this device, is followed once they are.
- Heartbeats go on whatever happens; while the device is cut they state the slices there were. They tell how late the
  worker's event loop wakes, and what became of its queries. With them goes what is recorded of instances
  (``sluicegate.policies.model_less.instance_watch``), once it is told what stands there.
- Once a worker leaves every heartbeat says so, and no plan is followed: nothing is read any more.

What becomes of queries is decided by ``sluicegate.policies.serving.slices``, and on each slice by
``sluicegate.policies.serving.slice``. Illegal: a query while no plan names us; to join while one does; CaughtUp where
nothing waits for it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import assert_never

from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import DeviceSeen, EndsCounted, PlanPublished, Registered, TurnsTold
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.domain.plan import NO_EPOCH, Plan, follows
from sluicegate.domain.query import Query
from sluicegate.policies.model_less.instance_watch import InstanceWatch
from sluicegate.policies.placement.hosted_variants import is_known
from sluicegate.policies.placement.repartition import CutEnded
from sluicegate.policies.promises.stream_book import Recall
from sluicegate.policies.serving.device_actions import (
    Abandon,
    Answer,
    Beat,
    CatchUp,
    DeviceAction,
    End,
    Read,
    Say,
    Seek,
    SendBack,
)
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BatchFailed,
    BeatDue,
    CaughtUp,
    ContentsTold,
    DeviceEvent,
    ExecutorEnded,
    ExecutorStarted,
    Fenced,
    InstancesFound,
    Joined,
    Leaving,
    Loaded,
    Opened,
    QueryCame,
    ReadingBegins,
    Recalled,
    Reloaded,
    Suspended,
    TableCame,
    Woken,
)
from sluicegate.policies.serving.slice import SliceCore
from sluicegate.policies.serving.slices import DeviceParts, DeviceRules, DeviceSlices
from sluicegate.profiles.catalogue.catalogue import Catalogue, KnownCatalogue

ANOTHER = "is run by another worker too (one a device may run)"
"""Why a worker abandons what it has where the plan names another one of its device."""
STANDS_BY = "stands_by"
"""State of a worker that no plan names, of a device that another runs."""

_STORY = 24
_PATIENCE = 10
"""Heartbeats until one that stands by says so; a worker that starts again is named after fewer."""
Ours = PlanPublished | Joined | ReadingBegins | Suspended | CaughtUp | Fenced | Leaving
"""What bears on whether plans count on us."""
All = TurnsTold | TableCame | Recalled | Opened | CutEnded | Registered
"""What all slices are told, and which there are."""
Seldom = (
    Woken
    | BatchFailed
    | ContentsTold
    | Loaded
    | ExecutorEnded
    | ExecutorStarted
    | Reloaded
    | BeatDue
    | InstancesFound
    | Ours
    | All
)


class DeviceCore:
    """Of ``device``. ``catalogue``: everything that is known; one that can grow does. See the module's rules."""

    def __init__(self, device: Device, parts: DeviceParts, catalogue: Catalogue, rules: DeviceRules | None) -> None:
        self._name = device.name
        self._catalogue = catalogue
        self._rules = rules or DeviceRules()
        self._slices = DeviceSlices(device, parts, catalogue, self._rules)
        self._instances = InstanceWatch(device.name, catalogue, self._slices.normal) if self._rules.instances else None
        self._plan: Plan | None = None
        self._unknown: Plan | None = None
        self._named = False
        self._standing_by = 0
        self._withheld: list[DeviceAction] | None = None
        self._reads_since = 0.0  # the newest plan, where something is withheld
        self._read_again = False
        self._ended = _Ended()
        self._story: deque[tuple[float, DeviceEvent]] = deque(maxlen=_STORY)
        self._after = ""
        self.incarnation = ""

    @property
    def slices(self) -> Mapping[str, SliceCore]:
        """As it is cut just now, by name; none while it is cut."""
        return MappingProxyType(self._slices.by_name)

    @property
    def queries(self) -> Iterable[Query]:
        """Those that were read and have not ended here, in the order in which they came."""
        return self._slices.held

    @property
    def watches(self) -> bool:
        """Whether it is to be told what queries hold."""
        return self._slices.poison.watching

    @property
    def named(self) -> bool:
        """Whether the newest plan counts on this worker."""
        return self._named

    def handle(self, event: DeviceEvent, now: float) -> list[DeviceAction]:
        """Decide. Raises IllegalEventError with the last events."""
        actions: list[DeviceAction] = []
        slices = self._slices
        try:
            if isinstance(event, QueryCame):  # the first two are most of what happens
                if not self._named:
                    raise IllegalEventError(f"{event.query.id} came at {now} while no plan counts on this worker")
                slices.came(event, now, actions)
            elif isinstance(event, BatchEnded):
                slices.named(event.part).ended(event, now, actions)
            else:
                self._hear(event, now, actions)
        except IllegalEventError as error:
            raise IllegalEventError(f"{self._name}: {error}", self._told()) from error
        self._story.append((now, event))
        if slices.settles:
            slices.settle(now, actions)
        if actions:
            self._ended.count(actions)
        return actions if self._withheld is None else self._withhold(self._withheld, actions)

    def _hear(self, event: Seldom, now: float, actions: list[DeviceAction]) -> None:
        """What happens to batches and loads; the rest is heard elsewhere."""
        slices = self._slices
        match event:
            case Woken():
                slices.woken(event.key, now, actions)
            case Loaded() | ExecutorEnded() | ExecutorStarted() | Reloaded() if not slices.by_name:
                pass  # of slices that are cut away meanwhile
            case BatchFailed(part):
                slices.named(part).failed(event, now, actions)
                slices.purge(now, actions)
            case ContentsTold():
                slices.contents(event, now)
            case Loaded():
                slices.named(event.part).loaded_variant(event, now, actions)
            case ExecutorEnded() | ExecutorStarted() | Reloaded():
                slices.named(event.part).executor_told(event, now, actions)
                slices.purge(now, actions)
            case BeatDue(late):
                self._beat(now, actions, late=late)
            case InstancesFound(instances):
                if self._instances is not None:
                    self._instances.found(instances, now)
            case TurnsTold() | TableCame() | Recalled() | Opened() | CutEnded() | Registered():
                self._hear_of_all(event, now, actions)
            case _:
                self._hear_of_us(event, now, actions)

    def _hear_of_all(self, event: All, now: float, actions: list[DeviceAction]) -> None:
        slices = self._slices
        match event:
            case TurnsTold():
                slices.turned(event, now, actions)
            case TableCame():
                slices.table(event, now, actions)
            case Recalled(streams):
                slices.recalled(Recall.of(streams))
            case Opened(opened):
                slices.opened(opened, now, actions)
            case CutEnded():
                slices.was_cut(event, now, actions)
            case Registered(apps, variants, profiles):
                if isinstance(self._catalogue, KnownCatalogue):
                    self._catalogue.add(Catalogue.of(apps, variants, profiles))
                slices.registered()
                held, self._unknown = self._unknown, None
                if held is not None:
                    self._follow(held, now, actions)
            case _ as unreachable:
                assert_never(unreachable)

    def _hear_of_us(self, event: Ours, now: float, actions: list[DeviceAction]) -> None:
        slices = self._slices
        match event:
            case PlanPublished(plan):
                self._follow(plan, now, actions)
            case Joined(incarnation):
                if self._named:
                    raise IllegalEventError(f"{incarnation} joins at {now} while plans count on {self.incarnation}")
                self._after, self.incarnation = self.incarnation, incarnation
            case ReadingBegins():
                self._begins(event, actions)
            case Suspended(seconds):
                stood = seconds if self._withheld is None else min(seconds, now - self._reads_since)
                if stood > self._rules.self_fence:
                    self._suspended(now, actions)
            case CaughtUp():
                if self._withheld is None:
                    raise IllegalEventError(f"the newest plan was read at {now}, and nothing waits for it")
                self._caught_up(self._withheld, now, actions)
            case Fenced():
                self._abandon("was fenced", actions)
            case Leaving():
                self._named = False  # what the planner does about us from now on is for the others
                slices.leaving = True
                self._beat(now, actions)
            case _ as unreachable:
                assert_never(unreachable)

    def _suspended(self, now: float, actions: list[DeviceAction]) -> None:
        if self._withheld is None:
            self._withheld = []
            actions.append(CatchUp())
        else:  # what is being read may have been newest before it stood still again
            self._read_again = True
        self._reads_since = now

    def _caught_up(self, withheld: list[DeviceAction], now: float, actions: list[DeviceAction]) -> None:
        if self._read_again:
            self._read_again, self._reads_since = False, now
            actions.append(CatchUp())
            return
        actions += withheld
        self._withheld = None

    def _begins(self, reading: ReadingBegins, actions: list[DeviceAction]) -> None:
        fence = self._plan.fences.get(self._name, 0) if self._plan is not None else 0
        if fence <= reading.position:
            return
        if fence <= min(reading.end, reading.swept):  # one beyond the end is of another topic than this
            actions.append(Seek(fence))
        else:
            told = f"a plan has it begin at {fence}: below {reading.swept} all was moved, and no more"
            actions.append(Say("fence_refused", told))

    def _follow(self, plan: Plan, now: float, actions: list[DeviceAction]) -> None:
        if self._slices.leaving or not follows(plan.epoch, self._plan.epoch if self._plan is not None else NO_EPOCH):
            return
        named = plan.incarnations.get(self._name)
        if named != self.incarnation:
            self._unknown = None
            self._plan = plan
            self._abandon("was declared dead" if named is None else ANOTHER, actions)
            return
        device = self._slices.device
        mine = plan.of_device(self._name)
        if not all(is_known(self._catalogue, device, p.slice, v) for p in mine for v in p.variants):
            self._unknown = plan
            return
        self._unknown = None
        self._plan = plan
        if not self._named:
            self._named = True
            actions.append(Read())
        self._slices.plan(plan, now, actions)

    def _abandon(self, why: str, actions: list[DeviceAction]) -> None:
        """We are taken for dead, or must be: our queries are others' now, and so is what would be said of them."""
        if not self._named:
            return
        queries = [*self._slices.abandon(), *self._ended_unsaid()]
        if self._withheld is not None:
            self._withheld.clear()
        self._named = False
        actions.append(Abandon(why, tuple(queries)))

    def _ended_unsaid(self) -> Iterator[Query]:
        """Of those whose end is withheld."""
        for action in self._withheld or ():
            if isinstance(action, Answer):
                yield from action.queries
            elif isinstance(action, End | SendBack):
                yield action.query

    def _withhold(self, withheld: list[DeviceAction], actions: list[DeviceAction]) -> list[DeviceAction]:
        """What others are told of queries waits until the newest plan is known; the rest goes on."""
        withheld += [action for action in actions if isinstance(action, Answer | End | SendBack)]
        return [action for action in actions if not isinstance(action, Answer | End | SendBack)]

    def _beat(self, now: float, actions: list[DeviceAction], *, late: float = 0.0) -> None:
        device, parts, leaving = self._slices.device, self._slices.by_name.values(), self._slices.leaving
        beside = self._beside()
        if beside and leaving:
            return
        seen = DeviceSeen(
            device.name, device.type, self.incarnation, device.memory_bytes, device.price, device.spot, leaving
        )
        if self._after:
            seen = replace(seen, after=self._after)
        cut = self._slices.recutting
        if cut is not None and not beside:
            seen = replace(seen, slices=cut.slices, fault=cut.fault, fault_epoch=cut.fault_epoch)
        epoch = self._plan.epoch if self._plan is not None else NO_EPOCH
        reports = () if beside else self._slices.reports(now, actions)
        busy_s = sum([part.times.take_busy() / len(part.executors) for part in parts])
        poison = self._slices.poison.all(now)
        ended = self._ended.take()
        actions.append(Beat(seen, epoch, len(self._slices.held), busy_s, reports, poison, late, ended, bool(beside)))
        self._say_who_stands_by(beside, actions)
        if self._instances is not None and not beside:
            actions += self._instances.ended(now) if leaving else self._instances.reported(reports, now)

    def _beside(self) -> str:
        """The incarnation of another worker that plans count on for this device; "": none."""
        newest = self._unknown or self._plan
        counted = newest.incarnations.get(self._name, "") if newest is not None else ""
        return "" if self._named or counted == self.incarnation else counted

    def _say_who_stands_by(self, beside: str, actions: list[DeviceAction]) -> None:
        self._standing_by = self._standing_by + 1 if beside else 0
        if self._standing_by == _PATIENCE:
            told = f"plans count on {beside}, not on {self.incarnation}: either no planner leads, or another worker"
            actions.append(Say(STANDS_BY, f"{told} runs it too; stop one of them, or give it another --device"))

    def _told(self) -> tuple[str, ...]:
        return tuple(f"{at:.6f} {_brief(event)}" for at, event in self._story)


class _Ended:
    """What became of queries since the last heartbeat, by app, counted among actions.

    What a model failed at says nothing of the time that there was.
    """

    __slots__ = ("_missed", "_on_time")

    def __init__(self) -> None:
        self._on_time: dict[str, int] = {}
        self._missed: dict[str, int] = {}

    def count(self, actions: Iterable[DeviceAction]) -> None:
        """These are done."""
        for action in actions:
            if isinstance(action, Answer):
                app, at = action.queries[0].app, action.at
                missed = sum([query.deadline < at for query in action.queries])
                self._on_time[app] = self._on_time.get(app, 0) + len(action.queries) - missed
                if missed:
                    self._missed[app] = self._missed.get(app, 0) + missed
            elif isinstance(action, End) and action.kind is not OutcomeKind.FAILED:
                app = action.query.app
                self._missed[app] = self._missed.get(app, 0) + 1

    def take(self) -> tuple[EndsCounted, ...]:
        """What was counted; counting begins anew."""
        on_time, missed = self._on_time, self._missed
        self._on_time, self._missed = {}, {}
        return tuple(EndsCounted(app, on_time.get(app, 0), missed.get(app, 0)) for app in sorted({**on_time, **missed}))


def _brief(event: DeviceEvent) -> str:
    match event:
        case QueryCame():
            return f"QueryCame {event.query.id} ({event.query.app}, deadline {event.query.deadline:.6f})"
        case PlanPublished(plan):
            return f"PlanPublished {plan.epoch}"
        case Registered() | TableCame() | Recalled() | InstancesFound() | ContentsTold():
            return type(event).__name__
        case _:
            return str(event)
