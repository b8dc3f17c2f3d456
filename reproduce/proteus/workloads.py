"""What the systems are asked: traces of the papers' data, and loads drawn from a rate.

Rules: a workload is the shipped Proteus scenario with overrides. The same workload and seed give every system the same
arrivals. What a static placement may be told beforehand (mean and peak of each app) is counted from them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from reproduce.figure import papers_data
from sluicegate.simulator.arrivals.sampling import collect
from sluicegate.simulator.scenario import catalogue_of, overridden, read_scenario, scenario_of
from sluicegate.simulator.scenario.experiment import arrivals_of

SCENARIO = Path(__file__).resolve().parents[2] / "examples" / "scenarios" / "proteus-medium-normal.yaml"
APPS = ("mobilenet", "efficientnet", "resnest", "bert", "yolo", "densenet", "resnet", "t5", "gpt2")
ZIPF = 1.001
"""Exponent of the shares of the artifact's traces, in the order of APPS."""
PEAK_S = 10.0
_RATES = TemporaryDirectory(prefix="sluice-rates-")
"""Files of rates, for as long as the program runs."""

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Workload:
    """A workload of the evaluation.

    ``mean`` and ``peak``: queries/s by app, over all of it and in its busiest ten seconds.
    """

    name: str
    document: Document
    mean: Mapping[str, float]
    peak: Mapping[str, float]


def trace(
    name: str, *, scale: float = 1.0, slo: str | None = None, seconds: float | None = None, seed: int = 0
) -> Workload:
    """A trace of the artifact. ``slo``: a column of its table of SLOs instead of the trace's own."""
    overrides: dict[str, Any] = {
        "traces": {"path": str(papers_data("proteus") / "traces" / name), "scale": scale},
        "duration_s": seconds,
    }
    if slo is not None:
        overrides["catalogue.options.slo"] = slo
        overrides["apps"] = {app: {"slo_ms": None} for app in APPS}
    elif name in ("low_load", "normal_load"):
        overrides["apps.gpt2.slo_ms"] = 650
    return _workload(f"{name} x{scale:g}" + (f", SLO {slo}" if slo else ""), overrides, seed)


def drawn(name: str, qps: Sequence[float], *, process: str = "poisson", shape: float = 1.0, seed: int = 0) -> Workload:
    """Arrivals drawn from ``qps`` second by second, shares as in the traces."""
    rates = Path(_RATES.name) / f"rates-{len(qps)}-{qps[0]:g}-{max(qps):g}.csv"
    rates.write_text("".join(f"{q:g}\n" for q in qps))
    traces = {"format": "counts", "path": str(rates.resolve()), "zipf": ZIPF, "process": process, "shape": shape}
    return _workload(name, {"traces": {**traces, "scale": 1.0}, "duration_s": float(len(qps))}, seed)


def flats(low: float, high: float, each_s: int, periods: int) -> list[float]:
    """Flat periods that alternate, low first."""
    return [(low, high)[second // each_s % 2] for second in range(each_s * periods)]


def _workload(name: str, overrides: Document, seed: int) -> Workload:
    papers_data("proteus")
    document = overridden(read_scenario(SCENARIO, os.environ), overrides)
    scenario = scenario_of(document)
    times = collect(arrivals_of(scenario, catalogue_of(scenario), seed))
    duration = max(1.0, max(float(t[-1]) for t in times.values() if t.size))
    windows = np.arange(0.0, duration + PEAK_S, PEAK_S)
    counts = np.array([np.histogram(t, windows)[0] for t in times.values()])
    busiest = counts[:, int(counts.sum(axis=0).argmax())]
    mean = {app: t.size / duration for app, t in times.items()}
    return Workload(name, document, mean, dict(zip(times, (busiest / PEAK_S).tolist(), strict=True)))
