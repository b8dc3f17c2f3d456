"""Not in the paper: the fewest GPUs with which nearly all strict queries are on time, by system."""

from collections.abc import Mapping
from math import isnan

from reproduce.figure import Options, Result
from reproduce.protean.plots import grouped
from reproduce.protean.slices.slices_experiment import run_once
from reproduce.protean.tables import wiki
from sluicegate.simulator.report.page import Table

SYSTEMS = ("molecule", "mig-only", "gpulet", "infless", "naive", "mps-mig", "protean", "joint")
"""Whole GPUs, one batch at a time; MIG alone; MPS alone, capped by class or not; both; ours last."""
MODELS = ("vgg19", "resnet50")
ON_TIME = 0.999
SEEDS = 2
_MOST = 48


def fewest(options: Options) -> Result:
    """GPUs by system and strict model."""
    found: dict[str, dict[str, float]] = {}
    for model in MODELS:
        found[model] = {name: _least(model, name, options) for name in SYSTEMS}
        found[model]["bound"] = _least(model, "bound", options)
    whole = SYSTEMS[0]
    rows = [(name, *(_cell(found[m], name, whole) for m in MODELS)) for name in (*SYSTEMS, "bound")]
    return Result(
        f"fewest GPUs with {100 * ON_TIME:g} % of strict queries on time",
        "Wiki trace, 5000 queries/s, half of them strict, by strict model; best effort is served beside. molecule:"
        " whole GPUs, one batch at a time.",
        [("GPUs", grouped({"GPUs": found}))],
        [Table("GPUs (fewer than whole ones by)", ("system", *MODELS), rows)],
        ["Found by halving, so that a system which does worse with a GPU more is not seen; mean of the seeds."],
        found,
    )


def _cell(counts: Mapping[str, float], name: str, whole: str) -> str:
    if isnan(counts[name]):
        return f"more than {_MOST}"
    return f"{counts[name]:.0f} ({100 * (1 - counts[name] / counts[whole]):.0f} %)"


def _least(model: str, name: str, options: Options) -> float:
    """By halving: NaN where the most that is tried is not enough."""
    low, high = 0, _MOST
    if _share(model, name, high, options) < ON_TIME:
        return float("nan")
    while high - low > 1:
        middle = (low + high) // 2
        if _share(model, name, middle, options) >= ON_TIME:
            high = middle
        else:
            low = middle
    print(f"  {model} {name}: {high} GPUs", flush=True)
    return float(high)


def _share(model: str, name: str, gpus: int, options: Options) -> float:
    """Of strict queries on time, the mean of the seeds."""
    one = wiki(model, options, gpus={"count": gpus}, systems={name: {}})
    seeds = options.each_seed(SEEDS)
    return sum(run_once(one, name, s, lambda: 0.0).figures["slo_compliance_strict"] for s in seeds) / len(seeds)
