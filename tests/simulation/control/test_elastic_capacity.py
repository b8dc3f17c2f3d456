"""Workers that come and go in a run as live: by load and by notices of the market; nothing is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.outcome import Outcome
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.system_model import RunResult
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

SMALL = Path(__file__).resolve().parents[3] / "examples" / "scenarios" / "small.yaml"


class Served:
    """Seconds at which each device answered, by the arrival of the query."""

    def __init__(self) -> None:
        self.by: dict[str, set[int]] = {}

    def add(self, outcome: Outcome) -> None:
        if outcome.device:
            self.by.setdefault(outcome.device, set()).add(int(outcome.arrival))


def run(tmp_path: Path, rates: list[int], **changes: Any) -> tuple[RunResult, Served]:
    trace = tmp_path / "rates.csv"
    trace.write_text("".join(f"{rate}\n" for rate in rates))
    document = overridden(
        read_scenario(SMALL, {}),
        {
            "traces": {"format": "counts", "path": str(trace), "qps": None, "shares": {"images": 0.6, "words": 0.4}},
            "duration_s": len(rates),
            "simulation": {"service": "median"},
            **changes,
        },
    )
    scenario = scenario_of(document)
    system = build(scenario, lambda: 0.0)
    seen = Served()
    source = source_of(scenario, system.catalogue, np.random.default_rng(5))
    return Engine(system, np.random.default_rng(5), [seen]).run(source), seen


def test_a_spare_serves_while_the_load_needs_it_and_not_before_nor_long_after(tmp_path: Path) -> None:
    rates = [40] * 15 + [400] * 25 + [40] * 40
    devices = [{"type": "gpu", "count": 4, "price": 3600.0}]
    scaling = {"spare": ["gpu2", "gpu3"], "keep_alive_s": 5.0, "headroom": 1.4, "lead_s": 0.0, "start_s": 2.0}
    result, seen = run(tmp_path, rates, devices=devices, scaling=scaling)
    assert result.summary.violation_ratio < 0.1
    assert min(seen.by["gpu2"]) >= 15 + 2
    assert 38 <= max(seen.by["gpu2"]) < 60
    assert "gpu3" not in seen.by  # the first of the spares is enough
    assert {0, 79} <= seen.by["gpu0"] & seen.by["gpu1"]
    served = max(seen.by["gpu2"]) - min(seen.by["gpu2"])
    always = 2 * (5.0 + 80.0)  # warm-up and trace
    assert always + served <= result.cost["on_demand"] < always + served + 15.0, "each while its worker ran"


def test_a_spare_that_had_no_worker_when_it_failed_gets_none_by_its_return(tmp_path: Path) -> None:
    rates = [40] * 15 + [400] * 30
    scaling = {"spare": ["gpu2", "gpu3"], "headroom": 1.4, "lead_s": 0.0, "start_s": 10.0}
    failures = [
        {"device": "gpu1", "at_s": 2.0, "until_s": 6.0},
        {"device": "gpu2", "at_s": 5.0, "until_s": 17.0},
    ]
    changes: dict[str, Any] = {"devices": [{"type": "gpu", "count": 4}], "scaling": scaling}
    _, seen = run(tmp_path, rates, **changes, simulation={"service": "median", "failures": failures})
    assert min(seen.by["gpu2"]) >= 15 + 10, "once it was asked for and has started"
    assert not seen.by["gpu1"] & {3, 4, 5} and seen.by["gpu1"] & set(range(8, 15))


@pytest.mark.parametrize(("p_rev", "kind"), [(0.0, "spot"), (1.0, "on_demand")])
def test_a_noticed_device_is_drained_replaced_and_comes_back(tmp_path: Path, p_rev: float, kind: str) -> None:
    devices = [{"type": "gpu", "count": 2, "price": 3.0}, {"type": "gpu", "name": "cheap", "price": 1.0, "spot": True}]
    notice = {"device": "cheap0", "at_s": 10.0, "deadline_s": 40.0}
    market = {
        "on_demand_price": 3.0,
        "notices": [notice],
        "p_rev": p_rev,
        "boot_s": 5.0,
        "start_s": 1.0,
        "interval_s": 500.0,
    }
    result, seen = run(tmp_path, [60] * 60, devices=devices, procurement=market)
    assert result.summary.violation_ratio < 0.02
    assert seen.by["cheap0"] & set(range(10))
    assert not seen.by["cheap0"] & set(range(14, 16))  # the old worker has ended, no other serves yet
    assert set(range(25, 60)) <= seen.by["cheap0"]
    whole = 65.0 / 3600.0  # warm-up and trace
    always = 2 * 3.0 * whole
    if kind == "spot":
        assert result.cost == {"spot": pytest.approx(whole, rel=0.05), "on_demand": pytest.approx(always, rel=0.05)}
    else:
        assert result.cost["on_demand"] > 1.3 * always
        assert result.cost["spot"] < 0.5 * whole


def test_a_notice_for_an_instance_on_demand_takes_nothing_away(tmp_path: Path) -> None:
    devices = [{"type": "gpu", "count": 2, "price": 3.0}, {"type": "gpu", "name": "cheap", "price": 1.0, "spot": True}]
    first = {"device": "cheap0", "at_s": 5.0, "deadline_s": 7.0}
    second = {"device": "cheap0", "at_s": 20.0, "deadline_s": 28.0}
    market = {"on_demand_price": 3.0, "notices": [first, second], "p_rev": 1.0, "boot_s": 2.0, "interval_s": 500.0}
    _, seen = run(tmp_path, [60] * 45, devices=devices, procurement=market)
    assert set(range(19, 45)) <= seen.by["cheap0"], "on demand since the first notice"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"scaling": {"spare": ["gpu9"]}}, "gpu9"),
        ({"procurement": {"on_demand_price": 1.0}}, "no device is set as spot"),
    ],
)
def test_what_makes_no_sense_is_told(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        run(tmp_path, [10], devices=[{"type": "gpu", "count": 2}], **changes)
