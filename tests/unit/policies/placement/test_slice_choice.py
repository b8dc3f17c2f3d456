"""Slice choice on small cases worked out by hand, among them the published motivation."""

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.policies.placement.interference import InterferenceChanged, InterferenceDetector
from sluicegate.policies.placement.slice_choice import (
    SliceLoad,
    ascending,
    choose_best_effort,
    choose_strict,
    tags,
)
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand, eta

GB = 1 << 30


def table(**fbr: float) -> SlowdownTable:
    rdf = {"7g": 1.0, "4g": 1.5, "3g": 2.15, "2g": 3.0, "1g": 5.0}
    return SlowdownTable(
        {name: VariantDemand(name=name, solo=0.1, memory_bytes=4 * GB, rdf=rdf, fbr=f) for name, f in fbr.items()}
    )


def slices(*parts: tuple[str, int, float]) -> list[SliceLoad]:
    memory = {"1g": 5, "2g": 10, "3g": 20, "4g": 20, "7g": 40}
    return ascending([SliceLoad(p, p, memory[p] * GB, free * GB, fbr) for p, free, fbr in parts])


def test_bandwidth_counts_only_beyond_what_the_slice_has() -> None:
    assert eta(1.5, 0.4, 0.5) == 1.5
    assert eta(1.5, 0.8, 0.8) == pytest.approx(2.4)
    assert eta(2.0, 0.5, 0.5, 0.5) == pytest.approx(3.0)


def test_tags_pour_waiting_memory_into_slices_from_the_small_end() -> None:
    parts = slices(("1g", 5, 0), ("2g", 10, 0), ("4g", 20, 0))
    assert tags(parts, 0) == [0, 0, 0]
    assert tags(parts, 10 * GB) == [1.0, 0.5, 0.0]
    assert tags(parts, 100 * GB) == [1.0, 1.0, 1.0]


def test_a_full_slice_is_tagged_and_takes_nothing_of_what_waits() -> None:
    assert tags(slices(("1g", 0, 0), ("2g", 10, 0)), 5 * GB) == [1.0, 0.5]


def test_strict_takes_the_slice_that_slows_it_least() -> None:
    parts = slices(("4g", 20, 0.8), ("3g", 20, 0.0))
    assert parts[choose_strict(table(a=0.8), "a", parts) or 0].profile == "3g"
    assert parts[choose_strict(table(a=0.2), "a", parts) or 0].profile == "4g"


def test_strict_leaves_slices_that_best_effort_will_fill_unless_nothing_else_fits() -> None:
    known = table(a=0.1, b=0.1)
    parts = slices(("1g", 5, 0), ("4g", 20, 0))
    full = slices(("1g", 5, 0), ("4g", 3, 0))
    assert choose_strict(known, "a", parts, best_effort="b", waiting_bytes=6 * GB) == 1
    assert choose_strict(known, "a", full, best_effort="b", waiting_bytes=100 * GB) == 0


def test_strict_reckons_with_the_bandwidth_of_best_effort_that_will_come_beside_it() -> None:
    """On 3g a strict batch takes 2.15 times what it takes alone, on 4g beside 1.1 of bandwidth 1.5 x 1.6 times.

    Batches of best effort take 4 GB and 0.8 of bandwidth each, and go to 3g first.
    """
    known = table(a=0.5, b=0.8)
    parts = slices(("3g", 20, 0.0), ("4g", 20, 1.1))
    assert choose_strict(known, "a", parts) == 0
    assert choose_strict(known, "a", parts, best_effort="b", waiting_bytes=3 * GB) == 0  # 2.15 x (0.5 + 0.6)
    assert choose_strict(known, "a", parts, best_effort="b", waiting_bytes=4 * GB) == 1  # 2.15 x (0.5 + 0.8)
    assert choose_strict(known, "a", parts, best_effort="a", waiting_bytes=4 * GB) == 0  # 2.15 x (0.5 + 0.5)


def test_best_effort_takes_the_first_slice_with_room_and_waits_without() -> None:
    known = table(b=0.5)
    assert choose_best_effort(known, "b", slices(("1g", 3, 0), ("2g", 10, 0), ("4g", 20, 0))) == 1
    assert choose_best_effort(known, "b", slices(("1g", 3, 0), ("2g", 3, 0))) is None


def test_a_profile_without_an_entry_cannot_run_the_variant() -> None:
    known = SlowdownTable({"a": VariantDemand(name="a", solo=0.1, memory_bytes=GB, rdf={"7g": 1.0}, fbr=0.5)})
    assert choose_strict(known, "a", slices(("4g", 20, 0))) is None
    with pytest.raises(InvalidInputError, match=r"a\.rdf: has no entry for slice profile 4g"):
        known.of("a", "4g")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_nonsense_in_a_table_is_refused_by_name(value: float) -> None:
    with pytest.raises(InvalidInputError, match=r"a\.fbr\.7g"):
        VariantDemand(name="a", solo=0.1, memory_bytes=GB, rdf={"7g": 1.0}, fbr=value)


def test_interference_is_noticed_after_patience_and_clears_below_half_way() -> None:
    detector = InterferenceDetector(threshold=1.25, patience=3, weight=0.5)
    said = [detector.handle("4g", 1.5, 1.0) for _ in range(3)]
    assert said == [[], [], [InterferenceChanged("4g", on=True, ratio=1.5)]]
    assert detector.handle("4g", 1.0, 1.0) == []
    assert [x.on for _ in range(3) for x in detector.handle("4g", 1.0, 1.0)] == [False]


def test_noise_around_the_prediction_is_no_interference() -> None:
    detector = InterferenceDetector()
    ratios = [0.9, 1.1] * 50
    assert [x for r in ratios for x in detector.handle("4g", r, 1.0)] == []


def test_a_slice_at_its_threshold_is_not_interfered_with_and_half_way_back_is_not_clear() -> None:
    detector = InterferenceDetector(threshold=1.5, patience=2, weight=1.0)
    ratios = (1.5, 1.5, 1.75, 1.5, 1.75, 1.625, 1.25, 1.125)
    said = [detector.handle("4g", 8 * ratio, 8.0) for ratio in ratios]
    assert said == [
        [], [], [], [], [], [InterferenceChanged("4g", on=True, ratio=1.625)], [],
        [InterferenceChanged("4g", on=False, ratio=1.125)],
    ]  # fmt: skip


def test_the_first_batches_count_alike_and_later_ones_by_their_weight() -> None:
    for patience, ratio in enumerate((2.0, 1.5, 2.0, 2.0, 3.0), 1):
        detector = InterferenceDetector(patience=patience, weight=0.25)
        said = [x for measured in (2.0, 1.0, 3.0, 2.0, 6.0) for x in detector.handle("4g", measured, 1.0)]
        assert said == [InterferenceChanged("4g", on=True, ratio=ratio)]


@pytest.mark.parametrize("options", [{"threshold": 1.0}, {"patience": 0}, {"weight": 0.0}, {"weight": 1.5}])
def test_a_detector_that_could_not_tell_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match="threshold exceeds 1"):
        InterferenceDetector(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [(0.0, 1.0), (1.0, 0.0), (-1.0, -1.0)])
def test_batches_that_take_no_time_say_nothing(seconds: tuple[float, float]) -> None:
    with pytest.raises(InvalidInputError, match="measured"):
        InterferenceDetector().handle("4g", *seconds)
