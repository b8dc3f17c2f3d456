"""What a heartbeat tells of a device, and what is known of devices that say little."""

from dataclasses import replace

from sluicegate.domain.events import DeviceSeen
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.planner.estimates.device_liveness import SILENCE, Change, Fleet

NOW = 5000.0
TIMEOUT = 3.0
SEEN = DeviceSeen("d7", "gpu", "i-4", memory_bytes=80, price=2.5)


def fleet(*known: Device) -> Fleet:
    return Fleet(known, TIMEOUT)


def test_a_heartbeat_tells_what_changed_since_the_last() -> None:
    there = fleet()
    assert there.seen(SEEN, NOW) is Change.JOINED
    assert there.seen(SEEN, NOW + 1.0) is Change.NONE
    assert there.seen(replace(SEEN, incarnation="i-5"), NOW + 2.0) is Change.RESTARTED
    assert there.incarnations() == {"d7": "i-5"}
    more = replace(SEEN, incarnation="i-5", memory_bytes=40)
    assert there.seen(more, NOW + 3.0) is Change.CHANGED
    assert [d.memory_bytes for d in there.usable()] == [40]
    assert there.seen(replace(more, leaving=True), NOW + 4.0) is Change.LEAVING
    assert there.usable() == []
    assert there.incarnations() == {"d7": "i-5"}, "it may still finish what it has"
    assert there.seen(replace(more, leaving=True, incarnation="i-6"), NOW + 5.0) is Change.RESTARTED
    assert there.seen(more, NOW + 6.0) is Change.STAYS
    assert [d.name for d in there.usable()] == ["d7"]


def test_another_takes_a_devices_place_only_once_who_is_counted_on_is_silent_or_leaves() -> None:
    there = fleet()
    other = replace(SEEN, incarnation="i-5")
    assert not there.is_another(other, NOW), "nobody is counted on yet"
    there.seen(SEEN, NOW)
    assert not there.is_another(SEEN, NOW + 0.5)
    assert not there.is_another(replace(other, device="d8"), NOW + 0.5)
    assert there.is_another(other, NOW + SILENCE * TIMEOUT)
    assert not there.is_another(other, NOW + SILENCE * TIMEOUT + 0.01), (
        "whoever started again has been silent meanwhile"
    )
    assert there.incarnations() == {"d7": "i-4"}
    there.seen(replace(SEEN, leaving=True), NOW + 2.0)
    assert not there.is_another(other, NOW + 2.0)
    assert there.is_another(other, NOW + 2.0, withdrawn=True), "whoever runs it is leaving, as long as it beats"


def test_the_same_worker_that_joins_again_is_counted_on_at_once() -> None:
    there = fleet()
    there.seen(SEEN, NOW)
    assert there.is_another(replace(SEEN, incarnation="i-6", after="i-5"), NOW + 0.1), "it follows another than that"
    assert not there.is_another(replace(SEEN, incarnation="i-6", after="i-4"), NOW + 0.1)


def test_a_term_begins_with_whom_the_plan_before_counted_on_and_tells_anew_that_two_beat() -> None:
    there = fleet()
    named = replace(SEEN, incarnation="i-5", memory_bytes=40)
    there.seen(SEEN, NOW)
    assert there.is_another(named, NOW + 1.0)
    there.expect({"d7": "i-9"}, NOW + 1.5)
    assert there.incarnations() == {"d7": "i-4"}
    there.expect({"d7": "i-5"}, NOW + 1.0 + SILENCE * TIMEOUT + 0.1)
    assert there.incarnations() == {"d7": "i-4"}, "the other has been silent"
    assert there.seen(SEEN, NOW + 1.5) is Change.CONTESTED
    there.expect({"d7": "i-5"}, NOW + 1.6)
    assert there.incarnations() == {"d7": "i-5"} and [d.memory_bytes for d in there.usable()] == [40]
    assert there.is_another(SEEN, NOW + 1.7)
    assert there.seen(named, NOW + 1.8) is Change.CONTESTED
    there.expect({"d7": "i-5"}, NOW + 1.9)
    assert there.seen(named, NOW + 2.0) is Change.CONTESTED


