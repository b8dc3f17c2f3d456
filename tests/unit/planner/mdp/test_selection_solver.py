"""Whole policies equal those of a solver that shares nothing with the planner's own: rows by the paper's formulas.

For small questions of any load, SLO and task: expectations and, wherever the policy leads, the actions. The best ratio
of the criterion per query is found by bisection here.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.planner.mdp.guarantees import expectations
from sluicegate.planner.mdp.mdp_model import (
    MAX_QUEUE,
    MAX_SLACK_BINS,
    MAX_WORKERS,
    Candidate,
    Criterion,
    SelectionModel,
    candidates,
    pareto_front,
)
from sluicegate.planner.mdp.operators import build_chain
from sluicegate.planner.mdp.value_iteration import solve
from sluicegate.profiles.formats.ramsis_json import DEVICE_TYPE, load_ramsis
from tests.models.selection_oracle import Array, Oracle

SWEEPS = 3000


@dataclass(frozen=True)
class Dense:
    """States are (n - 1) * J + j; action a is variant a on the whole queue. Impossible actions have no reward."""

    rows: Array
    """(states, actions, states)."""
    accuracy: Array
    """(states, actions): of a batch in time, else 0."""
    late: Array
    valid: Array
    served: Array
    """(states,): queries a batch."""

    def best(self, reward: Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Relative value iteration, damped so that it settles whatever the chain's period."""
        values = np.zeros(len(self.served))
        for _ in range(SWEEPS):
            q = np.where(self.valid, reward + self.rows @ values, -np.inf)
            improved = q.max(axis=1)
            change = improved - values
            values = 0.7 * (improved - improved[-1]) + 0.3 * (values - values[-1])
            if change.max() - change.min() < 1e-10:
                break
        return q.argmax(axis=1)

    def stationary(self, choice: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Array:
        """By linear equations."""
        states = len(self.served)
        step = self.rows[np.arange(states), choice]
        equations = np.vstack([step.T - np.eye(states), np.ones(states)])
        found: Array = np.linalg.lstsq(equations, np.append(np.zeros(states), 1.0), rcond=None)[0]
        return found

    def measured(self, choice: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[float, float]:
        """Accuracy a query in time, share of queries late."""
        states = np.arange(len(self.served))
        weight = self.stationary(choice) * self.served
        late = self.late[states, choice]
        in_time = float(weight @ ~late)
        accuracy = float(weight @ self.accuracy[states, choice]) / in_time if in_time > 0.0 else 0.0
        return accuracy, float(weight @ late) / float(weight.sum())


def dense(model: SelectionModel) -> Dense:
    assert isinstance(model.grid, int)
    oracle = Oracle(model.workers, model.qps, model.slo, model.grid, model.longest)
    bins, longest, count = model.grid + 1, model.longest, len(model.variants)
    rows = np.zeros((longest * bins, count, longest * bins))
    accuracy, late = np.zeros(rows.shape[:2]), np.zeros(rows.shape[:2], dtype=bool)
    valid = np.zeros(rows.shape[:2], dtype=bool)
    for n in range(1, longest + 1):
        for j in range(bins):
            slack, state = j * model.slo / model.grid, (n - 1) * bins + j
            for a, variant in enumerate(model.variants):
                tau = variant.latency[n - 1]
                in_time = tau <= slack * (1.0 + 1e-12)  # j * SLO / D and a latency may be the same number
                accuracy[state, a] = variant.accuracy * in_time
                late[state, a], valid[state, a] = not in_time, in_time or a == 0
                if valid[state, a]:
                    rows[state, a] = oracle.row(n, j, tau).ravel()
    return Dense(rows, accuracy, late, valid, np.repeat(np.arange(1.0, longest + 1), bins))


def made(longest: int) -> tuple[Candidate, ...]:
    points = ((0.55, 0.009, 0.004), (0.7, 0.021, 0.011), (0.85, 0.043, 0.022))
    return tuple(
        Candidate(f"m{i}", accuracy, tuple(base + step * b for b in range(1, longest + 1)))
        for i, (accuracy, base, step) in enumerate(points)
    )


def compare(model: SelectionModel) -> None:
    chain = build_chain(model)
    solution = solve(chain)
    found = expectations(chain, solution)
    reference = dense(model)
    if model.criterion == "decision":
        choice = reference.best(reference.accuracy)
    else:
        choice = _best_ratio(reference, model.violation_price)
    accuracy, violation = reference.measured(choice)
    assert found.accuracy == pytest.approx(accuracy, abs=1e-6)
    assert found.violation == pytest.approx(violation, rel=1e-4, abs=1e-9)
    weight = reference.stationary(choice)
    reached = 0
    for level in range(chain.shape[0]):
        variants = chain.options_at(level).variant[solution.choice[level]]
        for j, variant in enumerate(variants):
            state = level * chain.shape[1] + j
            if solution.stationary[level, j] > 1e-10:
                reached += 1
                assert weight[state] > 0.0
                assert variant == choice[state], (level + 1, j)
    assert reached >= 5


def _best_ratio(reference: Dense, price: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The ratio at which the best policy gains nothing, by bisection: no Dinkelbach."""
    worth = reference.accuracy - price * reference.late
    low, high = -price, 1.0
    states = np.arange(len(reference.served))
    for _ in range(34):
        middle = (low + high) / 2.0
        reward = reference.served[:, None] * (worth - middle)
        choice = reference.best(reward)
        gain = float(reference.stationary(choice) @ reward[states, choice])
        low, high = (middle, high) if gain > 0.0 else (low, middle)
    return choice


@pytest.mark.parametrize("criterion", ["decision", "query"])
@pytest.mark.parametrize(
    ("workers", "per_worker", "slo", "bins"),
    [(1, 6.0, 0.15, 12), (3, 18.0, 0.11, 14), (5, 40.0, 0.2, 10), (4, 120.0, 0.09, 9)],
)
def test_small_policies_equal_those_of_another_solver(
    criterion: Criterion, workers: int, per_worker: float, slo: float, bins: int
) -> None:
    compare(
        SelectionModel(
            variants=made(5), slo=slo, workers=workers, qps=workers * per_worker, grid=bins, queue=5,
            criterion=criterion,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("task", "slo_ms", "workers", "qps", "bins", "longest"),
    [
        ("text", 100, 20, 2000.0, 30, 8),
        ("text", 200, 4, 200.0, 12, 6),
        ("text", 300, 2, 30.0, 12, 6),
        ("image", 300, 3, 45.0, 12, 6),
    ],
)
def test_policies_of_the_papers_tasks_equal_those_of_another_solver(
    sluice_data: Path, task: str, slo_ms: int, workers: int, qps: float, bins: int, longest: int
) -> None:
    catalogue = load_ramsis(sluice_data / "ramsis", tasks=(task,), table="artifact")
    variants = pareto_front(candidates(catalogue, task, DEVICE_TYPE))
    compare(
        SelectionModel(
            variants=variants, slo=slo_ms / 1e3, workers=workers, qps=qps, grid=bins, queue=longest,
            criterion="decision",
        )
    )  # fmt: skip


FAST = Candidate("fast", 0.6, (0.01, 0.02))
GOOD = Candidate("good", 0.9, (0.03, 0.05))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"variants": ()}, "variants"),
        ({"variants": (FAST, replace(GOOD, name="fast"))}, "variants"),
        ({"variants": (FAST, replace(GOOD, accuracy=math.nan))}, "variants.good.accuracy"),
        ({"variants": (FAST, replace(GOOD, accuracy=-0.1))}, "variants.good.accuracy"),
        ({"variants": (FAST, replace(GOOD, accuracy=1.1))}, "variants.good.accuracy"),
        ({"variants": (replace(FAST, latency=()), GOOD)}, "variants.fast.latency"),
        ({"variants": (replace(FAST, latency=(0.01, math.nan)), GOOD)}, r"variants.fast.latency\[2\]"),
        ({"variants": (replace(FAST, latency=(0.0, 0.1)), GOOD)}, r"variants.fast.latency\[1\]"),
        ({"variants": (replace(FAST, latency=(0.02, 0.01)), GOOD)}, r"variants.fast.latency\[2\]"),
        ({"slo": 0.0}, "slo"),
        ({"slo": math.inf}, "slo"),
        ({"qps": -1.0}, "qps"),
        ({"qps": math.nan}, "qps"),
        ({"violation_price": -0.1}, "violation_price"),
        ({"violation_price": 1.1e9}, "violation_price"),
        ({"arrival_shape": 0.0}, "arrival_shape"),
        ({"arrival_shape": 0.04}, "arrival_shape"),
        ({"arrival_shape": 100.1}, "arrival_shape"),
        ({"workers": 0}, "workers"),
        ({"workers": MAX_WORKERS + 1}, "workers"),
        ({"workers": 1.5}, "workers"),
        ({"queue": 0}, "queue"),
        ({"queue": MAX_QUEUE + 1}, "queue"),
        ({"grid": 0}, "grid"),
        ({"grid": MAX_SLACK_BINS + 1}, "grid"),
        ({"phases": 0}, "phases"),
        ({"phases": 2, "late": "drop"}, "phases"),
        ({"share": 0.5}, "share"),
        ({"dispatch": "weighted"}, "share"),
        ({"dispatch": "weighted", "share": 0.0}, "share"),
        ({"dispatch": "weighted", "share": 1.01}, "share"),
        ({"criterion": "tokens"}, "criterion"),
    ],
)
def test_what_no_model_can_be_is_refused_by_the_name_of_its_field(change: dict[str, Any], field: str) -> None:
    usual: dict[str, Any] = {"variants": (FAST, GOOD), "slo": 0.1, "workers": 2, "qps": 20.0}
    SelectionModel(**usual)
    with pytest.raises(InvalidInputError, match=f"^{field}:? "):
        SelectionModel(**{**usual, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"variants": (replace(FAST, accuracy=0.0), replace(GOOD, accuracy=1.0))},
        {"variants": (replace(FAST, latency=(0.01, 0.01)),)},
        {"qps": 0.0, "violation_price": 0.0},
        {"arrival_shape": 0.05},
        {"arrival_shape": 100.0, "violation_price": 1e9},
        {"workers": MAX_WORKERS, "queue": MAX_QUEUE, "grid": MAX_SLACK_BINS},
        {"workers": 1, "queue": 1, "grid": 1},
        {"dispatch": "weighted", "share": 1.0},
        {"phases": 2},
    ],
)
def test_a_model_at_its_bounds_is_taken(change: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"variants": (FAST, GOOD), "slo": 0.1, "workers": 2, "qps": 20.0}
    SelectionModel(**{**usual, **change})
