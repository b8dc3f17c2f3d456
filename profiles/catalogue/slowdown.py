"""How much slower a batch runs on a slice than alone on a whole GPU: resource deficiency and shared bandwidth.

Rules:
- RDF (resource deficiency factor) of a variant on a slice profile: its time alone there over its time alone on the
  whole GPU, at least 1 in practice. FBR (fractional bandwidth requirement): the share of the slice's memory bandwidth
  that it takes while it runs.
- Batches that share a slice slow each other down once their FBR exceed the bandwidth: each takes
  solo * RDF * max(sum of FBR, 1).
- eta is that factor as seen before a batch is placed; ``pressure`` adds the FBR of best-effort batches that are about
  to be put on the slice.
- FBR is a table by (variant, slice profile). A table that says nothing of a profile takes the variant's own for all:
  only that reproduces the published motivation (PROTEAN, Fig. 2).

After PROTEAN, section 3 (RDF, FBR) and Algorithm 1 (eta).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluicegate.domain.errors import InvalidInputError

WHOLE_GPU = "7g"
"""The profile that solo times are measured on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one batch of ``variant`` takes on one slice profile. ``seconds``: alone there; ``rdf`` against 7g."""

    seconds: float
    rdf: float
    fbr: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantDemand:
    """What is known of a variant's batches. ``solo``: seconds of a full batch alone on the whole GPU.

    ``rdf``: by slice profile; profiles that are not listed cannot run it. ``fbr``: of the whole GPU, and by slice
    profile where measured there.
    """

    name: str
    solo: float
    memory_bytes: int
    rdf: Mapping[str, float]
    fbr: float
    fbr_by_profile: Mapping[str, float] = field(default_factory=dict)
    batch: int = 1

    def __post_init__(self) -> None:
        _finite(f"{self.name}.solo", self.solo, above=0.0)
        _finite(f"{self.name}.memory_bytes", self.memory_bytes, least=0.0)
        for profile, value in self.rdf.items():
            _finite(f"{self.name}.rdf.{profile}", value, above=0.0)
        for profile, value in {WHOLE_GPU: self.fbr, **self.fbr_by_profile}.items():
            _finite(f"{self.name}.fbr.{profile}", value, least=0.0)
        if self.batch < 1:
            raise InvalidInputError(f"{self.name}.batch", f"{self.batch} is not a positive number of rows")


class SlowdownTable:
    """Footprints by (variant, slice profile), looked up on every placement."""

    def __init__(self, demands: Mapping[str, VariantDemand]) -> None:
        self.demands = dict(demands)
        self._footprints = {(name, profile): _footprint(d, profile) for name, d in demands.items() for profile in d.rdf}

    def runs(self, variant: str, profile: str) -> bool:
        """Whether anything is known of the variant on that profile."""
        return (variant, profile) in self._footprints

    def known(self, variant: str, profile: str) -> Footprint | None:
        """None where nothing is known of the variant on that profile."""
        return self._footprints.get((variant, profile))

    def of(self, variant: str, profile: str) -> Footprint:
        """Raises InvalidInputError where nothing is known."""
        found = self.known(variant, profile)
        if found is None:
            raise InvalidInputError(f"{variant}.rdf", f"has no entry for slice profile {profile}; profile it there")
        return found


def eta(rdf: float, fbr: float, residents_fbr: float, pressure: float = 0.0) -> float:
    """Expected slowdown of a batch with ``rdf`` and ``fbr`` beside residents whose FBR sum to ``residents_fbr``."""
    bandwidth = fbr + residents_fbr + pressure
    return rdf * bandwidth if bandwidth > 1.0 else rdf


def crowded(fbr: float, executors: int) -> float:
    """How much longer each of ``executors`` batches takes that run at a time, of ``fbr`` each, than one alone."""
    return max(1.0, fbr * executors)


def _footprint(demand: VariantDemand, profile: str) -> Footprint:
    rdf = demand.rdf[profile]
    fbr = demand.fbr_by_profile.get(profile, demand.fbr)
    return Footprint(seconds=demand.solo * rdf, rdf=rdf, fbr=fbr, memory_bytes=demand.memory_bytes)


def _finite(field_name: str, value: float, *, above: float | None = None, least: float | None = None) -> None:
    fine = -float("inf") < value < float("inf")
    fine = fine and (above is None or value > above) and (least is None or value >= least)
    if not fine:
        bound = f"above {above:g}" if above is not None else f"at least {least:g}"
        raise InvalidInputError(field_name, f"{value} is not a finite number {bound}")
