"""What a worker records of its instances with its heartbeats: two variants, and two slices of unequal speed."""

from dataclasses import replace

from sluicegate.domain.events import LatencyMeasured
from sluicegate.domain.fleet.instance import Instance, InstanceState
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.policies.model_less.instance_states import Recorded
from sluicegate.policies.model_less.instance_watch import InstanceWatch
from sluicegate.policies.serving.device_actions import SliceReport
from sluicegate.profiles.catalogue.catalogue import Catalogue

T = 1_000.0
BIG, SMALL = "gpu:4g", "gpu:1g"


def catalogue() -> Catalogue:
    """``swift`` does 100 rows/s on the big slice and 25 on the small one, ``exact`` 50 on the big one alone."""
    profiled = (("swift", BIG, 0.01), ("swift", SMALL, 0.04), ("exact", BIG, 0.02))
    return Catalogue.of(
        [App(name="a", slo=0.5)],
        [Variant(name=name, app="a", accuracy=accuracy) for name, accuracy in (("swift", 0.6), ("exact", 0.9))],
        [
            Profile(variant=v, device_type=kind, points=(BatchLatency(1, s, 1.2 * s),), load=0.1)
            for v, kind, s in profiled
        ],
    )


def slice_of(name: str, kind: str, loaded: tuple[str, ...], *ran: tuple[str, float, int]) -> SliceReport:
    """``ran``: variant, seconds of a batch of one row, how many."""
    measured = tuple(LatencyMeasured(variant, kind, 1, seconds, count) for variant, seconds, count in ran)
    return SliceReport(name, kind, 0, 0.0, loaded, measured, ())


def normal(part: str, measured: LatencyMeasured) -> float:
    """By the profile on the kind of the slice."""
    assert part.partition(".")[0] in ("big", "small")
    profile = catalogue().profiles.get((measured.variant, measured.device_type))
    return profile.curve("median")(measured.rows) if profile is not None else 0.0


def states(said: list[Recorded]) -> dict[str, InstanceState | None]:
    return {one.key: one.instance and one.instance.state for one in said}


def test_nothing_is_recorded_before_it_is_told_what_stands_there_and_what_is_not_held_is_ended_then() -> None:
    watch = InstanceWatch("gpu0", catalogue(), normal)
    report = slice_of("big.0", BIG, ("swift",))
    assert watch.reported([report], T) == [] == watch.reported([report], T + 5.0)
    old = Instance(app="a", variant="exact", device="gpu0", slice="big.0", expires=T + 9.0)
    watch.found([old, replace(old, device="gpu1")], T + 6.0)
    assert watch.reported([report], T + 6.5) == []
    assert states(watch.reported([report], T + 7.0)) == {"a|swift|gpu0|big.0": InstanceState.ACTIVE, old.key: None}


def test_a_slice_is_full_or_disturbed_by_its_own_profile_and_what_goes_is_ended() -> None:
    watch = InstanceWatch("gpu0", catalogue(), normal)
    watch.found((), T)
    full = slice_of("small.0", SMALL, ("swift",), ("swift", 0.04, 30))
    free = slice_of("big.0", BIG, ("swift", "exact"), ("swift", 0.01, 30), ("exact", 0.05, 10))
    assert states(watch.reported([full, free], T + 1.0)) == {
        "a|swift|gpu0|small.0": InstanceState.OVERLOADED,
        "a|swift|gpu0|big.0": InstanceState.ACTIVE,
        "a|exact|gpu0|big.0": InstanceState.INTERFERED,
    }
    assert set(states(watch.ended(T + 2.0)).values()) == {None}


def test_rows_count_within_the_time_since_the_last_look_also_where_the_clock_was_set() -> None:
    watch = InstanceWatch("gpu0", catalogue(), normal)
    watch.found((), T)
    busy = slice_of("small.0", SMALL, ("swift",), ("swift", 0.04, 30))
    assert states(watch.reported([busy], T + 4.0)) == {"a|swift|gpu0|small.0": InstanceState.ACTIVE}
    watch.reported([busy], T - 500.0)
    assert states(watch.reported([busy], T - 499.0)) == {}, "a second of it, and it is as full as it was"
    back = watch.reported([slice_of("small.0", SMALL, ("swift",))], T - 498.0)
    assert states(back) == {"a|swift|gpu0|small.0": InstanceState.ACTIVE}


def test_what_is_recorded_of_an_instance_are_rows_a_second_and_the_mean_of_all_its_batches() -> None:
    """Thirty batches as profiled and ten that took three times as long; on the small slice the profile says 40 ms."""
    watch = InstanceWatch("gpu0", catalogue(), normal)
    watch.found((), T)
    big = slice_of("big.0", BIG, ("swift", "unheard of"), ("swift", 0.01, 30), ("swift", 0.03, 10))
    small = slice_of("small.0", SMALL, ("swift", "exact"), ("swift", 0.06, 5), ("exact", 0.02, 5))
    said = {one.key: one.instance for one in watch.reported([big, small], T + 2.0)}
    found = {key: (i.qps, round(i.peak, 6), round(i.slowdown, 6)) for key, i in said.items() if i is not None}
    assert found == {
        "a|swift|gpu0|big.0": (20.0, 100.0, 1.5),
        "a|swift|gpu0|small.0": (2.5, 25.0, 1.5),
        "a|exact|gpu0|small.0": (2.5, 1e12, 0.0),  # it has no profile there
    }


def test_the_peak_is_the_best_rate_of_batches_within_the_slo_or_that_of_single_rows() -> None:
    """Of 4, 8 and 16 rows a second the last take a second."""
    points = tuple(BatchLatency(rows, seconds, seconds) for rows, seconds in ((1, 0.25), (4, 0.5), (16, 1.0)))
    for slo, peak in ((0.5, 8.0), (1.0, 16.0), (0.499, 4.0), (0.125, 4.0)):
        known = Catalogue.of(
            [App(name="a", slo=slo)],
            [Variant(name="v", app="a", accuracy=0.5)],
            [Profile(variant="v", device_type=BIG, points=points)],
        )
        watch = InstanceWatch("gpu0", known, lambda _part, _measured: 0.0)
        watch.found((), T)
        (said,) = watch.reported([slice_of("big.0", BIG, ("v",))], T + 1.0)
        assert said.instance is not None and said.instance.peak == peak


def test_an_instance_of_two_executors_that_does_what_one_alone_would_is_not_overloaded() -> None:
    """120 rows a second, where one executor does 100."""
    known = catalogue()
    for executors, state in ((1, InstanceState.OVERLOADED), (2, InstanceState.ACTIVE)):
        profiles = {key: replace(p, executors=executors) for key, p in known.profiles.items()}
        watch = InstanceWatch("gpu0", replace(known, profiles=profiles), normal)
        watch.found((), T)
        (said,) = watch.reported([slice_of("big.0", BIG, ("swift",), ("swift", 0.01, 120))], T + 1.0)
        assert said.instance is not None
        assert (said.instance.peak, said.instance.state) == (executors * 100.0, state)
