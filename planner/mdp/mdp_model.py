"""What a selection policy is asked for: variants, deadline, arrivals, dispatch and what may be decided.

Times are seconds, rates queries a second, accuracies 0..1. Everything is validated here, once: the rest of the package
trusts a ``SelectionModel``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sluicegate.domain.errors import InvalidInputError
from sluicegate.profiles.catalogue.catalogue import Catalogue

Criterion = Literal["query", "decision"]
Dispatch = Literal["round_robin", "random", "weighted"]
Batching = Literal["maximal", "variable"]
Late = Literal["serve", "drop"]
Array = NDArray[np.float64]

_CHOICES: dict[str, Any] = {"criterion": Criterion, "dispatch": Dispatch, "batching": Batching, "late": Late}

MAX_VARIANTS = 254
MAX_WORKERS = 1000
MAX_QUEUE = 255
MAX_SLACK_BINS = 1000
MAX_PHASES = 16
MAX_ARRIVAL_SHAPE = 100.0
MAX_VIOLATION_PRICE = 1e9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that may be chosen: ``latency[b - 1]`` seconds (p95) for a batch of b, non-decreasing in b."""

    name: str
    accuracy: float
    latency: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionModel:
    """One worker of an app, as the Markov decision process sees it (Mendoza et al., EuroSys 2024, section 4).

    ``qps``: rate of the whole app, ``workers`` of them sharing it. ``arrival_shape``: of the Gamma gaps between the
    app's arrivals; 1 is Poisson, below 1 bursty. ``share``: of the app's queries, for ``dispatch`` weighted only.
    ``grid``: number of equal slack bins, or "model" for bins at the latencies that change what is feasible.
    ``queue``: longest queue told apart (N). ``violation_price``: accuracy given up for one violation less (c).
    ``phases``: groups of central arrivals since the worker's last one that the state tells apart; 1 for none.
    ``late``: what is done where the whole queue cannot be in time: "serve" it late with the fastest variant, or "drop":
    as much of it as the fastest variant has in time, or its head is given up, as it also may be where that helps
    others.
    """

    variants: tuple[Candidate, ...]
    slo: float
    workers: int
    qps: float
    criterion: Criterion = "query"
    violation_price: float = 0.5
    queue: int = 32
    grid: int | Literal["model"] = 100
    arrival_shape: float = 1.0
    dispatch: Dispatch = "round_robin"
    share: float | None = None
    batching: Batching = "maximal"
    late: Late = "serve"
    phases: int = 1

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_variants(self.variants)
        for field, literal in _CHOICES.items():
            if getattr(self, field) not in get_args(literal):
                raise InvalidInputError(field, f"{getattr(self, field)!r} is not one of {', '.join(get_args(literal))}")
        if (self.dispatch == "weighted") != (self.share is not None):
            raise InvalidInputError("share", "goes with dispatch weighted, and only with it")
        if self.share is not None and not 0.0 < self.share <= 1.0:
            raise InvalidInputError("share", f"{self.share} is not in (0, 1]")
        if self.phases > 1 and (self.batching == "variable" or self.late == "drop"):
            raise InvalidInputError("phases", "are told apart only with maximal batching that serves late queries")

    @property
    def longest(self) -> int:
        """N: the longest queue told apart, at most the largest batch that any variant can run."""
        return min(self.queue, max(len(v.latency) for v in self.variants))

    @property
    def never_in_time(self) -> str:
        """What is wrong where no variant answers even one query within the SLO, else empty."""
        fastest = min(self.variants, key=lambda v: v.latency[0])
        if fastest.latency[0] <= self.slo:
            return ""
        took = f"{fastest.name!r} takes {1e3 * fastest.latency[0]:.4g} ms for one query"
        return f"{1e3 * self.slo:g} ms are less than any variant takes: {took}"

    def at(self, qps: float) -> "SelectionModel":
        """The same question for another load."""
        return replace(self, qps=qps)

    def slacks(self) -> Array:
        """Slack bins' lower edges T_0 = 0 < ... < T_D = SLO, seconds."""
        if self.grid != "model":
            return np.arange(self.grid + 1) * self.slo / self.grid
        latencies = {x for v in self.variants for x in v.latency[: self.longest] if x < self.slo}
        edges = [0.0]
        for x in sorted(latencies):
            if x - edges[-1] > 1e-6 * self.slo:
                edges.append(x)
        return np.array([*edges, self.slo])


