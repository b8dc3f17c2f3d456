"""Random allocation problems, and what any answer to one must satisfy."""

from hypothesis import strategies as st

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.planner.problems.throughput import throughput
from sluicegate.profiles.catalogue.catalogue import Catalogue

TYPES = ("cpu", "gpu", "old-gpu")
_MB = 1 << 20


@st.composite
def catalogues(draw: st.DrawFn, apps: tuple[int, int] = (1, 4)) -> Catalogue:
    """So many apps of one to four variants, some of them not profiled everywhere, some too slow."""
    asked, variants, profiles = [], [], []
    for a in range(draw(st.integers(*apps))):
        slo = draw(st.sampled_from((0.05, 0.3, 1.0)))
        asked.append(App(name=f"app{a}", slo=slo))
        for v in range(draw(st.integers(1, 4))):
            name = f"app{a}-v{v}"
            variants.append(Variant(name=name, app=f"app{a}", accuracy=draw(st.integers(50, 100)) / 100))
            for device_type in TYPES:
                if draw(st.integers(0, 5)) == 0:
                    continue
                base = draw(st.sampled_from((0.002, 0.01, 0.04, 0.1, 0.4)))
                growth = draw(st.sampled_from((0.0, 0.2, 0.9, 1.2)))
                points = tuple(
                    BatchLatency(b, base * (1 + growth * (b - 1)), 1.2 * base * (1 + growth * (b - 1)))
                    for b in (1, 2, 4, 8)
                )
                memory = draw(st.sampled_from((10, 100))) * _MB
                profiles.append(Profile(variant=name, device_type=device_type, points=points, memory_bytes=memory))
    return Catalogue.of(asked, variants, profiles)


@st.composite
def _demand(draw: st.DrawFn, app: App, query_class: QueryClass) -> AppDemand:
    return AppDemand(
        app=app.name,
        qps=draw(st.sampled_from((0.0, 1.0, 20.0, 150.0, 900.0))),
        slo=app.slo,
        headroom=draw(st.sampled_from((1.0, 1.05, 1.5))),
        min_accuracy=draw(st.sampled_from((0.0, 0.0, 0.7))),
        query_class=query_class,
    )


@st.composite
def problems(
    draw: st.DrawFn, *, variants_per_device: int = 1, max_devices: int = 8, apps: tuple[int, int] = (1, 4)
) -> Problem:
    """A problem over a random catalogue: zero demands, small memories and two classes among them."""
    catalogue = draw(catalogues(apps))
    demands: list[AppDemand] = []
    for app in catalogue.apps.values():
        classes = draw(st.sampled_from(((QueryClass.STRICT,), (QueryClass.STRICT, QueryClass.BEST_EFFORT))))
        demands.extend(draw(_demand(app, query_class)) for query_class in classes)
    count = draw(st.integers(1, max_devices))
    devices = tuple(
        Device(
            name=f"d{i}",
            type=draw(st.sampled_from(TYPES)),
            memory_bytes=draw(st.sampled_from((0, 0, 50 * _MB))),
        )
        for i in range(count)
    )
    return Problem(
        demands=tuple(demands), devices=devices, catalogue=catalogue, variants_per_device=variants_per_device
    )


def assert_feasible(problem: Problem, answer: Allocation) -> None:
    """Every constraint of the program, counted again from the placements alone."""
    devices = {d.name: d for d in problem.devices}
    held: dict[str, set[str]] = {}
    shares: dict[str, float] = {}
    for placement in answer.placements:
        device = devices[placement.device]
        held.setdefault(placement.device, set()).update(placement.variants)
        assert -1e-9 <= placement.share <= 1 + 1e-9
        assert placement.max_batch >= 1
        shares[placement.app] = shares.get(placement.app, 0.0) + placement.share
        for name in placement.variants:
            assert problem.catalogue.variants[name].app == placement.app
            assert (name, device.type) in problem.catalogue.profiles
            floor = min(d.min_accuracy for d in problem.demands if d.app == placement.app)
            assert problem.catalogue.variants[name].accuracy >= floor
    for name, variants in held.items():
        memory = devices[name].memory_bytes
        assert len(variants) <= problem.variants_per_device
        used = sum(problem.catalogue.profiles[v, devices[name].type].memory_bytes for v in variants)
        assert not memory or used <= memory
    assert_loads_within_capacity(problem, answer)
    for app, fraction in answer.served.items():
        qps = sum(d.qps for d in problem.demands if d.app == app)
        assert 0.0 <= fraction <= 1.0
        if qps > 0:
            assert abs(min(1.0, shares.get(app, 0.0)) - fraction) < 1e-5


def assert_loads_within_capacity(problem: Problem, answer: Allocation) -> None:
    """No device is asked for more than a second a second (single variant, single class: exact)."""
    demands: dict[str, list[AppDemand]] = {}
    for demand in problem.demands:
        demands.setdefault(demand.app, []).append(demand)
    types = {d.name: d.type for d in problem.devices}
    for placement in answer.placements:
        mine = demands[placement.app]
        if len(mine) > 1 or len(placement.variants) > 1:
            continue
        profile = problem.catalogue.profiles[placement.variants[0], types[placement.device]]
        rate = throughput(profile, mine[0].slo, capacity=problem.capacity).qps
        assert placement.share * mine[0].qps * mine[0].headroom <= rate * (1 + 1e-6)
