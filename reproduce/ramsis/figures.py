"""RAMSIS' figures: what is run at each place, by all systems on the same arrivals. See ``reproduce.ramsis``."""

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from math import ceil, isnan, log, log1p
from time import process_time
from typing import Any, Literal

import numpy as np

from reproduce.figure import Options, Result, TraceOptions, papers_data
from reproduce.ramsis.gains import PAPER, PLOTTED, Point, gains, good
from reproduce.ramsis.pictures import Line, picture
from reproduce.ramsis.selection_study import Rule, World, by_rule, by_tables
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import SelectionModel
from sluicegate.planner.policy_tables.table_library import build_library
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.formats.ramsis_json import DEVICE_TYPE, load_ramsis
from sluicegate.simulator.report.page import Table
from sluicegate.simulator.scenario.central_queue import poisson
from sluicegate.simulator.scenario.experiment import mean_and_half_width

SLOS_MS = {"image": (150, 300, 500), "text": (100, 200, 300)}
CONSTANT_WORKERS = {"image": 60, "text": 20}
THREE = ("shufflenet_v2_x0_5", "efficientnet_b2", "efficientnet_v2_s")
RULES: tuple[Rule, ...] = ("jellyfish-plus", "model-switching", "model-switching, mended")
PUBLISHED = "table, as published"
"""The same by the paper's criterion, accuracy a decision."""
COMPARED = (*RULES, PUBLISHED)
MARGIN = 1.03
_STEP = 0.01
"""Of a load, relative."""
_NEVER_COVERED = 2.0
"""Times the load of the only table there is."""
_INTRO = (
    "Arrivals are Poisson at the trace's or a constant rate, the same for all systems; executions are drawn around the"
    " profile's median (5, 6, 8) or take its p95 (7, 10-12)."
)


@dataclass(frozen=True)
class Job:
    """What one process computes: all systems at one place."""

    kind: Literal["trace", "constant", "table"]
    task: str
    slo_ms: int
    workers: int
    qps: float = 0.0
    seconds: int = 300
    speed: int = 1
    service: Literal["p95", "sampled"] = "sampled"
    variants: tuple[str, ...] = ()
    many: int = 0
    grid: int | Literal["model"] = 100
    batching: Literal["maximal", "variable"] = "maximal"
    late: Literal["serve", "drop"] = "serve"
    phases: int = 1
    label: str = "table"
    seed: int = 0


def world(job: Job) -> World:
    """The catalogue of a job's task, its front interpolated to ``many`` variants where asked."""
    slo = {job.task: job.slo_ms / 1e3}
    catalogue = load_ramsis(papers_data("ramsis"), tasks=(job.task,), table="artifact", slo=slo)
    found = World(catalogue, job.task, DEVICE_TYPE, job.slo_ms / 1e3, job.service, job.variants)
    return replace(found, catalogue=interpolated(found, job.many)) if job.many else found


def interpolated(w: World, count: int) -> Catalogue:
    """``count`` variants evenly spaced in accuracy along the front, latencies linear in between."""
    front = w.candidates
    accuracy = np.array([v.accuracy for v in front])
    curves = [w.catalogue.profiles[v.name, w.kind] for v in front]
    medians = np.array([c.curve("median", 32).seconds for c in curves])
    p95s = np.array([c.curve("p95", 32).seconds for c in curves])
    variants, profiles = [], []
    for i, a in enumerate(np.linspace(accuracy[0], accuracy[-1], count)):
        name = f"m{i:02d}"
        variants.append(Variant(name=name, app=w.app, accuracy=float(a), nominal=True))
        points = tuple(
            BatchLatency(b + 1, float(np.interp(a, accuracy, medians[:, b])), float(np.interp(a, accuracy, p95s[:, b])))
            for b in range(p95s.shape[1])
        )
        profiles.append(Profile(variant=name, device_type=w.kind, points=points))
    return Catalogue.of(w.catalogue.apps.values(), variants, profiles)


