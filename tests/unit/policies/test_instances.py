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
