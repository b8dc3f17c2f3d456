"""How long a batch may run, and an executor that is kept alive: decided and timed without a process."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from sluicegate.domain.actions import Run
from sluicegate.domain.errors import LoadError
from sluicegate.domain.executor import Executed, Loaded
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.query import Query
from sluicegate.policies.serving.batch_times import BatchTimes, RunLimits
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.worker.kept_executor import KeptExecutor

VARIANTS = [Variant(name=name, app=app, accuracy=0.5) for name, app in (("slow", "a"), ("quick", "a"), ("new", "b"))]
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.7), App(name="b", slo=0.3)],
    VARIANTS,
    [
        Profile(variant="slow", device_type="cpu", points=(BatchLatency(1, 0.1, 0.2), BatchLatency(4, 0.3, 0.8))),
        Profile(variant="quick", device_type="cpu", points=(BatchLatency(1, 0.001, 0.002),)),
        Profile(variant="new", device_type="gpu", points=(BatchLatency(1, 0.1, 9.0),)),
    ],
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def wall(self) -> float:
        return 50_000.0 + self.now

    def monotonic(self) -> float:
        return self.now


class Told:
    """Notes what it is asked; loads take ``loads`` seconds, the first ``fails`` of them end it."""

    def __init__(self, loads: float = 0.0, fails: int = 0) -> None:
        self.loads, self.fails = loads, fails
        self.asked: list[tuple[Any, ...]] = []
        self.on_end: Callable[[], None] = lambda: None
        self.starting = asyncio.Event()
        self.starting.set()

    def watch(self, on_end: Callable[[], None]) -> None:
        self.on_end = on_end

    async def start(self) -> None:
        self.asked.append(("start",))
        await self.starting.wait()

    async def load(self, variant: Variant, *, max_batch: int) -> Loaded:
        self.asked.append(("load", variant.name, max_batch))
        if self.fails:
            self.fails -= 1
            self.on_end()
            raise LoadError(f"{variant.name}: the process was ended by SIGKILL")
        return Loaded(variant.name, self.loads, 0)

    async def unload(self, variant: str) -> None:
        self.asked.append(("unload", variant))

    async def run(
        self, variant: str, inputs: Sequence[Sequence[Tensor]], rows: int, *, within: float | None = None
    ) -> Executed:
        assert len(inputs) == 1
        self.asked.append(("run", variant, rows, within))
        return Executed((), 0.0)

    async def close(self) -> None:
        self.asked.append(("close",))


def limit(times: BatchTimes, variant: str, rows: int) -> float:
    """Of a batch, which then runs."""
    app = CATALOGUE.variants[variant].app
    run = Run(variant, (Query(id="q", app=app, arrival=0.0, deadline=1e9, rows=rows),), rows)
    found = times.limit(run)
    times.note(run, 0.1)
    return found


def times_of(**limits: float) -> BatchTimes:
    return BatchTimes(Device(name="d", type="cpu"), Slice(name="s"), CATALOGUE, RunLimits(**limits))


def test_a_batch_may_take_a_multiple_of_its_profiled_p95_but_never_less_than_the_floor() -> None:
    times = times_of(factor=5.0, floor=0.9)
    for _ in range(3):
        assert limit(times, "slow", 1) == pytest.approx(5 * 0.2)
        assert limit(times, "slow", 4) == pytest.approx(5 * 0.8)
        assert limit(times, "slow", 6) == pytest.approx(5 * 0.8 * 6 / 4)  # beyond what was measured
        assert limit(times, "quick", 1) == pytest.approx(0.9)


def test_a_variant_without_a_profile_there_may_take_a_multiple_of_its_apps_slo() -> None:
    assert limit(times_of(factor=5.0, floor=0.9), "new", 1) == pytest.approx(5 * 0.3)


def test_the_first_batch_of_a_size_after_a_load_may_also_take_as_long_as_the_load_did() -> None:
    times = times_of(factor=5.0, floor=0.9)
    times.loaded("slow", 3.0)
    times.loaded("quick", 7.0)
    assert limit(times, "slow", 1) == pytest.approx(1.0 + 3.0)
    assert limit(times, "slow", 1) == pytest.approx(1.0)
    assert limit(times, "slow", 4) == pytest.approx(4.0 + 3.0)
    assert limit(times, "quick", 1) == pytest.approx(0.9 + 7.0)
    times.loaded("slow", 2.0)
    assert limit(times, "slow", 1) == pytest.approx(1.0 + 2.0)
    assert limit(times, "quick", 1) == pytest.approx(0.9)


class Kept:
    """A kept executor and its tasks."""

    def __init__(self, executor: Told) -> None:
        self.executor, self.clock = executor, Clock()
        self.held: list[Variant] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.restarts = 0
        self.kept = KeptExecutor(
            executor,
            "d/s",
            clock=self.clock,
            held=lambda: self.held,
            spawn=self.spawn,
            restarts=self.restarted,
            reloaded=lambda variant, seconds: executor.asked.append(("loaded", variant, seconds)),
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    def restarted(self) -> None:
        self.restarts += 1

    async def load(self, index: int, max_batch: int) -> None:
        await self.kept.load(VARIANTS[index], max_batch)
        self.held.append(VARIANTS[index])


async def test_one_that_ends_while_idle_is_started_again_at_once_with_what_it_held() -> None:
    kept = Kept(Told(loads=0.25))
    await kept.kept.start()
    await kept.load(1, 16)
    await kept.load(0, 8)
    kept.clock.now += 60.0
    del kept.executor.asked[:]
    kept.executor.starting.clear()
    kept.executor.on_end()
    ready = asyncio.create_task(kept.kept.ready())
    await asyncio.sleep(0.01)
    assert not ready.done()  # no batch begins before it is whole
    kept.executor.starting.set()
    async with asyncio.timeout(5.0):
        await ready
    assert kept.executor.asked == [
        ("start",),
        ("load", "quick", 16),
        ("loaded", "quick", 0.25),
        ("load", "slow", 8),
        ("loaded", "slow", 0.25),
    ]
    await kept.kept.restart()  # the batch that was under way asks as well
    assert kept.restarts == 1


async def test_a_load_under_which_it_ended_is_tried_once_more_and_then_has_failed() -> None:
    kept = Kept(Told(fails=1))
    await kept.kept.start()
    kept.clock.now += 60.0
    await kept.load(0, 8)
    assert [a for a in kept.executor.asked if a[0] == "load"] == [("load", "slow", 8)] * 2
    kept.executor.fails = 3  # this one, what is loaded again, and this one again
    kept.clock.now += 60.0
    with pytest.raises(LoadError, match="quick"):
        await kept.load(1, 4)
    async with asyncio.timeout(5.0):
        await kept.kept.ready()


async def test_one_that_is_let_go_is_not_started_again() -> None:
    kept = Kept(Told())
    await kept.kept.start()
    kept.kept.let_go()
    kept.executor.on_end()
    assert not kept.tasks
