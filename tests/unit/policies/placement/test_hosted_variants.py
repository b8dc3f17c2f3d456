"""What slices run of a plan: two apps of unlike SLO, a GPU cut in unequal parts, profiles of slices and of devices."""

from dataclasses import replace

import pytest

from sluicegate.domain.events import MarginsTold
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import FIRST_GUARD, PACE_GUARD, TAIL, BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.policies.placement.hosted_variants import Hosting, largest_batch, profile_on, profiled_as
from sluicegate.policies.promises.margins import MOST
from sluicegate.profiles.catalogue.catalogue import Catalogue

BIG, SMALL, ODD = Slice("4g.0", "4g", 20), Slice("3g.4", "3g", 10), Slice("2g.0", "2g", 5)
GPU, CPU = Device(name="g", type="gpu", slices=(BIG, SMALL)), Device(name="c", type="cpu")


def profile(variant: str, kind: str, first: float) -> Profile:
    """Two rows take one and a half times as long as one, eight four times; the tail is a quarter more."""
    points = tuple(BatchLatency(b, first * t, first * t * 1.25) for b, t in ((1, 1.0), (2, 1.5), (8, 4.0)))
    return Profile(variant=variant, device_type=kind, points=points)


CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.25), App(name="b", slo=0.5, slo_classes=(0.1, 2.0))],
    [
        Variant(name="a-l", app="a", accuracy=0.9),
        Variant(name="a-s", app="a", accuracy=0.7),
        Variant(name="b-l", app="b", accuracy=0.4),
    ],
    [
        profile("a-l", "gpu", 0.04),
        profile("a-l", "gpu:4g", 0.08),
        profile("a-s", "gpu:3g", 0.02),
        profile("a-s", "cpu", 0.1),
        profile("b-l", "cpu", 0.25),
    ],
)


def test_a_slice_has_its_own_profile_or_the_whole_devices() -> None:
    assert profile_on(CATALOGUE, GPU, "4g.0", "a-l").device_type == "gpu:4g"
    assert profile_on(CATALOGUE, GPU, "3g.4", "a-l").device_type == "gpu"
    assert profile_on(CATALOGUE, GPU, "elsewhere", "a-l").device_type == "gpu"
    assert profile_on(CATALOGUE, GPU, "3g.4", "a-s").device_type == "gpu:3g"
    with pytest.raises(KeyError):
        profile_on(CATALOGUE, GPU, "4g.0", "a-s")
    assert [profiled_as(CATALOGUE, GPU, part) for part in (BIG, SMALL, ODD)] == ["gpu:4g", "gpu:3g", "gpu"]


def test_the_largest_batch_is_answered_within_the_longest_slo_of_its_own_app() -> None:
    assert largest_batch(CATALOGUE, CATALOGUE.profiles["a-l", "gpu:4g"], "median") == 5
    assert largest_batch(CATALOGUE, CATALOGUE.profiles["a-l", "gpu:4g"], "p95") == 4
    assert largest_batch(CATALOGUE, CATALOGUE.profiles["b-l", "cpu"], "p95") == 8  # its class of 2 s counts
    slow = replace(CATALOGUE.profiles["a-s", "cpu"], points=(BatchLatency(1, 0.3, 0.3),))
    assert largest_batch(CATALOGUE, slow, "median") == 0


PLAN = Plan(
    epoch=Epoch(3, 1),
    created=1.7e9,
    placements=(
        Placement("g", "a", ("a-l", "a-s"), 0.6, 2, BIG.name),
        Placement("g", "a", ("a-s",), 0.3, 1, SMALL.name),
        Placement("c", "b", ("b-l",), 1.0, 1),
        Placement("stranger", "a", ("a-s",), 0.1, 1),
    ),
)


def shown(hosting: Hosting, app: str, *, burst: bool = False) -> list[tuple[str, str, list[tuple[str, float, int]]]]:
    return [
        (on.device, on.slice, [(h.variant, h.accuracy, h.curve.max_batch) for h in on.hosted])
        for on in hosting.of(app, PLAN, burst=burst)
    ]


def test_each_slice_runs_what_is_profiled_there_in_the_plans_batches_or_for_a_burst_in_those_of_the_slo() -> None:
    hosting = Hosting(CATALOGUE, (GPU, CPU), "p95")
    assert shown(hosting, "a") == [("g", BIG.name, [("a-l", 0.9, 2)]), ("g", SMALL.name, [("a-s", 0.7, 1)])]
    assert shown(hosting, "b") == [("c", "whole", [("b-l", 0.4, 1)])]
    assert shown(hosting, "a", burst=True) == [("g", BIG.name, [("a-l", 0.9, 4)]), ("g", SMALL.name, [("a-s", 0.7, 8)])]
    assert shown(Hosting(CATALOGUE, (GPU, CPU), "median"), "a", burst=True)[0][2] == [("a-l", 0.9, 5)]
    hosted = hosting.of("a", PLAN)[0].hosted[0]
    assert hosted.curve.seconds == pytest.approx((0.1, 0.15))
    assert hosted.sure == pytest.approx((0.1 * FIRST_GUARD, 0.15 * FIRST_GUARD))
    spread = 1 + TAIL * 0.25  # over the median, where the tail is a quarter above it
    assert hosted.least == pytest.approx(spread / (1.25 * FIRST_GUARD))
    assert hosted.pace == pytest.approx(max(spread, 1.25 * PACE_GUARD) / (1.25 * FIRST_GUARD))


