"""The steady trace: motivation, compliance, tails, distribution, throughput, geometry over time."""

from collections import Counter
from collections.abc import Mapping, Sequence

from reproduce.figure import Options, Result
from reproduce.protean.plots import distributions, grouped, over_time, tails
from reproduce.protean.runs import SHOWN, seconds_of
from reproduce.protean.slices.motivation import WAYS, figure_2
from reproduce.protean.slices.slices_experiment import workload_of
from reproduce.protean.slices.systems import world_of
from reproduce.protean.tables import (
    FOUR,
    beside,
    percent,
    points,
    slo_ms,
    tables_of,
    vision,
    wiki,
)

VISION = (
    "resnet50",
    "googlenet",
    "densenet121",
    "dpn92",
    "vgg19",
    "simplified-dla",
    "resnet18",
    "mobilenet",
    "mobilenetv2",
    "senet18",
    "shufflenetv2",
    "efficientnet-b0",
)


def motivation(options: Options) -> Result:
    """Fig. 2."""
    del options
    found = {way: figure_2(way) for way in WAYS}
    groups = {
        "2a, six light batches": {way: 100 * a for way, (a, _) in found.items()},
        "2b, four heavy batches": {way: 100 * b for way, (_, b) in found.items()},
    }
    rows = [
        (f"2b {way}", paper, f"{100 * found[way][1]:.0f} %")
        for way, paper in (
            ("MPS only", "0 %"),
            ("MPS + MIG", "50 %"),
            ("smart MPS + MIG", "100 %"),
            ("no sharing", "50 %"),
        )
    ]
    rows += [
        (f"2a {way}", ">= 99 %", f"{100 * a:.0f} %")
        for way, (a, _) in found.items()
        if way not in {"no sharing", "MIG only"}
    ]
    rows += [(f"2a {way}", "below 99 %", f"{100 * found[way][0]:.0f} %") for way in ("no sharing", "MIG only")]
    return Result(
        "one burst on one GPU, by way to share it",
        "Strict batches of one burst within three times their time alone.",
        [("strict batches on time, %", grouped({"% on time": groups}, limit=105.0))],
        [beside("Fig. 2", rows)],
        [],
        {way: list(values) for way, values in found.items()},
    )


def compliance(options: Options) -> Result:
    """Fig. 5."""
    found = {strict: vision(strict, options) for strict in VISION}
    vgg = found["vgg19"]
    both = {s: 100 * vgg[s]["slo_compliance_strict"] for s in ("protean", "joint")}
    best = {s: max((points(f, "protean", s), m) for m, f in found.items()) for s in ("molecule", "naive", "infless")}
    rows = [
        ("VGG19, INFless", "73.76 %", f"{100 * vgg['infless']['slo_compliance_strict']:.2f} %"),
        (
            "VGG19, PROTEAN (joint)",
            "99.74 %",
            f"{both['protean']:.2f} % ({both['joint']:.2f} %)",
        ),
        ("PROTEAN above Molecule, at most", "62 points", "{:.1f} points ({})".format(*best["molecule"])),
        ("PROTEAN above naive slicing, at most", "32 points", "{:.1f} points ({})".format(*best["naive"])),
        (
            "joint at least PROTEAN's",
            "",
            f"{sum(points(f, 'joint', 'protean') >= 0 for f in found.values())} of {len(found)} models",
        ),
    ]
    return Result(
        "strict queries on time by strict model",
        "Wiki trace, 5000 queries/s, half of them strict, eight A100.",
        [("strict queries on time, %", grouped({"% on time": percent(found)}, limit=102.0, width=10.5))],
        [beside("Fig. 5", rows), *tables_of(found)],
        [],
        found,
    )


def breakdown(options: Options) -> Result:
    """Fig. 6."""
    found = {strict: vision(strict, options) for strict in FOUR}
    panels = {
        m: ({s: r["p99_strict_parts_ms"] for s, r in f.items()}, slo_ms(wiki(m, options))) for m, f in found.items()
    }

    def below(other: str, mine: str) -> str:
        cuts = {m: 100 * (1 - f[mine]["p99_strict_ms"] / f[other]["p99_strict_ms"]) for m, f in found.items()}
        model = max(cuts, key=lambda m: cuts[m])
        return f"{cuts[model]:.0f} % ({model})"

    rows = [
        ("PROTEAN's tail below Molecule's, at most", "73 %", below("molecule", "protean")),
        ("PROTEAN's tail below naive slicing's, at most", "36 %", below("naive", "protean")),
        ("joint's below Molecule's", "", below("molecule", "joint")),
        ("joint's below PROTEAN's", "", below("protean", "joint")),
    ]
    return Result(
        "what the strict P99 is made of",
        "Least possible time (alone on a whole GPU), deficiency (a smaller slice), interference, queueing, container"
        " start,"
        " gathering.",
        [("parts of the strict P99", tails(panels))],
        [beside("Fig. 6", rows), *tables_of(found)],
        [],
        found,
    )


