"""The queue before slices, beside one that is a plain list sorted anew for every batch: the paper's rule and ours."""

from dataclasses import replace
from fractions import Fraction

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluicegate.policies.placement.slice_choice import SliceLoad, ascending
from sluicegate.policies.placement.slice_queue_port import Assigned, Waiting
from sluicegate.policies.placement.strict import StrictFirst, StrictRoom
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand

SIZES = {"1g": 5, "2g": 10, "3g": 20, "4g": 22}
VARIANTS = {
    "big": VariantDemand(name="big", solo=0.2, memory_bytes=9, rdf={"2g": 3.0, "3g": 2.0, "4g": 1.5}, fbr=0.7),
    "mid": VariantDemand(
        name="mid", solo=0.1, memory_bytes=5, rdf={"1g": 4.0, "2g": 2.5, "3g": 1.75, "4g": 1.25}, fbr=0.4,
        fbr_by_profile={"2g": 0.9},
    ),
    "low": VariantDemand(name="low", solo=0.05, memory_bytes=3, rdf={"1g": 2.0, "2g": 1.5, "3g": 1.25}, fbr=0.3),
}  # fmt: skip
TABLE = SlowdownTable(VARIANTS)

PARTS = st.lists(
    st.tuples(st.sampled_from(sorted(SIZES)), st.integers(0, 22), st.integers(0, 12), st.integers(0, 3)),
    min_size=1,
    max_size=4,
).map(
    lambda parts: ascending(
        SliceLoad(
            f"{p}.{i}", p, SIZES[p], min(free, SIZES[p]), eighths / 8, residents, (SIZES[p] - min(free, SIZES[p])) // 2
        )
        for i, (p, free, eighths, residents) in enumerate(parts)
    )
)
ITEMS = st.lists(st.tuples(st.sampled_from(sorted(VARIANTS)), st.booleans()), max_size=8).map(
    lambda items: [Waiting(i, name, strict) for i, (name, strict) in enumerate(items)]
)


def slowdown(variant: str, part: SliceLoad, pressure: Fraction = Fraction(0)) -> Fraction:
    """How many times as long as alone on the whole GPU."""
    known = VARIANTS[variant]
    wanted = Fraction(known.fbr_by_profile.get(part.profile, known.fbr)) + Fraction(part.fbr) + pressure
    return Fraction(known.rdf[part.profile]) * max(Fraction(1), wanted)


def fits(variant: str, part: SliceLoad) -> bool:
    return part.profile in VARIANTS[variant].rdf and VARIANTS[variant].memory_bytes <= part.free_bytes


def poured(parts: list[SliceLoad], waiting: int) -> list[Fraction]:
    """Best effort's bytes, poured one by one into the slices from the small end; 1 also where nothing is free."""
    marks = []
    for part in parts:
        took = min(waiting, part.free_bytes)
        marks.append(Fraction(took, part.free_bytes) if part.free_bytes else Fraction(int(waiting > 0)))
        waiting -= took
    return marks


def head_of_each_variant(items: list[Waiting], strict: bool) -> list[Waiting]:
    """The first of each variant, in the order of arrival."""
    firsts: dict[str, Waiting] = {}
    for item in items:
        if item.strict is strict:
            firsts.setdefault(item.variant, item)
    return list(firsts.values())


def plain(items: list[Waiting], parts: list[SliceLoad], blocking: bool) -> tuple[Waiting, set[int]] | None:
    """The paper's rule: what starts next, and the slices that are equally good for it."""
    others = [item for item in items if not item.strict]
    marks = poured(parts, sum(VARIANTS[i.variant].memory_bytes for i in others))
    for item in head_of_each_variant(items, strict=True):
        places = [i for i, part in enumerate(parts) if fits(item.variant, part)]
        if others:
            places = [i for i in places if marks[i] < 1] or places
        if places:
            beside = VARIANTS[others[0].variant] if others else None

            def cost(i: int, item: Waiting = item, beside: VariantDemand | None = beside) -> Fraction:
                part, pressure = parts[i], Fraction(0)
                if beside is not None and part.profile in beside.rdf:
                    batches = marks[i] * part.free_bytes / beside.memory_bytes
                    pressure = batches * Fraction(beside.fbr_by_profile.get(part.profile, beside.fbr))
                return slowdown(item.variant, part, pressure)

            least = min(cost(i) for i in places)
            near = [i for i in places if cost(i) <= least * (1 + Fraction(1, 10**9))]
            if all(cost(i) == Fraction(VARIANTS[item.variant].rdf[parts[i].profile]) for i in near):
                near = [min(near, key=lambda i: (-parts[i].memory_bytes, i))]
            return item, set(near)  # several: sums of floats may tell apart what is equal in fractions
    if blocking and any(item.strict for item in items):
        return None
    for item in head_of_each_variant(items, strict=False):
        for i, part in enumerate(parts):
            if fits(item.variant, part):
                return item, {i}
    return None


