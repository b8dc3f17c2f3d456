"""Checks of a problem that every planner makes first: what comes from outside may be anything."""

import math

from sluicegate.domain.errors import InvalidInputError
from sluicegate.planner.problems.problem import Problem


def check(problem: Problem, *, by_slo: bool = False) -> None:
    """Raise InvalidInputError for numbers that are not finite or out of range, and for repeated names.

    ``by_slo``: an app may be asked for with several SLOs.
    """
    seen: set[tuple[str, str, float]] = set()
    for demand in problem.demands:
        field = f"demands[{demand.app}]"
        _number(f"{field}.qps", demand.qps, at_least=0.0)
        _number(f"{field}.slo", demand.slo, above=0.0)
        _number(f"{field}.headroom", demand.headroom, at_least=1.0)
        _number(f"{field}.spread", demand.spread, at_least=0.0)
        _number(f"{field}.min_accuracy", demand.min_accuracy, at_least=0.0)
        _number(f"{field}.weight", demand.weight, above=0.0)
        key = (demand.app, demand.query_class, demand.slo if by_slo else 0.0)
        if key in seen:
            raise InvalidInputError(field, f"listed twice for class {demand.query_class}; add the demands up")
        seen.add(key)
    names: set[str] = set()
    for device in problem.devices:
        if device.name in names:
            raise InvalidInputError(f"devices[{device.name}]", "listed twice; names of devices are unique")
        names.add(device.name)
        _number(f"devices[{device.name}].price", device.price, at_least=0.0)
        _number(f"devices[{device.name}].memory_bytes", device.memory_bytes, at_least=0)
    for (variant, device_type), factor in problem.latency_factor.items():
        _number(f"latency_factor[{variant}@{device_type}]", factor, above=0.0)
    _number("price", problem.price, at_least=0.0)
    for app, seconds in problem.stood.items():
        _number(f"stood[{app}]", seconds, at_least=0.0)
    _number("money_weight", problem.money_weight, at_least=0.0)
    _number("strict_on_demand", problem.strict_on_demand, at_least=0.0)
    if problem.strict_on_demand > 1.0:
        raise InvalidInputError(
            "strict_on_demand", f"{problem.strict_on_demand} is above 1; it is a part of the demand"
        )
    if problem.budget is not None:
        _number("budget", problem.budget, at_least=0.0)
    if problem.variants_per_device < 1:
        raise InvalidInputError("variants_per_device", f"{problem.variants_per_device} is below 1")
    if problem.max_loads is not None and problem.max_loads < 0:
        raise InvalidInputError("max_loads", f"{problem.max_loads} is negative; leave it out for no limit")


def _number(field: str, value: float, *, at_least: float | None = None, above: float | None = None) -> None:
    if not math.isfinite(value):
        raise InvalidInputError(field, f"{value} is not a finite number")
    if at_least is not None and value < at_least:
        raise InvalidInputError(field, f"{value} is below {at_least}")
    if above is not None and value <= above:
        raise InvalidInputError(field, f"{value} is not above {above}")
