"""From profiles to a table: which latencies count, what it says of itself, the fewest workers that keep a promise."""

from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.table import DROP
from sluicegate.planner.mdp import table_sizing
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import MAX_WORKERS, Candidate, SelectionModel, candidates
from sluicegate.planner.mdp.table_sizing import Sized, fewest_workers
from sluicegate.profiles.catalogue.catalogue import Catalogue

MODEL = SelectionModel(
    variants=(Candidate("s", 0.6, (0.01, 0.016)), Candidate("l", 0.9, (0.03, 0.05))),
    slo=0.06, workers=4, qps=50.0, grid=6, queue=2,
)  # fmt: skip


def changed(**changes: Any) -> SelectionModel:
    known = {name: getattr(MODEL, name) for name in ("variants", "slo", "workers", "qps", "grid", "queue")}
    return SelectionModel(**{**known, **changes})


def test_variants_count_with_the_95th_percentile_of_up_to_32_queries_as_profiled() -> None:
    points = (BatchLatency(1, 0.01, 0.02), BatchLatency(2, 0.008, 0.016), BatchLatency(40, 0.4, 0.776))
    catalogue = Catalogue.of(
        [App(name="a", slo=0.5), App(name="b", slo=0.5)],
        [Variant(name="v", app="a", accuracy=0.7), Variant(name="w", app="b", accuracy=0.9)],
        [Profile(variant=name, device_type="cpu", points=points) for name in "vw"],
    )
    (found,) = candidates(catalogue, "a", "cpu")
    assert (found.name, found.accuracy, len(found.latency)) == ("v", 0.7, 32)
    assert found.latency[:3] == pytest.approx((0.016, 0.016, 0.036)), "one may be padded to two"
    (median,) = candidates(catalogue, "a", "cpu", "median", largest=2, margin=1.5)
    assert median.latency == pytest.approx((0.012, 0.012))
    assert candidates(catalogue, "a", "gpu") == ()


@pytest.mark.parametrize(
    ("changes", "assumed"),
    [
        ({}, {"dispatch": "round_robin", "share": 0.25}),
        (
            {"dispatch": "weighted", "share": 0.3, "arrival_shape": 2.0, "criterion": "decision", "grid": "model"},
            {"dispatch": "weighted", "share": 0.3, "share_error": -0.1, "arrival_shape": 2.0, "criterion": "decision",
             "grid": "model"},
        ),
        (
            {"dispatch": "random", "batching": "variable", "late": "drop", "violation_price": 0.75},
            {"dispatch": "random", "share": 0.25, "batching": "variable", "late": "drop", "violation_price": 0.75},
        ),
        ({"phases": 2}, {"dispatch": "round_robin", "share": 0.25, "phases": 2.0}),
    ],
)  # fmt: skip
def test_a_table_says_how_it_was_made(changes: dict[str, Any], assumed: dict[str, Any]) -> None:
    usual = {
        "criterion": "query", "violation_price": 0.5, "share_error": 0.0, "arrival_shape": 1.0, "batching": "maximal",
        "late": "serve", "grid": "6", "phases": 1.0,
    }  # fmt: skip
    table = generate(changed(**changes), app="a", worker_class="gpu:3g").table
    expected = {**usual, **assumed}
    assert table.assumptions == {name: v if isinstance(v, str) else pytest.approx(v) for name, v in expected.items()}
    assert (table.app, table.worker_class, table.variants) == ("a", "gpu:3g", ("s", "l"))
    assert (table.slo, table.qps, table.workers, table.phases) == (0.06, 50.0, 4, changes.get("phases", 1))
    assert (table.longest, table.slacks[0], table.slacks[-1]) == (2, 0.0, 0.06)
    assert set(table.actions) <= {0, 1, DROP}
    assert (DROP in table.actions) is (changes.get("late") == "drop")


