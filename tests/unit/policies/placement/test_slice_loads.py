"""What each slice of a GPU holds while queries come, run and leave, counted by hand."""

from sluicegate.domain.actions import WakeAt
from sluicegate.domain.events import Arrived, Hosted, HostingChanged, Woke
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.placement.slice_queue import (
    BatchEnded,
    BatchStarted,
    HostedOnSlice,
    Left,
    Place,
    SharingAction,
    SliceSharing,
)
from sluicegate.policies.placement.strategies import STRATEGIES, sharing

GB = 1 << 30
LARGE, SMALL = Slice("4g.0", "4g", 16 * GB), Slice("1g.6", "1g", 4 * GB)


def hosting(
    part: Slice, rows: int, *, slo: float = 4.0, executors: int = 1, fbr: float = 1.0, app: str = "a"
) -> HostedOnSlice:
    """Batches of b rows take b / 4 s on the large slice, b / 2 s on the small one."""
    each = 0.25 if part is LARGE else 0.5
    curve = LatencyCurve(tuple(each * b for b in range(1, rows + 1)))
    one = Hosted("v", 0.9, curve, executors=executors, fbr=fbr)
    return HostedOnSlice(part.name, HostingChanged(app, (one,), slo))


def shared(*hosted: HostedOnSlice) -> SliceSharing:
    made = SliceSharing((LARGE, SMALL), STRATEGIES["strict-first"])
    for one in hosted:
        made.handle(one, 70.0)
    return made


def query(name: str, rows: int = 1, *, strict: bool = True, due: float = 90.0) -> Query:
    kind = QueryClass.STRICT if strict else QueryClass.BEST_EFFORT
    return Query(name, "a", 70.0, due, rows, query_class=kind)


def placed(actions: list[SharingAction]) -> list[tuple[str, str]]:
    return [(action.query.id, action.part) for action in actions if isinstance(action, Place)]


def held(sharing: SliceSharing, part: Slice) -> tuple[float, float, int, float]:
    """Gigabytes that are free, and of strict queries; queries; bandwidth."""
    load = sharing.load(part.name)
    return load.free_bytes / GB, load.strict_bytes / GB, load.residents, load.fbr


def test_a_query_takes_the_memory_of_its_rows_and_its_part_of_a_batch_until_it_leaves() -> None:
    """Room for two batches of 8 rows in 16 GB, and of 2 in 4: a row is 1 GB."""
    sharing = shared(hosting(LARGE, 8), hosting(SMALL, 2))
    assert (held(sharing, LARGE), held(sharing, SMALL)) == ((16, 0, 0, 1.0), (4, 0, 0, 1.0))
    strict, loose = query("s", 2), query("b", strict=False)
    assert placed(sharing.handle(Arrived(strict), 70.0)) == [("s", "4g.0")]
    assert placed(sharing.handle(Arrived(loose), 70.0)) == [("b", "1g.6")]
    assert (held(sharing, LARGE), held(sharing, SMALL)) == ((14, 2, 1, 1.25), (3, 0, 1, 1.5))
    assert sharing.handle(BatchStarted("4g.0", (strict,)), 70.0) == []
    assert held(sharing, LARGE) == (14, 2, 1, 2.0), "the batch, and the one that forms"
    sharing.handle(BatchEnded("4g.0", "a"), 71.0)
    sharing.handle(Left(strict), 71.0)
    sharing.handle(Left(loose), 71.0)
    assert (held(sharing, LARGE), held(sharing, SMALL)) == ((16, 0, 0, 1.0), (4, 0, 0, 1.0))


def test_a_slice_of_several_executors_has_room_for_as_many_batches_and_one_more() -> None:
    """Four batches of 8 rows in 16 GB: a row is half a GB. Each takes a quarter of the bandwidth."""
    sharing = shared(hosting(LARGE, 8, executors=3, fbr=0.25), hosting(SMALL, 2))
    assert held(sharing, LARGE) == (16, 0, 0, 0.25)
    one = query("s", 4)
    assert placed(sharing.handle(Arrived(one), 70.0)) == [("s", "4g.0")]
    assert held(sharing, LARGE) == (14, 2, 1, 0.375)
    sharing.handle(BatchStarted("4g.0", (one,)), 70.0)
    assert held(sharing, LARGE) == (14, 2, 1, 0.5)


