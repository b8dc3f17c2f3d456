"""Slice choice over random GPUs: memory is never exceeded, strict is never starved by tags, order is kept."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.policies.placement.bandwidth import Colocation, estimate_fbr
from sluicegate.policies.placement.slice_choice import (
    SliceLoad,
    ascending,
    choose_best_effort,
    choose_strict,
    tags,
)
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand

PROFILES = {"1g": 5, "2g": 10, "3g": 20, "4g": 20, "7g": 40}

loads = st.lists(
    st.tuples(st.sampled_from(sorted(PROFILES)), st.floats(0, 1), st.floats(0, 3)), min_size=1, max_size=7
).map(
    lambda parts: ascending(
        [SliceLoad(f"{p}-{i}", p, PROFILES[p], int(PROFILES[p] * free), fbr) for i, (p, free, fbr) in enumerate(parts)]
    )
)
fractions = st.floats(0.01, 1.0)


@st.composite
def tables(draw: st.DrawFn) -> SlowdownTable:
    rdf = {"7g": 1.0}
    for profile in ("4g", "3g", "2g", "1g"):
        rdf[profile] = list(rdf.values())[-1] * draw(st.floats(1.0, 2.0))
    return SlowdownTable(
        {
            name: VariantDemand(
                name=name, solo=0.1, memory_bytes=draw(st.integers(1, 14)), rdf=rdf, fbr=draw(fractions)
            )
            for name in ("strict", "other")
        }
    )


@given(tables(), loads, st.integers(0, 200))
@settings(max_examples=150, deadline=None)
def test_a_choice_has_room_and_strict_waits_only_where_nothing_has(
    table: SlowdownTable, parts: list[SliceLoad], waiting: int
) -> None:
    room = [p.free_bytes >= table.of("strict", p.profile).memory_bytes for p in parts]
    chosen = choose_strict(table, "strict", parts, best_effort="other", waiting_bytes=waiting)
    assert (chosen is not None) == any(room)
    if chosen is not None:
        assert room[chosen]
    first = choose_best_effort(table, "strict", parts)
    assert first == (room.index(True) if any(room) else None)


@given(tables(), loads)
@settings(max_examples=100, deadline=None)
def test_without_waiting_best_effort_no_slice_has_less_slowdown(table: SlowdownTable, parts: list[SliceLoad]) -> None:
    def slowdown(part: SliceLoad) -> float:
        mine = table.of("strict", part.profile)
        return mine.rdf * max(mine.fbr + part.fbr, 1.0)

    chosen = choose_strict(table, "strict", parts)
    fitting = [slowdown(p) for p in parts if p.free_bytes >= table.of("strict", p.profile).memory_bytes]
    assert (chosen is None) == (not fitting)
    if chosen is not None:
        assert slowdown(parts[chosen]) == min(fitting)


@given(loads, st.integers(-5, 500))
@settings(max_examples=150, deadline=None)
def test_tags_place_all_that_waits_or_all_that_is_free(parts: list[SliceLoad], waiting: int) -> None:
    marks = tags(parts, waiting)
    assert all(0.0 <= m <= 1.0 for m in marks)
    placed = sum(m * p.free_bytes for m, p in zip(marks, parts, strict=True))
    free = sum(p.free_bytes for p in parts)
    assert abs(placed - min(max(waiting, 0), free)) < 1e-6


@given(st.lists(st.floats(0.05, 0.95), min_size=2, max_size=5), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_fbr_is_found_exactly_from_noiseless_colocations(truth: list[float], seed: int) -> None:
    names = [f"v{i}" for i in range(len(truth))]
    copies = [
        (n,) * k
        for n, f in zip(names, truth, strict=True)
        for k in range(2, 9)
        if k * f > 1.05 or (k == 8 and f < 0.14)
    ]
    pairs = [(a, b) for a in names for b in names if a < b]
    fbr = dict(zip(names, truth, strict=True))
    measured = [Colocation(row, max(1.0, sum(fbr[v] for v in row))) for row in [*copies, *pairs]]
    found = estimate_fbr(measured, saturation=0.001)
    for name in names:
        if name in found.identifiable and any(r.variants == (name,) * 8 and r.slowdown > 1.01 for r in measured):
            assert abs(found.fbr[name] - fbr[name]) < 1e-3
