"""Which best-effort batches start beside strict ones, and which would take their room: by whole batches, by hand."""

from sluicegate.policies.placement.slice_choice import SliceLoad
from sluicegate.policies.placement.slice_queue_port import Waiting, has_room, holds
from sluicegate.policies.placement.strict import StrictFirst, StrictRoom
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand


def demand(name: str, memory: int, small: float, fbr: float = 0.25) -> VariantDemand:
    return VariantDemand(name=name, solo=0.1, memory_bytes=memory, rdf={"4g": 1.0, "1g": small}, fbr=fbr)


TABLE = SlowdownTable({"strict": demand("strict", 4, 3.0), "other": demand("other", 3, 2.0)})
STRICT, OTHER = Waiting(1, "strict", True), Waiting(2, "other", False)


def slices(small: int, large: int, *, held: int = 0, fbr: float = 0.0) -> list[SliceLoad]:
    """What is free of slices of 5 and 20; ``held``: of the large one, by strict batches, of so much bandwidth."""
    return [SliceLoad("1g", "1g", 5, small), SliceLoad("4g", "4g", 20, large, fbr=fbr, strict_bytes=held)]


def started(rule: StrictFirst, there: list[SliceLoad]) -> str | None:
    found = rule.next(there)
    return None if found is None else f"{found.item.variant} on {found.profile}"


def room(*, reserve: int, seen: bool = True) -> StrictRoom:
    """``seen``: a strict batch came before, and was placed."""
    rule = StrictRoom(TABLE, reserve=reserve)
    if seen:
        rule.arrived(STRICT, slices(5, 20))
        assert started(rule, slices(5, 20)) == "strict on 4g"
    rule.arrived(OTHER, slices(5, 20))
    return rule


def test_a_slice_takes_what_is_no_larger_than_its_room_and_one_that_is_not_shared_one_at_a_time() -> None:
    empty = [SliceLoad("1g", "1g", memory, memory) for memory in (2, 3, 5)]
    assert [holds(TABLE, "other", part) for part in empty] == [False, True, True]
    assert not holds(TABLE, "unknown", empty[2])
    assert [has_room(TABLE, "other", part, shared=False) for part in empty] == [False, True, True]
    busy = [SliceLoad("4g", "4g", 20, free, residents=1) for free in (2, 3, 17)]
    assert [has_room(TABLE, "other", part, shared=True) for part in busy] == [False, True, True]
    assert not any(has_room(TABLE, "other", part, shared=False) for part in busy)


def test_best_effort_goes_where_it_is_slowed_least_as_long_as_enough_strict_batches_have_room() -> None:
    """Of 16 that are free four have room, and three beside it; of 13 three and two; of 10 two and one."""
    for free, reserve, expected in (
        (16, 3, "4g"),
        (16, 4, "1g"),
        (13, 2, "4g"),
        (13, 3, "1g"),
        (10, 1, "4g"),
        (10, 2, "1g"),
    ):
        assert started(room(reserve=reserve), slices(5, free, held=4)) == f"other on {expected}", (free, reserve)


def test_the_room_of_the_small_slice_is_not_kept_where_a_strict_batch_would_be_slowed_too_much() -> None:
    assert started(room(reserve=9), slices(5, 0)) == "other on 1g"
    assert started(room(reserve=9), slices(2, 18, held=2)) is None, "it waits rather than take what is reserved"


def test_a_batch_that_leaves_as_many_strict_ones_room_starts_in_any_case() -> None:
    """19 hold four strict batches, and 16 do too."""
    assert started(room(reserve=9), slices(2, 19)) == "other on 4g"


def test_while_a_strict_batch_waits_nothing_of_its_room_is_taken() -> None:
    for held, expected in ((16, "other on 4g"), (17, None)):  # 19 in all, or 20, once those end
        rule = room(reserve=0)
        rule.arrived(STRICT, slices(2, 3))
        assert started(rule, slices(2, 3, held=held)) == expected


def test_before_any_strict_batch_came_there_is_no_room_to_keep() -> None:
    assert started(room(reserve=9, seen=False), slices(5, 20)) == "other on 4g"


def test_on_a_gpu_in_one_piece_best_effort_does_not_slow_strict_batches_that_others_wait_for() -> None:
    for fbr, expected in ((0.75, "other on 4g"), (0.875, None)):
        rule = room(reserve=0)
        rule.arrived(STRICT, slices(0, 3))
        assert started(rule, slices(0, 3, held=16, fbr=fbr)[1:]) == expected


def test_the_papers_rule_lets_best_effort_start_while_a_strict_batch_waits_unless_it_blocks() -> None:
    for blocking, expected in ((False, "other on 4g"), (True, None)):
        rule = StrictFirst(TABLE, blocking=blocking)
        for item in (OTHER, STRICT):
            rule.arrived(item, slices(2, 3))
        assert rule.queued == 2
        assert started(rule, slices(2, 3)) == expected
        assert [item.variant for item in rule.drain()] == (["strict"] if expected else ["strict", "other"])
        assert rule.queued == 0
