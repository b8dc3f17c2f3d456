"""The core of a device, and a shell that carries out nothing by itself: tests say what happens next."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from sluicegate.domain.actions import Acknowledge, Announce
from sluicegate.domain.events import PlanPublished
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App, Promise, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Goal, Query, QueryKey
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.placement.interference import InterferenceChanged
from sluicegate.policies.placement.model_staging import Staging
from sluicegate.policies.placement.repartition import Cut, CutEnded
from sluicegate.policies.placement.slice_queue import SliceSharing
from sluicegate.policies.placement.strategies import STRATEGIES
from sluicegate.policies.serving.batch_times import RunLimits
from sluicegate.policies.serving.device_actions import (
    Abandon,
    Answer,
    Beat,
    CatchUp,
    DeviceAction,
    End,
    LoadVariant,
    Read,
    ReloadVariant,
    RestartExecutor,
    RunBatch,
    Say,
    Seek,
    SendBack,
    UnloadVariant,
    WakeMe,
)
from sluicegate.policies.serving.device_core import DeviceCore
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BatchFailed,
    CaughtUp,
    ContentsTold,
    DeviceEvent,
    ExecutorEnded,
    ExecutorStarted,
    Failure,
    Joined,
    Loaded,
    Opened,
    QueryCame,
    ReadingBegins,
    Reloaded,
    Woken,
)
from sluicegate.policies.serving.slice_scheduler import Station
from sluicegate.policies.serving.slices import DeviceParts, DeviceRules
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slice_profiles import shared as as_shared

GB = 1 << 30
BIG, SMALL = Slice("4g.0", "4g", 20 * GB), Slice("3g.4", "3g", 10 * GB)
WHOLE = Slice("7g.0", "7g", 40 * GB)
START = 1000.0


def world_catalogue() -> Catalogue:
    """App a (0.5 s, two variants) and b (2 s, promised at most two misses in a row), on slices of three sizes."""
    speeds = {"gpu:7g": 1.0, "gpu:4g": 1.5, "gpu:3g": 2.5}
    made = {"a-large": ("a", 0.9, 0.04), "a-small": ("a", 0.7, 0.01), "b-only": ("b", 0.8, 0.1)}
    profiles = [
        Profile(
            variant=name,
            device_type=kind,
            points=tuple(BatchLatency(n, first * slow * (0.8 + 0.2 * n), first * slow * (1 + 0.2 * n)) for n in (1, 4)),
            memory_bytes=GB,
            load=0.5 * slow,
        )
        for name, (_, _, first) in made.items()
        for kind, slow in speeds.items()
    ]
    return Catalogue.of(
        [
            App(name="a", slo=0.5),
            App(name="b", slo=2.0, promise=Promise(max_consecutive=2)),
        ],
        [Variant(name=name, app=app, accuracy=accuracy) for name, (app, accuracy, _) in made.items()],
        profiles,
    )


def place_of(action: RunBatch | LoadVariant | UnloadVariant | RestartExecutor | ReloadVariant) -> str:
    """The executor that it is about: by its slice, and its number where it is not the first."""
    return f"{action.part}#{action.seat}" if action.seat else action.part


def _at(place: str) -> tuple[str, int]:
    part, _, seat = place.partition("#")
    return part, int(seat or 0)


class World:
    """One worker. ``asked``: by kind, what it is to do and has not done; ``ends``: how often each query has ended.

    Executors are named as by ``place_of``.
    """

    def __init__(
        self,
        *,
        shared: bool = False,
        cuttable: bool = True,
        bound: Collection[str] = (),
        executors: Mapping[str, int] | None = None,
        catalogue: Catalogue | None = None,
    ) -> None:
        self.now = START
        self.executors = dict(executors or {})
        self.catalogue = as_shared(world_catalogue(), self.executors) if catalogue is None else catalogue
        self.device = Device(name="gpu0", type="gpu", memory_bytes=40 * GB, slices=(BIG, SMALL))
        make = batching("balanced")

        def sharing(device: Device) -> SliceSharing | None:
            return SliceSharing(device.slices, STRATEGIES["strict-first"]) if shared else None

        parts = DeviceParts(
            make_station=lambda: Station(make),
            make_staging=lambda device, part: Staging(device, part, self.catalogue, grace=1.0),
            make_sharing=sharing,
        )
        rules = DeviceRules(
            limits=RunLimits(factor=5.0, floor=0.3, load_floor=0.4),
            patience=3.0,
            bound=bound,
            cuttable=cuttable,
            self_fence=1.5,
            executors=self.executors,
        )
        self.core = DeviceCore(self.device, parts, self.catalogue, rules)
        self.starts = 0
        self.number = 0
        self.offset = 0
        self.reads = False
        self.runs: dict[str, RunBatch] = {}
        self.contents: dict[QueryKey, str] = {}
        self.commands: dict[str, list[LoadVariant | UnloadVariant]] = {}
        self.loaded: dict[str, set[str]] = {}
        self.wakes: dict[str, float] = {}
        self.down: dict[str, RestartExecutor | ReloadVariant] = {}
        self.cut: Cut | None = None
        self.catching_up = False
        self.read: list[Query] = []
        self.ends: Counter[Query] = Counter()
        self.said: list[DeviceAction] = []
        self.tell(Opened((BIG, SMALL)))
        self.join()

    def join(self) -> None:
        self.starts += 1
        self.tell(Joined(f"gpu0.{self.starts}"))

    def tell(self, event: DeviceEvent) -> list[DeviceAction]:
        """Let the core decide, and note it."""
        actions = self.core.handle(event, self.now)
        self.said += actions
        for action in actions:
            if isinstance(action, RestartExecutor | ReloadVariant):
                place = place_of(action)
                assert place not in self.down and place not in self.runs
                self.down[place] = action
            else:
                self._note(action)
        return actions

    def _note(self, action: DeviceAction) -> None:
        match action:
            case RunBatch():
                place = place_of(action)
                assert place not in self.runs, "two batches at a time"
                assert action.run.variant in self.loaded[place], "not loaded"
                assert all(not self.ends[q] for q in action.run.queries), "ran after its end"
                assert action.within >= 0.3
                self.runs[place] = action
            case Answer():
                assert not self.catching_up
                assert action.started <= action.at <= self.now
                self.ends.update(action.queries)
            case End():
                assert not self.catching_up
                self.ends[action.query] += 1
            case SendBack():
                assert not self.catching_up
                self.ends[action.query] += 1
            case Abandon():
                self.ends.update(action.queries)
                self.reads = False
                self.join()
            case LoadVariant() | UnloadVariant():
                self.commands.setdefault(place_of(action), []).append(action)
                self._unload(place_of(action))
            case WakeMe(at, key):
                self.wakes[key] = min(at, self.wakes.get(key, at))
            case Cut():
                assert not self.runs and self.cut is None
                self.cut = action
                self.loaded.clear()
                self.commands.clear()
                self.down.clear()
            case Read():
                assert not self.reads
                self.tell(ReadingBegins(self.offset, self.offset, self.offset))
                self.reads = True
            case CatchUp():
                self.catching_up = True
            case Acknowledge() | Announce() | Beat() | InterferenceChanged() | Say() | Seek():
                pass

    def _unload(self, part: str) -> None:
        """What is to be forgotten is forgotten in its turn, at once."""
        waiting = self.commands[part]
        while waiting and isinstance(waiting[0], UnloadVariant):
            gone = waiting.pop(0).variant
            runs = self.runs.get(part)
            assert runs is None or runs.run.variant != gone, "forgotten while it runs"
            self.loaded.get(part, set()).discard(gone)

    def plan(self, placed: Collection[tuple[str, str, Slice]] = (), **more: Any) -> list[DeviceAction]:
        """A plan of these (app, variant, slice), which names the worker unless told otherwise."""
        self.number += 1
        placements = tuple(Placement("gpu0", app, (variant,), 1.0, 2, part.name) for app, variant, part in placed)
        named = {"gpu0": f"gpu0.{self.starts}"}
        plan = Plan(epoch=Epoch(1, self.number), created=0.0, placements=placements, **{"incarnations": named, **more})
        return self.tell(PlanPublished(plan))

    def query(
        self,
        app: str,
        part: str = BIG.name,
        *,
        late: bool = False,
        goal: bool = False,
        content: str = "",
        flaw: str = "",
        rows: int = 1,
    ) -> Query | None:
        """A query is read, if anything is. ``content``: what it holds, "" for what no other does."""
        if not self.reads:
            return None
        self.offset += 1
        made = Query(
            id=f"q{self.offset}",
            app=app,
            arrival=self.now,
            deadline=self.now - 0.1 if late else self.now + self.catalogue.apps[app].slo,
            query_class=QueryClass.STRICT,
            stream=app,
            sequence=self.offset,
            goal=Goal(accuracy=0.1) if goal else None,
            rows=rows,
        )
        self.read.append(made)
        holds = self.contents[made.key] = content or made.id
        watched = holds if self.core.watches else ""
        self.tell(QueryCame(made, -1, part, self.offset, content=watched, flaw=flaw))
        return made

    def end(self, part: str, seconds: float = 0.05, *, fails: bool = False) -> list[DeviceAction]:
        """The batch on a slice ends."""
        del self.runs[part]
        self.now += seconds
        slice_, seat = _at(part)
        failed = BatchFailed(slice_, "it broke", seat=seat)
        return self.tell(failed if fails else BatchEnded(slice_, seconds, seconds, seat))

    def load(self, part: str, ok: bool = True, seconds: float = 0.2) -> None:
        """The next load on a slice ends."""
        asked = self.commands[part].pop(0)
        assert isinstance(asked, LoadVariant)
        self.now += seconds
        if ok:
            self.loaded.setdefault(part, set()).add(asked.variant)
        slice_, seat = _at(part)
        self.tell(Loaded(slice_, asked.variant, ok, seconds, seat))
        if part in self.commands:
            self._unload(part)

    def die(self, part: str, failure: Failure = Failure.KILLED) -> list[DeviceAction]:
        """The executor of a slice ends, and what it runs and loads with it."""
        asked = self.down.pop(part, None)
        assert not isinstance(asked, RestartExecutor), "there is no process"
        ran = self.runs.pop(part, None)
        slice_, seat = _at(part)
        actions = self.tell(ExecutorEnded(slice_, seat))
        if asked is not None:
            actions += self.tell(Reloaded(slice_, asked.variant, False, seat=seat))
        if ran is not None:
            here = [query.key for query in self.core.queries]
            actions += self.tell(ContentsTold(tuple((key, self.contents[key]) for key in here)))
            actions += self.tell(BatchFailed(slice_, "it died", failure, seat))
        if self.commands.get(part):
            load = self.commands[part].pop(0)
            actions += self.tell(Loaded(slice_, load.variant, False, seat=seat))
            self._unload(part)
        return actions

    def die_apart(self, part: str, failure: Failure = Failure.APART) -> list[DeviceAction]:
        """A query that runs alone ends the process that was made for it."""
        assert self.runs.pop(part).again
        slice_, seat = _at(part)
        return self.tell(BatchFailed(slice_, "its process died", failure, seat))

    def mend(self, part: str) -> list[DeviceAction]:
        """The next step of making it whole is done."""
        asked = self.down.pop(part)
        slice_, seat = _at(part)
        if isinstance(asked, ReloadVariant):
            return self.tell(Reloaded(slice_, asked.variant, True, 0.1, seat))
        self.now += asked.after
        return self.tell(ExecutorStarted(slice_, seat))

    def places(self) -> list[str]:
        """Executors that there are."""
        seats = [(part, executor.seat) for part, core in self.core.slices.items() for executor in core.executors]
        return [place_of(RestartExecutor(part, 0.0, seat)) for part, seat in seats]

    def loads(self) -> list[str]:
        """Slices where something is being loaded."""
        return sorted(part for part, waiting in self.commands.items() if waiting)

    def wake(self) -> bool:
        """Time goes on to the earliest wake; False where there is none."""
        if not self.wakes:
            return False
        key = min(self.wakes, key=lambda key: (self.wakes[key], key))
        self.now = max(self.now, self.wakes.pop(key))
        self.tell(Woken(key))
        return True

    def finish_cut(self, fault: str = "") -> None:
        """The cut has ended."""
        assert self.cut is not None
        known = {part.profile: part for part in (BIG, SMALL, WHOLE)}
        parts = (BIG, SMALL) if fault else tuple(known[profile] for profile in self.cut.profiles)
        self.cut = None
        self.wakes.clear()
        self.tell(CutEnded(parts, fault))

    def caught_up(self) -> None:
        """The newest plan was read."""
        self.catching_up = False
        self.tell(CaughtUp())

    def settle(self) -> None:
        """Everything that was begun comes to its end."""
        while self.catching_up:
            self.caught_up()
        for _ in range(1000):
            if self.runs:
                self.end(sorted(self.runs)[0])
            elif self.down:
                self.mend(sorted(self.down)[0])
            elif self.loads():
                self.load(self.loads()[0])
            elif self.cut is not None:
                self.finish_cut()
            elif all(self.ends[query] for query in self.read) or not self.wake():
                return
        raise AssertionError("it never comes to rest")