def trace_rates(seconds: int, speed: int = 1) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Queries a second, second by second: the trace's points joined by lines, from its start again after 261 s.

    ``seconds`` of the trace, played ``speed`` times as fast.
    """
    points = np.loadtxt(papers_data("ramsis/twitter_04_25_norm.txt"))
    once = np.interp(np.arange(261), points[:, 0], points[:, 1])
    return np.resize(once, seconds)[::speed]


def compute(job: Job) -> list[Point]:
    """All systems on the same arrivals."""
    w = world(job)
    rng = np.random.default_rng([job.workers, int(job.qps), job.slo_ms, job.seed])
    rates = trace_rates(job.seconds, job.speed) if job.kind == "trace" else np.full(job.seconds, job.qps)
    arrivals = poisson(rates, 1.0, rng)
    panel = f"{job.task}, {job.slo_ms} ms"
    system = job.label
    if job.kind == "constant" and job.label != "table":  # the rules choose among the same variants
        panel, system = f"{panel}, {job.label}", "table"
    x = float(job.workers if job.kind == "trace" else job.qps)
    margin = MARGIN if job.service == "sampled" else 1.0
    points = [] if job.kind == "table" else _rules(w, job, arrivals, rates, panel, x)
    if job.kind == "trace":
        tables = build_library(replace(w.model(job.workers, margin=margin), phases=job.phases))
        if tables:
            found = by_tables(w, arrivals, tables, _service(job), margin=margin)
            points.append(Point(panel, job.label, x, found.accuracy, found.violation))
        return points
    model = replace(w.model(job.workers, job.qps, margin=margin), grid=job.grid, batching=job.batching)
    model = replace(model, late=job.late)
    asked = {system: model}
    if job.kind == "constant" and job.label == "table":
        asked = {PUBLISHED: replace(model, criterion="decision"), system: model}
    return points + [_one_load(w, job, arrivals, Place(panel, name, x, margin), m) for name, m in asked.items()]


def _service(job: Job) -> np.random.Generator:
    """What execution times are drawn by: alike for all systems, anew for each seed."""
    return np.random.default_rng([1, job.seed])


@dataclass(frozen=True)
class Place:
    """Where a point is drawn; ``margin``: factor on the latencies that tables count on."""

    panel: str
    system: str
    x: float
    margin: float


def _one_load(w: World, job: Job, arrivals: Any, at: Place, model: SelectionModel) -> Point:
    """A table at the load it is for; where it promises more violations than are plotted, what workers do without it.

    A library ends there (``LibraryRules.max_violation``): they fall back on the fastest variant.
    """
    started = process_time()
    table = generate(model).table
    cpu_s = process_time() - started
    told = job.qps if table.expected.violation <= PLOTTED else _NEVER_COVERED * job.qps
    found = by_tables(w, arrivals, (table,), _service(job), qps=told, margin=at.margin)
    e = table.expected
    return Point(at.panel, at.system, at.x, found.accuracy, found.violation, e.accuracy, e.violation, cpu_s)


def loads_tried(least: float, most: float, also: float | None) -> list[float]:
    """At which it is tried what a variant is capable of: as near to each other as tables' loads are found, and where
    there is one load alone, that."""
    steps = ceil(log(most / least) / log1p(_STEP))
    return sorted({*np.geomspace(least, most, steps + 1).tolist(), *([] if also is None else [also])})


def _rules(w: World, job: Job, arrivals: Any, rates: Any, panel: str, x: float) -> list[Point]:
    qps = job.qps if job.kind == "constant" else None
    loads = loads_tried(0.5 * float(min(rates)), float(max(rates)) + 400.0, qps)
    capable = replace(w, service="p95").capable(job.workers, loads, np.random.default_rng(3), 10.0)
    points = []
    for rule in RULES:
        found = by_rule(w, arrivals, job.workers, rule, _service(job), capable=capable, qps=qps)
        points.append(Point(panel, rule, x, found.accuracy, found.violation))
    return points


def figures(options: Options) -> dict[str, tuple[str, str, list[Job]]]:
    """Number -> title, label of x, jobs."""
    quick, speed, phases = options.quick, max(1, options.trace.speed), options.trace.phases
    trace_s = int(options.seconds or (60 if quick else 300))
    load_s = int(options.seconds or (10 if quick else 30))
    ks = (40, 60, 80) if quick else tuple(range(20, 101, 10))
    loads = (800, 2000, 3200) if quick else tuple(range(400, 4001, 400))
    slos = {task: (found[:1] if quick else found) for task, found in SLOS_MS.items()}
    each = [(task, slo) for found in zip(*slos.values(), strict=True) for task, slo in zip(slos, found, strict=True)]
    image = Job("table", "image", 150, 60, seconds=load_s, service="p95")
    return {
        "5": ("Twitter trace: accuracy by workers", "workers",
              [Job("trace", t, s, k, seconds=trace_s, speed=speed, phases=phases)
               for t, s in each for k in ks]),
        "6": ("Constant load: accuracy by load", "queries/s",
              [Job("constant", t, s, CONSTANT_WORKERS[t], float(q), load_s) for t, s in each for q in loads]),
        "7": ("Expected and simulated", "queries/s",
              [replace(image, workers=k, qps=float(q), label=f"{k} workers") for k in (40, 60, 80) for q in loads]),
        "8": ("60 variants, 100 workers", "queries/s",
              [replace(image, kind="constant", workers=100, qps=q * 100 / 60, many=n, service="sampled",
                       label=f"{n or 9} variants") for n in (0, 60) for q in loads]),
        "10": ("Slack bins", "queries/s",
               [replace(image, qps=float(q), grid=d, label=f"D = {d}")
                for d in (2, 5, 10, 25, 50, 100, 200) for q in loads]
               + [replace(image, qps=float(q), grid="model", label="model-based") for q in loads]),
        "11": ("Maximal and variable batches", "queries/s",
               [replace(image, qps=float(q), batching=b, late=late, label=f"{b}, {late} late")
                for b in ("maximal", "variable") for late in ("serve", "drop") for q in loads]),
        "12": ("Three variants", "queries/s",
               [replace(image, kind="constant", qps=float(q), variants=v, label=f"{len(v) or 9} variants")
                for v in ((), THREE) for q in loads]),
    }  # fmt: skip


def figure(number: str, options: Options) -> Result:
    """Compute the places asked for: curves, every point, gains beside what the paper has."""
    papers_data("ramsis")
    title, x_label, jobs = figures(options)[number]
    asked = [job for job in jobs if wanted(job, options.trace)]
    if not asked:
        raise ConfigurationError(f"nothing at --panel {options.trace.panel} --at {options.trace.at}; leave them out")
    by_seed = [
        computed(number, [replace(job, seed=seed) for job in asked], options.processes) for seed in options.each_seed()
    ]
    points = [mean_of(drawn) for drawn in zip(*by_seed, strict=True)]
    header = ("panel, system", x_label, "accuracy", "violation", "expected accuracy", "expected violation", "cpu s")
    rows = [
        (f"{p.panel}, {p.system}", f"{p.x:g}", _with(f"{p.accuracy:.5f}", p.accuracy_half, ".5f"),
         _with(f"{p.violation:.2e}", p.violation_half, ".1e"),
         *(("" if v is None else f"{v:.5g}") for v in (p.expected_accuracy, p.expected_violation, p.cpu_s)))
        for p in points
    ]  # fmt: skip
    beside = [("here", line) for line in gains(points, COMPARED)] + [("paper", line) for line in PAPER[number]]
    tables = [Table("beside the paper", ("from", "what"), beside), Table("numbers", header, rows)]
    drawing = picture(title, x_label, curves(points))
    return Result(title, _INTRO, [(title, drawing)], tables, [], [asdict(p) for p in points])


def _with(mean: str, half: float | None, written: str) -> str:
    """A mean and its interval."""
    return mean if half is None or isnan(half) else f"{mean} \u00b1 {half:{written}}"


def mean_of(drawn: Sequence[Point]) -> Point:
    """Of one system at one place, over draws of the arrivals."""
    names = ("accuracy", "violation", "cpu_s")
    told = {name: [value for one in drawn if (value := getattr(one, name)) is not None] for name in names}
    means: dict[str, Any] = {name: float(np.mean(values)) for name, values in told.items() if values}
    if len(drawn) > 1:
        means |= {f"{name}_half": mean_and_half_width(told[name])[1] for name in ("accuracy", "violation")}
    return replace(drawn[0], **means)


def curves(points: list[Point]) -> list[Line]:
    """One a panel and system, of what the paper would plot."""
    lines: dict[tuple[str, str], Line] = {}
    for p in sorted(filter(good, points), key=lambda p: (p.panel, p.x)):
        line = lines.setdefault((p.panel, p.system), Line(p.panel, p.system))
        promised = p.expected_violation is not None and p.expected_violation <= PLOTTED
        expected = (p.expected_accuracy, p.expected_violation) if promised else (None, None)
        line.add(p.x, (p.accuracy, p.violation), expected)
    return list(lines.values())


def wanted(job: Job, trace: TraceOptions) -> bool:
    """Whether a job is of the panel and at one of the places asked for."""
    panel, at = trace.panel, trace.at
    mine = f"{job.task}, {job.slo_ms} ms"
    x = job.workers if job.kind == "trace" else job.qps
    return (panel is None or mine in (panel, f"{panel} ms")) and (at is None or x in at)


def computed(number: str, jobs: list[Job], processes: int) -> list[Point]:
    """All points."""
    points: list[Point] = []
    for done, found in enumerate(_each(compute, jobs, processes), 1):
        points += found
        print(f"\rramsis-{number}: {done} of {len(jobs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return points


def _each(work: Callable[[Job], list[Point]], jobs: Iterable[Job], processes: int) -> Iterable[list[Point]]:
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(work, jobs)
