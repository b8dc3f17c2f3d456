"""Placement tables against what the devices' documentation says."""

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.planner.geometry.mig_tables import TABLES, Instance, parse_geometry, shown, table_of

A100 = table_of("a100")


def test_an_a100_has_19_full_layouts_14_geometries_and_12_undominated_ones() -> None:
    assert len(A100.maximal_layouts) == 19
    assert len(A100.maximal_geometries) == 14
    listed = "7g 4g+3g 4g+2g+1g 4g+1gx3 3gx2 3g+2gx2 3g+2g+1gx2 3g+1gx4 2gx3+1g 2gx2+1gx3 2g+1gx5 1gx7"
    assert [shown(g) for g in A100.undominated] == listed.split()
    assert {shown(g) for g in A100.maximal_geometries} - {shown(g) for g in A100.undominated} == {
        "3g+2g+1g",
        "3g+1gx3",
    }


VENDORS_NAMES = {
    "a100": "1g.5gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "a100-80gb": "1g.10gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h100": "1g.10gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h200": "1g.18gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    "a30": "1g.6gb 2g.12gb 4g.24gb",
}
"""As the MIG user guide lists them."""


@pytest.mark.parametrize("gpu", sorted(TABLES))
def test_slices_have_the_memory_and_the_number_that_the_vendor_gives_them(gpu: str) -> None:
    table = TABLES[gpu]
    assert " ".join(f"{name}.{p.memory_bytes >> 30}gb" for name, p in table.profiles.items()) == VENDORS_NAMES[gpu]
    assert {p.memory_bytes % (1 << 30) for p in table.profiles.values()} == {0}
    most = dict(zip(("1g", "2g", "3g", "4g", "7g"), (7, 3, 2, 1, 1), strict=True))
    most = {"1g": 4, "2g": 2, "4g": 1} if gpu == "a30" else most
    assert {name: p.limit for name, p in table.profiles.items()} == most
    assert {name: p.compute for name, p in table.profiles.items()} == {name: int(name[0]) for name in most}
    for name, count in most.items():
        assert table.valid((name,) * count) and not table.valid((name,) * (count + 1))
    assert table.largest_bytes == max(p.memory_bytes for p in table.profiles.values())
    assert (table.compute_slices, table.memory_slots) == ((4, 4) if gpu == "a30" else (7, 8))


@pytest.mark.parametrize("text", ["4g+4g", "4g+3g+1g", "7g+1g", "3gx3", "2gx4", "1gx8", "4g+2gx2"])
def test_what_does_not_fit_is_no_geometry(text: str) -> None:
    geometry = parse_geometry(text)
    assert not A100.valid(geometry)
    with pytest.raises(InvalidInputError, match="cannot be placed on a100"):
        A100.layout_of(geometry)


@pytest.mark.parametrize("gpu", sorted(TABLES))
def test_every_layout_obeys_the_rules_of_placement(gpu: str) -> None:
    table = TABLES[gpu]
    for layout in table.layouts:
        slots = [s for i in layout for s in range(i.start, i.start + table.profile(i.profile).span)]
        assert len(slots) == len(set(slots))
        assert max(slots, default=0) < table.memory_slots
        assert sum(table.profile(i.profile).compute for i in layout) <= table.compute_slices


def test_a_layout_keeps_the_instances_that_it_can() -> None:
    now = frozenset({Instance("4g", 0), Instance("3g", 4)})
    layout = A100.layout_of(("4g", "2g", "1g"), keep=now)
    assert layout & now == {Instance("4g", 0)}
    busy = frozenset({Instance("3g", 4)})
    assert A100.layout_of(("3g", "2g", "2g"), fixed=busy) >= busy
    with pytest.raises(InvalidInputError, match=r"beside 3g@4"):
        A100.layout_of(("4g", "2g", "1g"), fixed=busy)


def test_geometries_are_read_as_they_are_shown() -> None:
    for geometry in A100.geometries:
        assert parse_geometry(shown(geometry)) == geometry
    assert parse_geometry("4g, 1gx3") == ("4g", "1g", "1g", "1g") and len(parse_geometry("1gx16")) == 16
    assert parse_geometry("4g+1gx1") == ("4g", "1g")
    assert shown(()) == "none"
    for text in ("", "4gx0", "4gxx2", "+", "1gx17", "1gx"):
        with pytest.raises(InvalidInputError):
            parse_geometry(text)
    with pytest.raises(InvalidInputError, match="'9g' is not one of a100"):
        A100.ordered(["9g"])
    with pytest.raises(ConfigurationError, match="GPU type 'tpu' has no placement table"):
        table_of("tpu")
