"""What device time there is, by resource, and what a second on each kind of slice takes of it.

A resource is the slices of one kind, a processor that slices share, or the compute slices or memory slots of GPUs that
plans may cut. Resources of equal devices are counted together: any of them may serve any query. Where several executors
share a slice each batch is priced alone, and takes what it takes of the slice's bandwidth; of a GPU that plans may cut,
its part of what it is made of.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sluicegate.domain.fleet.device import Device, executors_of, profile_type
from sluicegate.domain.models.profile import Profile
from sluicegate.planner.geometry.mig_tables import TABLES
from sluicegate.profiles.catalogue.slice_profiles import crowd
from sluicegate.simulator.bound.priced_time import Floats
from sluicegate.simulator.engine.slice_model import SharingModel
from sluicegate.simulator.engine.system_model import SystemModel


@dataclass(frozen=True, slots=True)
class Kind:
    """Slices that are alike. ``device_type``: of their device; ``profiled``: what profiles call them.

    ``alone``: (resource, part of it) while a batch runs; ``common``: what it shares with others, ``parts`` of that by
    variant, all of it where none is given.
    """

    device_type: str
    profiled: str
    alone: tuple[tuple[int, float], ...]
    common: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)

    def takes(self, variant: str) -> tuple[tuple[int, float], ...]:
        """(resource, part of it) while a batch of ``variant`` runs."""
        return self.alone if self.common is None else (*self.alone, (self.common, self.parts.get(variant, 1.0)))


class Fleet:
    """Of a system. ``capacity``: of each resource, how many there are. ``fastest``: least factor of service times."""

    def __init__(self, system: SystemModel) -> None:
        self._catalogue = system.catalogue
        self._counts: list[float] = []
        self._resources: dict[tuple[str, ...], int] = {}
        self.fastest = float(np.prod([min(1.0, s.factor) for s in system.faults.stragglers], initial=1.0))
        kinds: dict[tuple[str, ...], Kind] = {}
        for device in system.devices:
            if device.name in system.sharing.cuttable:
                self._cut_any_way(device.type, system.sharing, kinds)
            else:
                self._as_it_is(device, system.sharing, kinds)
        self.kinds = tuple(kinds.values())

    @property
    def capacity(self) -> Floats:
        """By resource."""
        return np.array(self._counts)

    def profile(self, variant: str, kind: Kind) -> Profile | None:
        """Of ``variant`` there; as live, what nothing says of a slice is as on the whole device."""
        profiles = self._catalogue.profiles
        found = profiles.get((variant, kind.profiled)) or profiles.get((variant, kind.device_type))
        return None if found is None else crowd(found, 1)

    def _as_it_is(self, device: Device, sharing: SharingModel, kinds: dict[tuple[str, ...], Kind]) -> None:
        processors = {sharing.instances.get((device.name, part.name)) for part in device.slices} - {None}
        common = {name: self._one_more("processors", device.type, name) for name in sorted(filter(None, processors))}
        for part in device.slices:
            kind = profile_type(device.type, part.profile)
            executors = executors_of(sharing.executors, device.type, part.profile)
            alone = ((self._one_more("slices", kind), 1.0 / executors),)
            processor = sharing.instances.get((device.name, part.name))
            if processor is None and executors > 1:
                between = self._one_more("processors", kind)
                kinds.setdefault((kind,), Kind(device.type, kind, alone, between, sharing.parts))
            elif processor is None:
                kinds.setdefault((kind,), Kind(device.type, kind, alone))
            else:
                shared = Kind(device.type, kind, alone, common[processor], sharing.parts)
                kinds.setdefault((kind, processor), shared)

    def _cut_any_way(self, gpu: str, sharing: SharingModel, kinds: dict[tuple[str, ...], Kind]) -> None:
        table = TABLES[gpu]
        compute, memory = self._one_more("compute", gpu), self._one_more("memory", gpu)
        for profile in table.profiles.values():
            kind = profile_type(gpu, profile.name)
            each = 1.0 / executors_of(sharing.executors, gpu, profile.name)
            parts = (
                (compute, each * profile.compute / table.compute_slices),
                (memory, each * profile.span / table.memory_slots),
            )
            kinds.setdefault((kind,), Kind(gpu, kind, parts))

    def _one_more(self, *name: str) -> int:
        """There is one more of the resource of that name, which is numbered so."""
        number = self._resources.setdefault(name, len(self._counts))
        if number == len(self._counts):
            self._counts.append(0.0)
        self._counts[number] += 1.0
        return number
