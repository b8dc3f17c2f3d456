"""GPUs before any plan: what they are cut into first, which slices that gives, and what is profiled on these."""

from collections.abc import Iterable, Mapping, Sequence

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Slice
from sluicegate.planner.geometry.mig_tables import TABLES, Geometry, Instance, parse_geometry, table_of
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slice_profiles import with_slices


def first_cut(kind: str, asked: str | None) -> Geometry:
    """What a GPU of type ``kind`` is cut into at the start: as ``asked``, or into one slice.

    Raises ConfigurationError where that cannot be placed, or the type has no placement table.
    """
    table = table_of(kind)
    if asked is None:
        return (max(table.profiles.values(), key=lambda p: p.compute).name,)
    geometry = parse_geometry(asked)
    if not table.valid(geometry):
        raise ConfigurationError(f"geometry: {asked!r} cannot be placed on {kind}; see `sluice devices list`")
    return table.ordered(geometry)


def laid_out(kind: str, geometry: Geometry, there: Sequence[Slice] = ()) -> tuple[Slice, ...]:
    """Slices of a GPU of type ``kind`` cut so, named by profile and first memory slot as those of real ones.

    Of those that are ``there`` as many stay as can.
    """
    table = TABLES[kind]
    kept = frozenset(Instance(part.profile, int(part.name.rpartition(".")[2])) for part in there)
    instances = sorted(table.layout_of(geometry, keep=kept), key=lambda i: i.start)
    return tuple(Slice(f"{i.profile}.{i.start}", i.profile, table.profile(i.profile).memory_bytes) for i in instances)


def profiled(
    catalogue: Catalogue, kinds: Iterable[str], *, rdf: Mapping[str, float], like: str | None = None
) -> Catalogue:
    """``catalogue`` with profiles on every slice that GPUs of the types ``kinds`` can have; see ``with_slices``."""
    for kind in kinds:
        compute = {p.name: p.compute for p in TABLES[kind].profiles.values()}
        catalogue = with_slices(catalogue, kind, compute, like=like, rdf=rdf)
    return catalogue
