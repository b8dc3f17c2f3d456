"""Drives an executor through a sweep of the profiler: what serving will pay, round trip to the child included."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sluicegate.domain.errors import ExecutionError
from sluicegate.domain.executor import Executor, Loaded
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import LengthPoints, Profile
from sluicegate.domain.models.tensor import BYTES, DATATYPE_BYTES, Tensor, TensorSpec, cut, joined
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.profiler import BATCH_SIZES, Effort, Measurement, Sample, Sweep, shorter_lengths

Progress = Callable[[str, float], None]
"""Told what is being done, and how much of it is done (0..1)."""
_TOLD_EVERY = 0.2
"""Seconds."""


def silent(_what: str, _done: float) -> None:
    """A Progress for nobody."""


class MeasurementError(ExecutionError):
    """A variant failed while it was measured. ``variant``: its name."""

    def __init__(self, variant: str, error: ExecutionError) -> None:
        super().__init__(str(error), fatal=error.fatal, apart=error.apart, blameless=error.blameless)
        self.variant = variant


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """How to profile. ``batches``: sizes to measure."""

    device_type: str = "cpu"
    batches: tuple[int, ...] = BATCH_SIZES
    effort: Effort = field(default_factory=Effort)
    seed: int = 0


async def start_warm(executor: Executor, variant: Variant) -> None:
    """Start ``executor``, and have ``variant`` pay for what the first load of a process does for all: no measured load
    should. Raises LoadError."""
    await executor.start()
    await executor.load(variant, max_batch=1)
    await executor.unload(variant.name)


async def profile_variants(
    executor: Executor,
    apps: Mapping[str, App],
    variants: Sequence[Variant],
    options: ProfileOptions | None = None,
    progress: Progress = silent,
    monotonic: Callable[[], float] = time.perf_counter,
    *,
    sweep: Sweep | None = None,
    rows: Mapping[str, Sequence[tuple[Tensor, ...]]] | None = None,
) -> list[Profile]:
    """Load ``variants`` on a started ``executor``, measure them interleaved, unload them.

    Each batch holds one-row queries of random content, as serving would send; or those of ``rows``, by app, as many as
    the largest batch at least, of the longest length where it varies: they are cut to measure shorter ones. ``sweep``:
    one of the caller's, which may hold samples already. Raises LoadError, MeasurementError.
    """
    options = options or ProfileOptions()
    largest = max(options.batches)
    loaded: dict[str, Loaded] = {}
    for variant in variants:
        progress(f"load {variant.name}", 0.0)
        loaded[variant.name] = await executor.load(variant, max_batch=largest)
    rows = rows or {name: random_rows(apps[name], largest, options.seed) for name in sorted({v.app for v in variants})}
    app_of = {v.name: v.app for v in variants}
    longest = {name: longest_of(apps[app]) for name, app in app_of.items()}
    shorter = {name: shorter_lengths(length) for name, length in longest.items()}
    sweep = sweep or Sweep(sorted(app_of), options.batches, options.effort, options.seed, shorter)
    told = -_TOLD_EVERY
    while (measurement := sweep.next()) is not None:
        app = apps[app_of[measurement.variant]]
        queries = rows[app.name][: measurement.batch]
        if measurement.length:
            queries = [cut(app.inputs, tensors, measurement.length) for tensors in queries]
        sweep.record(measurement, await _measure(executor, measurement, queries, monotonic))
        if monotonic() - told >= _TOLD_EVERY:
            told = monotonic()
            progress(f"profile {measurement.variant}, batch {measurement.batch}", sweep.progress)
            await asyncio.sleep(0)  # an emulated or very fast executor must not starve whoever shows the progress
    for name in loaded:
        await executor.unload(name)
    progress("profiled", 1.0)
    return [
        Profile(
            variant=name,
            device_type=options.device_type,
            points=sweep.points(name),
            memory_bytes=found.memory_bytes,
            load=found.load_s,
            length=longest[name],
            shorter=tuple(LengthPoints(n, points) for n in shorter[name] if (points := sweep.points(name, n))),
        )
        for name, found in loaded.items()
    ]


def longest_of(app: App) -> int:
    """Length of the app's longest inputs; 0 where they do not vary."""
    return max((spec.row_shape[0] for spec in app.inputs if spec.varying), default=0)


async def _measure(
    executor: Executor,
    measurement: Measurement,
    queries: Sequence[Sequence[Tensor]],
    monotonic: Callable[[], float],
) -> Sample:
    begun = monotonic()
    try:
        done = await executor.run(measurement.variant, queries, measurement.batch)
    except ExecutionError as error:
        raise MeasurementError(measurement.variant, error) from error
    return Sample(monotonic() - begun, done.cpu_s)


def random_rows(app: App, count: int, seed: int) -> list[tuple[Tensor, ...]]:
    """``count`` one-row queries for ``app``: normal numbers, small integers that are valid as bytes or
    indices, or words."""
    rng = np.random.default_rng(seed)
    return [tuple(_random_row(spec, rng) for spec in app.inputs) for _ in range(count)]


def _random_row(spec: TensorSpec, rng: np.random.Generator) -> Tensor:
    if spec.datatype in ("FP16", "FP32", "FP64"):
        kind = f"<f{DATATYPE_BYTES[spec.datatype]}"
        data = rng.standard_normal(spec.row_elements).astype(kind).tobytes()
    elif spec.datatype == BYTES:
        lengths = rng.integers(2, 12, spec.row_elements).tolist()
        data = joined(rng.integers(ord("a"), ord("z") + 1, n, np.uint8).tobytes() for n in lengths)
    else:
        # Below 2 an integer is valid whatever it stands for: a pixel, a token, a flag.
        width = DATATYPE_BYTES[spec.datatype]
        data = rng.integers(0, 2, spec.row_elements).astype(f"<u{width}").tobytes()
    return Tensor(spec.name, spec.datatype, (1, *spec.row_shape), data)
