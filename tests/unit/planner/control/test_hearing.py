"""Silence of the log is not a device's."""

from sluicegate.domain.events import DeviceSeen
from sluicegate.domain.fleet.device import Device
from sluicegate.planner.control.log_liveness import Hearing
from sluicegate.planner.estimates.device_liveness import Fleet

TIMEOUT = 2.0


def fleet() -> Fleet:
    there = Fleet([Device(name=name, type="cpu") for name in ("a", "b")], TIMEOUT)
    for name in ("a", "b"):
        there.seen(DeviceSeen(name, "cpu", f"{name}-1"), 0.0)
    return there


def test_a_log_is_silent_once_nothing_was_read_for_longer_than_the_patience() -> None:
    hearing = Hearing(1.25)
    assert not hearing.deaf(100.0)  # nothing has begun yet
    assert not hearing.heard(100.0)
    assert not hearing.deaf(101.25)
    assert hearing.deaf(101.3)
    assert hearing.heard(105.0)
    assert not hearing.deaf(105.0)


def test_devices_get_the_whole_timeout_anew_after_the_log_was_silent() -> None:
    there = fleet()
    there.excuse(10.0)
    assert there.bury(10.0 + TIMEOUT) == []
    there.seen(DeviceSeen("a", "cpu", "a-1"), 11.0)
    assert [state.device.name for state in there.bury(10.1 + TIMEOUT)] == ["b"]


def test_an_excuse_does_not_bring_the_dead_back() -> None:
    there = fleet()
    there.bury(3.0)
    there.excuse(4.0)
    assert there.usable() == []


def test_devices_that_the_term_before_counted_on_have_the_whole_timeout_from_when_one_looks() -> None:
    there = Fleet([], TIMEOUT)
    now = 1.7e9
    there.seen(DeviceSeen("a", "cpu", "a-1"), now)
    there.expect({"a": "a-1", "b": "b-7", "c": "c-2"})
    assert there.expected
    assert there.unheard(now) == []
    there.seen(DeviceSeen("b", "cpu", "b-8"), now + 1.0)
    assert there.unheard(now + TIMEOUT) == []
    assert there.unheard(now + TIMEOUT + 0.1) == [("c", "c-2")]
    assert not there.expected
    assert there.unheard(now + TIMEOUT + 0.2) == []


def test_who_is_waited_for_gets_the_whole_timeout_anew_after_the_log_was_silent() -> None:
    there = Fleet([], TIMEOUT)
    there.expect({"a": "a-1"})
    there.excuse(9.0)  # nobody has looked yet
    assert there.unheard(10.0) == []
    there.excuse(15.0)
    assert there.unheard(15.0 + TIMEOUT) == []
    assert there.unheard(15.1 + TIMEOUT) == [("a", "a-1")]