def test_who_starts_again_soon_takes_the_place_and_is_nobody_beside_itself() -> None:
    there = fleet()
    again = replace(SEEN, incarnation="i-5")
    there.seen(SEEN, NOW)
    assert [there.is_another(again, NOW + half / 2) for half in range(1, 6)] == [True] * 4 + [False]
    assert there.seen(again, NOW + 2.5) is Change.RESTARTED
    assert {there.seen(again, NOW + half / 2) for half in range(6, 12)} == {Change.NONE}


def test_a_device_that_two_run_is_told_once_until_the_second_has_been_silent() -> None:
    there = fleet()
    other = replace(SEEN, incarnation="i-5", leaving=True)
    there.seen(SEEN, NOW)
    changes = []
    for half in range(1, 25):  # the other is silent from the 5th to the 14th
        now = NOW + half / 2
        changes.append(there.seen(SEEN, now))
        if not 5 <= half < 15:
            assert there.is_another(other, now)
    told = [half for half, change in enumerate(changes, 1) if change is Change.CONTESTED]
    assert told == [2, 16] and set(changes) == {Change.NONE, Change.CONTESTED}
    assert [d.name for d in there.usable()] == ["d7"], "that the other leaves is no matter"


def test_who_joins_to_leave_is_no_news_and_is_planned_on_only_once_it_stays() -> None:
    there = fleet()
    assert there.seen(replace(SEEN, leaving=True), NOW) is Change.NONE
    assert there.usable() == []
    assert there.seen(SEEN, NOW + 1.0) is Change.STAYS


def test_a_device_is_dead_after_more_than_the_timeout_and_returns_as_whatever_it_then_is() -> None:
    there = fleet()
    there.seen(SEEN, NOW)
    there.seen(replace(SEEN, device="c2"), NOW + 1.0)
    assert there.bury(NOW + TIMEOUT) == []
    there.seen(replace(SEEN, device="c2"), NOW + 2.0)
    (dead,) = there.bury(NOW + TIMEOUT + 0.5)
    assert (dead.device.name, dead.incarnation, dead.seen) == ("d7", "i-4", NOW)
    assert there.bury(NOW + TIMEOUT + 0.5) == [], "told once"
    assert there.incarnations() == {"c2": "i-4"}
    assert there.type_of("d7") == "gpu"
    assert there.type_of("d8") is None
    assert there.seen(SEEN, NOW + 9.0) is Change.RETURNED, "the same incarnation, and the same words"
    assert [state.device.name for state in there.bury(NOW + 9.0)] == ["c2"]


def test_those_that_died_at_once_are_told_by_name() -> None:
    there = fleet()
    for name in ("z", "b", "m"):
        there.seen(replace(SEEN, device=name), NOW)
    assert [state.device.name for state in there.bury(NOW + 10.0)] == ["b", "m", "z"]


def test_what_a_heartbeat_does_not_say_is_as_it_was_known_before() -> None:
    halves = (Slice("3g.0", "3g", 40), Slice("3g.4", "3g", 30))
    known = Device(name="d7", type="cpu", memory_bytes=70, slices=halves, price=4.0, spot=True)
    there = fleet(known)
    there.seen(DeviceSeen("d7", "gpu", "i-1"), NOW)
    assert there.usable() == [replace(known, type="gpu")]
    whole = (Slice("7g.0", "7g", 60),)
    there.seen(DeviceSeen("d7", "gpu", "i-1", memory_bytes=60, price=1.5, slices=whole), NOW + 1.0)
    assert there.usable() == [replace(known, type="gpu", memory_bytes=60, slices=whole, price=1.5)]
    there.seen(DeviceSeen("e", "cpu", "i-1", spot=True), NOW + 1.0)
    assert there.usable()[1] == Device(name="e", type="cpu", spot=True)
