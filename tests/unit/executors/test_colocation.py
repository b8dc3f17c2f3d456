"""Variants run together to find what share of a device's bandwidth each takes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from sluicegate.domain.executor import Executed, Loaded
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.colocation import colocations, measure_colocations, unseen
from sluicegate.policies.placement.bandwidth import estimate_fbr, predicted

pytestmark = pytest.mark.virtual

FBR = {"heavy": 0.9, "light": 0.2}
SOLO = 0.02


class Shared:
    """An executor of a device whose bandwidth all of them share."""

    running: ClassVar[list[str]] = []
    there = 0

    def watch(self, on_end: Callable[[], None]) -> None:
        raise AssertionError(on_end)

    async def start(self) -> None:
        Shared.there += 1

    async def load(self, variant: Variant, *, max_batch: int, within: float | None = None) -> Loaded:
        del max_batch, within
        return Loaded(variant.name, 0.0, 0)

    async def unload(self, variant: str) -> None:
        raise AssertionError(variant)

    async def run(
        self,
        variant: str,
        inputs: Sequence[Sequence[Tensor]],
        rows: int,
        *,
        within: float | None = None,
        apart: bool = False,
    ) -> Executed:
        assert (len(inputs), rows, within) == (4, 4, None)
        Shared.running.append(variant)
        await asyncio.sleep(0)  # whoever begins with this one is there too
        await asyncio.sleep(SOLO * max(1.0, sum(FBR[name] for name in Shared.running)))
        Shared.running.remove(variant)
        return Executed((), SOLO)

    async def close(self) -> None:
        Shared.there -= 1


def now() -> Callable[[], float]:
    """The clock of the test."""
    return asyncio.get_running_loop().time


async def test_bandwidth_is_found_from_variants_that_ran_together() -> None:
    apps = {"a": App(name="a", slo=1.0, inputs=(TensorSpec("x", "FP32", (2,)),))}
    variants = [Variant(name=name, app="a", accuracy=0.5) for name in FBR]
    told: list[str] = []
    measured = await measure_colocations(
        Shared,
        apps,
        variants,
        batch=4,
        copies=3,
        seconds=0.1,
        progress=lambda what, _: told.append(what),
        monotonic=now(),
    )
    assert [m.variants for m in measured] == colocations(("heavy", "light"), 3)
    assert len(told) == len(measured) == 5
    found = estimate_fbr(measured, saturation=0.3)
    assert found.identifiable >= {"heavy"}
    assert found.fbr["heavy"] > 2.0 * found.fbr["light"]
    assert (Shared.there, Shared.running) == (0, [])


async def test_the_model_is_held_against_what_the_estimate_has_not_seen() -> None:
    apps = {"a": App(name="a", slo=1.0, inputs=(TensorSpec("x", "FP32", (2,)),))}
    variants = [Variant(name=name, app="a", accuracy=0.5) for name in FBR]
    held = unseen(["heavy", "light"])
    assert held == [("heavy", "heavy", "light"), ("light", "light", "heavy")]
    assert not set(held) & set(colocations(["heavy", "light"], 4))
    heavy, light = await measure_colocations(Shared, apps, variants, batch=4, wanted=held, seconds=0.1, monotonic=now())
    assert predicted(FBR, heavy.variants) == 2.0
    assert predicted(FBR, light.variants) == 1.3
    assert heavy.slowdown > light.slowdown > 1.0
    assert heavy.p95 > light.p95
    assert light.throughput > heavy.throughput > 1.0
    assert predicted(FBR, ["light"]) == 1.0
    assert (Shared.there, Shared.running) == (0, [])
