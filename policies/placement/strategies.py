"""Named ways to order a GPU's queue and to choose slices.

Contract. ``arrived`` only enqueues. ``next`` takes one waiting batch out and says where it goes, given the loads as
they are now; the caller applies that and asks again until None. Nothing that waits is lost: ``drain`` gives all of it
back. Memory is never exceeded: a batch goes to a slice only where its memory is free.

- strict-first (PROTEAN): strict first in the queue, least eta with tags; best effort first fit.
- strict-room (ours): the same for strict; best effort where it is slowed least, but not in the room of strict ones that
  wait.
"""

from collections.abc import Callable, Mapping

from sluicegate.domain.fleet.device import Device
from sluicegate.policies.placement.slice_queue import SliceSharing
from sluicegate.policies.placement.slice_queue_port import SlicePlacement
from sluicegate.policies.placement.strict import StrictFirst, StrictRoom
from sluicegate.profiles.catalogue.slowdown import SlowdownTable

STRATEGIES: Mapping[str, Callable[[SlowdownTable], SlicePlacement]] = {
    "strict-first": StrictFirst,
    "strict-room": StrictRoom,
}
"""By name."""


def sharing(choice: str, device: Device) -> SliceSharing | None:
    """The queue before the slices of ``device`` by the rule ``choice``; None for "plan", or where there is but one."""
    return None if choice == "plan" or len(device.slices) < 2 else SliceSharing(device.slices, STRATEGIES[choice])