def _check_numbers(model: SelectionModel) -> None:
    positive = {"slo": model.slo, "arrival_shape": model.arrival_shape}
    for name, value in positive.items():
        if not 0.0 < value < math.inf:
            raise InvalidInputError(name, f"{value} is not a positive number")
    if not 0.0 <= model.qps < math.inf:
        raise InvalidInputError("qps", f"{model.qps} is not a number of at least 0")
    if not 0.0 <= model.violation_price <= MAX_VIOLATION_PRICE:
        raise InvalidInputError("violation_price", f"{model.violation_price} is not in 0..{MAX_VIOLATION_PRICE:g}")
    if model.arrival_shape < 0.05:
        raise InvalidInputError("arrival_shape", f"{model.arrival_shape} is too bursty to be resolved; at least 0.05")
    if model.arrival_shape > MAX_ARRIVAL_SHAPE:
        raise InvalidInputError("arrival_shape", f"{model.arrival_shape} is more than {MAX_ARRIVAL_SHAPE:g}")
    ranges = {"workers": (model.workers, MAX_WORKERS), "queue": (model.queue, MAX_QUEUE)}
    ranges["phases"] = (model.phases, MAX_PHASES)
    if model.grid != "model":
        ranges["grid"] = (model.grid, MAX_SLACK_BINS)
    for name, (count, most) in ranges.items():
        if type(count) is not int or not 1 <= count <= most:
            raise InvalidInputError(name, f"{count} is not a whole number from 1 to {most}")


def _check_variants(variants: Sequence[Candidate]) -> None:
    if not 1 <= len(variants) <= MAX_VARIANTS:
        raise InvalidInputError("variants", f"{len(variants)} of them; give 1 to {MAX_VARIANTS}")
    if len({v.name for v in variants}) != len(variants):
        raise InvalidInputError("variants", "two have the same name; name each once")
    for v in variants:
        if not 0.0 <= v.accuracy <= 1.0:
            raise InvalidInputError(f"variants.{v.name}.accuracy", f"{v.accuracy} is not in 0..1")
        if not v.latency:
            raise InvalidInputError(f"variants.{v.name}.latency", "is empty; profile at least batch 1")
        last = 0.0
        for batch, seconds in enumerate(v.latency, 1):
            if not 0.0 < seconds < math.inf:
                raise InvalidInputError(
                    f"variants.{v.name}.latency[{batch}]", f"{seconds} is not a positive finite number of seconds"
                )
            if seconds < last:
                raise InvalidInputError(
                    f"variants.{v.name}.latency[{batch}]",
                    f"{seconds} is less than a smaller batch takes ({last}); make it non-decreasing",
                )
            last = seconds


def non_decreasing(latency: Sequence[float]) -> tuple[float, ...]:
    """Suffix minimum: a larger batch that is faster bounds the smaller ones, which can be padded to it."""
    least = math.inf
    mended: list[float] = []
    for seconds in reversed(latency):
        least = min(least, seconds)
        mended.append(least)
    return tuple(reversed(mended))


def candidates(
    catalogue: Catalogue,
    app: str,
    device_type: str,
    quantile: Literal["median", "p95"] = "p95",
    *,
    largest: int = 32,
    margin: float = 1.0,
) -> tuple[Candidate, ...]:
    """Variants of ``app`` profiled on ``device_type``, up to ``largest`` queries.

    Latencies are made non-decreasing in the batch, and multiplied by ``margin``.
    """
    found = []
    for v in catalogue.of_app(app):
        profile = catalogue.profiles.get((v.name, device_type))
        if profile is not None:
            curve = profile.curve(quantile, largest).scaled(margin)
            found.append(Candidate(v.name, v.accuracy, non_decreasing(curve.seconds)))
    return tuple(found)


def pareto_front(variants: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Variants that no other beats in both accuracy and latency at batch 1, fastest first."""
    front: list[Candidate] = []
    for v in sorted(variants, key=lambda v: (v.latency[0], -v.accuracy, v.name)):
        if not front or v.accuracy > front[-1].accuracy:
            front.append(v)
    return tuple(front)
