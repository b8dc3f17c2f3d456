"""How long batches take at most, as those before have shown: learned slowly, told before it counts."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.actions import Run
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, StationEvent
from sluicegate.domain.models.app import App, Promise, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, LatencyCurve, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.placement.hosted_variants import hosted_variant
from sluicegate.policies.promises.margins import ADOPTED, LATELY, MOST, OUTLIERS, Margins
from sluicegate.policies.serving.slice_scheduler import Station
from sluicegate.profiles.catalogue.catalogue import Catalogue

SURE = Hosted("v", 0.9, LatencyCurve((0.010,) * 4 + (0.040,) * 4), (0.010,) * 4 + (0.040,) * 4, least=0.8)
TURN = 0.040


def shown(factors: Sequence[float], rows: int = 8) -> Margins:
    margins = Margins()
    for i, factor in enumerate(factors):
        margins.ran(SURE, rows, factor * SURE.longest[rows - 1], TURN, float(i))
    return margins


def test_batches_that_take_no_longer_than_usual_earn_a_smaller_margin_and_not_before_there_are_many() -> None:
    assert shown([0.75] * (LATELY - 1)).told == {}
    assert shown([0.75] * LATELY).told == {"v": pytest.approx(0.8)}  # no less than the profile says


def test_a_few_outliers_say_nothing_and_one_more_does() -> None:
    usual = [0.75] * LATELY
    assert shown([*usual, *[1.3] * OUTLIERS]).told == {"v": pytest.approx(0.8)}
    margins = shown(usual)
    assert margins.adopt(LATELY + ADOPTED)
    for i in range(OUTLIERS + 1):
        margins.ran(SURE, 8, 1.25 * 0.040, TURN, LATELY + 10.0 + i)
    assert margins.told == {"v": pytest.approx(1.25)}
    assert margins.in_force == {"v": pytest.approx(0.8)}  # until those have heard who let queries in
    assert not margins.adopt(LATELY + 10.0 + OUTLIERS + 0.9 * ADOPTED)
    assert margins.adopt(LATELY + 10.0 + OUTLIERS + ADOPTED)
    assert margins.in_force == margins.told


def test_small_batches_prove_nothing_by_being_quick_and_cost_no_more_than_they_lost() -> None:
    small = Margins()
    for i in range(2 * LATELY):
        small.ran(SURE, 1, 0.001, 1.0, float(i))  # a hundredth of a turn
    assert small.told == {}
    for i in range(OUTLIERS + 1):  # 2 ms too long: a fifth of what it takes, a tenth of half a turn
        small.ran(SURE, 1, 0.012, TURN, float(i))
    assert small.told == {"v": pytest.approx(1.1)}


@given(st.lists(st.floats(0.1, 3.0), min_size=0, max_size=700))
def test_all_but_a_few_of_the_latest_batches_are_within_the_margin(factors: list[float]) -> None:
    margins = Margins()
    for i, factor in enumerate(factors):
        margins.ran(SURE, 8, factor * 0.040, TURN, float(i) * 10.0)
        margins.adopt(float(i) * 10.0 + ADOPTED)
    margin = margins.told.get("v", 1.0)
    assert SURE.least - 1e-9 <= margin <= MOST
    if len(factors) < LATELY and "v" in margins.told:
        assert margin >= 1.0
    beyond = [f for f in factors[-LATELY:] if min(f, MOST) > margin + 0.016]
    assert len(beyond) <= OUTLIERS


def test_a_slice_takes_larger_batches_once_it_has_shown_how_long_they_take() -> None:
    """8 + b ms, exactly: at first a p95 permits a third more."""
    app = App(name="a", slo=0.1, promise=Promise(weakly_hard=(WeaklyHard(2, 10),)))
    points = tuple(BatchLatency(b, 0.008 + 0.001 * b, 0.008 + 0.001 * b) for b in (1, 64))
    profile = Profile(variant="v", device_type="cpu", points=points)
    hosted = hosted_variant(
        Catalogue.of([app], [Variant(name="v", app="a", accuracy=0.9)], [profile]), profile, 64, "p95"
    )
    station = Station(batching("adaptive"))
    station.handle(HostingChanged("a", (hosted,), app.slo, app.promise), 0.0)
    before = station.terms.shares["a"]
    now, running = 0.0, list[Run]()

    def tell(event: StationEvent) -> None:
        running.extend(action for action in station.handle(event, now) if isinstance(action, Run))

    while now < 120.0 and station.terms.shares["a"] == before:
        for i in range(before.batch):
            tell(Arrived(Query(f"{now}-{i}", "a", now, now + app.slo)))
        while running:
            run = running.pop()
            now += profile.curve("p95")(run.rows)
            tell(Finished("a", "v", run.rows, 0.0))
        now += 0.05
    after = station.terms.shares["a"]
    assert after.bound(app.promise) / after.window_s > 1.05 * before.bound(app.promise) / before.window_s
    assert dict(station.margins)["v"] < 0.9
