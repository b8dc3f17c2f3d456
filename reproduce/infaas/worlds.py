"""Synthetic worlds for INFaaS' figures: 22 architectures with 175 variants, and two models on a GPU.

The paper's profiles were never published. These keep what it says of them: a CPU variant an architecture and
framework, batch sizes on accelerators, and prices of cloud workers. All else is free, and ``Free`` holds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reproduce.infaas.traffic import Pool
from sluicegate.planner.model_less.scaling_problem import ScalingVariant

POPULAR = {"a00": 0.255, "a01": 0.195, "a02": 0.300, "a03": 0.150}
"""Architecture -> seconds on a CPU; the four most asked for."""
OTHERS = {f"a{i:02d}": float(s) for i, s in zip(range(4, 22), np.geomspace(0.05, 0.35, 18), strict=True)}
POPULAR_SLO, SLO_OVER_CPU = 0.05, 1.5
PRICES = {"cpu": 0.384, "inferentia": 0.368, "gpu": 3.06}
"""An hour of a worker of eight cores, of four Inferentia cores, and of one GPU."""
EACH = {"cpu": 4.0, "inferentia": 4.0, "gpu": 4.0}
"""Instances that a worker has room for; a GPU given out whole takes four."""
LOADS = {"cpu": 2.0, "inferentia": 4.0, "gpu": 6.0}

TABLE_2 = (
    ScalingVariant(name="A", app="a", latency=0.200, capacity=5.0, cost=1.0),
    ScalingVariant(name="B", app="a", latency=0.020, capacity=100.0, cost=3.0),
    ScalingVariant(name="C", app="a", latency=0.015, capacity=800.0, cost=16.0),
)
"""Variants of the paper's example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """What the paper does not say.

    ``inferentia`` and ``gpu``: how much faster than a CPU instance of two cores; ``fixed``: of a batch's time, so that
    b queries take ``fixed + (1 - fixed) b`` as long as one; ``loading``: times LOADS. A GPU is given out whole, or in
    four parts of which each has a fourth of its rate, less ``sharing_cost``, and uses what others leave idle.
    """

    sharing_cost: float = 0.05
    inferentia: float = 6.0
    gpu: float = 15.0
    fixed: float = 0.6
    loading: float = 1.0


USUAL = Free()


def slos() -> dict[str, float]:
    """By app: 50 ms for the popular, half more than on the CPU for the others."""
    return dict.fromkeys(POPULAR, POPULAR_SLO) | {app: SLO_OVER_CPU * s for app, s in OTHERS.items()}


def shares(power: float = 1.1) -> dict[str, float]:
    """Of the queries, by app: the popular have 80 %, both groups by Zipf's law."""
    found: dict[str, float] = {}
    for group, total in ((POPULAR, 0.8), (OTHERS, 0.2)):
        weights = 1.0 / np.arange(1, len(group) + 1) ** power
        found |= dict(zip(group, (total * weights / weights.sum()).tolist(), strict=True))
    return found


def variants(*, whole_gpus: bool, free: Free = USUAL) -> tuple[ScalingVariant, ...]:
    """175: two frameworks on CPUs, two batch sizes on Inferentia, four on GPUs; one architecture has one framework."""
    found = []
    for app, cpu in {**POPULAR, **OTHERS}.items():
        for framework, factor in (("tf", 1.0), ("caffe2", 1.15)):
            if (app, framework) != ("a21", "caffe2"):
                found.append(_variant(app, f"cpu-{framework}", "cpu", cpu * factor, 1, free))
        found += [_variant(app, f"inf-b{b}", "inferentia", cpu / free.inferentia, b, free) for b in (1, 4)]
        found += [_variant(app, f"gpu-b{b}", "gpu", cpu / free.gpu, b, free, whole=whole_gpus) for b in (1, 4, 8, 16)]
    return tuple(found)


def _variant(
    app: str, what: str, hardware: str, single: float, batch: int, free: Free, *, whole: bool = False
) -> ScalingVariant:
    latency = single * (1.0 if batch == 1 else free.fixed + (1.0 - free.fixed) * batch)
    part = EACH["gpu"] if whole else 1.0
    rate = batch / latency * (1.0 if hardware != "gpu" or whole else (1.0 - free.sharing_cost) / EACH["gpu"])
    return ScalingVariant(
        name=f"{app}-{what}", app=app, architecture=app, latency=latency, capacity=rate, hardware=hardware,
        resources=part, cost=PRICES[hardware] * part / EACH[hardware], load=free.loading * LOADS[hardware],
    )  # fmt: skip


def pools(counts: Mapping[str, int], most: Mapping[str, int]) -> dict[str, Pool]:
    """Workers at the start, and how many there may be."""
    return {
        h: Pool(count=n, each=EACH[h], price=PRICES[h], most=most.get(h, n), shared=h == "gpu")
        for h, n in counts.items()
        if n or most.get(h)
    }


def twitter(
    shape: NDArray[np.float64], low: float, high: float, queries: int, lasting: float | None = None
) -> NDArray[np.float64]:
    """Queries/s by second: ``shape`` brought between ``low`` and ``high`` and stretched until it makes ``queries``, or
    to ``lasting`` seconds."""
    scaled = low + (high - low) * (shape - shape.min()) / (shape.max() - shape.min())
    seconds = (
        max(2, round(lasting))
        if lasting is not None
        else round(queries / float(np.trapezoid(scaled) / (len(scaled) - 1)))
    )
    found: NDArray[np.float64] = np.interp(np.linspace(0.0, len(scaled) - 1.0, seconds), np.arange(len(scaled)), scaled)
    return found
