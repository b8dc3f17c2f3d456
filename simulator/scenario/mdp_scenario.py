"""Batching by selection table or model switching in a scenario: made for its catalogue and devices.

Where the scenario has a section ``tables``, planners make and publish them for every plan, as live, and the options of
``policies.batching`` are those of the policy. Else they are made before the run, and the options are those of the
generator and of the policy:

- ``loads``: queries/s of the tables of each app (default: a library over all loads), less those of loads that would be
  violated by more than ``max_violation``; ``fixed_load``: queries/s that the
  policy is told instead of estimating them.
- ``criterion``, ``violation_price``, ``grid``, ``queue``, ``arrival_shape``, ``batching``, ``late``, ``phases``: the
  model's; ``spacing``, ``max_violation``: the library's; ``window_s``, ``tolerance``: the policy's; ``margin``: of
  both, a factor on latencies.

Model switching is given what each variant was measured to be capable of, on one central queue as published, unless
``capable`` says it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import Any

import numpy as np

from sluicegate.domain.errors import ConfigurationError, shown
from sluicegate.domain.events import Hosted
from sluicegate.domain.fleet.device import Device, profile_type
from sluicegate.domain.table import SelectionTable
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import SelectionModel, candidates, pareto_front
from sluicegate.planner.policy_tables.table_library import build_library, peak_rate
from sluicegate.planner.policy_tables.table_requests import LibraryRules, TableRules, rules_of
from sluicegate.policies.batching.registry import batching, selects
from sluicegate.policies.mdp_serving.table_policy import TableSelection
from sluicegate.policies.protocols import BatchingPolicy
from sluicegate.policies.routing.weighted import WeightedRouting
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.engine.service_times import ServiceTimes
from sluicegate.simulator.scenario.central_queue import capable_loads
from sluicegate.simulator.scenario.scenario_fields import PoliciesSpec, PolicySpec, TablesSpec

_MODEL = ("criterion", "violation_price", "grid", "queue", "arrival_shape", "batching", "late", "phases")
_RATED = tuple(f.name for f in fields(TableRules) if f.name in {*_MODEL, "margin"})
_LIBRARY = tuple(f.name for f in fields(LibraryRules))
_POLICY = ("window_s", "tolerance", "margin")
_OWN = ("loads", "fixed_load")
_NUMBERS = {"violation_price", "arrival_shape", "spacing", "max_violation", "guard_s", *_POLICY}
_TABLE = TableSelection.name
_STEPS = 48
_LEAST = 0.01
_MEASURED_S = 15.0
_LARGEST = 32
"""Queries a batch."""


def rules_of_tables(tables: TablesSpec | None, policies: PoliciesSpec) -> TableRules | None:
    """How planners make tables in the run; None where they make none. Raises ConfigurationError."""
    if tables is None:
        return None
    chosen = policies.batching
    if chosen.name != TableSelection.name:
        raise ConfigurationError(f"tables: policies.batching {chosen.name!r} follows none; choose table")
    return rules_of(tables, **_worker_rules(chosen))


def rated_by(tables: TablesSpec | None, policies: PoliciesSpec) -> TableRules | None:
    """By which tables slices that hold several variants are rated; None where nobody chooses among them."""
    chosen, admitted = policies.batching, policies.admission
    degrades = admitted is not None and admitted.options.get("mode") == "degrade"
    if not (selects(chosen.name) or degrades):
        return None
    if tables is not None:
        return rules_of(tables, **_worker_rules(chosen))
    return TableRules(**{"hop_s": 0.0, "guard_s": 0.0, "margin": 1.0, **_given(chosen.options, (*_RATED, "guard_s"))})


def _worker_rules(chosen: PolicySpec) -> dict[str, Any]:
    return {"guard_s": 0.0, "margin": None, **_given(chosen.options, ("guard_s", "margin"))}


def turns_told(tables: TablesSpec | None, routed: PolicySpec) -> dict[str, float]:
    """Options of routing where tables tell phases apart: routers then count turns."""
    counted = tables is not None and tables.phases > 1 and routed.name == WeightedRouting.name
    return {"turns_s": tables.turns_s} if counted and tables is not None else {}


def table_batching(
    options: Mapping[str, Any], catalogue: Catalogue, devices: Sequence[Device], apps: Sequence[str]
) -> Callable[[], BatchingPolicy]:
    """A factory of policies that hold the tables of every app. Raises ConfigurationError or InvalidInputError."""
    known = (*_OWN, *_MODEL, *_LIBRARY, *_POLICY)
    for option in options:
        if option not in known:
            known_names = ", ".join(known)
            raise ConfigurationError(f"policies.batching.{option}: table has no such option; it takes {known_names}")
    policy = _given(options, _POLICY)
    batching(_TABLE, **policy)  # a bad value is an error now
    loads = _numbers("loads", options.get("loads"))
    fixed = _numbers("fixed_load", options.get("fixed_load"))
    kind, workers = _workers(devices)
    margin = policy.get("margin", 1.0)
    tables: list[SelectionTable] = []
    for app in apps:
        model = SelectionModel(
            variants=pareto_front(candidates(catalogue, app, kind, margin=margin)),
            slo=catalogue.apps[app].slo,
            workers=workers,
            qps=0.0,
            **_given(options, _MODEL),
        )
        tables += _tables(model, app, kind, loads or fixed, options)
    qps = fixed[0] if fixed else None
    return lambda: TableSelection(tables=tables, qps=qps, **policy)


def switching_batching(
    name: str, options: Mapping[str, Any], catalogue: Catalogue, devices: Sequence[Device], apps: Sequence[str]
) -> Callable[[], BatchingPolicy]:
    """A factory of the policy ``name`` that knows its number of workers. Raises ConfigurationError."""
    kind, workers = _workers(devices)
    given = {"workers": workers, **options}
    if "capable" not in given:
        given["capable"] = {v: q for app in apps for v, q in _capable(catalogue, app, kind, workers).items()}
    return batching(name, **given)


def _capable(catalogue: Catalogue, app: str, kind: str, workers: int) -> dict[str, float]:
    """Queries/s up to which each variant violates less than a hundredth, to a tenth."""
    slo, rng = catalogue.apps[app].slo, np.random.default_rng(0)
    front = pareto_front(candidates(catalogue, app, kind))
    hosted = [
        Hosted(v.name, v.accuracy, catalogue.profiles[v.name, kind].curve("p95", _LARGEST)) for v in reversed(front)
    ]
    peak = peak_rate(SelectionModel(variants=front, slo=slo, workers=workers, qps=0.0))
    loads = (peak * np.geomspace(_LEAST, 1.0, _STEPS)).tolist()
    service = ServiceTimes(catalogue, "p95", rng).of(kind)
    return capable_loads(hosted, loads, rng, slo=slo, workers=workers, service=service, seconds=_MEASURED_S)


def _tables(
    model: SelectionModel, app: str, kind: str, loads: Sequence[float], options: Mapping[str, Any]
) -> list[SelectionTable]:
    rules = LibraryRules(**_given(options, _LIBRARY))
    if loads:
        tables = [generate(model.at(qps), app=app, worker_class=kind).table for qps in loads]
        return [t for t in tables if t.expected.violation <= rules.max_violation]
    return list(build_library(model, app=app, worker_class=kind, rules=rules))


def _workers(devices: Sequence[Device]) -> tuple[str, int]:
    """The one kind of worker and how many there are: a table is for equal workers."""
    kinds = Counter(profile_type(d.type, s.profile) for d in devices for s in d.slices)
    if len(kinds) != 1:
        raise ConfigurationError(
            f"policies.batching: tables are for workers of one kind; the devices are {', '.join(sorted(kinds))}"
        )
    ((kind, count),) = kinds.items()
    return kind, count


def _given(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Of ``options`` those of ``names`` that are there, numbers as numbers. Raises ConfigurationError."""
    found = {name: options[name] for name in names if name in options}
    for name in [name for name in found if name in _NUMBERS]:
        try:
            found[name] = float(found[name])
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"policies.batching.{name}: {shown(found[name])} is no number; give one"
            ) from error
        if not isfinite(found[name]):
            raise ConfigurationError(f"policies.batching.{name}: {found[name]} is no finite number; give one")
    if type(most := found.get("most", 1)) is not int or most < 1:
        raise ConfigurationError(f"policies.batching.most: {shown(most)} is not a whole number of at least 1")
    return found


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    if value is None:
        return ()
    values = value if isinstance(value, list | tuple) else [value]
    try:
        return tuple(float(v) for v in values)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"policies.batching.{name}: {value!r} is no number of queries/s") from error
