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