def test_a_device_is_known_by_the_slices_that_it_states_last_and_a_plans_cut_counts_before_that() -> None:
    hosting = Hosting(CATALOGUE, (GPU, CPU), "p95")
    assert hosting.devices == (GPU, CPU)
    assert not hosting.cut("g", (BIG, SMALL)) and not hosting.cut("g", ()) and not hosting.cut("stranger", (ODD,))
    assert hosting.devices == (GPU, CPU)
    assert hosting.cut("g", (SMALL, BIG))
    assert hosting.cut("g", (ODD,))
    assert hosting.devices == (replace(GPU, slices=(ODD,)), CPU)
    assert hosting.of("a", PLAN)[0].hosted[0].curve.seconds == pytest.approx((0.05, 0.075))  # as on the whole GPU
    cut = replace(PLAN, geometries={"g": (BIG, SMALL)})
    assert hosting.of("a", cut)[0].hosted[0].curve.seconds == pytest.approx((0.1, 0.15))


def test_batches_that_showed_how_long_they_take_count_so_on_their_slice_alone() -> None:
    hosting = Hosting(CATALOGUE, (GPU, CPU), "p95")
    hosted = hosting.of("a", PLAN)[0].hosted[0]
    assert hosting.as_shown("g", BIG.name, hosted) == hosted
    assert hosting.margins(MarginsTold("g", BIG.name, (("a-l", 1.25), ("a-s", 0.9))))
    assert not hosting.margins(MarginsTold("g", BIG.name, (("a-s", 0.9), ("a-l", 1.25))))
    assert hosting.as_shown("g", BIG.name, hosted) == hosted.shown(1.25)
    assert hosting.as_shown("g", SMALL.name, hosted) == hosting.as_shown("c", "whole", hosted) == hosted
    assert hosting.as_shown("g", BIG.name, replace(hosted, variant="a-s", least=0.95)).sure == pytest.approx(
        [0.95 * seconds for seconds in hosted.longest]
    )
    assert hosting.margins(MarginsTold("g", BIG.name, (("a-s", 0.9), ("a-l", 7.0))))
    assert hosting.as_shown("g", BIG.name, hosted) == hosted.shown(MOST)
    assert hosting.margins(MarginsTold("g", BIG.name, (("a-s", 0.9),)))  # of the other nothing is known any more
    assert hosting.as_shown("g", BIG.name, hosted) == hosted
    assert not hosting.margins(MarginsTold("g", "elsewhere", (("a-l", 1.2),)))
    assert not hosting.margins(MarginsTold("stranger", BIG.name, (("a-l", 1.2),)))


def test_what_stays_and_what_comes_must_fit_into_the_slices_own_memory_together() -> None:
    large = replace(CATALOGUE.profiles["a-l", "gpu:4g"], memory_bytes=13)
    small = replace(CATALOGUE.profiles["a-s", "gpu:3g"], memory_bytes=7)
    known = Catalogue.of(
        CATALOGUE.apps.values(),
        CATALOGUE.variants.values(),
        [large, small, replace(small, device_type="gpu:4g"), replace(large, device_type="cpu")],
    )
    hosting = Hosting(known, (replace(GPU, memory_bytes=100), replace(CPU, memory_bytes=12)), "p95")
    on_big = Placement("g", "a", ("a-l",), 1.0, 1, BIG.name)
    assert hosting.fit(on_big, [replace(on_big, variants=("a-s",))])  # 20 of 20
    assert hosting.fit(on_big, [replace(on_big, variants=("a-l", "a-s"))])  # what stays is there once
    on_small = Placement("g", "a", ("a-s",), 1.0, 1, SMALL.name)
    assert hosting.fit(on_small, [on_small])
    assert not hosting.fit(on_small, [replace(on_small, variants=("a-l",))]), "nothing says what it takes there"
    assert not hosting.fit(Placement("c", "a", ("a-l",), 1.0, 1), []), "13 of the whole device's 12"
    assert not hosting.fit(replace(on_big, slice="elsewhere"), [])
    assert not hosting.fit(replace(on_big, device="stranger"), [])
    tight = Hosting(known, (replace(GPU, slices=(replace(BIG, memory_bytes=19), SMALL)),), "p95")
    assert tight.fit(on_big, []) and not tight.fit(on_big, [replace(on_big, variants=("a-s",))])
