"""Cutting fake GPUs: placement rules, the order of steps, what stays, and messages for what goes wrong."""

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.executors.devices.cuda import CPU, CUDA, cuda_providers, refuse_fallback, warm_sizes
from sluicegate.executors.devices.fake_gpus import FakeLibrary, fake_library
from sluicegate.executors.devices.gpu_library import DeviceError, Fault
from sluicegate.executors.devices.mig_manager import StepKind, apply, discover, look, steps_to


def test_an_empty_gpu_is_cut_and_each_slice_gets_a_uuid() -> None:
    library = FakeLibrary("a100", 2)
    found = apply(library, 1, ("4g", "2g", "1g"))
    assert found.geometry == ("4g", "2g", "1g")
    assert [(i.profile, i.start) for i in found.instances] == [("4g", 0), ("2g", 4), ("1g", 6)]
    assert len({i.uuid for i in found.instances}) == 3
    assert all(i.uuid.startswith("MIG-") for i in found.instances)
    assert look(library, 0).instances == ()


def test_instances_that_can_stay_keep_their_uuid_and_compute_goes_before_its_instance() -> None:
    library = FakeLibrary("a100", 1)
    before = apply(library, 0, ("4g", "3g"))
    library.log.clear()
    after = apply(library, 0, ("4g", "2g", "1g"))
    assert after.instances[0] == before.instances[0]
    old = before.instances[1].id
    assert library.log[:2] == [f"0 destroy compute of {old}", f"0 destroy {old}"]
    assert [line.split()[1] for line in library.log[2:]] == ["create"] * 4


def test_an_instance_that_was_left_half_made_is_no_slice_and_is_made_again() -> None:
    library = FakeLibrary("a100", 1)
    whole = apply(library, 0, ("3g",)).instances[0]
    half = library.create_instance(0, "2g", 4)  # who cut was ended before its compute instance
    found = look(library, 0)
    assert (found.geometry, [part.name for part in found.device("gpu0", "a100").slices]) == (("3g",), ["3g.0"])
    assert [(s.kind, s.instance) for s in steps_to(library, 0, ("3g", "2g"))][:1] == [(StepKind.DESTROY, half)]
    after = apply(library, 0, ("3g", "2g"))
    assert after.instances[0] == whole
    assert after.instances[1].uuid.startswith("MIG-")


def test_a_busy_slice_stops_the_change_with_a_remedy_and_stands() -> None:
    library = FakeLibrary("a100", 1)
    found = apply(library, 0, ("3g", "3g"))
    library.busy.add((0, found.instances[0].id))
    with pytest.raises(ConfigurationError, match=r"a process runs on instance .* \(in use\); drain the GPU first"):
        apply(library, 0, ("7g",))
    assert found.instances[0] in look(library, 0).instances


def test_without_rights_nothing_changes_and_the_message_says_so() -> None:
    library = FakeLibrary("a100", 1, privileged=False)
    with pytest.raises(ConfigurationError, match=r"no permission.*run as root"):
        apply(library, 0, ("7g",))
    assert look(library, 0).instances == ()


def test_mig_mode_is_switched_on_first() -> None:
    library = FakeLibrary("a100", 1, mig=False)
    assert [s.kind for s in steps_to(library, 0, ("7g",))] == [StepKind.ENABLE_MIG]
    assert apply(library, 0, ("4g", "3g")).geometry == ("4g", "3g")


def test_the_fake_enforces_the_placement_rules() -> None:
    library = FakeLibrary("a100", 1)
    library.create_instance(0, "4g", 0)
    for profile, start in (("3g", 0), ("4g", 4), ("7g", 0), ("2g", 5), ("1g", 3)):
        with pytest.raises(DeviceError) as caught:
            library.create_instance(0, profile, start)
        assert caught.value.fault is Fault.NO_ROOM
    made = library.create_instance(0, "3g", 4)
    compute = library.create_compute(0, made)
    with pytest.raises(DeviceError, match="still has a compute instance"):
        library.destroy_instance(0, made)
    library.destroy_compute(0, made, compute)
    library.destroy_instance(0, made)


def test_what_cannot_be_placed_is_refused_before_anything_is_touched() -> None:
    library = FakeLibrary("a100", 1)
    with pytest.raises(InvalidInputError, match="cannot be placed"):
        steps_to(library, 0, ("4g", "3g", "1g"))
    assert library.log == []


def test_the_same_geometry_takes_no_steps_and_a_dry_look_touches_nothing() -> None:
    library = FakeLibrary("h200", 1)
    apply(library, 0, ("4g", "3g"))
    library.log.clear()
    assert steps_to(library, 0, ("3g", "4g")) == []
    assert len(steps_to(library, 0, ("1g",) * 7)) == 9
    assert library.log == []


def test_found_gpus_become_devices_with_a_slice_an_instance() -> None:
    library = FakeLibrary("a100", 1)
    apply(library, 0, ("4g", "3g"))
    device = discover(library)[0].device("gpu0", "a100")
    assert [(s.profile, s.memory_bytes >> 30) for s in device.slices] == [("4g", 20), ("3g", 20)]
    assert [s.name for s in device.slices] == ["4g.0", "3g.4"]
    whole = discover(FakeLibrary("a100", 1, mig=False))[0].device("gpu0", "a100")
    assert [s.profile for s in whole.slices] == ["whole"]


@pytest.mark.parametrize("text", ["", "tpux4", "a100x0", "a100x99999", "a100x-1", "a100 x8"])
def test_a_fake_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--fake-gpu"):
        fake_library(text)


def test_the_cpu_is_refused_unless_asked_for() -> None:
    refuse_fallback([CUDA, CPU])
    refuse_fallback([CPU], fallback=True)
    with pytest.raises(ConfigurationError, match="not on CUDA"):
        refuse_fallback([CPU])
    name, options = cuda_providers(1 << 30)[0]
    assert (name, options["gpu_mem_limit"], options["cudnn_conv_algo_search"]) == (CUDA, 1 << 30, "HEURISTIC")
    assert len(cuda_providers(fallback=True)) == 2
    assert warm_sizes(4) == (4, 3, 2, 1)