def test_without_load_a_table_answers_each_query_alone_by_the_best_variant_that_is_in_time() -> None:
    table = generate(changed(qps=0.0)).table
    assert table.lookup(1, 0.06) == (1, 1)
    assert table.lookup(1, 0.0299) == (0, 1)
    assert (table.expected.accuracy, table.expected.violation) == (pytest.approx(0.9), pytest.approx(0.0, abs=1e-6))
    assert table.expected.mean_batch == pytest.approx(1.0)
    assert table.expected.response_spread.median == pytest.approx(0.03)


def test_where_nothing_is_in_time_all_is_violated_and_nothing_accurate() -> None:
    made = generate(changed(slo=0.005))
    assert (made.table.expected.accuracy, made.table.expected.violation) == (0.0, pytest.approx(1.0))
    assert made.table.expected.accuracy_spread.mean == 0.0
    assert set(made.table.actions) == {0}, "the fastest serves it all the same"


def test_states_are_queues_by_slacks_and_an_empty_queue() -> None:
    assert generate(MODEL).states == 2 * 7 + 1
    assert generate(changed(phases=2, grid=4)).states == 2 * 2 * 5 + 1


VIOLATED = {1: 0.9, 2: 0.6, 3: 0.3, 4: 0.06, 5: 0.05, 6: 0.02, 7: 0.008, 8: 0.012, 9: 0.004}


@pytest.fixture
def _promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of accuracy a worker; violations that fall, but for eight."""

    def made(model: SelectionModel, *, app: str) -> SimpleNamespace:
        expected = SimpleNamespace(accuracy=model.workers / 10, violation=VIOLATED.get(model.workers, 0.001))
        return SimpleNamespace(table=SimpleNamespace(expected=expected, app=app))

    monkeypatch.setattr(table_sizing, "generate", made)


def sized(accuracy: float, violation: float, most: int) -> Sized | None:
    return fewest_workers(MODEL, accuracy=accuracy, violation=violation, most=most, app="a")


@pytest.mark.usefixtures("_promised")
@pytest.mark.parametrize(
    ("accuracy", "violation", "most", "workers", "tried"),
    [
        (0.5, 0.01, 20, 7, (1, 2, 4, 5, 6, 7, 8)),
        (0.5, 0.05, 20, 5, (1, 2, 4, 5, 6, 8)),
        (0.8, 0.01, 20, 9, (1, 2, 4, 6, 7, 8, 9)),
        (0.5, 0.3, 20, 5, (1, 2, 4, 5, 6, 8)),
        (0.3, 0.3, 20, 3, (1, 2, 3, 4)),
        (0.0, 1.0, 20, 1, (1,)),
        (0.5, 0.01, 7, 7, (1, 2, 4, 5, 6, 7)),
    ],
)
def test_the_fewest_workers_are_looked_for_by_halves_until_none_is_saturated_then_one_by_one(
    accuracy: float, violation: float, most: int, workers: int, tried: tuple[int, ...]
) -> None:
    found = sized(accuracy, violation, most)
    assert found is not None
    assert (found.workers, found.table.app) == (workers, "a")
    assert found.tried == tuple((k, k / 10, VIOLATED[k]) for k in tried)


@pytest.mark.usefixtures("_promised")
def test_too_few_workers_keep_no_promise() -> None:
    assert sized(0.5, 0.01, 6) is None
    assert sized(0.5, 0.01, 3) is None
    assert sized(1.0, 0.0, 9) is None


@pytest.mark.parametrize(
    ("accuracy", "violation", "most", "field"),
    [(1.01, 0.1, 5, "accuracy"), (-0.01, 0.1, 5, "accuracy"), (0.5, 1.01, 5, "violation"),
     (0.5, float("nan"), 5, "violation"), (0.5, 0.1, 0, "most"), (0.5, 0.1, MAX_WORKERS + 1, "most")],
)  # fmt: skip
def test_what_no_number_of_workers_can_be_asked_for_is_refused(
    accuracy: float, violation: float, most: int, field: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"^{field}: "):
        sized(accuracy, violation, most)
    with pytest.raises(InvalidInputError, match="weighted gives one worker its share"):
        fewest_workers(changed(dispatch="weighted", share=0.5), accuracy=0.5, violation=0.1, most=5)
