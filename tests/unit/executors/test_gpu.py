"""A GPU as its worker holds it: cut, restored, opened with MPS; settings of CUDA and slices; estimated profiles."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.models.profile import BatchLatency, LengthPoints, Profile
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.executors.devices.cuda import warm_sizes
from sluicegate.executors.devices.fake_gpus import FakeLibrary
from sluicegate.executors.devices.gpu import Gpu, MpsOptions
from sluicegate.executors.devices.gpu_library import DeviceError, Fault
from sluicegate.executors.onnx import sessions
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slice_profiles import rdf_of, with_slices
from sluicegate.sluice.settings.settings import DeviceSettings, Settings
from sluicegate.sluice.system.deployed_gpus import Gpus
from tests.harness import toy_catalogue

COMPUTE = {"7g": 7, "4g": 4, "1g": 1}


class Clumsy(FakeLibrary):
    """Cannot make instances of one profile."""

    def create_instance(self, gpu: int, profile: str, start: int) -> int:
        if profile == "2g":
            raise DeviceError(Fault.OTHER, "an instance of 2g cannot be made")
        return super().create_instance(gpu, profile, start)


async def test_a_gpu_without_instances_is_cut_and_its_slices_keep_their_names() -> None:
    gpu = Gpu(FakeLibrary("a100", 2), 1, name="gpu1", kind="a100")
    assert gpu.uncut
    slices = await gpu.cut(("4g", "2g", "1g"))
    assert [s.name for s in slices] == ["4g.0", "2g.4", "1g.6"]
    before = gpu.visible("2g.4")["CUDA_VISIBLE_DEVICES"]
    await gpu.cut(("7g",))
    assert (await gpu.cut(("4g", "2g", "1g"))) == slices
    assert gpu.visible("2g.4")["CUDA_VISIBLE_DEVICES"] != before


def test_a_gpu_that_has_nothing_but_a_half_made_instance_is_uncut() -> None:
    library = FakeLibrary("a100", 2)
    library.create_instance(1, "4g", 0)
    gpu = Gpu(library, 1, name="gpu1", kind="a100")
    assert gpu.uncut
    assert [part.name for part in gpu.device.slices] == ["whole"]


async def test_a_cut_that_fails_half_way_is_undone_and_told() -> None:
    gpu = Gpu(Clumsy("a100", 1), 0, name="gpu0", kind="a100")
    await gpu.cut(("4g", "3g"))
    with pytest.raises(ConfigurationError, match="gpu0: an instance of 2g cannot be made"):
        await gpu.cut(("4g", "2g", "1g"))
    assert [s.name for s in gpu.device.slices] == ["4g.0", "3g.4"]


async def test_slices_on_which_processes_run_are_not_cut() -> None:
    gpu = Gpu(FakeLibrary("a100", 1), 0, name="gpu0", kind="a100")
    await gpu.cut(("3g", "3g"))
    await gpu.open("3g.4")
    with pytest.raises(ConfigurationError, match="in use"):
        await gpu.cut(("7g",))
    await gpu.close("3g.4")
    assert [s.profile for s in await gpu.cut(("7g",))] == ["7g"]


async def test_each_slice_has_an_mps_daemon_of_its_own_while_it_is_open(tmp_path: Path) -> None:
    said: list[tuple[Sequence[str], Mapping[str, str], str]] = []
    options = MpsOptions(folder=tmp_path, threads=50, run=lambda *call: said.append(call))
    gpu = Gpu(FakeLibrary("a100", 1), 0, name="gpu0", kind="a100", mps=options)
    await gpu.cut(("4g", "3g"))
    await gpu.open("4g.0")
    environment = gpu.visible("4g.0")
    assert said[0][1]["CUDA_MPS_PIPE_DIRECTORY"] == environment["CUDA_MPS_PIPE_DIRECTORY"]
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] != gpu.visible("3g.4")["CUDA_MPS_PIPE_DIRECTORY"]
    await gpu.close("4g.0")
    assert [call[2] for call in said] == ["", "quit\n"]


def settings(**changes: Any) -> Settings:
    return Settings(devices=(DeviceSettings(name="gpu0", type="a100", gpu=0),), **changes)


def test_the_first_cut_is_one_instance_or_what_the_settings_say_if_it_can_be_placed() -> None:
    [gpu] = settings().all_devices()
    assert Gpus(settings()).first_cut(gpu) == ("7g",)
    assert Gpus(settings()).first_cut(replace(gpu, type="a30")) == ("4g",)
    assert Gpus(settings(worker={"slices": {"geometry": "1g+4g+2g"}})).first_cut(gpu) == ("4g", "2g", "1g")
    with pytest.raises(ConfigurationError, match="cannot be placed on a100"):
        Gpus(settings(worker={"slices": {"geometry": "4g+4g"}})).first_cut(gpu)


async def test_settings_reach_the_process_of_a_slice() -> None:
    gpu = Gpu(FakeLibrary("a100", 1), 0, name="gpu0", kind="a100")
    [part] = await gpu.cut(("7g",))
    usual = Gpus(settings()).runtime(gpu, part)
    assert usual.memory_limit_bytes == part.memory_bytes
    assert (usual.warm_every_size, usual.cpu_fallback) == (True, False)
    assert usual.environment()["CUDA_VISIBLE_DEVICES"].startswith("MIG-")
    cuda = {"memory_limit_mb": 100, "convolution_search": "DEFAULT", "warm_every_batch": False, "cpu_fallback": True}
    asked = Gpus(settings(worker={"cuda": cuda})).runtime(gpu, part)
    assert (asked.memory_limit_bytes, asked.warm_every_size) == (100 << 20, False)
    [(_, options), second] = asked.providers()
    assert (options["cudnn_conv_algo_search"], second) == ("DEFAULT", "CPUExecutionProvider")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"fake_gpu": "tpux4"}, "fake_gpu"),
        ({"worker": {"slices": {"geometry": "4g+"}}}, "geometry"),
        ({"worker": {"slices": {"choice": "best"}}}, "choice"),
        ({"worker": {"slices": {"rdf": {"1g": 0.5}}}}, "rdf"),
        ({"worker": {"cuda": {"mps_threads": 0}}}, "mps_threads"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        settings(**changes)


def test_fake_gpus_are_the_devices_and_profiled_on_every_slice_they_can_have() -> None:
    fake = Settings(fake_gpu="a100x2")
    assert [(d.name, d.type) for d in fake.all_devices()] == [("gpu0", "a100"), ("gpu1", "a100")]
    with pytest.raises(ConfigurationError, match="leave out devices"):
        settings(fake_gpu="a100x2").all_devices()
    profiled = Gpus(fake).profiled(toy_catalogue())
    kinds = {kind for variant, kind in profiled.profiles if variant == "toy-v0"}
    assert kinds == {"cpu", "a100", *(f"a100:{n}g" for n in (1, 2, 3, 4, 7))}


def test_what_was_measured_on_a_slice_stands_and_the_rest_is_slowed() -> None:
    points = (BatchLatency(1, 0.1, 0.12), BatchLatency(2, 0.15, 0.2))
    whole = Profile(variant="toy-v0", device_type="a100", points=points, length=8, shorter=(LengthPoints(4, points),))
    measured = Profile(variant="toy-v0", device_type="a100:1g", points=(BatchLatency(1, 1.0, 1.0),))
    toy = toy_catalogue()
    found = with_slices(
        Catalogue.of(toy.apps.values(), toy.variants.values(), (whole, measured)), "a100", COMPUTE, rdf={"4g": 1.25}
    )
    assert found.profiles["toy-v0", "a100:1g"] == measured
    assert found.profiles["toy-v0", "a100:7g"].points == points
    on_4g = found.profiles["toy-v0", "a100:4g"]
    assert on_4g.points[1].p95 == pytest.approx(0.25)
    assert on_4g.shorter[0].points[0].median == pytest.approx(0.125)
    assert rdf_of(1, 7) == 4.0


def test_warming_runs_every_size_where_each_is_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Session:
        sizes: list[int] = []  # noqa: RUF012 - one for the test

        def run(self, outputs: Sequence[str], inputs: Mapping[str, Any]) -> None:
            del outputs
            self.sizes.append(len(inputs["x"]))

    monkeypatch.setattr(time, "perf_counter", lambda: 100.0 * len(Session.sizes))
    spec = (TensorSpec("x", "FP32", (1,)),)
    sessions._warm(Session(), spec, ("y",), warm_sizes(5), within=600.0)
    assert Session.sizes == [5, 4, 3, 2, 1]
    sessions._warm(Session(), spec, ("y",), sessions._doubling(64), within=150.0)
    assert Session.sizes[5:] == [1, 2]


def test_slices_of_a_device_are_shared_by_rule_unless_the_plan_is_to_decide() -> None:
    device = settings().all_devices()[0]
    cut = [Slice("4g.0", "4g", 20), Slice("3g.4", "3g", 20)]
    both = replace(device, slices=tuple(cut))
    by_rule = settings(worker={"slices": {"choice": "strict-first"}})
    assert Gpus(by_rule).sharing(both) is not None
    assert Gpus(by_rule).sharing(device) is None
    assert Gpus(settings()).sharing(both) is None
