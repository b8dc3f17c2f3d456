"""Counting, cheaply, and telling what was counted to Prometheus.

Rules.
- Counting is a dictionary entry: no lock, no label object, nothing that allocates beyond the key. All of it happens on
  the event loop; so does the scrape, which makes Prometheus' families from the dictionaries.
- Gauges that a stage already knows (queue lengths, records in flight) are read when they are asked for, not written.
- A name that the catalogue does not list raises KeyError, a wrong number of labels ValueError, in tests at the latest.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from typing_extensions import override

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.stages.telemetry.metric_catalogue import BY_NAME, CATALOGUE, Kind, Metric

Labels = tuple[str, ...]
Reading = Callable[[], Iterable[tuple[Labels, float]]]

_VALUE = {kind: kind.value for kind in OutcomeKind}


class Histogram:
    """Counts by bucket of one metric's label values."""

    __slots__ = ("_bounds", "cells", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.cells = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count ``value`` in the first bucket whose bound is not below it."""
        self.cells[bisect_left(self._bounds, value)] += 1
        self.total += value


class Meters:
    """What is counted in one process."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {m.name: {} for m in CATALOGUE if m.kind is not Kind.HISTOGRAM}
        self._histograms: dict[str, dict[Labels, Histogram]] = {
            m.name: {} for m in CATALOGUE if m.kind is Kind.HISTOGRAM
        }
        self._readings: dict[str, list[Reading]] = {}
        self._outcomes = self._values["sluice_outcomes"]
        self._answers = self._values["sluice_answers"]
        self._accuracy = self._values["sluice_answers_accuracy"]
        self._query_seconds = self._histograms["sluice_query_seconds"]
        self._queue_seconds = self._histograms["sluice_queue_seconds"]

    def add(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Count ``by`` more."""
        cells = self._values[name]
        cells[labels] = cells.get(labels, 0.0) + by

    def set(self, name: str, value: float, *labels: str) -> None:
        """A gauge is ``value`` now."""
        self._values[name][labels] = value

    def clear(self, name: str, *labels: str) -> None:
        """Forget a gauge's values, or the one of these labels: what is past is no state of now."""
        if labels:
            self._values[name].pop(labels, None)
        else:
            self._values[name].clear()

    def observe(self, name: str, value: float, *labels: str) -> None:
        """One more value of a histogram."""
        cells = self._histograms[name]
        histogram = cells.get(labels)
        if histogram is None:
            histogram = cells[labels] = Histogram(BY_NAME[name].buckets)
        histogram.add(value)

    def read(self, name: str, reading: Reading) -> None:
        """Ask ``reading`` for (labels, value) whenever metrics are told. For what a stage knows anyway."""
        if name not in BY_NAME:
            raise KeyError(name)
        self._readings.setdefault(name, []).append(reading)

    def read_no_more(self, name: str, reading: Reading) -> None:
        """Who told ``reading`` is over: a gauge has no value of it any more, a counter keeps what it counted."""
        self._readings[name].remove(reading)
        if BY_NAME[name].kind is Kind.COUNTER:
            for labels, value in reading():
                self.add(name, *labels, by=value)

    def ended(self, stage: str, outcome: Outcome) -> None:
        """A query's terminal outcome was written by ``stage``. The one call on the path of every query."""
        app = outcome.app
        if outcome.kind is not OutcomeKind.ANSWERED:
            self._count(self._outcomes, (app, stage, _VALUE[outcome.kind], outcome.reason or ""))
            return
        on_time = outcome.at <= outcome.deadline
        self._count(self._outcomes, (app, stage, "answered" if on_time else "late", ""))
        device = outcome.device or ""
        if on_time:
            self._count(self._answers, (app, device, outcome.variant or ""))
            self._accuracy[app,] = self._accuracy.get((app,), 0.0) + outcome.accuracy
        self._observe(self._query_seconds, "sluice_query_seconds", (app,), outcome.took)
        self._observe(self._queue_seconds, "sluice_queue_seconds", (app, device), outcome.queue_s)

    @staticmethod
    def _count(cells: dict[Labels, float], key: Labels) -> None:
        cells[key] = cells.get(key, 0.0) + 1.0

    @staticmethod
    def _observe(cells: dict[Labels, Histogram], name: str, key: Labels, value: float) -> None:
        histogram = cells.get(key)
        if histogram is None:
            histogram = cells[key] = Histogram(BY_NAME[name].buckets)
        histogram.add(value)

    def value(self, name: str, *labels: str) -> float:
        """What stands now, read gauges included; 0 where nothing was counted."""
        found = self._values[name].get(labels, 0.0)
        for reading in self._readings.get(name, ()):
            found += sum(value for key, value in reading() if key == labels)
        return found

    def values(self, name: str) -> Mapping[Labels, float]:
        """All label values of a counter or gauge, summed over what counts and what is read."""
        found = dict(self._values[name])
        for reading in self._readings.get(name, ()):
            for key, value in reading():
                found[key] = found.get(key, 0.0) + value
        return found

    def histograms(self, name: str) -> Mapping[Labels, Histogram]:
        """All label values of a histogram."""
        return self._histograms[name]


class Told(Collector):
    """Prometheus' view of ``meters``: one family a metric of the catalogue that has values."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    @override
    def collect(self) -> Iterator[Family]:
        """Families in the catalogue's order."""
        for metric in CATALOGUE:
            family = self._histogram(metric) if metric.kind is Kind.HISTOGRAM else self._plain(metric)
            if family.samples:
                yield family

    def _plain(self, metric: Metric) -> Family:
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family: Family = kind(metric.name, metric.meaning, labels=metric.labels)
        for labels, value in sorted(self._meters.values(metric.name).items()):
            family.add_metric(_checked(metric, labels), value)  # type: ignore[attr-defined]
        return family

    def _histogram(self, metric: Metric) -> Family:
        family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for labels, histogram in sorted(self._meters.histograms(metric.name).items()):
            buckets = []
            count = 0
            for bound, cell in zip((*metric.buckets, float("inf")), histogram.cells, strict=True):
                count += cell
                buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(count)))
            family.add_metric(_checked(metric, labels), buckets, histogram.total)
        return family


def _checked(metric: Metric, labels: Labels) -> Labels:
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has labels {metric.labels}, was counted with {labels}")
    return labels
