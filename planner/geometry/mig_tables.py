"""Placement tables by GPU type, and the geometries they allow.

Rules:
- A GPU has memory slots and compute slices. An instance of a profile starts at one of its allowed slots, covers
  ``span`` slots, and takes ``compute`` slices; instances do not overlap and compute is not exceeded.
- A layout is a set of instances with their starts; a geometry is the multiset of their profiles, largest first.
- A geometry is dominated if another one has all of its instances and more. Only undominated ones need planning.
- Tables here are for planning without a device; a driver reads the same from the device, and that is what counts there.

Placements as the drivers report them for MIG GPUs (A100: NVIDIA MIG user guide, "Supported MIG profiles").
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from sluicegate.domain.errors import ConfigurationError, InvalidInputError

GB = 1 << 30
Geometry = tuple[str, ...]
"""Profiles of the instances on one GPU, largest first."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of MIG slice. ``span``: memory slots; ``starts``: where it may begin; ``limit``: instances at most on one
    GPU."""

    name: str
    compute: int
    span: int
    starts: tuple[int, ...]
    memory_bytes: int
    limit: int


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance of a profile at a memory slot."""

    profile: str
    start: int


@dataclass(frozen=True)
class PlacementTable:
    """What a GPU type can be cut into. ``profiles``: by name."""

    gpu: str
    memory_slots: int
    compute_slices: int
    profiles: Mapping[str, MigProfile]

    @property
    def largest_bytes(self) -> int:
        """Memory of the largest slice, which is nearly the whole GPU's."""
        return max(p.memory_bytes for p in self.profiles.values())

    def profile(self, name: str) -> MigProfile:
        """Raises InvalidInputError for a name that the GPU does not have."""
        found = self.profiles.get(name)
        if found is None:
            raise InvalidInputError("profile", f"{name!r} is not one of {self.gpu}: {', '.join(self.profiles)}")
        return found

    def fits(self, layout: tuple[Instance, ...], extra: Instance) -> bool:
        """Whether ``extra`` can be added: allowed start, slots free, compute and count not exceeded."""
        profile = self.profile(extra.profile)
        if extra.start not in profile.starts:
            return False
        taken: set[int] = set()
        compute = profile.compute
        same = 1
        for instance in layout:
            other = self.profiles[instance.profile]
            taken.update(range(instance.start, instance.start + other.span))
            compute += other.compute
            same += instance.profile == extra.profile
        if compute > self.compute_slices or same > profile.limit:
            return False
        return taken.isdisjoint(range(extra.start, extra.start + profile.span))

    def ordered(self, profiles: Iterator[str] | tuple[str, ...] | list[str]) -> Geometry:
        """Largest first: the canonical form of a geometry."""
        return tuple(sorted(profiles, key=lambda p: (-self.profile(p).compute, -self.profile(p).span, p)))

    @cached_property
    def layouts(self) -> frozenset[frozenset[Instance]]:
        """Every layout, the empty one included."""
        options = [Instance(p.name, s) for p in self.profiles.values() for s in p.starts]
        found: set[frozenset[Instance]] = set()
        self._extend((), options, 0, found)
        return frozenset(found)

    def _extend(
        self, layout: tuple[Instance, ...], options: list[Instance], at: int, found: set[frozenset[Instance]]
    ) -> None:
        found.add(frozenset(layout))
        for i in range(at, len(options)):
            if self.fits(layout, options[i]):
                self._extend((*layout, options[i]), options, i + 1, found)

    @cached_property
    def maximal_layouts(self) -> tuple[frozenset[Instance], ...]:
        """Layouts that nothing can be added to, in a fixed order."""
        options = [Instance(p.name, s) for p in self.profiles.values() for s in p.starts]
        full = [x for x in self.layouts if not any(o not in x and self.fits(tuple(x), o) for o in options)]
        return tuple(sorted(full, key=lambda x: sorted((i.start, i.profile) for i in x)))

    @cached_property
    def geometries(self) -> tuple[Geometry, ...]:
        """Every geometry that some layout has (the empty one left out), largest slices first."""
        return self._sorted({self.ordered([i.profile for i in layout]) for layout in self.layouts if layout})

    @cached_property
    def maximal_geometries(self) -> tuple[Geometry, ...]:
        """Geometries of maximal layouts."""
        return self._sorted({self.ordered([i.profile for i in layout]) for layout in self.maximal_layouts})

    @cached_property
    def undominated(self) -> tuple[Geometry, ...]:
        """Geometries that no other contains."""
        counts = {g: Counter(g) for g in self.geometries}
        return tuple(g for g, mine in counts.items() if not any(mine < other for other in counts.values()))

    def _sorted(self, found: set[Geometry]) -> tuple[Geometry, ...]:
        return tuple(sorted(found, key=lambda g: tuple((-self.profile(p).compute, -self.profile(p).span) for p in g)))

    def layout_of(
        self, geometry: Geometry, keep: frozenset[Instance] = frozenset(), fixed: frozenset[Instance] = frozenset()
    ) -> frozenset[Instance]:
        """A layout of ``geometry`` that has as many instances of ``keep`` as possible, and all of ``fixed``.

        Raises InvalidInputError where there is none: the geometry is invalid, or what is fixed is in its way.
        """
        wanted = Counter(self.ordered(list(geometry)))
        fitting = [
            layout
            for layout in self.layouts
            if len(layout) == len(geometry) and fixed <= layout and Counter(i.profile for i in layout) == wanted
        ]
        if not fitting:
            beside = f" beside {_shown(fixed)}" if fixed else ""
            raise InvalidInputError("geometry", f"({', '.join(geometry)}) cannot be placed on {self.gpu}{beside}")
        return min(fitting, key=lambda x: (-len(x & keep), sorted((i.start, i.profile) for i in x)))

    def valid(self, geometry: Geometry) -> bool:
        """Whether some layout has exactly these instances."""
        return all(p in self.profiles for p in geometry) and self.ordered(list(geometry)) in set(self.geometries)


