"""The queue before a GPU's slices: nothing lost, room kept, strict first, the least slowed slice."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluicegate.domain.events import Arrived, Hosted, HostingChanged, Woke
from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.placement.slice_queue import (
    BatchEnded,
    BatchStarted,
    GiveBack,
    HostedOnSlice,
    Left,
    Place,
    SharingAction,
    SliceSharing,
)
from sluicegate.policies.placement.strategies import STRATEGIES

GB = 1 << 30
PARTS = (Slice("4g.0", "4g", 20 * GB), Slice("2g.4", "2g", 10 * GB), Slice("1g.6", "1g", 5 * GB))
SLOWER = {"4g.0": 1.4, "2g.4": 2.3, "1g.6": 4.0}
LARGEST = {"4g.0": 8, "2g.4": 4, "1g.6": 2}


def hosting(part: str, app: str = "a", *, hosts: bool = True, slo: float = 1.0) -> HostedOnSlice:
    curve = LatencyCurve(tuple(0.01 * SLOWER[part] * (1 + 0.2 * b) for b in range(1, LARGEST[part] + 1)))
    return HostedOnSlice(part, HostingChanged(app, (Hosted("v", 0.9, curve),) if hosts else (), slo))


def query(number: int, *, strict: bool = True, deadline: float = 10.0, app: str = "a") -> Query:
    kind = QueryClass.STRICT if strict else QueryClass.BEST_EFFORT
    return Query(f"q{number}", app, 0.0, deadline, query_class=kind)


def shared(choice: str = "strict-first", apps: tuple[str, ...] = ("a",)) -> SliceSharing:
    sharing = SliceSharing(PARTS, STRATEGIES[choice])
    for app in apps:
        for part in PARTS:
            sharing.handle(hosting(part.name, app), 0.0)
    return sharing


def placed(actions: list[SharingAction]) -> list[str]:
    return [action.part for action in actions if isinstance(action, Place)]


def test_a_strict_query_goes_where_it_is_slowed_least_and_a_best_effort_one_where_it_fits_first() -> None:
    sharing = shared()
    assert placed(sharing.handle(Arrived(query(0)), 0.0)) == ["4g.0"]
    assert placed(sharing.handle(Arrived(query(1, strict=False)), 0.0)) == ["1g.6"]


def test_a_running_batch_sends_strict_queries_to_the_next_best_slice_until_it_ends() -> None:
    sharing = shared()
    first = query(0)
    sharing.handle(Arrived(first), 0.0)
    sharing.handle(BatchStarted("4g.0", (first,)), 0.0)
    assert placed(sharing.handle(Arrived(query(1)), 0.0)) == ["2g.4"]
    sharing.handle(BatchEnded("4g.0", "a"), 0.0)
    assert placed(sharing.handle(Arrived(query(2)), 0.0)) == ["4g.0"]


def test_what_finds_no_room_waits_and_strict_queries_are_placed_first() -> None:
    sharing = shared()
    held = [query(i) for i in range(40)]
    assert len([q for q in held if placed(sharing.handle(Arrived(q), 0.0))]) == 40 - sharing.queued
    loose, strict = query(100, strict=False), query(101)
    sharing.handle(Arrived(loose), 0.0)
    sharing.handle(Arrived(strict), 0.0)
    waiting = sharing.queued
    gone = [q for q in held[:4] for action in sharing.handle(Left(q), 0.0) if isinstance(action, Place)]
    assert sharing.queued == waiting - len(gone)
    assert loose in sharing.drain()
    assert sharing.queued == 0


def test_there_is_less_room_where_the_slo_leaves_time_for_smaller_batches() -> None:
    rooms = {1.0: {"4g.0": 16, "2g.4": 8, "1g.6": 4}, 0.05: {"4g.0": 8, "2g.4": 4, "1g.6": 2}}
    for slo, room in rooms.items():
        sharing = SliceSharing(PARTS, STRATEGIES["strict-first"])
        for part in PARTS:
            sharing.handle(hosting(part.name, slo=slo), 0.0)  # one row takes 17, 28 and 48 ms
        went = Counter(part for i in range(40) for part in placed(sharing.handle(Arrived(query(i)), 0.0)))
        assert went == room
        assert sharing.queued == 40 - sum(room.values())


def test_a_query_is_placed_at_its_deadline_though_there_is_no_room() -> None:
    sharing = shared()
    while not sharing.queued:
        sharing.handle(Arrived(query(0)), 0.0)
    late = query(1, deadline=2.0)
    sharing.handle(Arrived(late), 0.0)
    actions = sharing.handle(Woke(), 2.0)
    assert [a.query for a in actions if isinstance(a, Place)] == [late]


def test_an_app_that_leaves_every_slice_gets_its_waiting_queries_back() -> None:
    sharing = shared()
    while not sharing.queued:
        sharing.handle(Arrived(query(0)), 0.0)
    actions = [a for part in PARTS for a in sharing.handle(hosting(part.name, hosts=False), 0.0)]
    assert [type(a) for a in actions] == [GiveBack]
    assert not sharing.shared("a")


class Sharing(RuleBasedStateMachine):
    """Any order of arrivals, batches, ends and changes of hosting."""

    def __init__(self) -> None:
        super().__init__()
        self.sharing = shared(apps=("a", "b"))
        self.on: dict[Query, str] = {}
        self.running: dict[str, tuple[Query, ...]] = {}
        self.waiting: set[Query] = set()
        self.now = 0.0
        self.number = 0
        self.expired = 0

    def _do(self, actions: list[SharingAction]) -> None:
        for action in actions:
            match action:
                case Place(query, part):
                    self.waiting.remove(query)
                    self.on[query] = part
                    self.expired += query.deadline <= self.now
                case GiveBack(query):
                    self.waiting.remove(query)

    @rule(strict=st.booleans(), app=st.sampled_from(["a", "b"]), wait=st.floats(0.1, 3.0))
    def arrives(self, strict: bool, app: str, wait: float) -> None:
        if self.sharing.shared(app):
            self.number += 1
            new = query(self.number, strict=strict, deadline=self.now + wait, app=app)
            self.waiting.add(new)
            self._do(self.sharing.handle(Arrived(new), self.now))

    @rule(part=st.sampled_from([p.name for p in PARTS]), most=st.integers(1, 8))
    def runs(self, part: str, most: int) -> None:
        if part not in self.running:
            batch = tuple(q for q, at in self.on.items() if at == part)[:most]
            if batch:
                self.running[part] = batch
                self._do(self.sharing.handle(BatchStarted(part, batch), self.now))

    @rule(part=st.sampled_from([p.name for p in PARTS]))
    def ends(self, part: str) -> None:
        batch = self.running.pop(part, ())
        if batch:
            self._do(self.sharing.handle(BatchEnded(part, batch[0].app), self.now))
        for one in batch:
            del self.on[one]
            self._do(self.sharing.handle(Left(one), self.now))

    @rule(part=st.sampled_from([p.name for p in PARTS]), app=st.sampled_from(["a", "b"]), hosts=st.booleans())
    def is_hosted(self, part: str, app: str, hosts: bool) -> None:
        self._do(self.sharing.handle(hosting(part, app, hosts=hosts), self.now))

    @rule(seconds=st.floats(0.0, 2.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._do(self.sharing.handle(Woke(), self.now))
        assert not any(q.deadline <= self.now for q in self.waiting)

    @invariant()
    def nothing_is_lost_and_loads_are_what_is_held(self) -> None:
        assert self.sharing.queued == len(self.waiting)
        for part in PARTS:
            load = self.sharing.load(part.name)
            mine = [q for q, at in self.on.items() if at == part.name]
            assert load.residents == len(mine)
            assert load.fbr >= 1.0 - 1e-9
            if not mine:
                assert load.free_bytes == part.memory_bytes
                assert abs(load.fbr - 1.0) < 1e-9

    @invariant()
    def no_slice_is_given_more_than_it_has_room_for(self) -> None:
        if not self.expired:  # those are put on full slices
            for part in PARTS:
                assert self.sharing.load(part.name).free_bytes >= 0


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
