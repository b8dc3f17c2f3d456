"""With ``record`` every core of a running system has a log, and each log replays to what was decided."""

import ast
import asyncio
import inspect
import json
import time
from pathlib import Path

import pytest

from sluicegate.sluice import system as composition
from sluicegate.sluice.settings.settings import DeviceSettings
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.decision_log import read_steps, replay
from sluicegate.streams import connect
from tests.harness import ROLES, running, settings_for
from tests.models.recorded_cores import cores, noted

pytestmark = pytest.mark.virtual


async def test_every_core_of_a_running_system_has_a_log_that_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = tuple(DeviceSettings(name=f"d{i}", price=1.0 + i, spot=i == 3) for i in range(5))
    settings = settings_for(
        "memory://",
        tmp_path,
        record=True,
        slo_s={"toy": 1.0},
        planner={"scaling": "greedy", "spare": ("d4",)},
        scaling={"spare": ["d2"], "period_s": 0.2},
        procurement={"notices": str(tmp_path / "notices.json"), "on_demand_price": 4.0, "poll_s": 0.1},
    ).model_copy(update={"devices": devices})
    logs: dict[int, list[str]] = {}
    plain = System.recording

    def recording(self: System, handle, name: str):  # type: ignore[no-untyped-def]
        logs.setdefault(id(handle.__self__), []).append(name)
        return plain(self, handle, name)

    monkeypatch.setattr(System, "recording", recording)
    with noted(steps=False) as made:
        async with running(settings, connect("memory://"), roles=(*ROLES, "scaler", "procurement")) as run:
            await run.ask(parameters={"latency_ms": 30_000})
            await run.settled()
            for number in range(60):
                await run.ask(parameters={"latency_ms": 2000, **({"model": "toy-v2"} if number % 5 == 0 else {})})
                await asyncio.sleep(0.02)
            (tmp_path / "notices.json").write_text(json.dumps([{"node": "d3", "deadline": time.time() + 0.5}]))
            await asyncio.sleep(2.0)
            await run.settled()
            run.stop.set()
            await run.task
            run.system.close()
    assert {one.kind for one in made.values()} == set(cores().values()), "every core has run"
    folder = run.system.run_folder / "decisions"
    for core, one in made.items():
        (name,) = logs[id(core)]  # every one of them was recorded, once
        log = folder / f"{name}.jsonl"
        assert len(list(read_steps(log, one.events))) > 5, name
        assert replay(log, one.fresh().handle, one.events) == [], name
    assert {"scaler", "procurement", "scaling"} <= {name for names in logs.values() for name in names}


def test_no_shell_is_handed_what_decides_but_as_it_is_recorded() -> None:
    """Whoever makes a core and hands on its ``handle`` itself would leave it without a log."""
    folder = Path(inspect.getfile(composition)).parent
    found = []
    for file in sorted(folder.rglob("*.py")):
        tree = ast.parse(file.read_text())
        recorded = {
            id(call.args[0])
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "recording"
        }
        found += [
            f"{file.name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr == "handle" and id(node) not in recorded
        ]
    assert found == []
