"""Every core can be recorded: what it hears and says is written down whole, and replays to identical actions."""

from collections import Counter
from pathlib import Path
from typing import get_type_hints

from sluicegate.planner.capacity.core import CapacityCore
from sluicegate.planner.capacity.events import CapacityEvent
from tests.architecture.test_engine_reaches import REACHING, machines
from tests.models.recorded_cores import cores, noted
from tests.models.unequal import NOW, cases, simulated, unequal

WORLDS = (*REACHING, "a late app", "batching balanced", "faults", "scaling ilp", "turns duty-cycle", "two planners")


def test_every_core_replays_to_what_it_decided_in_every_world(tmp_path: Path) -> None:
    heard: Counter[str] = Counter()
    rules: set[str] = set()
    for name in WORLDS:
        with noted(steps=True) as made:
            simulated(unequal(cases()[name]), NOW)
        for core, one in made.items():
            assert one.differences(tmp_path) == [], (name, one.kind)
            heard[one.kind.__name__] += len(one.steps)
            rules.add(type(getattr(core, "_policy", None)).__name__)
    assert heard.keys() == cores().keys()
    assert min(heard.values()) > 100
    of_capacity = {name for name, kind in machines().items() if _hears(kind) == CapacityEvent}
    assert len(of_capacity) == 4
    assert of_capacity - {CapacityCore.__name__} <= rules, "each rule of capacity has been behind its core"


def _hears(kind: type) -> object:
    return get_type_hints(vars(kind)["handle"]).get("event")
