"""Plans count on no more of an app with a promise than its keeper lets in."""

import pytest

from sluicegate.domain.events import HostedOn
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, Promise, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.planner.problems.explain import capacity_of
from sluicegate.planner.problems.kept_rates import kept
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.problems.throughput import NONE, throughput
from sluicegate.policies.admission.sustained_rates import limits, sustained
from sluicegate.policies.placement.hosted_variants import Hosting
from sluicegate.policies.promises.keeper import Hops
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.system.promise_terms import kept as told

SLO = 0.1


def profile(app: str, setup: float, row: float) -> Profile:
    points = tuple(BatchLatency(b, setup + row * b, 1.3 * (setup + row * b)) for b in (1, 64))
    return Profile(variant=f"{app}-v", device_type="cpu", points=points)


def world(promise: Promise) -> Catalogue:
    apps = [App(name="a", slo=SLO, promise=promise), App(name="b", slo=2 * SLO)]
    variants = [Variant(name=f"{a.name}-v", app=a.name, accuracy=0.9) for a in apps]
    return Catalogue.of(apps, variants, [profile("a", 0.008, 0.001), profile("b", 0.004, 0.0005)])


def let_in(catalogue: Catalogue, placed: dict[str, int]) -> float:
    """Queries a second that admission lets in of "a" where ``placed`` are on one slice."""
    hosting = Hosting(catalogue, [Device(name="d", type="cpu")], "p95")
    placements = tuple(Placement("d", app, (f"{app}-v",), 1.0, batch) for app, batch in placed.items())
    plan = Plan(epoch=Epoch(1, 1), created=0.0, placements=placements)
    app = catalogue.apps["a"]
    found = limits(app, sustained(app, hosting, plan, Hops()), plan)
    assert found is not None and isinstance(hosting.of("a", plan)[0], HostedOn)
    return min(limit.bound(1) for limit in found.places) / found.window_s


@pytest.mark.parametrize("pairs", [((0, 1),), ((2, 10),)])
def test_a_promised_app_alone_is_counted_on_for_no_more_than_is_let_in_and_nearly_that(
    pairs: tuple[tuple[int, int], ...],
) -> None:
    catalogue = world(Promise(weakly_hard=tuple(WeaklyHard(m, k) for m, k in pairs)))
    app, known = catalogue.apps["a"], catalogue.profiles["a-v", "cpu"]
    free = throughput(known, SLO / 2, quantile="p95")
    counted = kept(free, known, app, SLO / 2)
    assert counted.qps < 0.9 * free.qps
    let = let_in(catalogue, {"a": 16})
    assert 0.9 * let <= counted.qps <= let  # as if best effort were beside
    problem = Problem(
        demands=(AppDemand(app="a", qps=1.0, slo=SLO),),
        devices=(Device(name="d", type="cpu"),),
        catalogue=catalogue,
        quantile="p95",
    )
    assert capacity_of(problem, "a", ["a-v"], "cpu") == counted.qps


def test_an_app_that_was_promised_nothing_counts_for_what_its_batches_serve() -> None:
    catalogue = world(Promise())
    known = catalogue.profiles["b-v", "cpu"]
    free = throughput(known, SLO, quantile="p95")
    assert kept(free, known, catalogue.apps["b"], SLO) == free


def test_nothing_counts_where_no_batch_keeps_the_promise() -> None:
    catalogue = world(Promise(weakly_hard=(WeaklyHard(2, 10),)))
    known, app = catalogue.profiles["a-v", "cpu"], catalogue.apps["a"]
    free = throughput(known, 0.012, quantile="p95")
    assert free.batch == 1  # 11.7 ms at the 95th percentile, and more now and then
    assert kept(free, known, app, 0.012) == NONE


def test_a_stream_alone_with_exact_profiles_is_announced_most_of_what_the_theorem_says() -> None:
    """8 + b ms, 100 ms, two in ten: once its batches have shown that they take no longer."""
    app = App(name="a", slo=SLO, promise=Promise(weakly_hard=(WeaklyHard(2, 10),)))
    points = tuple(BatchLatency(b, 0.008 + 0.001 * b, 0.008 + 0.001 * b) for b in (1, 64))
    known = Catalogue.of(
        [app],
        [Variant(name="a-v", app="a", accuracy=0.9)],
        [Profile(variant="a-v", device_type="cpu", points=points)],
    )
    (found,) = told(known, [Device(name="d", type="cpu")], Hops(), "a")
    assert found.theorem is not None
    assert 0.8 * found.theorem.rate <= found.rate < found.theorem.rate
    assert 0.6 * found.theorem.rate < found.first_rate < found.rate