@settings(max_examples=300)
@given(ITEMS, PARTS, st.booleans())
def test_strict_first_starts_what_the_papers_rule_starts_until_nothing_fits(
    items: list[Waiting], parts: list[SliceLoad], blocking: bool
) -> None:
    queue = StrictFirst(TABLE, blocking=blocking)
    for item in items:
        queue.arrived(item, parts)
    left, now = list(items), list(parts)
    while True:
        assert queue.queued == len(left)
        expected, found = plain(left, now, blocking), queue.next(now)
        if expected is None:
            assert found is None
            break
        item, places = expected
        assert found is not None and found.item == item and found.slice in places
        assert found == Assigned(item, found.slice, now[found.slice].profile)
        left.remove(item)
        now = started(now, found)
    assert queue.drain() == sorted(left, key=lambda item: (not item.strict, item.key))
    assert queue.queued == 0 and queue.next(parts) is None


def started(parts: list[SliceLoad], found: Assigned) -> list[SliceLoad]:
    """The slices with the batch on it."""
    known, part = VARIANTS[found.item.variant], parts[found.slice]
    size = known.memory_bytes
    taken = replace(
        part,
        free_bytes=part.free_bytes - size,
        fbr=part.fbr + known.fbr,
        residents=part.residents + 1,
        strict_bytes=part.strict_bytes + (size if found.item.strict else 0),
    )
    return [taken if i == found.slice else one for i, one in enumerate(parts)]


@settings(max_examples=300)
@example(
    [Waiting(0, "big", True), Waiting(1, "big", True), Waiting(2, "mid", False)],
    [SliceLoad("3g.0", "3g", 20, 14, 0.0, 0, 3)],
    0,
    1.25,
)
@given(ITEMS, PARTS, st.integers(0, 3), st.sampled_from([1.25, 2.0, 5.0]))
def test_strict_room_keeps_what_strict_batches_want_and_gives_the_rest_away(
    items: list[Waiting], parts: list[SliceLoad], reserve: int, usable: float
) -> None:
    queue = StrictRoom(TABLE, reserve=reserve, usable=usable)
    for item in items:
        queue.arrived(item, parts)
    last = next((item.variant for item in reversed(items) if item.strict), None)
    left, now = list(items), list(parts)
    while (found := queue.next(now)) is not None:
        part = now[found.slice]
        waits = [item for item in left if item.strict]
        if found.item.strict:
            assert found.item in head_of_each_variant(left, strict=True)
            fitting = [slowdown(found.item.variant, p) for p in now if fits(found.item.variant, p)]
            assert slowdown(found.item.variant, part) <= min(fitting) * (1 + Fraction(1, 10**9))
        else:
            assert not any(fits(item.variant, p) for item in waits for p in now), "strict ones could have started"
            assert fits(found.item.variant, part)
            allowed = [
                i
                for i, p in enumerate(now)
                if fits(found.item.variant, p) and may(now, i, found.item.variant, last, waits, reserve, usable)
            ]
            assert found.slice in allowed
            costs = {i: slowdown(found.item.variant, now[i]) for i in allowed}
            assert costs[found.slice] <= min(costs.values()) * (1 + Fraction(1, 10**9))
        left.remove(found.item)
        now = started(now, found)
    for item in head_of_each_variant(left, strict=False):
        waits = [one for one in left if one.strict]
        assert not any(
            fits(item.variant, p) and may(now, i, item.variant, last, waits, reserve, usable) for i, p in enumerate(now)
        )
    assert queue.queued == len(left)


def may(
    parts: list[SliceLoad], i: int, variant: str, strict: str | None, waits: list[Waiting], reserve: int, usable: float
) -> bool:
    """Whether best effort may start there: it takes no whole strict batch's room that is wanted, and where the GPU is
    in one piece slows none while others wait."""
    known, part = VARIANTS[variant], parts[i]
    size, fbr = known.memory_bytes, known.fbr_by_profile.get(part.profile, known.fbr)
    if len(parts) == 1 and waits and part.strict_bytes > 0 and part.fbr + fbr > 1.0:
        return False
    if strict is None or VARIANTS[strict].rdf.get(parts[i].profile, 99.0) > usable:
        return True
    one = VARIANTS[strict].memory_bytes
    room = [p.free_bytes // one if VARIANTS[strict].rdf.get(p.profile, 99.0) <= usable else 0 for p in parts]
    ever = parts[i].free_bytes + parts[i].strict_bytes
    if ever // one == (ever - size) // one:
        return True
    if waits:
        return False
    after = [(parts[i].free_bytes - size) // one if j == i else held for j, held in enumerate(room)]
    return after == room or sum(after) >= reserve
