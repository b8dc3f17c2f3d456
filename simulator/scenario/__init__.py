"""Scenario files: what is simulated, written down. ``read_scenario`` validates one, ``build`` makes it runnable."""

from simulator.scenario.build import build, catalogue_of, controller_settings, devices_of, source_of
from simulator.scenario.reading import overridden, read_scenario, scenario_of, with_setting
from simulator.scenario.spec import Scenario

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
    "with_setting",
]