def _shown(layout: frozenset[Instance]) -> str:
    return ", ".join(f"{i.profile}@{i.start}" for i in sorted(layout, key=lambda i: i.start))


def _seven(gpu: str, memory: tuple[int, int, int, int, int]) -> PlacementTable:
    """GPUs of seven compute slices and eight memory slots; memory in GB of 1g, 2g, 3g, 4g, 7g."""
    one, two, three, four, seven = (m * GB for m in memory)
    profiles = (
        MigProfile("1g", 1, 1, (0, 1, 2, 3, 4, 5, 6), one, 7),
        MigProfile("2g", 2, 2, (0, 2, 4), two, 3),
        MigProfile("3g", 3, 4, (0, 4), three, 2),
        MigProfile("4g", 4, 4, (0,), four, 1),
        MigProfile("7g", 7, 8, (0,), seven, 1),
    )
    return PlacementTable(gpu, 8, 7, {p.name: p for p in profiles})


def _four(gpu: str, memory: tuple[int, int, int]) -> PlacementTable:
    one, two, four = (m * GB for m in memory)
    profiles = (
        MigProfile("1g", 1, 1, (0, 1, 2, 3), one, 4),
        MigProfile("2g", 2, 2, (0, 2), two, 2),
        MigProfile("4g", 4, 4, (0,), four, 1),
    )
    return PlacementTable(gpu, 4, 4, {p.name: p for p in profiles})


TABLES: Mapping[str, PlacementTable] = {
    table.gpu: table
    for table in (
        _seven("a100", (5, 10, 20, 20, 40)),
        _seven("a100-80gb", (10, 20, 40, 40, 80)),
        _seven("h100", (10, 20, 40, 40, 80)),
        _seven("h200", (18, 35, 71, 71, 141)),
        _four("a30", (6, 12, 24)),
    )
}
"""By GPU type; memory as the profiles' names round it."""


def table_of(gpu: str) -> PlacementTable:
    """Raises ConfigurationError for a type without a table."""
    found = TABLES.get(gpu)
    if found is None:
        raise ConfigurationError(f"GPU type {gpu!r} has no placement table; there are {', '.join(TABLES)}")
    return found


def parse_geometry(text: str) -> Geometry:
    """``4g+2g+1g`` or ``4g,2g,1g``; ``4g+1gx3`` repeats. Raises InvalidInputError."""
    parts: list[str] = []
    for word in text.replace(",", "+").split("+"):
        name, sign, times = word.strip().partition("x")
        if not name or (sign and not (times.isdigit() and 1 <= int(times) <= 16)):
            raise InvalidInputError("geometry", f"{text!r} is not like 4g+2g+1g or 2g+1gx5")
        parts.extend([name] * (int(times) if sign else 1))
    return tuple(parts)


def shown(geometry: Geometry) -> str:
    """``4g+1gx3``: what ``parse_geometry`` reads."""
    return "+".join(f"{name}x{n}" if n > 1 else name for name, n in Counter(geometry).items()) or "none"
