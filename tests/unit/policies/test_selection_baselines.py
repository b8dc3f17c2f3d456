"""Jellyfish+, ModelSwitching and the greedy rule choose by their published rules."""

from sluicegate.domain.actions import Run, StationAction
from sluicegate.domain.events import Arrived, Hosted, HostingChanged, Offered
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.mdp_serving.greedy_fit import MostAccurateFit
from sluicegate.policies.mdp_serving.jellyfish_model_switching import (
    JellyfishPlus,
    ModelSwitching,
    PublishedModelSwitching,
    jellyfish,
    model_switching,
)
from sluicegate.policies.protocols import BatchingPolicy

SLO = 0.1
FAST = Hosted("fast", 0.6, LatencyCurve((0.01, 0.015, 0.02, 0.025, 0.06)))
GOOD = Hosted("good", 0.8, LatencyCurve((0.03, 0.045, 0.07, 0.09, 0.11)))
BEST = Hosted("best", 0.9, LatencyCurve((0.08, 0.15, 0.2, 0.3, 0.4)))
ALL = (BEST, GOOD, FAST)


def test_jellyfish_takes_the_most_accurate_that_keeps_up_within_half_the_slo() -> None:
    assert jellyfish(ALL, SLO, 10.0).hosted is GOOD  # best needs more than half the SLO
    assert jellyfish(ALL, SLO, 40.0) == jellyfish(ALL, SLO, 42.0)
    assert jellyfish(ALL, SLO, 42.0).limit == 2
    assert jellyfish(ALL, SLO, 43.0).hosted is FAST  # 2 / 0.045 < 1.05 * 43
    assert jellyfish(ALL, SLO, 43.0).limit == 4
    assert jellyfish(ALL, SLO, 1e6).hosted is FAST
    assert jellyfish((), SLO, 1.0).hosted is None


def test_model_switching_takes_the_most_accurate_that_was_measured_to_cope() -> None:
    capable = {"best": 5.0, "good": 50.0, "fast": 200.0}
    assert model_switching(ALL, SLO, 5.0, capable).hosted is BEST
    assert model_switching(ALL, SLO, 6.0, capable).hosted is GOOD
    assert model_switching(ALL, SLO, 1000.0, capable).hosted is FAST
    assert model_switching(ALL, SLO, 1.0, {}).hosted is FAST


def first_run(policy: BatchingPolicy, queued: int, at: float) -> Run:
    policy.handle(HostingChanged("a", ALL, SLO), 0.0)
    for i in range(queued):
        policy.handle(Arrived(Query(f"q{i}", "a", 0.0, SLO)), 0.0)
    actions: list[StationAction] = policy.handle(Offered(), at)
    (run,) = (a for a in actions if isinstance(a, Run))
    return run


def test_fixed_policies_batch_up_to_their_limit() -> None:
    run = first_run(JellyfishPlus(qps=42.0), 3, 0.0)
    assert (run.variant, run.rows) == ("good", 2)
    run = first_run(ModelSwitching(qps=10.0, capable={"fast": 20.0}), 9, 0.0)
    assert (run.variant, run.rows) == ("fast", 4)


def test_model_switching_as_published_takes_the_batch_limit_of_another_variant() -> None:
    capable = {"fast": 20.0}
    mended, published = (policy(qps=10.0, capable=capable) for policy in (ModelSwitching, PublishedModelSwitching))
    assert jellyfish(ALL, SLO, 10.0).limit == 2  # of the good one, which is not what runs
    assert (first_run(mended, 9, 0.0).rows, first_run(published, 9, 0.0).rows) == (4, 2)


def test_the_greedy_rule_spends_all_slack_on_accuracy() -> None:
    assert first_run(MostAccurateFit(), 1, 0.0).variant == "best"
    assert first_run(MostAccurateFit(), 2, 0.0).variant == "good"
    assert first_run(MostAccurateFit(), 4, 0.02).variant == "fast"
    run = first_run(MostAccurateFit(), 5, 0.05)
    assert (run.variant, run.rows) == ("fast", 4)