def reconfiguration(options: Options) -> Result:
    """Fig. 7: geometry as best-effort models come and go."""
    one = wiki("shufflenetv2", options, traces={"scale": 1.2})
    steps: dict[str, list[tuple[float, Mapping[str, int]]]] = {}
    marks: Sequence[tuple[float, str]] = ()
    counts: dict[str, int] = {}
    starts: list[str] = []
    for label in ("protean", "joint"):
        world = world_of(one, label, workload_of(one, options.seed), options.seed)
        now = {g.name: g.geometry for g in world.gpus}
        world.run()
        history: list[tuple[float, Mapping[str, int]]] = [(0.0, _count(now))]
        starts.append(f"{label} as {', '.join(_count(now))}")
        for at, gpu, geometry in world.recut:
            now[gpu] = geometry
            history.append((at, _count(now)))
        steps[label], marks = history, world.workload.best_effort
        counts[label] = len(world.recut)
        print(f"  {label}: {counts[label]} GPUs cut anew", flush=True)
    at_a_time = f"at most {world.reconfigurator.limit} of {len(world.gpus)}"
    rows = [
        ("a change takes", "about 2 s", f"{world.rules.reshape_s:g} s and the drain"),
        ("GPUs changed at a time", "30 %", at_a_time),
    ]
    rows += [(f"GPUs cut anew, {label}", "", str(n)) for label, n in counts.items()]
    return Result(
        "geometry while the best-effort model changes",
        f"ShuffleNetV2 strict; best effort is redrawn every {one.workload.redraw_s:g} s from the heavy models; GPUs"
        f" start with {', '.join(starts)}.",
        [("GPUs by geometry", over_time(steps, marks, seconds_of(options)))],
        [beside("Fig. 7", rows)],
        [],
        {label: [[at, c] for at, c in s] for label, s in steps.items()},
    )


def _count(geometries: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    return dict(Counter("+".join(g) for g in geometries.values()))


def distribution(options: Options) -> Result:
    """Fig. 8."""
    found = {strict: vision(strict, options) for strict in ("vgg19", "resnet50", "shufflenetv2")}
    panels = {
        m: ({s: r["strict_quantiles_ms"] for s, r in f.items()}, slo_ms(wiki(m, options))) for m, f in found.items()
    }
    rows = [
        (
            f"{m}, P50 PROTEAN / INFless / Molecule",
            "",
            " / ".join(f"{f[s]['p50_strict_ms']:.0f} ms" for s in ("protean", "infless", "molecule")),
        )
        for m, f in found.items()
    ]
    return Result(
        "distribution of strict latency",
        "Wiki trace, by strict model.",
        [("share of strict queries within a latency", distributions(panels))],
        [beside("Fig. 8", rows), *tables_of(found)],
        [],
        found,
    )


def throughput(options: Options) -> Result:
    """Fig. 10."""
    found = {strict: vision(strict, options) for strict in FOUR}
    panels = {
        "strict on time/s a GPU": {m: {s: r["strict_qps_per_gpu"] for s, r in f.items()} for m, f in found.items()},
        "GPU in use, %": percent(found, "gpu_use"),
        "memory in use, %": percent(found, "memory_use"),
    }
    gain = max(
        (
            100
            * (
                f["protean"]["strict_qps_per_gpu"]
                / max(f[s]["strict_qps_per_gpu"] for s in ("molecule", "naive", "infless"))
                - 1
            ),
            m,
        )
        for m, f in found.items()
    )
    memory = panels["memory in use, %"]
    means = {s: sum(v[s] for v in memory.values()) / len(memory) for s in SHOWN}
    rows = [
        ("strict throughput above the best other, at most", "24 %", "{:.0f} % ({})".format(*gain)),
        (
            "memory: PROTEAN / naive / INFless / Molecule",
            "39 / 39 / 42 / 8 %",
            " / ".join(f"{means[s]:.0f}" for s in ("protean", "naive", "infless", "molecule")) + " %",
        ),
    ]
    return Result(
        "strict throughput, GPU and memory use",
        "Strict queries answered on time; shares of time and of memory.",
        [("by strict model", grouped(panels))],
        [beside("Fig. 10", rows), *tables_of(found)],
        ["A GPU is in use while any batch runs on it, memory while its batch runs."],
        found,
    )
