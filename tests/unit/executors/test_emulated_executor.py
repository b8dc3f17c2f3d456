"""The emulated executor keeps to the profile: on average, in its tail, in memory and in load time."""

import asyncio
import math
import statistics
import time
from pathlib import Path

import pytest

from sluicegate.domain.errors import ExecutionError, LoadError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.emulated import EmulatedExecutor
from sluicegate.profiles.catalogue.catalogue import Catalogue
from tests.models.executor_models import APP, numbers, query, write_catalogue

pytestmark = pytest.mark.virtual


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return write_catalogue(Path(tmp_path_factory.mktemp("catalogue")))


async def started(catalogue: Catalogue, max_batch: int = 8, **options: float) -> EmulatedExecutor:
    executor = EmulatedExecutor(catalogue, "cpu", **options)  # type: ignore[arg-type]
    await executor.start()
    await executor.load(catalogue.variants["double"], max_batch=max_batch)
    return executor


async def test_batches_back_to_back_take_what_the_profile_says_without_drift(catalogue: Catalogue) -> None:
    executor = await started(catalogue)
    begun = time.monotonic()
    for _ in range(30):
        await executor.run("double", [query((1, 2))], 1)
    assert time.monotonic() - begun == pytest.approx(30 * 0.010)


async def test_latency_is_interpolated_between_batch_sizes_and_scaled(catalogue: Catalogue) -> None:
    executor = await started(catalogue, slowdown=2.0)
    done = await executor.run("double", [query((1, 2))] * 4, 4)
    assert done.execution_s == pytest.approx(2 * 0.016)
    assert numbers(done.outputs[0]) == [[0.0, 0.0]] * 4
    assert numbers(done.outputs[1]) == [0] * 4


async def test_loading_takes_the_profiles_time(catalogue: Catalogue) -> None:
    executor = EmulatedExecutor(catalogue, "cpu")
    await executor.start()
    loaded = await executor.load(catalogue.variants["double"], max_batch=8)
    assert loaded.load_s == pytest.approx(catalogue.profiles["double", "cpu"].load)
    assert loaded.memory_bytes == 1000


def test_jitter_has_the_profiles_median_and_95th_percentile_and_follows_its_seed(catalogue: Catalogue) -> None:
    def drawn(seed: int) -> list[float]:
        executor = EmulatedExecutor(catalogue, "cpu", jitter=True, seed=seed)
        return [executor.draw(profile, 1) for _ in range(4000)]

    profile = catalogue.profiles["double", "cpu"]
    values = drawn(1)
    assert values == drawn(1)
    assert values != drawn(2)
    assert statistics.median(values) == pytest.approx(0.010, rel=0.02)
    assert statistics.quantiles(values, n=20)[-1] == pytest.approx(0.014, rel=0.03)


async def test_memory_is_a_budget_that_unloading_gives_back(catalogue: Catalogue) -> None:
    executor = await started(catalogue, memory_bytes=1500)
    with pytest.raises(LoadError, match="needs 1000 bytes and 500 are free"):
        await executor.load(catalogue.variants["triple"], max_batch=1)
    await executor.unload("double")
    await executor.load(catalogue.variants["triple"], max_batch=1)


async def test_a_batch_beyond_what_was_loaded_or_profiled_is_refused(catalogue: Catalogue) -> None:
    executor = await started(catalogue, max_batch=4)
    with pytest.raises(ExecutionError, match=r"5 rows where 1\.\.4"):
        await executor.run("double", [query((1, 2))] * 5, 5)
    with pytest.raises(LoadError, match="profiled up to 8"):
        await executor.load(catalogue.variants["double"], max_batch=9)
    other = EmulatedExecutor(catalogue, "gpu")
    await other.start()
    with pytest.raises(LoadError, match="no profile on 'gpu'"):
        await other.load(catalogue.variants["double"], max_batch=1)


@pytest.mark.parametrize("shape", [(), (1,)])
async def test_an_input_without_the_length_that_a_batch_is_padded_to_fails_it(shape: tuple[int, ...]) -> None:
    app = App(name="texts", slo=0.1, inputs=(TensorSpec("text", "UINT8", (4,), varying=True),), outputs=APP.outputs)
    variant = Variant(name="short", app=app.name, accuracy=0.5)
    points = (BatchLatency(1, 0.010, 0.014),)
    texts = Catalogue.of([app], [variant], [Profile(variant="short", device_type="cpu", points=points, length=4)])
    executor = EmulatedExecutor(texts, "cpu")
    await executor.start()
    await executor.load(variant, max_batch=1)
    with pytest.raises(ExecutionError, match="short: "):
        await executor.run("short", [[Tensor("text", "UINT8", shape, b"1")]], 1)
    await executor.run("short", [[Tensor("text", "UINT8", (1, 2), b"12")]], 1)


async def test_without_jitter_the_chosen_quantile_is_what_a_batch_takes() -> None:
    point = BatchLatency(1, 0.004, 0.040)
    profile = Profile(variant="double", device_type="cpu", points=(point,))
    catalogue = Catalogue.of([APP], [], [])
    for quantile, expected in (("median", 0.004), ("p95", 0.040)):
        executor = EmulatedExecutor(catalogue, "cpu", quantile=quantile)  # type: ignore[arg-type]
        assert math.isclose(executor.draw(profile, 1), expected)


async def test_a_batch_that_would_take_longer_than_it_may_ends_then_and_takes_the_executor_with_it(
    catalogue: Catalogue,
) -> None:
    executor = await started(catalogue, slowdown=50.0)  # half a second
    ends: list[str] = []
    executor.watch(lambda: ends.append("ended"))
    begun = time.monotonic()
    with pytest.raises(ExecutionError, match=r"double: run took more than 0\.05 s") as caught:
        await executor.run("double", [query((1, 2))], 1, within=0.05)
    assert caught.value.fatal
    assert time.monotonic() - begun == pytest.approx(0.05)
    assert ends == ["ended"]
    with pytest.raises(ExecutionError, match="not started"):
        await executor.run("double", [query((1, 2))], 1)
    await executor.start()
    await executor.load(catalogue.variants["double"], max_batch=1)
    await executor.run("double", [query((1, 2))], 1, within=5.0)


@pytest.mark.parametrize("hangs", ["load", "run"])
async def test_what_takes_too_long_ends_what_runs_waits_and_loads_beside_it(catalogue: Catalogue, hangs: str) -> None:
    executor = await started(catalogue, slowdown=50.0)  # half a second; a load takes less
    ends: list[str] = []
    executor.watch(lambda: ends.append("ended"))
    begun = time.monotonic()
    load = executor.load(catalogue.variants["triple"], max_batch=1, within=0.005 if hangs == "load" else None)
    runs = [executor.run("double", [query((1, 2))], 1, within=0.005 if hangs == "run" else None) for _ in range(2)]
    first, second, loaded = await asyncio.gather(*runs, load, return_exceptions=True)
    assert time.monotonic() - begun == pytest.approx(0.005)
    assert ends == ["ended"]
    assert isinstance(first, ExecutionError) and first.fatal and first.blameless == (hangs == "load")
    assert isinstance(second, ExecutionError) and second.fatal and second.blameless
    assert isinstance(loaded, LoadError)
    await executor.start()
    assert executor.loads == {}
