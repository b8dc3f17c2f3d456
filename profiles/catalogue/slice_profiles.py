"""Profiles of GPU slices that nobody has measured: those of the whole GPU, slowed by what a slice has less of it.

Rules:
- What was measured on a slice stands. Elsewhere latencies are the whole GPU's times the slice's RDF, at every batch.
- Where no RDF is given: ``1 + SCALED * (whole / part - 1)`` by compute slices: so much of the time goes with compute,
  the rest does not (1.4, 1.7, 2.3 and 4 on 4g, 3g, 2g and 1g of seven). Latencies measured while serving correct it, as
  they do any profile.
- A GPU type that nothing is profiled on may stand on another type's profiles, as fake GPUs do.
- Where several executors share a slice or a device's cores, its profile says what a batch takes while all of them run,
  by the slowdown model, and what all of them hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sluicegate.domain.fleet.device import WHOLE, executors_of, profile_type
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slowdown import crowded

SCALED = 0.5


def rdf_of(compute: int, whole: int) -> float:
    """Time on a slice of ``compute`` of ``whole`` compute slices over the time on the whole GPU."""
    return 1.0 + SCALED * (whole / compute - 1.0)


def with_slices(
    catalogue: Catalogue, gpu: str, compute: Mapping[str, int], *, like: str | None = None, rdf: Mapping[str, float]
) -> Catalogue:
    """``catalogue`` with a profile of every variant on ``gpu`` and each of its slices.

    ``compute``: compute slices by slice profile. ``like``: device type whose profiles stand for the GPU's where it has
    none. ``rdf``: by slice profile, where it is known.
    """
    whole = max(compute.values())
    found = dict(catalogue.profiles)
    for variant in catalogue.variants:
        own = found.get((variant, gpu)) or (found.get((variant, like)) if like is not None else None)
        if own is None:
            continue
        found[variant, gpu] = replace(own, device_type=gpu)
        for part, slices in compute.items():
            kind = profile_type(gpu, part)
            if (variant, kind) not in found:
                found[variant, kind] = slowed(own, kind, rdf.get(part) or rdf_of(slices, whole))
    return Catalogue.of(catalogue.apps.values(), catalogue.variants.values(), found.values())


def shared(catalogue: Catalogue, executors: Mapping[str, int]) -> Catalogue:
    """``catalogue`` where so many executors, by device type or type of profiles, share a slice. What is shared already
    stays as it is."""
    if not executors:
        return catalogue
    found = {
        (variant, kind): crowd(p, executors_of(executors, kind.partition(":")[0], kind.partition(":")[2] or WHOLE))
        for (variant, kind), p in catalogue.profiles.items()
    }
    return Catalogue(catalogue.apps, catalogue.variants, found)


def crowd(profile: Profile, executors: int) -> Profile:
    """The same while ``executors`` batches run at a time; one: alone."""
    if profile.executors == executors:
        return profile
    factor = crowded(profile.fbr, executors) / crowded(profile.fbr, profile.executors)
    memory = profile.memory_bytes // profile.executors * executors
    found = slowed(profile, profile.device_type, factor)
    return replace(found, memory_bytes=memory, load=factor * profile.load, executors=executors)


def slowed(profile: Profile, kind: str, factor: float) -> Profile:
    """The same on device type ``kind``, every latency times ``factor``."""
    shorter = tuple(replace(each, points=_times(each.points, factor)) for each in profile.shorter)
    return replace(profile, device_type=kind, points=_times(profile.points, factor), shorter=shorter)


def _times(points: Sequence[BatchLatency], factor: float) -> tuple[BatchLatency, ...]:
    return tuple(BatchLatency(p.batch, factor * p.median, factor * p.p95, factor * p.cpu) for p in points)
