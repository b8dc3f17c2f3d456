"""Runs variants beside each other on one device or slice, to find what share of its bandwidth each takes.

Rules:
- Each copy is an executor of its own that runs full batches one after the other. Members of a co-location begin
  together; runs count that ended while all were at work, or the first of each where none did.
- The slowdown of a co-location is the mean, over its members, of their time together over their time alone.
- Two to ``copies`` copies of each variant, and every pair: what ``sluicegate.policies.placement.bandwidth`` needs. Two
  of one beside one of another are measured too, to hold what is found against.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, permutations

from sluicegate.domain.executor import Executor
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.profile_runner import Progress, random_rows, silent
from sluicegate.policies.placement.bandwidth import Colocation


def colocations(variants: Sequence[str], copies: int) -> list[tuple[str, ...]]:
    """What to run together."""
    alike = [(name,) * number for name in variants for number in range(2, copies + 1)]
    return alike + list(combinations(variants, 2))


def unseen(variants: Sequence[str]) -> list[tuple[str, ...]]:
    """What to hold the estimate against: nothing of it is among ``colocations``."""
    return [(one, one, other) for one, other in permutations(variants, 2)]


async def measure_colocations(
    make: Callable[[], Executor],
    apps: Mapping[str, App],
    variants: Sequence[Variant],
    *,
    batch: int,
    copies: int = 4,
    wanted: Sequence[tuple[str, ...]] | None = None,
    seconds: float = 1.0,
    progress: Progress = silent,
    monotonic: Callable[[], float] = time.perf_counter,
) -> list[Colocation]:
    """Slowdowns of batches of ``batch`` rows. ``seconds``: each co-location runs for. Raises LoadError, ExecutionError.

    ``make``: a new executor on the device. As many are there at a time as run together, with all variants loaded.
    ``wanted``: what to run together, in the place of ``colocations`` of ``copies``.
    """
    rows = {app: random_rows(apps[app], batch, 0) for app in sorted({v.app for v in variants})}
    inputs = {v.name: rows[v.app] for v in variants}
    found: list[Colocation] = []
    asked = colocations([v.name for v in variants], copies) if wanted is None else wanted
    executors = [make() for _ in range(max(map(len, asked), default=1))]
    try:
        for executor in executors:
            await executor.start()
            for variant in variants:
                await executor.load(variant, max_batch=batch)

        async def together(names: Sequence[str]) -> list[list[float]]:
            end = monotonic() + seconds
            members = zip(executors, names, strict=False)
            return await asyncio.gather(*(_run(e, n, inputs[n], batch, end, monotonic) for e, n in members))

        alone = {name: (await together((name,)))[0] for name in inputs}
        usual = {name: sum(took) / len(took) for name, took in alone.items()}
        for i, names in enumerate(asked):
            progress(f"together: {', '.join(names)}", i / len(asked))
            took = await together(names)
            means = [sum(each) / len(each) for each in took]
            ratios = [mean / usual[name] for mean, name in zip(means, names, strict=True)]
            rates = [usual[name] / mean for mean, name in zip(means, names, strict=True)]
            tails = [_p95(each) / _p95(alone[name]) for each, name in zip(took, names, strict=True)]
            found.append(Colocation(names, sum(ratios) / len(ratios), sum(rates), sum(tails) / len(tails)))
    finally:
        for executor in executors:
            await executor.close()
    return found


async def _run(
    executor: Executor,
    variant: str,
    queries: Sequence[Sequence[Tensor]],
    batch: int,
    end: float,
    monotonic: Callable[[], float],
) -> list[float]:
    """Seconds of each batch until ``end``."""
    now = monotonic()
    took: list[float] = []
    while not took or now < end:
        began = now
        await executor.run(variant, queries, batch)
        now = monotonic()
        if not took or now <= end:
            took.append(now - began)
    return took


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]
