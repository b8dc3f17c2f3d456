"""A device's acknowledgement is that of all its slices."""

from sluicegate.domain.actions import Acknowledge
from sluicegate.domain.plan import Epoch
from sluicegate.policies.placement.ack_barrier import Gathering


def _report(number: int, *variants: str, failed: tuple[str, ...] = ()) -> Acknowledge:
    return Acknowledge(Epoch(1, number), variants, failed)


def test_a_device_acknowledges_when_its_last_slice_has() -> None:
    device = Gathering(["s0", "s1"])
    assert device.staged("s1", _report(1, "b")) is None
    assert device.staged("s0", _report(1, "a", failed=("c",))) == _report(1, "a", "b", failed=("c",))


def test_a_device_of_one_slice_says_what_the_slice_says() -> None:
    assert Gathering(["whole"]).staged("whole", _report(3, "a")) == _report(3, "a")


def test_a_newer_epoch_begins_anew_and_an_older_one_is_ignored() -> None:
    device = Gathering(["s0", "s1"])
    assert device.staged("s0", _report(1, "a")) is None
    assert device.staged("s0", _report(2, "x")) is None
    assert device.staged("s1", _report(1, "b")) is None
    assert device.staged("s1", _report(2, "y")) == _report(2, "x", "y")


def test_a_slice_that_reports_again_is_heard_again() -> None:
    device = Gathering(["s0", "s1"])
    device.staged("s0", _report(1, "a"))
    device.staged("s1", _report(1, "b"))
    assert device.staged("s1", _report(1, "b", "c")) == _report(1, "a", "b", "c")


def test_what_is_withdrawn_later_has_failed_from_then_on() -> None:
    device = Gathering(["s0", "s1"])
    device.staged("s1", _report(4, "b", "c"))
    assert device.withdrawn("s0", "a") is None, "it has staged nothing yet"
    assert device.withdrawn("s1", "b") is None, "the device has acknowledged nothing yet"
    assert device.staged("s0", _report(4, "a", "c", failed=("d",))) == _report(4, "a", "c", failed=("d", "b"))
    assert device.withdrawn("s1", "a") is None, "it is on the other slice"
    assert device.withdrawn("s0", "a") == _report(4, "c", failed=("d", "a", "b"))
    assert device.withdrawn("s0", "a") is None
