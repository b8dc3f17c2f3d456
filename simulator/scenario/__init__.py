"""Scenario files: what is simulated, written down. ``read_scenario`` validates one, ``build`` makes it runnable."""

from sluicegate.simulator.scenario.build_control import controller_settings
from sluicegate.simulator.scenario.build_scenario import build, catalogue_of, source_of, warm_up_of
from sluicegate.simulator.scenario.scenario_fields import Scenario
from sluicegate.simulator.scenario.scenario_file import overridden, read_scenario, scenario_of, with_setting
from sluicegate.simulator.scenario.sliced_devices import devices_of

__all__ = [
    "Scenario",
    "build",
    "catalogue_of",
    "controller_settings",
    "devices_of",
    "overridden",
    "read_scenario",
    "scenario_of",
    "source_of",
    "warm_up_of",
    "with_setting",
]
