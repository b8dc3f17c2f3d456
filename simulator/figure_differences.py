"""How far a simulation is from the same scenario run live."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """Live minus simulated. Accuracy and violations in points (0..100), throughput in percent of the simulated."""

    accuracy_points: float
    throughput_percent: float
    violation_points: float

    @property
    def small(self) -> bool:
        """Within what is expected of a simulation: 0.3 points, 1 % and 1 point."""
        return (
            abs(self.accuracy_points) <= 0.3
            and abs(self.throughput_percent) <= 1.0
            and abs(self.violation_points) <= 1.0
        )


def difference(live: Mapping[str, float], simulated: Mapping[str, float]) -> Difference:
    """Compare the figures of two runs of one scenario (see ``sluicegate.simulator.scenario.experiment.figures_of``)."""
    goodput = simulated["goodput_qps"]
    return Difference(
        accuracy_points=100.0 * (live["effective_accuracy"] - simulated["effective_accuracy"]),
        throughput_percent=100.0 * (live["goodput_qps"] / goodput - 1.0) if goodput else float("nan"),
        violation_points=100.0 * (live["violation_ratio"] - simulated["violation_ratio"]),
    )
