"""Settings of scaling and procurement: what makes no sense is one clear line; notes on devices reach the controller."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.events import DeviceSeen
from sluicegate.planner.control.events import DeviceNoted
from sluicegate.planner.control.notes import DeviceNotes
from sluicegate.sluice.settings.elastic_settings import DriverSettings, ProcurementSettings, ScalingSettings
from sluicegate.sluice.settings.settings import DeviceSettings
from sluicegate.sluice.system import elastic_capacity
from sluicegate.sluice.system.elastic_capacity import driver, scaler
from sluicegate.sluice.system.process_stages import asked_for, stages_of
from sluicegate.sluice.system.system import System
from sluicegate.streams import connect
from sluicegate.streams.records import control
from tests.harness import PATIENCE_S, settings_for, toy_catalogue


def built(folder: Path, **changes: object) -> System:
    changes.setdefault("devices", tuple(DeviceSettings(name=n) for n in ("d0", "d1")))
    broker = connect("memory://")
    settings = settings_for("memory://", folder).model_copy(update=changes)
    return System(settings, toy_catalogue(), folder, broker, broker.producer(), folder)


def test_workers_of_spare_devices_are_the_drivers(tmp_path: Path) -> None:
    system = built(tmp_path, scaling=ScalingSettings(spare=("d1",)))
    assert {"worker d0", "worker d1"} & {s.name for s in stages_of(system, ["worker"])} == {"worker d0"}
    assert "worker d1" in {s.name for s in stages_of(system, ["worker"], devices=["d1"])}
    assert "scaler" in {s.name for s in stages_of(system, ["scaler"])}
    assert asked_for(system.settings, "scaler")  # all stages at once would open the sink's files
    assert not asked_for(built(tmp_path).settings, "scaler")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"scaling": ScalingSettings(spare=("d9",))}, "scaling.spare: 'd9' is not among"),
        ({"procurement": ProcurementSettings(notices="n.json", on_demand_price=4)}, "no device is set as spot"),
        (
            {
                "devices": (DeviceSettings(name="d0"), DeviceSettings(name="d1", spot=True)),
                "procurement": ProcurementSettings(notices="n.json", on_demand_price=4),
                "scaling": ScalingSettings(spare=("d1",)),
            },
            "'d1' is a spot device",
        ),
    ],
)
def test_what_makes_no_sense_is_told_at_the_start(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        built(tmp_path, **changes)


def test_stages_and_drivers_that_cannot_be_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no spare devices"):
        stages_of(built(tmp_path), ["scaler"])
    with pytest.raises(ConfigurationError, match="nothing is bought"):
        stages_of(built(tmp_path), ["procurement"])
    with pytest.raises(ConfigurationError, match="needs kafka://"):
        driver(built(tmp_path, drivers=DriverSettings(name="processes")))
    unknown = tuple(DeviceSettings(name=n, type=t) for n, t in (("d0", "cpu"), ("d1", "tpu")))
    with pytest.raises(ConfigurationError, match="fast enough on tpu"):
        scaler(built(tmp_path, devices=unknown, scaling=ScalingSettings(spare=("d1",))))


@pytest.mark.parametrize("roles", [["router"], ["worker"], ["admission"], ["sink"], ["http"], ["web"], ["planner"], []])
def test_an_app_that_the_system_does_not_have_is_told_whatever_stage_is_asked_for(
    tmp_path: Path, roles: list[str]
) -> None:
    system = built(tmp_path)
    with pytest.raises(ConfigurationError, match="apps: nope not in the catalogue; it has toy"):
        stages_of(system, roles, apps=["toy", "nope"])


def test_a_device_is_refused_where_no_worker_runs(tmp_path: Path) -> None:
    told = "^devices: d0 means nothing to admission, router; name worker too, or leave it out$"
    with pytest.raises(ConfigurationError, match=told):
        stages_of(built(tmp_path), ["router", "admission"], devices=["d0"])


@pytest.mark.parametrize(
    "notices", ["http://169.254.169.254/latest", "https://example.org/notices", "http://127.0.0.1.example.org/", " "]
)
def test_notices_from_elsewhere_must_be_meant(notices: str) -> None:
    with pytest.raises(ValidationError, match="notices"):
        ProcurementSettings(notices=notices, on_demand_price=4.0)


@pytest.mark.parametrize("notices", ["http://127.0.0.1:8000/n", "http://[::1]/n", "http://localhost/n", "/etc/notices"])
def test_notices_from_this_machine_are_taken(notices: str) -> None:
    assert ProcurementSettings(notices=notices, on_demand_price=4.0).is_address == notices.startswith("http")


def test_a_device_is_left_out_while_any_stage_withdraws_it() -> None:
    notes = DeviceNotes()
    seen = DeviceSeen("d1", "cpu", "i", price=1.0)
    assert notes.noted(seen) is seen
    for by, withdrawn in (("scaler", True), ("procurement", True), ("procurement", False)):
        notes.put(DeviceNoted("d1", by, withdrawn, 4.0 if by == "procurement" else None))
    assert notes.noted(seen) == DeviceSeen("d1", "cpu", "i", price=4.0, leaving=True)
    assert notes.noted(DeviceSeen("d2", "cpu", "i")) == DeviceSeen("d2", "cpu", "i")
    notes.put(DeviceNoted("d1", "scaler"))
    assert not notes.noted(seen).leaving
    notes.put(DeviceNoted("d1", "a market", price=9.0))
    assert notes.noted(seen).price == 4.0  # of several the last by name


@pytest.mark.parametrize(
    "value", [b"", b"[]", b'{"device":"d"}', b'{"device":"d","by":"x","withdrawn":true,"price":-1}']
)
def test_a_note_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidInputError):
        control.decode_note(value)


async def test_workers_that_are_started_share_what_is_set_but_for_a_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    script = f'env > "{told}.part"; mv "{told}.part" "{told}"; exec sleep 60'
    monkeypatch.setattr(elastic_capacity, "_command", lambda _: lambda _: ("sh", "-c", script))
    monkeypatch.setenv("SLUICE_METRICS__PORT", "9464")
    monkeypatch.setenv("SLUICE_KAFKA__PASSWORD", "swordfish")
    monkeypatch.setenv("SLUICE_PREFIX", "another")
    workers = driver(built(tmp_path, broker="kafka://127.0.0.1:9", drivers=DriverSettings(name="processes")))
    try:
        await workers.start("d1")
        async with asyncio.timeout(PATIENCE_S):
            while not told.exists():
                await asyncio.sleep(0.01)
    finally:
        await workers.close()
    lines = told.read_text().splitlines()
    assert "SLUICE_KAFKA__PASSWORD=swordfish" in lines
    assert not [line for line in lines if line.startswith("SLUICE_METRICS")], "each but the first would find it taken"
    assert not [line for line in lines if line.startswith("SLUICE_PREFIX")], "it stands above what is written down"
