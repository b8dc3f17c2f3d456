"""Spot capacity, and an erratic load."""

from reproduce.figure import Options, Result
from reproduce.protean.plots import grouped
from reproduce.protean.runs import SHOWN, compared, scenario, seconds_of
from reproduce.protean.slices.costs import savings
from reproduce.protean.tables import Compared, beside, percent, tables_of
from sluicegate.planner.capacity.procurement import PER_GPU
from sluicegate.simulator.report.page import Table


def cost(options: Options) -> Result:
    """Fig. 9."""
    clouds = {cloud: savings(prices) for cloud, prices in PER_GPU.items()}
    aws = clouds["aws"]
    bills = {
        f"P = {p}": {
            "on demand": 100.0,
            "hybrid": 100 * (1 - s["hybrid"]),
            "spot only": 100 * (1 - s["hybrid"]) * (1 - s["spot_only"]),
        }
        for p, s in aws.items()
    }
    served: dict[str, Compared] = {}
    for p in aws:
        one = scenario(
            "protean-wiki",
            max(seconds_of(options), 240.0),
            workload={"strict": "resnet50"},
            procurement={"p_rev": p, "interval_s": 60.0, "notice_s": 45.0},
            systems={"protean": {}, "spot-only": {}},
        )
        served[f"P = {p}"] = compared(one, ("protean", "spot-only"), options)
    on_time = {k: {"hybrid": v["protean"], "spot only": v["spot-only"]} for k, v in percent(served).items()}
    mean = sum(s["spot_only"] for s in aws.values()) / len(aws)
    rows = [
        ("no revocations, below on demand", "70 %", f"{100 * aws[0.0]['hybrid']:.1f} %"),
        ("spot-only below the hybrid, mean of three", "35 %", f"{100 * mean:.1f} %"),
        ("spot-only below the hybrid, at most", "71 %", f"{100 * max(s['spot_only'] for s in aws.values()):.1f} %"),
        ("ResNet50, hybrid", "99.35 %", f"{on_time['P = 0.708']['hybrid']:.2f} % (P = 0.708)"),
        (
            "ResNet50, spot-only, medium / low availability",
            "8.76 / 0.68 %",
            f"{on_time['P = 0.354']['spot only']:.2f} / {on_time['P = 0.708']['spot only']:.2f} %",
        ),
    ]
    each = Table(
        "Saved by cloud (hybrid against on demand; spot-only against the hybrid)",
        ("cloud", *(f"P = {p}" for p in aws)),
        [
            (c, *(f"{100 * s['hybrid']:.1f} %; {100 * s['spot_only']:.1f} %" for s in found.values()))
            for c, found in clouds.items()
        ],
    )
    return Result(
        "what spot capacity costs and serves",
        "Bill of eight GPUs over 240 h; ResNet50 strict under revocations.",
        [("bill, % of on demand, and strict queries on time, %", grouped({"bill, %": bills, "% on time": on_time}))],
        [beside("Fig. 9", rows), each, *tables_of(served)],
        [
            "In an interval the provider is short with probability P: then it takes a node's instance back and"
            " refuses a request with P. Served: an interval is a minute, a replacement is up 20 s after the request."
        ],
        {"bill": {c: {str(p): dict(s) for p, s in f.items()} for c, f in clouds.items()}, "served": served},
    )


def twitter(options: Options) -> Result:
    """Fig. 11."""
    found = {
        m: compared(scenario("protean-twitter", seconds_of(options), workload={"strict": m}), SHOWN, options)
        for m in ("resnet50", "vgg19", "shufflenetv2")
    }
    kept = scenario(
        "protean-twitter",
        1200.0,
        systems={"kept": {"like": "protean"}, "ended": {"like": "protean", "keep_alive_s": 0.0}},
    )
    cold = compared(kept, ("kept", "ended"), Options(seed=options.seed, seeds=1, seconds=1200.0))
    saved = 1 - cold["kept"]["cold_starts"] / cold["ended"]["cold_starts"]
    rows = [
        (
            "PROTEAN",
            "99.90 %",
            " / ".join(f"{100 * f['protean']['slo_compliance_strict']:.2f}" for f in found.values()) + " %",
        ),
        ("joint", "", " / ".join(f"{100 * f['joint']['slo_compliance_strict']:.2f}" for f in found.values()) + " %"),
        ("cold starts, kept for 10 min against ended at once", "-98 %", f"{-100 * saved:.1f} % (20 min)"),
    ]
    return Result(
        "an erratic load",
        "Twitter trace, peak 5000 queries/s, by strict model.",
        [("strict queries on time, %", grouped({"% on time": percent(found)}, limit=102.0))],
        [beside("Fig. 11", rows), *tables_of(found)],
        ["Containers are counted once the warm-up is over."],
        found | {"cold": cold},
    )
