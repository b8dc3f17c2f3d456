"""What the settings say of planning reaches the controller."""

from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.planner.estimates.device_liveness import SELF_FENCE, SILENCE
from sluicegate.policies.serving.device_actions import CatchUp
from sluicegate.policies.serving.device_events import Joined, Opened, Suspended
from sluicegate.sluice.settings.settings import DeviceSettings, PlannerSettings, load
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.roles.worker import device_core
from sluicegate.sluice.system.system import System
from sluicegate.streams import connect
from tests.harness import settings_for, toy_catalogue


def test_money_and_loads_are_the_controllers(tmp_path: Path) -> None:
    planner = PlannerSettings(
        headroom=1.5, variants_per_device=2, max_loads=3, money_weight=0.1, budget=4.0, strict_on_demand=0.5
    )
    broker = connect("memory://")
    system = System(
        settings_for("memory://", tmp_path, planner=planner),
        toy_catalogue(),
        tmp_path,
        broker,
        broker.producer(),
        tmp_path,
    )
    stage = next(s for s in stages_of(system, ["planner"]) if s.name == "planner")
    settings = stage.core.settings.rules  # type: ignore[attr-defined]
    assert (settings.headroom, settings.variants_per_device, settings.max_loads) == (1.5, 2, 3)
    assert (settings.money_weight, settings.budget, settings.strict_on_demand) == (0.1, 4.0, 0.5)


def test_off_is_a_choice_and_yes_and_on_still_are_true(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("planner: {geometry: off}\nworker: {cuda: {mps: on, cpu_fallback: yes, warm_every_batch: off}}\n")
    settings = load(file)
    assert settings.planner.geometry == "off"
    cuda = settings.worker.cuda
    assert (cuda.mps, cuda.cpu_fallback, cuda.warm_every_batch) == (True, True, False)


@pytest.mark.parametrize("line", ["headroom: 0.5", "strict_on_demand: 2", "budget: .nan", "demand: carrier-pigeon"])
def test_what_makes_no_sense_is_refused_with_the_field(line: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"planner:\n  {line}\n")
    with pytest.raises(ConfigurationError, match=f"planner.{line.split(':')[0]}"):
        load(file)


def test_a_device_of_a_type_that_nothing_is_profiled_on_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = connect("memory://")
    devices = (DeviceSettings(name="odd0", type="tpu"), DeviceSettings(name="even1", type="cpu"))
    settings = settings_for("memory://", tmp_path).model_copy(update={"devices": devices})
    system = System(settings, toy_catalogue(), tmp_path, broker, broker.producer(), tmp_path)
    assert [stage.name for stage in stages_of(system, ["worker"])]
    told = [record.getMessage() for record in caplog.records if "profiled" in record.getMessage()]
    assert len(told) == 1 and "device odd0: nothing is profiled on type 'tpu'" in told[0] and "there are cpu" in told[0]


def test_apps_that_are_not_served_are_not_planned_for(tmp_path: Path) -> None:
    broker = connect("memory://")
    settings = settings_for("memory://", tmp_path, apps=("toy",))
    system = System(settings, toy_catalogue(("toy", "other")), tmp_path, broker, broker.producer(), tmp_path)
    assert set(system.catalogue.apps) == {"toy"}
    assert {v.app for v in system.catalogue.variants.values()} == {"toy"}
    assert {p.variant for p in system.catalogue.profiles.values()} == set(system.catalogue.variants)


def test_the_estimate_of_demand_is_set_by_name(tmp_path: Path) -> None:
    def started(**options: float) -> object:
        settings = settings_for("memory://", tmp_path, planner={"estimate": options, "price": 0.25})
        broker = connect("memory://")
        system = System(settings, toy_catalogue(), tmp_path, broker, broker.producer(), tmp_path)
        stage = next(s for s in stages_of(system, ["planner"]) if s.name == "planner")
        return stage.core.settings.rules  # type: ignore[attr-defined]

    rules = started(alpha=0.2, headroom_floor=1.3)
    assert (rules.demand.alpha, rules.demand.headroom_floor, rules.price) == (0.2, 1.3, 0.25)  # type: ignore[attr-defined]
    for option, value, said in (
        ("alfa", 0.2, "it takes alpha"),
        ("alpha", 1.5, "above 1"),
        ("window", 0.0, "positive"),
    ):
        with pytest.raises(ConfigurationError, match=f"planner.estimate.{option}.*{said}"):
            started(**{option: value})


def test_an_accuracy_that_no_variant_has_is_refused(tmp_path: Path) -> None:
    broker = connect("memory://")
    for least, refused in ((0.9, False), (0.91, True)):
        settings = settings_for("memory://", tmp_path, min_accuracy={"toy": least}, weights={"toy": 3.0})
        if refused:
            with pytest.raises(ConfigurationError, match=r"min_accuracy.toy: 0.91, and its best variant has 0.9"):
                System(settings, toy_catalogue(), tmp_path, broker, broker.producer(), tmp_path)
        else:
            system = System(settings, toy_catalogue(), tmp_path, broker, broker.producer(), tmp_path)
            app = system.catalogue.apps["toy"]
            assert (app.min_accuracy, app.weight) == (0.9, 3.0)


def test_a_worker_that_stood_still_asks_before_another_may_have_its_place(tmp_path: Path) -> None:
    """Whatever time planners give it."""
    for timeout in (0.8, 4.0):
        settings = settings_for("memory://", tmp_path, planner=PlannerSettings(device_timeout_s=timeout))
        broker = connect("memory://")
        system = System(settings, toy_catalogue(), tmp_path, broker, broker.producer(), tmp_path)
        core = device_core(system, system.devices[0])
        core.handle(Opened(system.devices[0].slices), 50.0)
        core.handle(Joined("i-7"), 50.0)
        assert core.handle(Suspended(0.49 * timeout), 60.0) == []
        assert core.handle(Suspended(0.51 * timeout), 60.0) == [CatchUp()]
    assert SELF_FENCE < SILENCE < 1.0