def test_batches_count_as_far_as_two_of_them_are_done_within_the_slo() -> None:
    """Half of 2 s are four rows on the large slice and two on the small one."""
    sharing = shared(hosting(LARGE, 8, slo=2.0), hosting(SMALL, 8, slo=2.0))
    sharing.handle(Arrived(query("s", 1)), 70.0)
    assert held(sharing, LARGE) == (15, 1, 1, 1.25)  # 4 GB in four rows: two times two in the small one
    slow = shared(hosting(LARGE, 8, slo=0.125), hosting(SMALL, 8, slo=0.125))
    slow.handle(Arrived(query("s", 1)), 70.0)
    assert held(slow, LARGE) == (14, 2, 1, 2.0), "a batch of one row at least"


def test_what_an_executor_says_of_an_app_or_a_slice_that_is_not_there_changes_nothing() -> None:
    sharing = shared(hosting(LARGE, 8), hosting(SMALL, 2))
    assert sharing.handle(HostedOnSlice("7g.0", hosting(LARGE, 8).change), 70.0) == []
    assert sharing.handle(BatchEnded("7g.0", "a"), 70.0) == []
    assert sharing.handle(BatchStarted("7g.0", (query("x"),)), 70.0) == []
    assert sharing.handle(Left(query("x")), 70.0) == []
    assert (held(sharing, LARGE), held(sharing, SMALL)) == ((16, 0, 0, 1.0), (4, 0, 0, 1.0))
    assert sharing.shared("a") and not sharing.shared("b")


def test_the_batch_that_ends_is_the_apps_and_takes_its_own_bandwidth_with_it() -> None:
    sharing = shared(hosting(LARGE, 8, fbr=0.25), hosting(LARGE, 8, fbr=0.75, app="b"))
    other = Query("o", "b", 70.0, 90.0)
    assert held(sharing, LARGE)[3] == 0.75, "that of the widest which may form"
    sharing.handle(BatchStarted("4g.0", (query("s"),)), 70.0)
    sharing.handle(BatchStarted("4g.0", (other,)), 70.0)
    assert held(sharing, LARGE)[3] == 1.75
    sharing.handle(BatchEnded("4g.0", "b"), 71.0)
    assert held(sharing, LARGE)[3] == 1.0
    sharing.handle(BatchEnded("4g.0", "a"), 71.0)
    assert held(sharing, LARGE)[3] == 0.75


def test_who_waits_is_woken_for_at_its_deadline_or_now_where_that_is_past() -> None:
    sharing = shared(hosting(LARGE, 8), hosting(SMALL, 2))
    filled = [sharing.handle(Arrived(query(f"f{i}")), 70.0) for i in range(20)]
    assert [len(placed(each)) for each in filled] == [1] * 20
    assert sharing.handle(Arrived(query("late", due=69.0)), 70.0) == [WakeAt(70.0)]
    assert sharing.handle(Arrived(query("early", due=80.0)), 70.0) == [WakeAt(80.0)]
    assert sharing.queued == 2
    woke = sharing.handle(Woke(), 70.0)
    assert (placed(woke), [a for a in woke if isinstance(a, WakeAt)]) == ([("late", "1g.6")], [WakeAt(80.0)])
    assert placed(sharing.handle(Woke(), 79.5)) == []
    assert placed(sharing.handle(Woke(), 80.0)) == [("early", "1g.6")]
    assert sharing.queued == 0


def test_a_queue_stands_before_several_slices_that_a_plan_does_not_choose_among() -> None:
    one, two = Device(name="g0", type="gpu", slices=(LARGE,)), Device(name="g1", type="gpu", slices=(LARGE, SMALL))
    assert sharing("strict-first", one) is None and sharing("plan", two) is None
    found = sharing("strict-room", two)
    assert found is not None and found.load("1g.6").memory_bytes == 4 * GB
