"""Records of variant instances: written when there is something to say, rebuilt by who reads them."""

from dataclasses import replace

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.instance import Instance, InstanceState
from sluicegate.policies.model_less.instance_states import LEASE, Held, InstanceIndex, InstanceRecord
from sluicegate.streams.records.instances import decode_instance, encode_instance

HELD = Held("a", "a-v1", "whole", peak=100.0)


def test_a_record_is_written_when_it_comes_changes_or_is_half_over_and_ended_when_it_goes() -> None:
    record = InstanceRecord("d0")
    (first,) = record.looked([HELD], 1.0, now=0.0)
    assert first.instance is not None
    assert (first.instance.state, first.instance.expires) == (InstanceState.ACTIVE, LEASE)
    assert record.looked([HELD], 1.0, now=1.0) == []
    (slow,) = record.looked([replace(HELD, rows=10, slowdown=2.0)], 1.0, now=2.0)
    assert slow.instance is not None
    assert (slow.instance.state, slow.instance.qps) == (InstanceState.INTERFERED, 10.0)
    (full,) = record.looked([replace(HELD, rows=100, slowdown=2.0)], 1.0, now=3.0)
    assert full.instance is not None and full.instance.state is InstanceState.OVERLOADED
    (idle,) = record.looked([HELD], 1.0, now=4.0)
    assert idle.instance is not None and idle.instance.state is InstanceState.ACTIVE
    assert record.looked([HELD], 1.0, now=5.0) == []
    (renewed,) = record.looked([HELD], 1.0, now=4.0 + LEASE / 2 + 0.1)
    assert renewed.instance is not None and renewed.instance.expires > 4.0 + LEASE
    assert [(said.key, said.instance) for said in record.looked([], 1.0, now=12.0)] == [(first.key, None)]


def test_an_instance_of_which_nothing_is_said_answered_nothing_and_one_in_no_time_has_no_rate() -> None:
    (idle,) = InstanceRecord("d0").looked([HELD], 2.0, now=70.0)
    assert idle.instance is not None
    assert (idle.instance.qps, idle.instance.slowdown, idle.instance.peak) == (0.0, 0.0, 100.0)
    for window, qps in ((2.0, 15.0), (0.0, 0.0)):
        (said,) = InstanceRecord("d0").looked([replace(HELD, rows=30)], window, now=70.0)
        assert said.instance is not None
        assert (said.instance.qps, said.instance.expires) == (qps, 70.0 + LEASE)


def test_a_record_is_renewed_once_less_than_half_of_its_lease_is_left() -> None:
    record = InstanceRecord("d0", lease=8.0)
    record.looked([HELD], 1.0, now=70.0)
    assert record.looked([HELD], 1.0, now=74.0) == []
    (said,) = record.looked([HELD], 1.0, now=74.5)
    assert said.instance is not None and said.instance.expires == 82.5


def test_a_record_counts_until_it_expires_and_is_cleared_away_after_that() -> None:
    index = InstanceIndex()
    one = Instance(app="a", variant="a-v0", device="d0", expires=80.0)
    index.put(one.key, one)
    assert (index.at(79.5), index.at(80.0)) == ([one], [])
    assert (index.expired(84.0, after=4.0), index.expired(84.5, after=4.0)) == ([], [one.key])


def test_a_record_of_its_own_that_a_worker_found_is_written_anew_when_it_holds_the_instance() -> None:
    record = InstanceRecord("d0")
    record.found(Instance(app="a", variant="a-v1", device="d0", state=InstanceState.INTERFERED, expires=9999.0))
    (said,) = record.looked([replace(HELD, slowdown=1.3)], 1.0, now=70.0)
    assert said.instance is not None
    assert said.instance.state is InstanceState.INTERFERED, "it is not left before 1.25 times the profile"
    assert said.instance.expires == 70.0 + LEASE


def test_what_a_worker_finds_of_its_former_self_and_does_not_hold_is_ended() -> None:
    record = InstanceRecord("d0")
    mine = Instance(app="a", variant="a-v0", device="d0", expires=99.0)
    record.found(mine)
    record.found(replace(mine, device="d1"))
    written = record.looked([HELD], 1.0, now=0.0)
    assert [(said.key, said.instance is None) for said in written] == [("a|a-v1|d0|whole", False), (mine.key, True)]


def test_an_index_believes_a_record_until_it_expires_or_is_ended() -> None:
    index = InstanceIndex()
    here = Instance(app="a", variant="a-v0", device="d0", state=InstanceState.INTERFERED, expires=10.0)
    there = Instance(app="a", variant="a-v0", device="d1", expires=20.0)
    for instance in (here, there):
        index.put(instance.key, instance)
    assert index.at(5.0) == [here, there]
    assert index.states("d0", 5.0) == {"a-v0": InstanceState.INTERFERED}
    assert index.at(15.0) == [there]
    assert index.on("d0") == [here]  # what a replacement of the worker is to hold
    assert index.expired(25.0, after=10.0) == [here.key]
    index.put(there.key, None)
    assert index.at(15.0) == []


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        (b"a|v|d|whole", b"{", "instance"),
        (b"a|v|d|whole", b'{"app": "a", "variant": "v", "device": "d", "state": "asleep"}', r"instance\.state"),
        (b"a|v|other|whole", b'{"app": "a", "variant": "v", "device": "d"}', "stands under the key"),
        (
            b"a|v|d|whole",
            b'{"app": "a", "variant": "v", "device": "d", "qps": -1}',
            r"instance\.qps: .*greater than or equal to 0",
        ),
    ],
)
def test_a_record_that_is_none_is_an_error_that_says_so(key: bytes, value: bytes, field: str) -> None:
    with pytest.raises(InvalidInputError, match=field):
        decode_instance(key, value)
    good = Instance(app="a", variant="v", device="d", qps=1.5)
    assert decode_instance(good.key.encode(), encode_instance(good)) == good
