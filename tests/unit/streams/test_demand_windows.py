"""Windows of demand: totals by half seconds, nothing counted twice, estimates and plans as from plain counts."""

import random

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import DemandCounted
from sluicegate.planner.estimates.demand_estimate import DemandEstimator
from sluicegate.streams.records.demand_windows import (
    DemandWindows,
    HalfSecond,
    WindowReader,
    decode_windows,
    encode_windows,
    folded,
    half_of,
)


class Table:
    """What Faust's table does: windows by app and second."""

    def __init__(self) -> None:
        self.windows: dict[tuple[str, int], dict[str, object]] = {}

    def count(self, offset: int, at: float, counted: DemandCounted) -> bytes | None:
        half = half_of(at, counted.window)
        key = (counted.app, half // 2)
        window = folded(self.windows.get(key, {}), offset, half, counted)
        if window is None:
            return None
        self.windows[key] = window
        seconds = {s: self.windows[a, s] for a, s in self.windows if a == counted.app and s > half // 2 - 5}
        return encode_windows(counted.app, seconds, at)


def counts(seed: int, seconds: float = 20.0, start: float = 1_000.0) -> list[tuple[float, DemandCounted]]:
    """What two admission stages tell of two apps, twice a second each, at times of their own."""
    rng = random.Random(seed)
    told = []
    for offset in (0.03, 0.21):
        at = start + offset
        while at < start + seconds:
            at += 0.5 + rng.uniform(0.0, 0.02)
            for app, mean in (("a", 40), ("b", 7)):
                rows = rng.randrange(2 * mean)
                told.append((at, DemandCounted(app, rows, 0.5, ((0.1, rows // 2), (0.4, rows - rows // 2)))))
    return sorted(told, key=lambda t: t[0])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.3])
def test_windows_and_plain_counts_give_equal_estimates(seed: int, delay: float) -> None:
    plain, windowed = DemandEstimator(), DemandEstimator()
    table, reader = Table(), WindowReader()
    for offset, (at, counted) in enumerate(counts(seed)):
        plain.handle(counted, at)
        value = table.count(offset, at, counted)
        assert value is not None
        for told in reader.read(decode_windows(value), at + delay):
            windowed.handle(told, at + delay)
        if offset % 8 == 7:
            assert windowed.estimates(at + delay) == plain.estimates(at + delay)
    assert windowed.bursting(1_021.0) == plain.bursting(1_021.0)


def test_a_record_that_is_read_again_counts_once_in_the_table_and_at_the_reader() -> None:
    table, reader = Table(), WindowReader()
    first, second = DemandCounted("a", 3, 0.5, ((0.1, 3),)), DemandCounted("a", 4, 0.5, ((0.2, 4),))
    value = table.count(7, 100.4, first)
    assert value is not None and table.count(7, 100.4, first) is None
    again = table.count(8, 100.45, second)
    assert again is not None
    given = [c for v in (value, value, again, again, value) for c in reader.read(decode_windows(v), 100.6)]
    assert [(c.count, c.classes) for c in given] == [(3, ((0.1, 3),)), (4, ((0.2, 4),))]


def test_a_reader_that_missed_records_gets_what_they_said_from_the_next() -> None:
    table, reader = Table(), WindowReader()
    values = [table.count(i, 100.0 + 0.5 * i, DemandCounted("a", 5, 0.5)) for i in range(6)]
    assert values[-1] is not None
    assert sum(c.count for c in reader.read(decode_windows(values[-1]), 102.6)) == 30


def test_a_reader_takes_nothing_that_is_too_old_to_matter() -> None:
    value = Table().count(0, 100.0, DemandCounted("a", 5, 0.5))
    assert value is not None
    assert WindowReader().read(decode_windows(value), 400.0) == []


@pytest.mark.parametrize(
    ("at", "window", "half"),
    [
        (100.5, 0.5, 200),
        (100.74, 0.5, 200),
        (100.75, 0.5, 201),
        (100.5, 1.0, 200),
        (101.0, 2.0, 200),
        (100.5, 0.25, 200),
    ],
)
def test_a_count_is_of_the_half_second_in_which_the_middle_of_its_time_lies(
    at: float, window: float, half: int
) -> None:
    assert half_of(at, window) == half


def test_a_window_holds_both_halves_of_its_second_with_their_classes() -> None:
    first = folded({}, 7, 200, DemandCounted("a", 3, 0.5, ((0.4, 1), (0.1, 2))))
    assert first == {"through": 7, "rows": [3, 0], "classes": [[[0.1, 2], [0.4, 1]], []]}
    second = folded(first, 9, 201, DemandCounted("a", 5, 0.5, ((0.1, 5),)))
    assert second == {"through": 9, "rows": [3, 5], "classes": [[[0.1, 2], [0.4, 1]], [[0.1, 5]]]}
    third = folded(second, 10, 200, DemandCounted("a", 4, 0.5, ((0.1, 4),)))
    assert third == {"through": 10, "rows": [7, 5], "classes": [[[0.1, 6], [0.4, 1]], [[0.1, 5]]]}
    assert folded(third, 10, 200, DemandCounted("a", 1, 0.5)) is None
    assert first == {"through": 7, "rows": [3, 0], "classes": [[[0.1, 2], [0.4, 1]], []]}, "as it was"
    halves = decode_windows(encode_windows("a", {101: first, 100: third}, 101.75)).halves
    assert halves == (
        HalfSecond(100.0, 7, ((0.1, 6), (0.4, 1))),
        HalfSecond(100.5, 5, ((0.1, 5),)),
        HalfSecond(101.0, 3, ((0.1, 2), (0.4, 1))),
        HalfSecond(101.5, 0, ()),
    )
    assert folded({}, 0, 200, DemandCounted("a", 1, 0.5)) == {"through": 0, "rows": [1, 0], "classes": [[], []]}


def test_a_reader_gives_what_is_more_than_before_with_its_age_the_oldest_first() -> None:
    reader = WindowReader()
    late, early = HalfSecond(100.5, 4, ((0.1, 4),)), HalfSecond(100.0, 3, ((0.1, 1), (0.4, 2)))
    assert reader.read(DemandWindows("a", (late, early), 101.0), 101.25) == [
        DemandCounted("a", 3, 0.5, ((0.1, 1), (0.4, 2)), 0.75),
        DemandCounted("a", 4, 0.5, ((0.1, 4),), 0.25),
    ]
    more = HalfSecond(100.5, 9, ((0.1, 4), (0.4, 5)))
    assert reader.read(DemandWindows("a", (early, more), 101.0), 101.5) == [
        DemandCounted("a", 5, 0.5, ((0.4, 5),), 0.5)
    ]
    assert reader.read(DemandWindows("a", (late,), 101.0), 101.5) == [], "fewer than before is an old record"
    assert reader.read(DemandWindows("b", (early,), 101.0), 101.5) == [
        DemandCounted("b", 3, 0.5, ((0.1, 1), (0.4, 2)), 1.0)
    ]


@pytest.mark.parametrize(
    ("start", "age"), [(940.0, 59.5), (939.75, None), (999.5, 0.0), (1000.0, -0.5), (1010.0, -0.5)]
)
def test_a_half_second_counts_for_a_minute_and_none_is_of_the_future(start: float, age: float | None) -> None:
    given = WindowReader().read(DemandWindows("a", (HalfSecond(start, 3),), 1000.0), 1000.0)
    assert given == ([] if age is None else [DemandCounted("a", 3, 0.5, (), age)])


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b'{"app":"a","at":1}',
        b'{"app":"a","at":1,"halves":[{"start":1,"rows":-1}]}',
        b'{"app":"a","at":1,"halves":[{"start":1e999,"rows":1}]}',
        b'{"app":"a","at":1,"halves":[{"start":"x","rows":1}]}',
    ],
)
def test_windows_that_cannot_be_understood_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidInputError, match="windows"):
        decode_windows(value)
